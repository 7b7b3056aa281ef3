// SPDX-License-Identifier: Apache-2.0
// Plans as JSON files that a person can read and edit: the plan, each operator with its precision, and what the plan
// was found for (model, machine). Loading refuses a plan that does not fit the model and says what differs.
//   { "comp_plan": 1, "comp_version": "0.1.0",
//     "plan": "011",                                  one letter per operator (core/precision.hpp); "011@autocast":
//                                                     run by the backend's own autocast
//     "operators": [ {"kind": "conv2d", "name": "stem", "precision": "fp16"}, ... ],
//     "model": {"fingerprint": "0123456789abcdef", "operators": 3},
//     "hardware": {...}, "precisions": ["fp32", "fp16"], "speedup": 1.25, "speedup_bounds": [1.2, 1.3],
//     "execution": {"images": {"value": "channels_last", "speedup": 1.1, "speedup_bounds": [1.05, 1.15]}} }
// `execution` is the backend's (core/execution.hpp), and may be missing; an operator with "hands_on_fp32": true gives
// its results back to FP32.
// `plan` and `operators` must agree; either may be left out, so one who edits precisions edits one of them and deletes
// the other. A file without `operators` and `model` (a plan saved alone) is checked by the number of operators only.
// Not here: the plan of an outcome, with its speed-up (observe/save_outcome.hpp).
#pragma once

#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/plan_listing.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// A plan from a file, and what a person should know before using it: it is for other hardware, it was saved alone.
struct loaded_plan {
  comp::plan plan = {};
  comp::hardware made_for = {};    // of unknown kind where the file does not say
  comp::execution execution = {};  // how it was run there
  std::vector<std::string> warnings = {};
};

namespace detail {

inline constexpr std::string_view comp_version = "0.1.0";

template <class Json = json>
Json plan_json(const plan& p) {
  Json to;
  to["comp_plan"] = 1;
  to["comp_version"] = comp_version;
  to["plan"] = p.str();
  return to;
}

template <class Json = json>
Json plan_json(const plan& p, const op_graph& graph, const hardware& machine) {
  require_fits(p, graph);
  Json to = plan_json<Json>(p);
  to["model"]["fingerprint"] = fmt::format("{:016x}", graph.fingerprint());
  to["model"]["operators"] = graph.size();
  to["hardware"] = json_of<Json>(machine);
  Json& list = to["operators"] = Json::array();
  for (std::size_t i = 0; i < p.size(); ++i) {
    Json op;
    op["name"] = graph[i].name;
    op["kind"] = graph[i].kind;
    op["precision"] = name(p[i]);
    if (graph[i].hands_on_fp32) op["hands_on_fp32"] = true;
    list.push_back(std::move(op));
  }
  return to;
}

/// One field per line, one line per operator.
template <class Json = json>
std::string plan_text(const Json& document) {
  std::string text = "{";
  for (auto field = document.begin(); field != document.end(); ++field) {
    text += fmt::format("{}\n  {}: ", field == document.begin() ? "" : ",", json_text<Json>(field.key()));
    if (field.key() != "operators") {
      text += json_text(field.value());
      continue;
    }
    const char* between = "[";
    for (const Json& op : field.value()) text += fmt::format("{}\n    {}", std::exchange(between, ","), json_text(op));
    text += field.value().empty() ? "[]" : "\n  ]";
  }
  return text + "\n}\n";
}

/// Throws: `plan_error` unless the file is for a model of so many operators, `graph`'s.
inline void require_count(const plan_listing& from, const op_graph& graph) {
  if (from.size() == graph.size()) return;
  const auto words = [](const std::string& name, const std::string& kind) {
    return fmt::format("{} ({})", in_quotes(name), in_quotes(kind));
  };
  const bool lacks = from.size() < graph.size();
  const std::size_t i = std::min(from.size(), graph.size());
  const std::string first =
      lacks ? fmt::format("the first that the file lacks is operator {}, {}", i, words(graph[i].name, graph[i].kind))
      : from.operators ? fmt::format("the first that the model lacks is operator {}, {}", i,
                                     words((*from.operators)[i].name, (*from.operators)[i].kind))
                       : std::string{"they must agree"};
  throw plan_error{
      fmt::format("\"{}\" is for a model with {} operators, this one has {} ({}): use a plan that was found for this "
                  "model, or search again",
                  from.file, from.size(), graph.size(), first)};
}

template <class Json>
void warn_of_hardware(const hardware& made_for, const hardware& here, loaded_plan& to) {
  const auto warn = [&](std::string_view what, const auto& there, const auto& now) {
    if (there == now) return;
    to.warnings.push_back(
        fmt::format("the plan was found on other hardware: {} was {}, here it is {} (another plan may "
                    "be faster here): search again when it matters",
                    what, there, now));
  };
  const auto features = [](const hardware& h) {
    std::string joined;
    for (const auto& feature : h.isa) joined += (joined.empty() ? "" : " ") + feature;
    return joined.empty() ? std::string{"none known"} : in_quotes<Json>(joined, 200);
  };
  warn("the device", in_quotes<Json>(made_for.name), in_quotes<Json>(here.name));
  warn("its kind", name(made_for.kind), name(here.kind));
  warn("its compute capability", made_for.compute_capability, here.compute_capability);
  warn("its instruction set", features(made_for), features(here));
  warn("the number of threads", made_for.threads, here.threads);
}

}  // namespace detail

