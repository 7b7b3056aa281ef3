// SPDX-License-Identifier: Apache-2.0
// What a program is made of: the recording of a forward, what it is compiled to under a plan, and the sessions of its
// regions. What each member promises stands in program.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <comp/core/concepts.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp_libtorch/hook/composite.hpp>
#include <comp_libtorch/hook/layer_names.hpp>
#include <comp_libtorch/hook/problems.hpp>
#include <comp_libtorch/hook/region.hpp>
#include <comp_libtorch/hook/session.hpp>
#include <comp_libtorch/plan/evaluator.hpp>
#include <comp_libtorch/plan/exchange.hpp>
#include <comp_libtorch/plan/executor.hpp>
#include <comp_libtorch/plan/first_forward.hpp>
#include <comp_libtorch/plan/layer_products.hpp>
#include <comp_libtorch/plan/named_precisions.hpp>
#include <comp_libtorch/plan/optimized_scripts.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/plan/recording.hpp>
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

namespace detail {

class recorded_program {
 public:
  explicit recorded_program(const program_settings& chosen) : settings_{chosen} {
    if (chosen.device.is_cpu()) keep_freed_memory(chosen.freed == freed_memory::kept);
  }
  recorded_program(const recorded_program&) = delete;
  recorded_program& operator=(const recorded_program&) = delete;

  script_executors& scripts() { return scripts_; }
  parameter_names& names() { return names_; }

  region enter(std::string_view segment) {
    ++regions_since_low_;
    return scripts_.open(make_session(segment));
  }

  region enter_unplanned() const {
    auto session = std::make_unique<unheard_session>(settings_.device.type());
    session->require_no_autocast();
    return region{std::move(session)};
  }

  region evaluate() {
    if (first_plan_ != nullptr && first_plan_->autocast) return scripts_.open(make_autocast(*first_plan_->autocast));
    if (plan_.runs_autocast()) return scripts_.open(make_autocast(scalar_type(autocast_precision(plan_))));
    evaluation how{.choose = by_name_, .plan = plan_hash_};
    if (first_plan_ != nullptr) how = {.choose = first_plan_->by_name};
    how.first = !evaluated_.exchange(true);
    return scripts_.open(std::make_unique<evaluator>(std::move(how), names_, composites_, settings_));
  }

  void record(bool on) {
    if (on) start_recording(false);
    if (!on && recording_ != nullptr) finish_recording();
  }
  void record_under(first_plan first) {
    auto shared = std::make_shared<const first_plan>(std::move(first));
    start_recording(true);
    first_plan_ = std::move(shared);
  }
  bool has_open_region() const {
    const auto in_use = [](const segment& s) { return s.code.use_count() > 1; };
    return recording_.use_count() > 1 || std::ranges::any_of(segments_, in_use) || in_use(unrecorded_);
  }
  bool is_recording() const { return recording_ != nullptr; }
  bool has_recorded(std::string_view segment) const { return recording_ != nullptr && recording_->has(segment, true); }
  bool is_unsure() const { return unsure_; }
  bool is_recorded() const { return recording_ == nullptr && !graph_.empty(); }
  const op_graph& graph() const { return graph_; }

  void set_plan(const plan& chosen) {
    require<error>(recording_ == nullptr,
                   "a plan was set while recording (operators are recorded in FP32): call record(false) first");
    require_fits(chosen, graph_);
    for (std::size_t i = 0; i < chosen.size(); ++i) require_runs(chosen[i], i);
    if (chosen.runs_autocast()) (void)autocast_precision(chosen);
    require_no_open_region();
    if (lowers()) regions_since_low_ = 0;
    keep(chosen);
    compile();
  }
  const plan& current_plan() const { return plan_; }
  bool lowers() const { return autocast_plan_ != nullptr || plan_.count_lowered(graph_) > 0; }
  bool changes() const { return lowers() || plan_.is_tuned(); }
  bool may_read_low() const { return regions_since_low_ < 256; }
  void set_unrecorded(named_choice chosen) { choose_unrecorded_ = std::move(chosen); }

  at::ScalarType format_of_parameter(const at::Tensor& parameter) const {
    const auto at = low_parameters_.find(parameter.unsafeGetTensorImpl());
    return at == low_parameters_.end() || plan_.runs_autocast() ? at::kFloat : at->second;
  }

  void exchange(const std::function<void(at::ScalarType)>& work, const std::function<void()>& finish) {
    const auto times = exchange_ == 0 ? nullptr : profiler_.begin(settings_.device);
    if (times == nullptr) return work(format_of_gradients());
    const moment start{settings_.device};
    work(format_of_gradients());
    finish();
    times->add(static_cast<std::uint32_t>(exchange_), true, start, moment{settings_.device});
  }

