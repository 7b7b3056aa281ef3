// SPDX-License-Identifier: Apache-2.0
// Gives Python what a search finds.
#include <torch/csrc/utils/pybind.h>
//
#include <comp/comp.hpp>
#include <comp/files/training_file.hpp>
#include <comp/observe/summary.hpp>
#include <comp/systems/all_rules.hpp>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parts.hpp"
#include "settings.hpp"

namespace comp::python {

using namespace py::literals;

/// Returns: the plan of each system's rules, and why a system refuses the graph.
std::pair<std::vector<std::pair<std::string, std::string>>, std::map<std::string, std::string>> rules_of(
    const op_graph& graph, const hardware& machine, const std::string& low) {
  std::vector<std::pair<std::string, std::string>> plans;
  std::map<std::string, std::string> refusals;
  const auto refused = [&](const std::string& system, const std::string& why) { refusals[system] = why; };
  for (const auto& [system, types] : autocast::all_rules(graph, precision_named(low), machine, refused))
    plans.emplace_back(system, types.plan.str());
  return {std::move(plans), std::move(refusals)};
}

void add_results(py::module_& m) {
  py::class_<sample>(m, "Sample")
      .def_readonly("loss", &sample::loss)
      .def_readonly("losses", &sample::losses)
      .def_readonly("seconds", &sample::seconds)
      .def_readonly("batches", &sample::batches)
      .def_readonly("batch_seconds", &sample::batch_seconds)
      .def_readonly("curve", &sample::curve)
      .def_readonly("score", &sample::score)
      .def_readonly("peak_bytes", &sample::peak_bytes)
      .def_property_readonly("status", [](const sample& s) { return name(s.status); })
      .def_readonly("message", &sample::message);
  py::class_<trial>(m, "Trial")
      .def_readonly("number", &trial::number)
      .def_property_readonly("stage", [](const trial& t) { return name(t.stage); })
      .def_property_readonly("plan", [](const trial& t) { return t.plan.str(); })
      .def_readonly("sample", &trial::sample)
      .def_readonly("accepted", &trial::accepted)
      .def_readonly("seconds", &trial::seconds)
      .def_readonly("label", &trial::label);
  py::class_<contestant>(m, "Contestant")
      .def_readonly("label", &contestant::label)
      .def_property_readonly("plan", [](const contestant& c) { return c.plan.str(); })
      .def_readonly("seconds", &contestant::seconds)
      .def_property_readonly("speedup", [](const contestant& c) { return c.over_fp32.ratio; })
      .def_readonly("peak_bytes", &contestant::peak_bytes);
  py::class_<training_fallback>(m, "Fallback")
      .def_readonly("epoch", &training_fallback::epoch)
      .def_property_readonly("given_up", [](const training_fallback& f) { return f.from.str(); })
      .def_property_readonly("plan", [](const training_fallback& f) { return f.to.str(); })
      .def_property_readonly("status", [](const training_fallback& f) { return name(f.why); })
      .def_readonly("message", &training_fallback::message);
  py::class_<later_plan>(m, "LaterPlan")
      .def_readonly("batch", &later_plan::batch)
      .def_property_readonly("plan", [](const later_plan& p) { return p.plan.str(); })
      .def_readonly("reason", &later_plan::reason);
  py::class_<training_progress>(m, "TrainingProgress")
      .def_property_readonly("epochs", [](const training_progress& p) { return p.so_far.epochs; })
      .def_property_readonly("fallbacks", [](const training_progress& p) { return p.so_far.fallbacks; })
      .def_property_readonly("plan", [](const training_progress& p) { return p.plans[p.current].str(); })
      .def("text", [](const training_progress& p) { return json_text(comp::json_of(p)); });
  py::class_<training_result>(m, "TrainingResult")
      .def_readonly("epochs", &training_result::epochs)
      .def_readonly("fallbacks", &training_result::fallbacks)
      .def_readonly("later", &training_result::later)
      .def_readonly("warnings", &training_result::warnings)
      .def_property_readonly("plan", [](const training_result& r) { return r.plan.str(); });
  py::class_<outcome, std::shared_ptr<outcome>>(m, "Outcome")
      .def_property_readonly("plan", [](const outcome& o) { return o.plan.str(); })
      .def_readonly("speedup", &outcome::speedup)
      .def_readonly("compiled", &outcome::compiled)
      .def_property_readonly("speedup_bounds",
                             [](const outcome& o) {
                               return std::pair{o.speedup_bounds.low, o.speedup_bounds.high};
                             })
      .def_property_readonly("operators",
                             [](const outcome& o) { return std::vector<op_info>(o.graph.begin(), o.graph.end()); })
      .def_property_readonly("fingerprint",
                             [](const outcome& o) { return fmt::format("{:016x}", o.graph.fingerprint()); })
      .def_readonly("contest", &outcome::contest)
      .def_readonly("trials", &outcome::trials)
      .def_readonly("baseline", &outcome::baseline)
      .def_readonly("warnings", &outcome::warnings)
      .def_readonly("trained_batches", &outcome::trained_batches)
      .def_readonly("batches_per_epoch", &outcome::batches_per_epoch)
      .def_property_readonly("reasons",
                             [](const outcome& o) {
                               std::vector<std::string> texts;
                               for (const op_reason& r : o.reasons) texts.push_back(r.text);
                               return texts;
                             })
      .def(
          "rules", [](const outcome& o, const std::string& low) { return rules_of(o.graph, o.hardware, low); }, "low"_a)
      .def("table", [](const outcome& o) { return table(o); })
      .def("summary", [](const outcome& o) { return summary(o).dump(); })
      .def(
          "save", [](const outcome& o, const std::string& path) { save(o, path); }, "path"_a)
      .def(
          "report",
          [](const outcome& o, const std::string& path, const report_info& info) { write_html(o, path, info); },
          "path"_a, "info"_a);
  m.def(
      "rules",
      [](std::vector<op_info> of, const std::string& low) { return rules_of(op_graph{std::move(of)}, {}, low); },
      "operators"_a, "low"_a);
  py::class_<report_info>(m, "ReportInfo")
      .def(py::init([](std::string model, std::string data, std::string command, std::string use_command,
                       std::string plan_file) {
             return report_info{.model = std::move(model),
                                .data = std::move(data),
                                .command = std::move(command),
                                .use_command = std::move(use_command),
                                .plan_file = std::move(plan_file)};
           }),
           py::kw_only(), "model"_a = "", "data"_a = "", "command"_a = "", "use_command"_a = "",
           "plan_file"_a = "plan.json");
}

}  // namespace comp::python