/// Writes a plan alone: nothing in the file says for which model.
template <class Json = json>
void save(const plan& p, const std::string& path) {
  detail::write_file(path, detail::plan_text<Json>(detail::plan_json<Json>(p)));
}

/// Writes a plan with the model and the machine that it is for. The file is the old or the new one, never half.
/// Throws: `plan_error` when `p` does not fit `graph`; `file_error` when the file cannot be written.
template <class Json = json>
void save(const plan& p, const op_graph& graph, const hardware& machine, const std::string& path) {
  detail::write_file(path, detail::plan_text<Json>(detail::plan_json<Json>(p, graph, machine)));
}

/// The listing as a plan for `graph`. Hardware other than `here` is a warning, no error.
/// Throws: `plan_error`, saying what differs, when it is for another model.
template <class Json = json>
loaded_plan fitted(const plan_listing& from, const op_graph& graph, const hardware* here = nullptr) {
  if (from.operators) {
    for (std::size_t i = 0; i < std::min(from.size(), graph.size()); ++i)
      from.require_operator<Json>(i, graph[i].name, graph[i].kind);
  }
  detail::require_count(from, graph);
  std::vector<precision> choices;
  for (std::size_t i = 0; i < from.size(); ++i) choices.push_back(from.chosen(i));
  loaded_plan result{.plan = plan{std::move(choices)}.as_autocast(from.runs_autocast()), .execution = from.execution};
  if (from.fingerprint) {
    const std::string ours = fmt::format("{:016x}", graph.fingerprint());
    require<plan_error>(
        *from.fingerprint == ours,
        "\"{}\" is for another model: its fingerprint is {}, the model's \"{}\" (the operators agree, so "
        "shapes, edges or what is choosable changed): search again, or use the same batch size and "
        "sizes as then",
        from.file, in_quotes<Json>(*from.fingerprint), ours);
  } else {
    result.warnings.push_back(
        fmt::format("\"{}\" does not say which model it is for: only the number of operators was "
                    "checked",
                    from.file));
  }
  require_fits(result.plan, graph);
  if (!from.made_for) return result;
  result.made_for = *from.made_for;
  if (here != nullptr) detail::warn_of_hardware<Json>(result.made_for, *here, result);
  return result;
}

/// The plan of a plan file's text; `file` names it in errors. See `load_plan`.
template <class Json = json>
loaded_plan read_plan(std::string_view text, const op_graph& graph, const hardware* here, const std::string& file) {
  return fitted<Json>(read_listing<Json>(text, file), graph, here);
}

/// Reads a plan for a model. Hardware other than `here` is a warning, no error.
/// Throws: `file_error` when the file cannot be read or understood; `plan_error`, saying what differs, when the plan is
/// for another model or contradicts itself.
template <class Json = json>
loaded_plan load_plan(const std::string& path, const op_graph& graph, const hardware* here = nullptr) {
  return fitted<Json>(load_listing<Json>(path), graph, here);
}

}  // namespace comp