  std::function<void()> begin_update(std::size_t op) {
    const auto times = op == 0 ? nullptr : profiler_.begin(settings_.device);
    return [=, start = moment{settings_.device}] {
      if (times != nullptr) times->add(static_cast<std::uint32_t>(op), true, start, moment{times->device()});
    };
  }
  std::vector<std::pair<std::string, at::ScalarType>> formats_of_states() const {
    std::vector<std::pair<std::string, at::ScalarType>> all;
    const auto first = std::ranges::find_if(graph_, [](const op_info& op) { return op.is_state; });
    auto at = static_cast<std::size_t>(first - graph_.begin());
    for (const op_info& op : settings_.states) {
      const precision kept = first_plan_ != nullptr && first_plan_->by_name
                                 ? first_plan_->by_name(op.name, op.kind, precision::fp32).forward
                             : at < plan_.size() ? plan_[at++]
                                                 : precision::fp32;
      all.emplace_back(op.name, type_of_state(kept).value_or(at::kFloat));
    }
    return all;
  }

  void end_step() { profiler_.end_of_step(); }

  void profile(bool on) { profiler_.turn(on); }
  std::vector<op_time> times() const {
    std::vector<op_time> all = profiler_.times(graph_.size());
    products_.share_times(all);
    return all;
  }

  void compare(operator_errors* with) {
    require_no_open_region();
    errors_ = with;
  }

  void watch_autocast(plan* to, precision low) {
    require_no_open_region();
    autocast_plan_ = to;
    autocast_low_ = low;
  }

  program_problems problems() const { return problems_.get(); }
  void clear_problems() { problems_.clear(); }

  const layer_products& products() const { return products_; }
  bool is_linear_layer(const op_info& op) const { return products_.is_linear_layer(op); }
  bool takes_scaled(const op_info& op) const {
    return emulates(settings_) ? products_.is_linear_layer(op) : products_.fits_fp8_units(op);
  }

  const program_settings& settings() const { return settings_; }
  executor_options options_of(const plan& p) const {
    executor_options all{.weights = p.count_lowered(graph_) > 0};
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const op_traits& known = traits(ops_[i].op);
      const at::ScalarType format = scalar_type(p[i]);
      all.images = all.images || (known.is_convolution && (is_lowered(graph_[i], p[i]) || p.is_tuned()));
      const kernel* own = settings_.device.is_cpu() ? own_kernel(known, format, p.is_tuned()) : nullptr;
      if (own != nullptr && own->fits(graph_[i], format)) all.kernels.push_back({i, layers_[i], own});
    }
    all.images = all.images && may_reorder(ops_);
    if (!all.images) std::erase_if(all.kernels, [](const own_operator& each) { return each.own->wants_channels_last; });
    return all;
  }
  void set_settings(program_settings chosen) {
    require_no_open_region();
    chosen.device = settings_.device;
    settings_ = chosen;
    if (is_recorded()) compile();
  }
  std::int64_t kept_bytes() const { return weights_.bytes(); }

 private:
  std::unique_ptr<session> make_autocast(at::ScalarType low) const {
    return std::make_unique<unheard_session>(settings_.device.type(), low);
  }
  at::ScalarType format_of_gradients() const {
    if (first_plan_ != nullptr && first_plan_->by_name) {
      const op_info op = exchange_operator({});
      return scalar_type(first_plan_->by_name(op.name, op.kind, precision::fp32).forward);
    }
    return exchange_ == 0 || exchange_ >= plan_.size() ? at::kFloat : scalar_type(plan_[exchange_]);
  }
  product_precisions precisions_of(const std::string& layer, const std::string& kind, precision own) const {
    if (const auto known = precisions_.find(layer)) return *known;
    return choose_unrecorded_ ? choose_unrecorded_(layer, kind, own) : precisions_.usual(layer, kind, own);
  }

  std::unique_ptr<session> make_session(std::string_view segment) {
    if (recording_ != nullptr) return make_recording_session(segment);
    const auto at = std::ranges::find(segments_, segment, &detail::segment::name);
    require<error>(!segments_.empty(),
                   "region \"{}\" is entered, and none was recorded: enter it while record(true) holds", segment);
    const detail::segment& known = at != segments_.end() ? *at : unrecorded_;
    if (plan_.runs_autocast()) return make_autocast(scalar_type(autocast_precision(plan_)));
    note_thread();
    const bool keeps = settings_.weights == weight_casts::keep && !several_threads_;
    const executor_context context{.graph = &graph_,
                                   .settings = &settings_,
                                   .weights = &weights_,
                                   .problems = &problems_,
                                   .segment = known.name,
                                   .errors = errors_,
                                   .autocast_plan = autocast_plan_,
                                   .low = autocast_low_,
                                   .keeps_weights = keeps,
                                   .names = &names_,
                                   .choose = &by_name_};
    return std::make_unique<executor>(context, known.code, profiler_.begin(settings_.device));
  }

