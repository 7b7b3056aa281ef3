// SPDX-License-Identifier: Apache-2.0
// Plans as JSON files that a person can read and edit: the plan, each operator with its precision, and what the plan
// was found for (model, machine). Loading refuses a plan that does not fit the model and says what differs.
//   { "comp_plan": 1, "comp_version": "0.1.0",
//     "plan": "011",                                  one letter per operator (core/precision.hpp); "011@autocast":
//                                                     run by the backend's own autocast
//     "operators": [ {"kind": "conv2d", "name": "stem", "precision": "fp16"}, ... ],
//     "model": {"fingerprint": "0123456789abcdef", "operators": 3},
//     "hardware": {...}, "precisions": ["fp32", "fp16"], "speedup": 1.25, "speedup_bounds": [1.2, 1.3] }
// `plan` and `operators` must agree; either may be left out, so one who edits precisions edits one of them and deletes
// the other. A file without `operators` and `model` (a plan saved alone) is checked by the number of operators only.
// Not here: the plan of an outcome, with its speed-up (observe/save_outcome.hpp).
#pragma once

#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// A plan from a file, and what a person should know before using it: it is for other hardware, it was saved alone.
struct loaded_plan {
  comp::plan plan = {};
  comp::hardware made_for = {};  // of unknown kind where the file does not say
  std::vector<std::string> warnings = {};
};

namespace detail {

inline constexpr std::string_view comp_version = "0.1.0";
inline constexpr std::size_t plan_file_limit = std::size_t{64} << 20;

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

/// The precisions of the operator list; `surplus`: the first operator that the model has not, in words. Throws:
/// `plan_error` for the first operator of other name or kind than the model's.
template <class Json>
plan listed_plan(const basic_json_reader<Json>& list, const op_graph& graph, const std::string& file,
                 std::string& surplus) {
  std::vector<precision> choices;
  list.each([&](const basic_json_reader<Json>& op) {
    op.only({"name", "kind", "precision"});
    const auto chosen = precision_of(std::string_view{op["precision"].text()});
    if (!chosen) op["precision"].fail("one of fp32, tf32, bf16, fp16, fp8_e4m3, fp8_e5m2");
    const std::size_t i = choices.size();
    choices.push_back(*chosen);
    if (i >= graph.size()) {
      if (i == graph.size())
        surplus = fmt::format("{} ({})", in_quotes<Json>(op["name"].text()), in_quotes<Json>(op["kind"].text()));
      return;
    }
    const auto differs = [](const std::string& ours, const std::string& theirs) {
      return ours != theirs &&
             json_text<Json>(ours) != json_text<Json>(theirs);  // equal once bytes that are no UTF-8 are replaced
    };
    require<plan_error>(!differs(graph[i].name, op["name"].text()) && !differs(graph[i].kind, op["kind"].text()),
                        "\"{}\" is for another model: its operator {} is {} ({}), the model's is {} ({}) (names and "
                        "kinds must agree): use a plan that was found for this model, or search again",
                        file, i, in_quotes<Json>(op["name"].text()), in_quotes<Json>(op["kind"].text()),
                        in_quotes<Json>(graph[i].name), in_quotes<Json>(graph[i].kind));
  });
  return plan{std::move(choices)};
}

/// `surplus`: the first operator that only the file has, in words, where that is known.
inline void require_count(std::size_t operators, const std::string& surplus, const op_graph& graph,
                          const std::string& file) {
  if (operators == graph.size()) return;
  const std::string first =
      operators < graph.size() ? fmt::format("the first that the file lacks is operator {}, \"{}\" (\"{}\")", operators,
                                             graph[operators].name, graph[operators].kind)
      : surplus.empty()        ? std::string{"they must agree"}
                        : fmt::format("the first that the model lacks is operator {}, {}", graph.size(), surplus);
  throw plan_error{
      fmt::format("\"{}\" is for a model with {} operators, this one has {} ({}): use a plan that was found for this "
                  "model, or search again",
                  file, operators, graph.size(), first)};
}

inline void require_agree(const plan& text, const plan& listed, const op_graph& graph, const std::string& file) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    require<plan_error>(text[i] == listed[i],
                        "\"{}\" contradicts itself: its plan gives operator {} (\"{}\") {}, its operator list {} (they "
                        "must agree): edit one of them and delete the other",
                        file, i, graph[i].name, name(text[i]), name(listed[i]));
  }
}

/// The fields that only tell, checked all the same.
template <class Json>
void check_facts(const basic_json_reader<Json>& from) {
  from["comp_plan"].integer(1, 1);
  if (const auto version = from.find("comp_version")) version->text();
  if (const auto speedup = from.find("speedup")) speedup->seconds();
  if (const auto bounds = from.find("speedup_bounds")) interval_from(*bounds);
  if (const auto searched = from.find("precisions")) {
    searched->each([](const basic_json_reader<Json>& p) {
      if (!precision_of(std::string_view{p.text()})) p.fail("the name of a precision");
    });
  }
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

/// The plan of a plan file's text; `file` names it in errors. See `load_plan`.
template <class Json = json>
loaded_plan read_plan(std::string_view text, const op_graph& graph, const hardware* here, const std::string& file) {
  const json_place place{file, 0, "save the plan again with comp::save"};
  const Json document = parse_json<Json>(text, place);
  const basic_json_reader<Json> from{document, place};
  from.only({"comp_plan", "comp_version", "plan", "operators", "model", "hardware", "precisions", "speedup",
             "speedup_bounds"});
  detail::check_facts(from);
  const auto letters = from.find("plan"), list = from.find("operators"), model = from.find("model");
  if (!letters && !list) from.fail("an object with field \"plan\" or \"operators\"");

  loaded_plan result;
  if (letters) result.plan = plan_from(*letters);
  if (!list) detail::require_count(result.plan.size(), "", graph, file);
  if (list) {
    std::string surplus;
    const plan listed = detail::listed_plan(*list, graph, file, surplus);
    detail::require_count(listed.size(), surplus, graph, file);
    if (letters) detail::require_count(result.plan.size(), "", graph, file);
    if (letters) detail::require_agree(result.plan, listed, graph, file);
    result.plan = listed.as_autocast(result.plan.runs_autocast());
  }
  if (model) {
    const std::string ours = fmt::format("{:016x}", graph.fingerprint());
    require<plan_error>(
        (*model)["fingerprint"].text() == ours,
        "\"{}\" is for another model: its fingerprint is {}, the model's \"{}\" (the operators agree, so "
        "shapes, edges or what is choosable changed): search again, or use the same batch size and "
        "sizes as then",
        file, in_quotes<Json>((*model)["fingerprint"].text()), ours);
  } else {
    result.warnings.push_back(
        fmt::format("\"{}\" does not say which model it is for: only the number of operators was "
                    "checked",
                    file));
  }
  require_fits(result.plan, graph);
  if (const auto machine = from.find("hardware")) {
    result.made_for = hardware_from(*machine);
    if (here != nullptr) detail::warn_of_hardware<Json>(result.made_for, *here, result);
  }
  return result;
}

/// Reads a plan for a model. Hardware other than `here` is a warning, no error.
/// Throws: `file_error` when the file cannot be read or understood; `plan_error`, saying what differs, when the plan is
/// for another model or contradicts itself.
template <class Json = json>
loaded_plan load_plan(const std::string& path, const op_graph& graph, const hardware* here = nullptr) {
  return read_plan<Json>(detail::read_file(path, detail::plan_file_limit), graph, here, path);
}

}  // namespace comp
