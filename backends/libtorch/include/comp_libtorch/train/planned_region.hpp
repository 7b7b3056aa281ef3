// SPDX-License-Identifier: Apache-2.0
// Runs a plan that was found before, in a training loop or an inference of the user's own, without a search or a
// trainer:
//   comp::libtorch::planned_region planned{{{"net", net}}, "plan.json"};
//   for (auto& batch : *loader) {
//     at::Tensor loss;
//     { auto on = planned.enter(); loss = cross_entropy(net->forward(batch.data), batch.target); }
//     loss.backward();  optimizer.step();  optimizer.zero_grad();
//   }
// Weights may be written between regions in any way. Under a plan from a file the first forward of each segment is
// lowered, too, and each of its operators is checked against the file as it comes by. A plan without a file is first
// recorded in FP32. Plans with FP16 need a grad_scaler around backward and step: needs_scaling().
#pragma once

#include <comp/core/execution.hpp>
#include <comp/core/linkage.hpp>
#include <comp/core/plan.hpp>
#include <comp/files/plan_file.hpp>
#include <comp_libtorch/plan/executor_choice.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace comp::libtorch {

/// What must agree between a plan file and the forward that it is used for.
enum class plan_match {
  by_name,  // names and kinds: batch sizes may differ, and forwards may skip or add operators. An operator that the
            // file does not have runs as most of its kind, with a warning
  exact     // operators, shapes and edges: the fingerprint
};

/// The source of the executor's choices (program_settings: weights, images).
enum class planned_choices {
  of_file,   // as measured when the plan was found, if on a machine like this one; else as in `program`
  measured,  // measured here, in the first steps of the loop (each begins with the first segment)
  as_set     // as in `program`
};

struct planned_settings {
  std::vector<std::string> segments = {"forward"};  // those of a step; the plan is in use when each was entered once
  plan_match match = plan_match::by_name;
  // Use a file's plan although this machine computes it slowly or has to emulate it, or it lacks most operators.
  bool forced = false;
  bool keeps_states = false;  // the caller keeps an optimizer's moments as the plan says
  planned_choices choices = planned_choices::of_file;
  tuning_settings tuning = {};
  program_settings program = {};  // its device is that of the first parameter
};

namespace detail {
class listed_plan;
}

/// Returns: the precisions of a file's operators, by name, for a graph that need not be the file's. An operator that
/// the file does not have gets what most of its kind have there, and a warning names the first.
/// Throws: unless `forced`, `plan_error` if the file has fewer than half of the graph's choosable operators.
/// Requires: the file has a list of operators.
COMP_INLINE loaded_plan fitted_by_name(const plan_listing& from, const op_graph& graph, bool forced = false);

namespace detail {
/// Returns: `settings` for a graph that has the operators of the file, which other programs leave out.
COMP_INLINE program_settings with_operators_of(const plan_listing& from, program_settings settings, bool forced);
/// Throws: `plan_error` if this machine lacks units that a plan of the file was found with. The plan can then take many
/// times FP32's time.
COMP_INLINE void require_useful(const plan_listing& from, const program_settings& settings, const hardware& here);
/// Returns: a sentence if the plan lowers an optimizer's moments, which nobody keeps so.
COMP_INLINE std::string moments_that_nobody_keeps(const plan_listing& from, const plan& p, const op_graph& graph);
}  // namespace detail

class planned_region {
 public:
  /// `models`: under the names that they had in the search. `from`: the path of a plan file, or a plan.
  /// Throws: `file_error` for a file that cannot be used, `plan_error` if this machine lacks units for its precisions.
  COMP_INLINE planned_region(const std::vector<named_module>& models, const std::variant<std::string, plan>& from,
                             planned_settings settings = {});
  COMP_INLINE ~planned_region();
  planned_region(const planned_region&) = delete;
  planned_region& operator=(const planned_region&) = delete;

  /// As program::enter. Throws: `plan_error`, naming the first operator that differs, if the plan is not one for the
  /// forward: while the forward runs for the first time, or when it is entered for the second.
  COMP_INLINE region enter(std::string_view segment = "forward");
  /// Has regions run, from the next one on, by the plan that the file names for batch `batch` of the training, counted
  /// from 0 (plan_listing::later). Requires: no region is open. Throws: `plan_error` if that plan does not fit.
  COMP_INLINE void set_batch(std::size_t batch);
  /// For forwards in evaluation mode, whose operators go by their names (program::evaluate). A plan without names has
  /// all of them in FP32 until all of a step is known.
  COMP_INLINE region evaluate();

  /// Returns: whether all of a step is known: its operators, and that the plan is one for them.
  COMP_INLINE bool planned() const;
  /// Returns: whether a plan of the file has FP16, at whatever batch.
  COMP_INLINE bool needs_scaling() const;
  /// Returns: what a person should know: that the plan was found on other hardware, operators without a precision.
  COMP_INLINE const std::vector<std::string>& warnings() const;
  /// Returns: how the plan is run; nothing while that is being measured.
  COMP_INLINE comp::execution execution() const;
  COMP_INLINE program& executor();

 private:
  std::unique_ptr<detail::listed_plan> plan_;
};

}  // namespace comp::libtorch

#if COMP_HEADER_ONLY
#include <comp_libtorch/train/listed_plan.hpp>
#endif