  std::unique_ptr<session> make_recording_session(std::string_view segment) {
    recording_->require_same_thread(segment);
    const auto device = settings_.device.type();
    const bool again = recording_->has(segment);
    const std::string name{segment};
    if (first_plan_ != nullptr)
      return std::make_unique<first_forward>(again ? recording_->copy_to_repeat(segment) : recording_, name, device,
                                             !settings_.protect_blocks, first_plan_);
    if (again) return std::make_unique<session>(device);  // it is recorded already
    return std::make_unique<recording_session>(recording_, name, device, !settings_.protect_blocks);
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
    recording_ = std::make_shared<recording>(names_, settings_.device.type(), under_plan, settings_.tries_low);
    first_plan_.reset();
    precisions_ = {};
    low_parameters_.clear();
    choose_unrecorded_ = {};
    graph_ = {};
    products_ = {};
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
    const std::vector<op_info> forward = all.infos;
    if (!forward.empty()) all.infos.insert(all.infos.end(), settings_.states.begin(), settings_.states.end());
    if (settings_.exchange && !forward.empty()) {
      exchange_ = all.infos.size();
      all.infos.push_back(exchange_operator(forward));
    }
    graph_ = op_graph{std::move(all.infos)};
    keep(as_written(graph_));
    layer_names layers;
    layers_.clear();
    for (const op_info& op : graph_) layers_.push_back(layers.next(op.name, op.kind));
    compile();
  }

  void require_runs(precision p, std::size_t i) const {
    const bool runs = graph_[i].is_state          ? type_of_state(p).has_value()
                      : p == precision::bf16_fp32 ? products_.is_linear_layer(graph_[i])
                      : is_scaled(p)              ? products_.is_linear_layer(graph_[i]) &&
                                           (emulates(settings_) || multiplies_itself(p, settings_.device))
                                     : p != precision::tf32 || settings_.device.is_cuda();
    require<plan_error>(
        runs,
        "plan gives operator {} (\"{}\") {} (LibTorch runs fp32, bf16 and fp16, tf32 on CUDA, linear layers in bf16>fp32, and "
        "linear layers below 16 bits: fp8_e4m3 on a GPU with units for it, and any emulated on a CPU or "
        "with program_settings::emulate; moments are kept in fp32, bf16 and fp8_e4m3): choose one of those",
        i, graph_[i].name, comp::name(p));
  }

  void keep(plan chosen) {
    plan_ = std::move(chosen);
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      if (graph_[i].beyond_fp16 && plan_[i] == precision::fp16) plan_[i] = graph_[i].as_written;
    }
    plan_hash_ = std::hash<std::string>{}(plan_.str());
  }

  void compile() {
    require_no_open_region();
    thread_ = std::thread::id{};
    several_threads_ = false;
    weights_.drop_entries();
    std::vector<product_precisions> chosen;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      chosen.push_back(products_.precisions(plan_, i));
      chosen.back().as_written = graph_[i].as_written;
    }
    detail::compiler compiler{ops_, layers_, chosen, plan_.is_tuned(), may_read_low(), settings_, weights_};
    low_parameters_ = compiler.low_parameters();
    precisions_ = {};
    for (std::size_t i = 0; i < graph_.size(); ++i)
      precisions_.add(layers_[i], graph_[i].kind, {plan_[i], graph_[i].as_written}, graph_[i].choosable);
    for (segment& each : segments_) {
      each.code = std::make_shared<const code>(compiler.compile(each.calls));
    }
    unrecorded_.code = std::make_shared<const code>(compiler.compile({}));
    if (settings_.weights == weight_casts::keep && !plan_.runs_autocast()) weights_.keep_known();
  }

  program_settings settings_;
  parameter_names names_;
  const named_choice by_name_ = [this](const auto& name, const auto& kind, precision own) {
    return precisions_of(name, kind, own);
  };
  named_choice choose_unrecorded_ = {};  // chooses for operators that were not recorded
  script_executors scripts_;
  std::shared_ptr<recording> recording_;
  std::shared_ptr<const first_plan> first_plan_;  // null: recordings run in FP32
  bool unsure_ = false;
  std::atomic<std::thread::id> thread_ = {};  // the thread that entered first
  std::atomic<bool> several_threads_ = false;
  op_graph graph_;
  plan plan_;
  std::size_t plan_hash_ = 0;
  std::atomic<std::size_t> regions_since_low_ = 256;  // entered since a plan that lowers was replaced
  std::vector<recorded_op> ops_;
  std::vector<segment> segments_;
  segment unrecorded_{.name = "entered later"};  // any region that the recorded step did not enter
  layer_products products_;
  std::size_t exchange_ = 0;         // the operator that exchanges gradients; 0: none
  std::vector<std::string> layers_;  // common names of graph_'s operators (layer_names.hpp)
  named_precisions precisions_;      // of the recorded operators in the plan
  std::unordered_map<const c10::TensorImpl*, at::ScalarType> low_parameters_;  // those that are read in one low format
  known_composites composites_;                                                // for evaluation
  std::atomic<bool> evaluated_ = false;                                        // a forward was
  low_weights weights_;
  problem_list problems_;
  profiler profiler_;
  operator_errors* errors_ = nullptr;
  plan* autocast_plan_ = nullptr;
  precision autocast_low_ = precision::fp32;
};

}  // namespace detail

