// SPDX-License-Identifier: Apache-2.0
// Records the operators of a model's forward and runs them in the precisions of a plan. The model's source stays as it
// is, and its parameters stay FP32. A trainer wraps its forwards in a program:
//   program p;  p.name_parameters(*net);
//   p.record(true);   { auto r = p.enter(); loss = forward(); }   p.record(false);
//   p.set_plan(plan); { auto r = p.enter(); loss = forward(); }   loss.backward(); optimizer.step();
// The floating inputs of a choosable operator are cast as LibTorch's autocast casts: autograd sees the cast, and
// gradients come back in the parameter's format. Running statistics stay FP32, and so do a norm's weight and bias if
// ATen takes them so. Never cast are written arguments, integers, FP64, and numbers that scale or shift values (tensors
// without dimensions). An operator that is not choosable runs with what it gets.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/linkage.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <comp_libtorch/hook/problems.hpp>
#include <comp_libtorch/hook/region.hpp>
#include <comp_libtorch/plan/first_plan.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::libtorch {

namespace detail {
class layer_products;
class operator_errors;
class recorded_program;
}  // namespace detail

/// Returns: the precision to which LibTorch's autocast lowers in the plan. Throws: `plan_error` unless the low
/// operators of `p` are all in BF16 or all in FP16.
inline precision autocast_precision(const plan& p) {
  const auto low = std::ranges::find_if(p, is_low);
  const bool one = low != p.end() && (*low == precision::bf16 || *low == precision::fp16) &&
                   std::ranges::all_of(p, [&](precision each) { return !is_low(each) || each == *low; });
  require<plan_error>(one,
                      "plan is run by LibTorch's autocast and has {} (that lowers operators to bf16 or to fp16, all to "
                      "the same): delete \"{}\" from it, or search again",
                      low == p.end() ? "nothing low" : "other precisions", autocast_mark);
  return *low;
}

/// An operator that comp has a kernel for, beside ATen's.
struct own_operator {
  std::size_t number = 0;  // in the graph
  std::string layer = {};  // its common name (layer_names.hpp)
  const kernel* own = nullptr;
};

/// What there is to choose of how a plan is run.
struct executor_options {
  bool weights = false;                    // keep low copies of them
  bool images = false;                     // have them channels-last
  std::vector<own_operator> kernels = {};  // the operators that comp has a kernel for
};

class program {
 public:
  COMP_INLINE explicit program(const program_settings& chosen = {});
  COMP_INLINE ~program();
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  /// Names operators after the modules whose parameters they read. `Module`: has named_parameters(), as
  /// torch::nn::Module has. Call it before recording.
  template <class Module>
  void name_parameters(const Module& module, const std::string& prefix = "") {
    if constexpr (requires { watch_scripts(module); }) watch_scripts(module);
    names().add_all(module, prefix);
  }
  COMP_INLINE void name_parameter(const at::Tensor& parameter, std::string name);

  /// Opens a region: the operators of this thread belong to `segment` ("discriminator") until it ends. While recording,
  /// the first region of a segment is recorded. A step may enter several segments, and one several times. backward()
  /// and the optimizer stay outside.
  /// The operators of a segment that was not recorded run as most of their kind do.
  /// Throws: `error` if none was recorded, and while LibTorch's autocast is on.
  /// Several threads may enter at once when nothing is recorded any more. Low copies of weights are then made anew in
  /// each region.
  COMP_INLINE region enter(std::string_view segment = "forward");

  /// Opens a region of a plan that lowers nothing: no operator of the model comes to comp, and only dropout's numbers
  /// are drawn by it.
  /// Throws: `error` while LibTorch's autocast is on.
  COMP_INLINE region enter_unplanned() const;

  /// Opens a region for a forward with another sequence of operators, as in evaluation mode. Each operator runs in the
  /// precision that the recorded operator of its name has, or that record_under() gives it. If there is none, it runs
  /// as most of its kind.
  COMP_INLINE region evaluate();

  /// On: forgets the recording and the plan; each segment is then recorded in FP32 when it is first entered. Off: ends
  /// the recording.
  /// Throws: `error` in a region of this program.
  COMP_INLINE void record(bool on);
  /// As record(true), but each operator runs in the precision that `first` gives it.
  COMP_INLINE void record_under(detail::first_plan first);
  /// Returns: whether any thread has a region open. An open region holds a reference to what it runs by.
  COMP_INLINE bool has_open_region() const;
  COMP_INLINE bool is_recording() const;
  /// While recording: returns whether a region of `segment` was entered and left without an exception.
  COMP_INLINE bool has_recorded(std::string_view segment) const;
  /// Returns: whether the last recording was under a plan that may have changed what was recorded.
  COMP_INLINE bool is_unsure() const;
  COMP_INLINE bool is_recorded() const;
  /// The operators of all recorded segments in the order of their calls.
  COMP_INLINE const op_graph& graph() const;

