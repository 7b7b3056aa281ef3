// SPDX-License-Identifier: Apache-2.0
// The text of plan files (plan_file.hpp), written and read.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/plan_file.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

inline json plan_json(const plan& p) {
  json to;
  to["comp_plan"] = 1;
  to["comp_version"] = comp_version;
  to["plan"] = p.str();
  return to;
}

inline json plan_json(const plan& p, const op_graph& graph, const hardware& machine) {
  require_fits(p, graph);
  json to = plan_json(p);
  to["model"]["fingerprint"] = fmt::format("{:016x}", graph.fingerprint());
  to["model"]["operators"] = graph.size();
  to["hardware"] = json_of(machine);
  json& list = to["operators"] = json::array();
  for (std::size_t i = 0; i < p.size(); ++i) {
    json op;
    op["name"] = graph[i].name;
    op["kind"] = graph[i].kind;
    op["precision"] = name(p[i]);
    list.push_back(std::move(op));
  }
  return to;
}

/// One field per line, one line per operator.
inline std::string plan_text(const json& document) {
  std::string text = "{";
  for (auto field = document.begin(); field != document.end(); ++field) {
    text += fmt::format("{}\n  {}: ", field == document.begin() ? "" : ",", json_text(field.key()));
    if (field.key() != "operators") {
      text += json_text(field.value());
      continue;
    }
    const char* between = "[";
    for (const json& op : field.value()) text += fmt::format("{}\n    {}", std::exchange(between, ","), json_text(op));
    text += field.value().empty() ? "[]" : "\n  ]";
  }
  return text + "\n}\n";
}

/// The precisions of the operator list; `surplus`: the first operator that the model has not, in words. Throws:
/// `plan_error` for the first operator of other name or kind than the model's.
inline plan listed_plan(const json_reader& list, const op_graph& graph, const std::string& file, std::string& surplus) {
  std::vector<precision> choices;
  list.each([&](const json_reader& op) {
    op.only({"name", "kind", "precision"});
    const auto chosen = precision_of(std::string_view{op["precision"].text()});
    if (!chosen) op["precision"].fail("one of fp32, tf32, bf16, fp16, fp8_e4m3, fp8_e5m2");
    const std::size_t i = choices.size();
    choices.push_back(*chosen);
    if (i >= graph.size()) {
      if (i == graph.size())
        surplus = fmt::format("{} ({})", in_quotes(op["name"].text()), in_quotes(op["kind"].text()));
      return;
    }
    const auto differs = [](const std::string& ours, const std::string& theirs) {
      return ours != theirs && json_text(ours) != json_text(theirs);  // equal once bytes that are no UTF-8 are replaced
    };
    require<plan_error>(!differs(graph[i].name, op["name"].text()) && !differs(graph[i].kind, op["kind"].text()),
                        "\"{}\" is for another model: its operator {} is {} ({}), the model's is {} ({}) (names and "
                        "kinds must agree): use a plan that was found for this model, or search again",
                        file, i, in_quotes(op["name"].text()), in_quotes(op["kind"].text()), in_quotes(graph[i].name),
                        in_quotes(graph[i].kind));
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
inline void check_facts(const json_reader& from) {
  from["comp_plan"].integer(1, 1);
  if (const auto version = from.find("comp_version")) version->text();
  if (const auto speedup = from.find("speedup")) speedup->seconds();
  if (const auto bounds = from.find("speedup_bounds")) interval_from(*bounds);
  if (const auto searched = from.find("precisions")) {
    searched->each([](const json_reader& p) {
      if (!precision_of(std::string_view{p.text()})) p.fail("the name of a precision");
    });
  }
}

inline void warn_of_hardware(const hardware& made_for, const hardware& here, loaded_plan& to) {
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
    return joined.empty() ? std::string{"none known"} : in_quotes(joined, 200);
  };
  warn("the device", in_quotes(made_for.name), in_quotes(here.name));
  warn("its kind", name(made_for.kind), name(here.kind));
  warn("its compute capability", made_for.compute_capability, here.compute_capability);
  warn("its instruction set", features(made_for), features(here));
  warn("the number of threads", made_for.threads, here.threads);
}

}  // namespace detail

COMP_INLINE void save(const plan& p, const std::string& path) {
  detail::write_file(path, detail::plan_text(detail::plan_json(p)));
}

COMP_INLINE void save(const plan& p, const op_graph& graph, const hardware& machine, const std::string& path) {
  detail::write_file(path, detail::plan_text(detail::plan_json(p, graph, machine)));
}

COMP_INLINE loaded_plan read_plan(std::string_view text, const op_graph& graph, const hardware* here,
                                  const std::string& file) {
  const json_place place{file, 0, "save the plan again with comp::save"};
  const json document = parse_json(text, place);
  const json_reader from{document, place};
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
        file, in_quotes((*model)["fingerprint"].text()), ours);
  } else {
    result.warnings.push_back(
        fmt::format("\"{}\" does not say which model it is for: only the number of operators was "
                    "checked",
                    file));
  }
  require_fits(result.plan, graph);
  if (const auto machine = from.find("hardware")) {
    result.made_for = hardware_from(*machine);
    if (here != nullptr) detail::warn_of_hardware(result.made_for, *here, result);
  }
  return result;
}

COMP_INLINE loaded_plan load_plan(const std::string& path, const op_graph& graph, const hardware* here) {
  return read_plan(detail::read_file(path, detail::plan_file_limit), graph, here, path);
}

}  // namespace comp
