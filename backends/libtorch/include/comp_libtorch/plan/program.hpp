// SPDX-License-Identifier: Apache-2.0
// Records the operators of a model's forward and runs them in the precisions of a plan. The model's source stays as it
// is, and its parameters stay FP32. A trainer wraps its forwards in a program:
//   program p;  p.name_parameters(*net);
//   p.record(true);   { auto r = p.enter(); loss = forward(); }   p.record(false);
//   p.set_plan(plan); { auto r = p.enter(); loss = forward(); }   loss.backward(); optimizer.step();
// The floating inputs of a choosable operator are cast as LibTorch's autocast casts: autograd sees the cast, and
// gradients come back in the parameter's format. Running statistics stay FP32, and so do a norm's weight and bias where
// ATen takes them so. Never cast are written arguments, integers, FP64, and numbers that scale or shift values (tensors
// without dimensions). An operator that is not choosable runs with what it gets.
// Not here: the training loop (trainer.hpp), plan files (planned_region.hpp).
#pragma once

#include <algorithm>
#include <atomic>
#include <comp/core/concepts.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp_libtorch/hook/region.hpp>
#include <comp_libtorch/plan/evaluator.hpp>
#include <comp_libtorch/plan/exchange.hpp>
#include <comp_libtorch/plan/executor.hpp>
#include <comp_libtorch/plan/first_forward.hpp>
#include <comp_libtorch/plan/layer_products.hpp>
#include <comp_libtorch/plan/named_precisions.hpp>
#include <comp_libtorch/plan/recording.hpp>
#include <comp_libtorch/plan/scripted.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <comp_libtorch/support/memory.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace comp::libtorch {

