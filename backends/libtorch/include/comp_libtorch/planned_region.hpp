// SPDX-License-Identifier: Apache-2.0
// A plan that was found before, in a training loop or an inference of the user's own, with no search and no trainer:
//   comp::libtorch::planned_region planned{{{"net", net}}, "plan.json"};
//   for (auto& batch : *loader) {
//     at::Tensor loss;
//     { auto on = planned.enter(); loss = cross_entropy(net->forward(batch.data), batch.target); }
//     loss.backward();  optimizer.step();  optimizer.zero_grad();
//   }
// Weights may be written between regions in any way. The first forward of each segment runs in FP32 and is recorded;
// then the plan is checked against what was seen, and used. Plans with FP16 want a grad_scaler around backward and
// step: needs_scaling().
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/core/plan.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/policy/tensor_core.hpp>
#include <comp_libtorch/hardware.hpp>
#include <comp_libtorch/program.hpp>
#include <comp_libtorch/setup.hpp>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace comp::libtorch {

/// What must agree between a plan file and the forward that it is used for.
enum class plan_match {
  exact,   // operators, shapes and edges: the fingerprint
  by_name  // names and kinds: other batch sizes, or the forward of evaluation mode; the rest runs in FP32, with a
           // warning
};

struct planned_settings {
  std::vector<std::string> segments = {"forward"};  // that a step enters; the plan is used when each was seen once
  plan_match match = plan_match::exact;
  bool forced = false;  // take a file's plan although this machine computes it slowly, or it knows no operator
  program_settings program = {};  // its device is that of the first parameter
};

/// The precisions of a plan file's operators, by name and kind, for a graph that need not be the file's.
/// Throws: `file_error` for a file without a list of operators; unless `forced`, `plan_error` where the file knows no
/// choosable operator of the graph.
inline loaded_plan load_plan_by_name(const std::string& path, const op_graph& graph, bool forced = false) {
  const json_place place{path, 0, "save the plan again with comp::save, together with its graph"};
  const json document = parse_json(comp::detail::read_file(path, comp::detail::plan_file_limit), place);
  std::map<std::pair<std::string, std::string>, precision> known;
  const json_reader from{document, place};
  from["operators"].each([&](const json_reader& op) {
    const auto low = precision_of(std::string_view{op["precision"].text()});
    if (!low) op["precision"].fail("the name of a precision");
    known[{op["name"].text(), op["kind"].text()}] = *low;
  });
  loaded_plan found{.plan = plan{graph.size()}};
  if (const auto machine = from.find("hardware")) found.made_for = hardware_from(*machine);
  std::string first_unknown;
  bool any_known = false;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (!graph[i].choosable) continue;
    if (const auto at = known.find({graph[i].name, graph[i].kind}); at != known.end()) {
      found.plan[i] = at->second;
      any_known = true;
    } else {
      if (first_unknown.empty()) first_unknown = fmt::format("\"{}\" ({})", graph[i].name, graph[i].kind);
      found.warnings.push_back(
          fmt::format("\"{}\" has no operator \"{}\" ({}): it runs in FP32", path, graph[i].name, graph[i].kind));
    }
  }
  require<plan_error>(forced || any_known || first_unknown.empty(),
                      "\"{}\" knows none of the model's operators, not {}: give models the names that they had in the "
                      "search, or search again",
                      path, first_unknown);
  const auto letters = from.find("plan");
  const bool by_autocast = letters && std::string_view{letters->text()}.ends_with(autocast_mark);
  found.plan = found.plan.as_autocast(by_autocast && found.plan.count_low() > 0);
  return found;
}

class planned_region {
 public:
  /// `models` under the names that they had in the search. `from`: the path of a plan file, or a plan.
  planned_region(const std::vector<named_module>& models, std::variant<std::string, plan> from,
                 planned_settings settings = {})
      : from_{std::move(from)}, settings_{std::move(settings)}, program_{on_device_of(models)} {
    for (const named_module& m : models) program_.name_parameters(*m.module, m.name);
    program_.record(true);
  }

  /// As program::enter. Throws: `plan_error` and `file_error` when the plan is not one for what was recorded.
  region enter(std::string_view segment = "forward") {
    if (!planned_ && std::ranges::all_of(settings_.segments, [&](const auto& s) { return seen_.contains(s); })) begin();
    if (!planned_) seen_.emplace(segment);
    return program_.enter(segment);
  }
  /// For forwards in evaluation mode; before the plan is in use, and where it has no operator of a name, in FP32.
  region evaluate() { return program_.evaluate(); }

  bool planned() const { return planned_; }
  bool needs_scaling() const {
    return std::ranges::find(program_.current_plan(), precision::fp16) != program_.current_plan().end();
  }
  /// What a person should know: the plan was found on other hardware, operators without a precision.
  const std::vector<std::string>& warnings() const { return warnings_; }
  program& executor() { return program_; }

 private:
  program_settings on_device_of(const std::vector<named_module>& models) {
    program_settings chosen = settings_.program;
    chosen.device = device_of(setup{.modules = models, .optimizers = {}});
    return chosen;
  }

  void begin() {
    program_.record(false);
    if (!program_.recorded()) {  // every forward so far was left by an exception
      program_.record(true);
      seen_.clear();
      return;
    }
    const loaded_plan found = load();
    program_.set_plan(found.plan);
    warnings_ = found.warnings;
    planned_ = true;
  }

  loaded_plan load() const {
    if (const plan* given = std::get_if<plan>(&from_)) return {.plan = *given};
    const auto& path = std::get<std::string>(from_);
    const hardware here = probe(program_.settings().device);
    const bool by_name = settings_.match == plan_match::by_name;
    loaded_plan found = by_name ? load_plan_by_name(path, program_.graph(), settings_.forced)
                                : load_plan(path, program_.graph(), &here);
    if (!settings_.forced) require_useful(found, here, path);
    return found;
  }

  /// A plan that was found on a machine with units for its precisions can take many times FP32's time on one without.
  void require_useful(const loaded_plan& found, const hardware& here, const std::string& path) const {
    for (std::size_t i = 0; i < found.plan.size(); ++i) {
      const std::string missing = is_low(found.plan[i]) ? policy::no_unit(found.plan[i], here) : std::string{};
      require<plan_error>(
          missing.empty() || policy::no_unit(found.plan[i], found.made_for) == missing,
          "\"{}\" gives operator {} (\"{}\") {} ({}; it was found on {}): search again on this machine, "
          "or set planned_settings::forced",
          path, i, program_.graph()[i].name, name(found.plan[i]), missing,
          found.made_for.kind == device_kind::unknown ? "an unknown machine" : found.made_for.name);
    }
  }

  std::variant<std::string, plan> from_;
  planned_settings settings_;
  program program_;
  bool planned_ = false;
  std::set<std::string, std::less<>> seen_;
  std::vector<std::string> warnings_;
};

}  // namespace comp::libtorch