  /// Has regions run by `chosen` from now on. LibTorch's own autocast runs a plan with plan::runs_autocast(), in
  /// which comp casts nothing.
  /// Throws: `plan_error` for a plan that does not fit the graph, that asks for TF32 on a CPU or for a format below 16
  /// bits that the device neither has nor emulates, or that is autocast's without exactly one low precision; `error`
  /// while recording.
  COMP_INLINE void set_plan(const plan& chosen);
  COMP_INLINE const plan& current_plan() const;
  /// Returns: whether regions lower operators, by the plan or by LibTorch's autocast.
  COMP_INLINE bool lowers() const;
  /// Returns: whether operators run otherwise than without comp.
  COMP_INLINE bool changes() const;
  /// Returns: whether regions may read what an earlier plan made low and the user kept: a recurrent state, a queue. It
  /// is false again after 256 regions. Until then operators in FP32 look at the formats of what they read.
  COMP_INLINE bool may_read_low() const;
  /// Sets what chooses the precision of operators that were not recorded, for a plan file that has more operators.
  COMP_INLINE void set_unrecorded(detail::named_choice chosen);

  /// Returns: the format in which all operators of the plan read `parameter`; FP32 if they read it in several.
  COMP_INLINE at::ScalarType format_of_parameter(const at::Tensor& parameter) const;

  /// Has `work(format)` average gradients among ranks. `format`: that in which the plan has them travel; FP32 if the
  /// exchange is no operator of the graph. `finish` waits for the result; it is called if operators are timed. Returns:
  /// what `work` returns.
  template <class Work, class Finish>
  auto exchange(Work work, Finish finish) {
    std::optional<std::invoke_result_t<Work&, at::ScalarType>> done;
    exchange_by([&](at::ScalarType format) { done.emplace(work(format)); }, [&] { finish(*done); });
    return *std::move(done);
  }

  /// Begins an optimizer's update, whose time is that of operator `op`; of none if that is 0. Returns: what ends it.
  COMP_INLINE std::function<void()> begin_update(std::size_t op);
  /// Returns: the names of the states that the training keeps (program_settings::states), and their formats.
  COMP_INLINE std::vector<std::pair<std::string, at::ScalarType>> formats_of_states() const;

  /// Ends a training step: times of operators are added up by steps.
  COMP_INLINE void end_step();

  /// While on, operators are timed; results stay the same. Turning it on forgets earlier times.
  COMP_INLINE void profile(bool on);
  /// Returns: the seconds of each operator in one step (up to end_step()), without casts: medians of the steps that ran
  /// while profiling was on. The products of a layer's backward run as one, so each counts as its share.
  COMP_INLINE std::vector<op_time> times() const;

  /// While `with` is not null, each choosable operator also runs in a low precision and is compared, when it runs for
  /// the first time. Requires: the plan is all FP32.
  COMP_INLINE void compare(detail::operator_errors* with);

  /// While `to` is not null, regions run under LibTorch's autocast to `low`, and `to` gets what that gives each
  /// choosable operator. Requires: the plan is all FP32, `to` has its size.
  COMP_INLINE void watch_autocast(plan* to, precision low = precision::fp32);

  /// Returns: how forwards differed from the recorded sequence, since record(true) or clear_problems().
  COMP_INLINE program_problems problems() const;
  COMP_INLINE void clear_problems();

  /// Returns: the linear layers, and their products in the backward.
  COMP_INLINE const detail::layer_products& products() const;
  /// Returns: whether `op` is a product with a weight, which may have bf16_fp32.
  COMP_INLINE bool is_linear_layer(const op_info& op) const;
  /// Returns: whether `op` may have formats below 16 bits: it is a linear layer and, unless these are emulated, has
  /// sizes that the GPU's units take.
  COMP_INLINE bool takes_scaled(const op_info& op) const;

  COMP_INLINE const program_settings& settings() const;
  /// Returns: what there is to choose of how `p` is run.
  COMP_INLINE executor_options options_of(const plan& p) const;
  /// Sets all but the device, which stays that of the recording.
  COMP_INLINE void set_settings(program_settings chosen);
  /// Returns: the bytes of the low copies of weights that are kept.
  COMP_INLINE std::int64_t kept_bytes() const;

 private:
  COMP_INLINE void watch_scripts(const torch::nn::Module& module);
  COMP_INLINE void watch_scripts(const torch::jit::Module& module);
  COMP_INLINE detail::parameter_names& names();
  COMP_INLINE void exchange_by(const std::function<void(at::ScalarType)>& work, const std::function<void()>& finish);

  std::unique_ptr<detail::recorded_program> recorded_;
};

}  // namespace comp::libtorch

#if COMP_HEADER_ONLY
#include <comp_libtorch/plan/recorded_program.hpp>
#endif