/// Returns: the precision to which LibTorch's autocast lowers in the plan. Throws: `plan_error` unless the low
/// operators of `p` are all in BF16 or all in FP16.
inline precision autocast_precision(const plan& p) {
  const auto low = std::ranges::find_if(p, is_low);
  const bool one = low != p.end() && (*low == precision::bf16 || *low == precision::fp16) &&
                   std::ranges::all_of(p, [&](precision each) { return each == precision::fp32 || each == *low; });
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
  explicit program(program_settings chosen = {}) : settings_{chosen} {
    if (chosen.device.is_cpu()) keep_freed_memory(chosen.freed == freed_memory::kept);
  }
  program(const program&) = delete;
  program& operator=(const program&) = delete;

  /// Names operators after the modules whose parameters they read. `Module`: has named_parameters(), as
  /// torch::nn::Module has. Call it before recording.
  template <class Module>
  void name_parameters(const Module& module, const std::string& prefix = "") {
    if constexpr (requires { scripts_.add(module); }) scripts_.add(module);
    names_.add_all(module, prefix);
  }
  void name_parameter(const at::Tensor& parameter, std::string name) { names_.add(parameter, std::move(name)); }

  /// Opens a region: the operators of this thread belong to `segment` ("discriminator") until it ends. While recording,
  /// the first region of a segment is recorded. A step may enter several segments, and one several times. backward()
  /// and the optimizer stay outside.
  /// Throws: `error` for a segment that was not recorded, and while LibTorch's autocast is on.
  /// Several threads may enter at once when nothing is recorded any more. Low copies of weights are then made anew in
  /// each region.
  region enter(std::string_view segment = "forward") { return scripts_.open(make_session(segment)); }

  /// Opens a region of a plan that lowers nothing: no operator of the model comes to comp, and only dropout's numbers
  /// are drawn by it.
  /// Throws: `error` while LibTorch's autocast is on.
  region enter_unplanned() const {
    auto session = std::make_unique<detail::unplanned_session>(settings_.device.type());
    session->require_no_autocast();
    return region{std::move(session)};
  }

  /// Opens a region for a forward with another sequence of operators, as in evaluation mode. Each operator runs in the
  /// precision that the recorded operator of its name has, or that record_under() gives it. Where there is none, it
  /// runs as most of its kind.
  region evaluate() {
    if (first_plan_ != nullptr && first_plan_->autocast) return scripts_.open(make_autocast(*first_plan_->autocast));
    if (plan_.runs_autocast()) return scripts_.open(make_autocast(detail::scalar_type(autocast_precision(plan_))));
    detail::evaluation how{.choose = by_name_, .plan = plan_hash_};
    if (first_plan_ != nullptr) how = {.choose = first_plan_->by_name};
    how.first = !evaluated_.exchange(true);
    return scripts_.open(std::make_unique<detail::evaluator>(std::move(how), names_, composites_, settings_));
  }

  /// On: forgets the recording and the plan; each segment is then recorded in FP32 when it is first entered. Off: ends
  /// the recording.
  /// Throws: `error` in a region of this program.
  void record(bool on) {
    if (on) start_recording(false);
    if (!on && recording_ != nullptr) finish_recording();
  }
  /// As record(true), but each operator runs in the precision that `first` gives it.
  void record_under(detail::first_plan first) {
    auto shared = std::make_shared<const detail::first_plan>(std::move(first));
    start_recording(true);
    first_plan_ = std::move(shared);
  }
  /// Returns: whether any thread has a region open. An open region holds a reference to what it runs by.
  bool has_open_region() const {
    const auto in_use = [](const detail::segment& s) { return s.code.use_count() > 1; };
    return recording_.use_count() > 1 || std::ranges::any_of(segments_, in_use);
  }
  bool is_recording() const { return recording_ != nullptr; }
  /// While recording: returns whether a region of `segment` was entered and left without an exception.
  bool has_recorded(std::string_view segment) const { return recording_ != nullptr && recording_->has_ended(segment); }
  /// Returns: whether the last recording was under a plan that may have changed what was recorded.
  bool is_unsure() const { return unsure_; }
  bool recorded() const { return recording_ == nullptr && !graph_.empty(); }
  /// The operators of all recorded segments in the order of their calls.
  const op_graph& graph() const { return graph_; }

  /// Has regions run by `chosen` from now on. LibTorch's own autocast runs a plan with plan::runs_autocast(), in
  /// which comp casts nothing.
  /// Throws: `plan_error` for a plan that does not fit the graph, that asks for TF32 on a CPU or for a format below 16
  /// bits that the device neither has nor emulates, or that is autocast's without exactly one low precision; `error`
  /// while recording.
  void set_plan(const plan& chosen) {
    require<error>(recording_ == nullptr,
                   "a plan was set while recording (operators are recorded in FP32): call record(false) first");
    require_fits(chosen, graph_);
    for (std::size_t i = 0; i < chosen.size(); ++i) require_runs(chosen[i], i);
    if (chosen.runs_autocast()) (void)autocast_precision(chosen);
    require_no_open_region();
    keep(chosen);
    compile();
  }
  const plan& current_plan() const { return plan_; }
  /// Returns: whether regions lower operators, by the plan or by LibTorch's autocast.
  bool lowers() const { return autocast_plan_ != nullptr || plan_.count_low() > 0; }
  /// Returns: whether operators run otherwise than without comp.
  bool changes() const { return lowers() || plan_.is_tuned(); }
  /// Sets what chooses the precision of operators that were not recorded, for a plan file that has more operators.
  void set_unrecorded(detail::named_choice chosen) { choose_unrecorded_ = std::move(chosen); }

  /// Returns: the format in which all operators of the plan read `parameter`; FP32 where they read it in several.
  at::ScalarType format_of_parameter(const at::Tensor& parameter) const {
    const auto at = low_parameters_.find(parameter.unsafeGetTensorImpl());
    return at == low_parameters_.end() || plan_.runs_autocast() ? at::kFloat : at->second;
  }

  /// Has `work(format)` average gradients among ranks. `format`: that in which the plan has them travel; FP32 where the
  /// exchange is no operator of the graph. Returns: what `work` returns, once `finish` has waited for it where
  /// operators are timed.
  template <class Work, class Finish>
  auto exchange(Work work, Finish finish) {
    const auto times = exchange_ == 0 ? nullptr : profiler_.begin(settings_.device);
    if (times == nullptr) return work(format_of_gradients());
    const detail::moment start{settings_.device};
    auto done = work(format_of_gradients());
    finish(done);
    times->add(static_cast<std::uint32_t>(exchange_), true, start, detail::moment{settings_.device});
    return done;
  }

  /// Ends a training step: times of operators are added up by steps.
  void end_step() { profiler_.end_of_step(); }

  /// While on, operators are timed; results stay the same. Turning it on forgets earlier times.
  void profile(bool on) { profiler_.turn(on); }
  /// Returns: the seconds of each operator in one step (up to end_step()), without casts: medians of the steps that ran
  /// while profiling was on. The products of a layer's backward run as one, so each counts as its share.
  std::vector<op_time> times() const {
    std::vector<op_time> all = profiler_.times(graph_.size());
    products_.share_times(all);
    return all;
  }

  /// While `with` is not null, each choosable operator also runs in a low precision and is compared, when it runs for
  /// the first time. Requires: the plan is all FP32.
  void compare(detail::operator_errors* with) {
    require_no_open_region();
    errors_ = with;
  }

  /// While `to` is not null, regions run under LibTorch's autocast to `low`, and `to` gets what that gives each
  /// choosable operator. Requires: the plan is all FP32, `to` has its size.
  void watch_autocast(plan* to, precision low = precision::fp32) {
    require_no_open_region();
    autocast_plan_ = to;
    autocast_low_ = low;
  }

  /// Returns: how forwards differed from the recorded sequence, since record(true) or clear_problems().
  program_problems problems() const { return problems_.get(); }
  void clear_problems() { problems_.clear(); }

  /// Returns: the linear layers, and their products in the backward.
  const detail::layer_products& products() const { return products_; }
  /// Returns: whether `op` is to have formats below 16 bits: a linear layer, of sizes that the units take where the
  /// others are not emulated.
  bool takes_scaled(const op_info& op) const {
    return detail::emulates(settings_) ? products_.is_linear_layer(op) : products_.fits_fp8_units(op);
  }

  const program_settings& settings() const { return settings_; }
  /// Returns: what there is to choose of how `p` is run.
  executor_options options_of(const plan& p) const {
    executor_options all{.weights = p.count_low() > 0};
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const detail::op_traits& known = detail::traits(ops_[i].op);
      const at::ScalarType format = detail::scalar_type(p[i]);
      all.images = all.images || (known.convolves && (is_low(p[i]) || p.is_tuned()));
      const kernel* own = settings_.device.is_cpu() ? detail::own_kernel(known, format, p.is_tuned()) : nullptr;
      if (own != nullptr && own->fits(graph_[i], format)) all.kernels.push_back({i, layers_[i], own});
    }
    all.images = all.images && detail::may_reorder(ops_);
    if (!all.images) std::erase_if(all.kernels, [](const own_operator& each) { return each.own->wants_channels_last; });
    return all;
  }
  /// Sets all but the device, which stays that of the recording.
  void set_settings(program_settings chosen) {
    require_no_open_region();
    chosen.device = settings_.device;
    settings_ = chosen;
    if (recorded()) compile();
  }
  /// Returns: the bytes of the low copies of weights that are kept.
  std::int64_t kept_bytes() const { return weights_.bytes(); }

 private:
  std::unique_ptr<detail::session> make_autocast(at::ScalarType low) const {
    return std::make_unique<detail::autocast_session>(settings_.device.type(), low);
  }
  at::ScalarType format_of_gradients() const {
    if (first_plan_ != nullptr && first_plan_->by_name) {
      const op_info op = detail::exchange_operator({});
      return detail::scalar_type(first_plan_->by_name(op.name, op.kind).forward);
    }
    return exchange_ == 0 || exchange_ >= plan_.size() ? at::kFloat : detail::scalar_type(plan_[exchange_]);
  }
  product_precisions precisions_of(const std::string& layer, const std::string& kind) const {
    if (const auto known = precisions_.find(layer)) return *known;
    return choose_unrecorded_ ? choose_unrecorded_(layer, kind) : precisions_.usual(layer, kind);
  }

  std::unique_ptr<detail::session> make_session(std::string_view segment) {
    if (recording_ != nullptr) return make_recording_session(segment);
    const auto at = std::ranges::find(segments_, segment, &detail::segment::name);
    require<error>(at != segments_.end(),
                   "region \"{}\" was not recorded ({} regions were): enter it once while record(true) holds", segment,
                   segments_.size());
    if (plan_.runs_autocast()) return make_autocast(detail::scalar_type(autocast_precision(plan_)));
    note_thread();
    const bool keeps = settings_.weights == weight_casts::keep && !several_threads_;
    const detail::executor_context context{&graph_,        &settings_,    &weights_, &problems_, at->name, errors_,
                                           autocast_plan_, autocast_low_, keeps,     &names_,    &by_name_};
    return std::make_unique<detail::executor>(context, at->code, profiler_.begin(settings_.device));
  }

  std::unique_ptr<detail::session> make_recording_session(std::string_view segment) {
    recording_->require_same_thread(segment);
    const auto device = settings_.device.type();
    const bool again = recording_->has(segment);
    const std::string name{segment};
    if (first_plan_ != nullptr)
      return std::make_unique<detail::first_forward>(again ? recording_->copy_to_repeat(segment) : recording_, name,
                                                     device, !settings_.protect_blocks, first_plan_);
    if (again) return std::make_unique<detail::passing_session>(device);
    return std::make_unique<detail::recording_session>(recording_, name, device, !settings_.protect_blocks);
  }

  /// Notes whether several threads enter. Kept memory of weights is written in each region, also while another thread
  /// still reads it, so with several threads none is used.
  void note_thread() {
    std::thread::id none{};
    const auto me = std::this_thread::get_id();
    if (!thread_.compare_exchange_strong(none, me) && none != me) several_threads_ = true;
  }

  void require_no_open_region() const {
    require<error>(
        !has_open_region(),
        "the program was changed while one of its regions is open (record, set_plan and set_settings are for "
        "between steps): end the region first");
  }

  void start_recording(bool under_plan) {
    require_no_open_region();
    recording_ = std::make_shared<detail::recording>(names_, settings_.device.type(), under_plan);
    first_plan_.reset();
    precisions_.clear();
    low_parameters_.clear();
    choose_unrecorded_ = {};
    graph_ = {};
    products_.clear();
    exchange_ = 0;
    keep({});
    segments_.clear();
    weights_.clear();
    problems_.clear();
    profiler_.turn(false);
  }

  void finish_recording() {
    require_no_open_region();
    detail::recorded all = recording_->finish();
    unsure_ = recording_->is_unsure();
    recording_.reset();
    first_plan_.reset();
    ops_ = std::move(all.ops);
    segments_ = std::move(all.segments);
    products_.find(all.infos, ops_, settings_.separate_products);
    if (settings_.exchange && !all.infos.empty()) {
      exchange_ = all.infos.size();
      all.infos.push_back(detail::exchange_operator(all.infos));
    }
    graph_ = op_graph{std::move(all.infos)};
    keep(plan{graph_.size()});
    detail::layer_names layers;
    layers_.clear();
    for (const op_info& op : graph_) layers_.push_back(layers.next(op.name, op.kind));
    compile();
  }

  void require_runs(precision p, std::size_t i) const {
    const bool runs = is_scaled(p) ? products_.is_linear_layer(graph_[i]) &&
                                         (detail::emulates(settings_) || multiplies_itself(p, settings_.device))
                                   : p != precision::tf32 || settings_.device.is_cuda();
    require<plan_error>(
        runs,
        "plan gives operator {} (\"{}\") {} (LibTorch runs fp32, bf16 and fp16, tf32 on CUDA, and "
        "linear layers below 16 bits: fp8_e4m3 on a GPU with units for it, and any emulated on a CPU or "
        "with program_settings::emulate): choose one of those",
        i, graph_[i].name, comp::name(p));
  }

  void keep(plan chosen) {
    plan_ = std::move(chosen);
    plan_hash_ = std::hash<std::string>{}(plan_.str());
  }

  void compile() {
    require_no_open_region();
    thread_ = std::thread::id{};
    several_threads_ = false;
    weights_.drop_entries();
    std::vector<product_precisions> chosen;
    for (std::size_t i = 0; i < ops_.size(); ++i) chosen.push_back(products_.precisions(plan_, i));
    detail::compiler compiler{ops_, layers_, chosen, plan_.is_tuned(), settings_, weights_};
    low_parameters_ = compiler.low_parameters();
    precisions_.clear();
    for (std::size_t i = 0; i < graph_.size(); ++i)
      precisions_.add(layers_[i], graph_[i].kind, plan_[i], graph_[i].choosable);
    for (detail::segment& each : segments_) {
      each.code = std::make_shared<const detail::code>(compiler.compile(each.calls));
    }
    if (settings_.weights == weight_casts::keep && !plan_.runs_autocast()) weights_.keep_known();
  }

  program_settings settings_;
  detail::parameter_names names_;
  const detail::named_choice by_name_ = [this](const auto& name, const auto& kind) {
    return precisions_of(name, kind);
  };
  detail::named_choice choose_unrecorded_ = {};  // chooses for operators that were not recorded
  detail::script_executors scripts_;
  std::shared_ptr<detail::recording> recording_;
  std::shared_ptr<const detail::first_plan> first_plan_;  // null: recordings run in FP32
  bool unsure_ = false;
  std::atomic<std::thread::id> thread_ = {};  // the thread that entered first
  std::atomic<bool> several_threads_ = false;
  op_graph graph_;
  plan plan_;
  std::size_t plan_hash_ = 0;
  std::vector<detail::recorded_op> ops_;
  std::vector<detail::segment> segments_;
  detail::layer_products products_;
  std::size_t exchange_ = 0;             // the operator that exchanges gradients; 0: none
  std::vector<std::string> layers_;      // common names of graph_'s operators (layer_names.hpp)
  detail::named_precisions precisions_;  // of the recorded operators in the plan
  std::unordered_map<const c10::TensorImpl*, at::ScalarType> low_parameters_;  // those that are read in one low format
  detail::known_composites composites_;                                        // for evaluation
  std::atomic<bool> evaluated_ = false;                                        // a forward was
  detail::low_weights weights_;
  detail::problem_list problems_;
  detail::profiler profiler_;
  detail::operator_errors* errors_ = nullptr;
  plan* autocast_plan_ = nullptr;
  precision autocast_low_ = precision::fp32;
};

}  // namespace comp::libtorch
