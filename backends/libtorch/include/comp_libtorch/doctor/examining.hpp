// SPDX-License-Identifier: Apache-2.0
// How a doctor examines the operators of a region and their gradients (doctor.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/clock.hpp>
#include <comp/core/error.hpp>
#include <comp/core/fnv1a.hpp>
#include <comp/core/precision.hpp>
#include <comp/core/scaled_formats.hpp>
#include <comp/doctor/examination.hpp>
#include <comp/doctor/history.hpp>
#include <comp_libtorch/doctor/chart.hpp>
#include <comp_libtorch/doctor/doctor.hpp>
#include <comp_libtorch/doctor/low_error.hpp>
#include <comp_libtorch/doctor/parameter_watch.hpp>
#include <comp_libtorch/hook/node_hooks.hpp>
#include <comp_libtorch/hook/region.hpp>
#include <comp_libtorch/plan/optimized_scripts.hpp>
#include <comp_libtorch/plan/recording.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch {

namespace detail {

/// Runs the operators of a region as they are, and enters them into a chart.
class examining_session final : public recording_session {
 public:
  examining_session(std::shared_ptr<recording> names, std::shared_ptr<chart> to, std::shared_ptr<low_errors> errors,
                    std::string segment, at::DeviceType device, bool blocks)
      : recording_session{std::move(names), std::move(segment), device},
        chart_{std::move(to)},
        errors_{std::move(errors)},
        blocks_{blocks} {}

 private:
  void run(const recorder::call& now, torch::jit::Stack& stack) override {
    const c10::OperatorHandle& op = now.op.op;
    if (in_transform()) return op.callBoxed(stack);  // of torch.func, whose tensors show no values
    const op_traits& known = traits(op);
    examined entry{.name = now.info.name, .kind = known.kind};
    entry.inputs = chart_->read(entry.name, known, now.arguments, entry.constants);
    entry.trains = chart::trains(known, now.arguments);
    entry.without_gradients = !at::GradMode::is_enabled();
    node_span nodes;
    const comp::detail::stopwatch watch;
    op.callBoxed(stack);
    const double seconds = watch.seconds();
    nodes.close();
    const std::size_t returns = op.schema().returns().size();
    const torch::jit::Stack results = torch::jit::last(stack, returns).vec();
    const auto at = chart_->add_results(std::move(entry), known, now.arguments, results);
    if (!at) return;
    const bool product = blocks_ && add_operands(*at, known, now.arguments);
    nodes.for_each(stack, returns, [&](torch::autograd::Node& node) {
      const std::string name = product ? node.name() : "";
      const bool multiplies =
          name.find("mm") != std::string::npos || name.starts_with("Mm") || name.find("inear") != std::string::npos;
      node.add_post_hook(std::make_unique<after_node>(
          [to = chart_, entry = *at, of = &node, nodes, multiplies](const auto& gives, const auto& got) {
            if (multiplies && !got.empty() && got[0].defined()) to->add_blocks(entry, operand::gradient, got[0]);
            for (std::size_t i = 0; i < gives.size(); ++i) {  // to nodes of other operators and to parameters
              const torch::autograd::Edge& edge = of->next_edge(i);
              if (gives[i].defined() && edge.is_valid() && !nodes.has(*edge.function))
                to->add_gradient(entry, gives[i]);
            }
          }));
    });
    if (now.op.role != op_role::choosable) return;
    const auto is_weight = [&](const at::Tensor& t) { return recording_->is_of_parameters(t); };
    chart_->set_error(*at, errors_->measure(op, now.arguments, results, seconds, is_weight));
  }

  /// Counts both operands of a matrix product along its contraction. Returns: false for other operators.
  bool add_operands(std::size_t entry, const op_traits& known, const torch::jit::Stack& arguments) {
    const bool linear = known.word == "linear";
    if (!linear && known.word != "matmul" && known.word != "mm" && known.word != "bmm" && known.word != "addmm")
      return false;
    const std::size_t first = known.word == "addmm" ? 1 : 0;
    const at::Tensor &x = arguments[first].toTensor(), &w = arguments[first + 1].toTensor();
    chart_->add_blocks(entry, operand::input, x);
    chart_->add_blocks(entry, operand::weight, linear || w.dim() < 2 ? w : w.transpose(-1, -2));
    return true;
  }

  std::shared_ptr<chart> chart_;
  std::shared_ptr<low_errors> errors_;
  bool blocks_;
};

class examining {
 public:
  examining(const std::vector<named_module>& models, const doctor_settings& settings)
      : settings_{settings}, device_{device_of(models)} {
    constexpr std::array known{precision::bf16, precision::fp16, precision::fp32};
    require<settings_error>(
        std::ranges::find(known, settings.low) != known.end(),
        "doctor for {} (operators are run again in bf16 or fp16, those in fp64 in fp32 if you like): "
        "give one of those",
        name(settings.low));
    require<settings_error>(settings.share >= 0,
                            "share {} of the operators' time (it cannot be less than none): give 0 "
                            "or more",
                            settings.share);
    for (const named_module& m : models) {
      scripts_.add(*m.module);
      names_.add_all(*m.module, m.name);
      if (settings.many_steps) watch_.add_all(*m.module, m.name);
      models_.push_back(m);
    }
    begin();
  }