COMP_INLINE program::program(const program_settings& chosen)
    : recorded_{std::make_unique<detail::recorded_program>(chosen)} {}
COMP_INLINE program::~program() = default;
COMP_INLINE void program::name_parameter(const at::Tensor& parameter, std::string name) {
  names().add(parameter, std::move(name));
}
COMP_INLINE region program::enter(std::string_view segment) { return recorded_->enter(segment); }
COMP_INLINE region program::enter_unplanned() const { return recorded_->enter_unplanned(); }
COMP_INLINE region program::evaluate() { return recorded_->evaluate(); }
COMP_INLINE void program::record(bool on) { recorded_->record(on); }
COMP_INLINE void program::record_under(detail::first_plan first) { recorded_->record_under(std::move(first)); }
COMP_INLINE bool program::has_open_region() const { return recorded_->has_open_region(); }
COMP_INLINE bool program::is_recording() const { return recorded_->is_recording(); }
COMP_INLINE bool program::has_recorded(std::string_view segment) const { return recorded_->has_recorded(segment); }
COMP_INLINE bool program::is_unsure() const { return recorded_->is_unsure(); }
COMP_INLINE bool program::is_recorded() const { return recorded_->is_recorded(); }
COMP_INLINE const op_graph& program::graph() const { return recorded_->graph(); }
COMP_INLINE void program::set_plan(const plan& chosen) { recorded_->set_plan(chosen); }
COMP_INLINE const plan& program::current_plan() const { return recorded_->current_plan(); }
COMP_INLINE bool program::lowers() const { return recorded_->lowers(); }
COMP_INLINE bool program::changes() const { return recorded_->changes(); }
COMP_INLINE bool program::may_read_low() const { return recorded_->may_read_low(); }
COMP_INLINE void program::set_unrecorded(detail::named_choice chosen) { recorded_->set_unrecorded(std::move(chosen)); }
COMP_INLINE at::ScalarType program::format_of_parameter(const at::Tensor& parameter) const {
  return recorded_->format_of_parameter(parameter);
}
COMP_INLINE std::function<void()> program::begin_update(std::size_t op) { return recorded_->begin_update(op); }
COMP_INLINE std::vector<std::pair<std::string, at::ScalarType>> program::formats_of_states() const {
  return recorded_->formats_of_states();
}
COMP_INLINE void program::end_step() { recorded_->end_step(); }
COMP_INLINE void program::profile(bool on) { recorded_->profile(on); }
COMP_INLINE std::vector<op_time> program::times() const { return recorded_->times(); }
COMP_INLINE void program::compare(detail::operator_errors* with) { recorded_->compare(with); }
COMP_INLINE void program::watch_autocast(plan* to, precision low) { recorded_->watch_autocast(to, low); }
COMP_INLINE program_problems program::problems() const { return recorded_->problems(); }
COMP_INLINE void program::clear_problems() { recorded_->clear_problems(); }
COMP_INLINE const detail::layer_products& program::products() const { return recorded_->products(); }
COMP_INLINE bool program::is_linear_layer(const op_info& op) const { return recorded_->is_linear_layer(op); }
COMP_INLINE bool program::takes_scaled(const op_info& op) const { return recorded_->takes_scaled(op); }
COMP_INLINE const program_settings& program::settings() const { return recorded_->settings(); }
COMP_INLINE executor_options program::options_of(const plan& p) const { return recorded_->options_of(p); }
COMP_INLINE void program::set_settings(program_settings chosen) { recorded_->set_settings(std::move(chosen)); }
COMP_INLINE std::int64_t program::kept_bytes() const { return recorded_->kept_bytes(); }
COMP_INLINE void program::watch_scripts(const torch::nn::Module& module) { recorded_->scripts().add(module); }
COMP_INLINE void program::watch_scripts(const torch::jit::Module& module) { recorded_->scripts().add(module); }
COMP_INLINE detail::parameter_names& program::names() { return recorded_->names(); }
COMP_INLINE void program::exchange_by(const std::function<void(at::ScalarType)>& work,
                                      const std::function<void()>& finish) {
  recorded_->exchange(work, finish);
}

}  // namespace comp::libtorch