  region examine(std::string segment) {
    if (!std::exchange(open_, true)) watch_.begin_forward();
    if (at::GradMode::is_enabled()) {
      for (const named_module& m : models_) {
        if (!m.module->is_training()) note_evaluation(m.name);
      }
    }
    return scripts_.open(std::make_unique<examining_session>(recording_, chart_, errors_, std::move(segment),
                                                             device_.type(), settings_.many_steps));
  }
  examination finish() const { return chart_->finish(); }

  void before_update(const std::vector<at::Tensor>& parameters, const std::vector<double>& rates) {
    watch_.before_update(parameters, rates);
  }
  void after_update() { watch_.after_update(); }
  void note_evaluation(const std::string& model) {
    if (std::ranges::find(evaluating_, model) == evaluating_.end()) evaluating_.push_back(model);
  }

  void end_step(const step_end& now) {
    require<settings_error>(settings_.many_steps,
                            "end_step() of a doctor for one step (it has no copies of the weights): give it "
                            "doctor_settings{{.many_steps = true}}");
    require<settings_error>(open_,
                            "a step without a region (nothing was examined): open one around its forward, by `with "
                            "plan:` or examine()");
    for (torch::optim::Optimizer* optimizer : now.optimizers) {
      for (const torch::optim::OptimizerParamGroup& group : optimizer->param_groups())
        watch_.before_update(group.params(), std::vector<double>(group.params().size(), group.options().get_lr()));
      watch_.after_update();
    }
    step_record record{
        .batch_number = now.batch_number, .evaluating = std::exchange(evaluating_, {}), .apart = now.apart};
    record.parameters = watch_.end_step();
    record.optimizer_ran = watch_.optimizer_ran();
    if (now.loss.defined() && now.loss.numel() == 1) record.loss = now.loss.item<double>();
    note_batch(now.batch, record);
    history_.add(chart_->finish(), record);
    begin();
  }
  const comp::history& history() const { return history_; }

 private:
  void begin() {
    open_ = false;
    watch_.begin_step();
    recording_ = std::make_shared<recording>(names_, device_.type(), false);
    chart_ = std::make_shared<chart>(names_, settings_.low);
    errors_ = std::make_shared<low_errors>(settings_.low, settings_.share, device_.type());
  }
  static void note_batch(const std::vector<at::Tensor>& batch, step_record& record) {
    if (batch.empty()) return;
    comp::detail::fnv1a values, row;
    std::size_t matrices = 0, alike = 0;
    std::int64_t rows = 0;
    for (const at::Tensor& t : batch) {
      const at::Tensor whole = t.detach().cpu().contiguous();
      values.add_bytes(whole.const_data_ptr(), whole.nbytes());
      if (t.dim() < 2) continue;
      rows = std::max(rows, t.size(0));
      if (t.size(0) < 2) {
        if (t.numel() > 1) row.add_bytes(whole.const_data_ptr(), whole.nbytes());
        continue;
      }
      ++matrices;
      alike += t.eq(t.slice(0, 0, 1)).all().item<bool>();
    }
    record.batch = values.hash;
    record.rows_alike = matrices > 0 && alike == matrices;
    if (rows > 1 && row.hash != comp::detail::fnv1a{}.hash) record.one_row = {row.hash, rows};
  }

  doctor_settings settings_;
  std::vector<named_module> models_;
  parameter_watch watch_;
  comp::history history_;
  std::vector<std::string> evaluating_;
  bool open_ = false;  // a region of this step was entered
  c10::Device device_;
  parameter_names names_;
  script_executors scripts_;
  std::shared_ptr<recording> recording_;
  std::shared_ptr<chart> chart_;
  std::shared_ptr<low_errors> errors_;
};

}  // namespace detail

COMP_INLINE doctor::doctor(const std::vector<named_module>& models, const doctor_settings& settings)
    : examining_{std::make_unique<detail::examining>(models, settings)} {}
COMP_INLINE doctor::~doctor() = default;
COMP_INLINE region doctor::examine(std::string segment) { return examining_->examine(std::move(segment)); }
COMP_INLINE examination doctor::finish() const { return examining_->finish(); }
COMP_INLINE void doctor::before_update(const std::vector<at::Tensor>& parameters, const std::vector<double>& rates) {
  examining_->before_update(parameters, rates);
}
COMP_INLINE void doctor::after_update() { examining_->after_update(); }
COMP_INLINE void doctor::note_evaluation(const std::string& model) { examining_->note_evaluation(model); }
COMP_INLINE void doctor::end_step(const step_end& now) { examining_->end_step(now); }
COMP_INLINE const comp::history& doctor::history() const { return examining_->history(); }

}  // namespace comp::libtorch
