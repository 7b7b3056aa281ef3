// SPDX-License-Identifier: Apache-2.0
// How a doctor examines the operators of a region and their gradients (doctor.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/clock.hpp>
#include <comp/core/error.hpp>
#include <comp/core/precision.hpp>
#include <comp/doctor/examination.hpp>
#include <comp_libtorch/doctor/chart.hpp>
#include <comp_libtorch/doctor/doctor.hpp>
#include <comp_libtorch/doctor/low_error.hpp>
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

/// Counts the gradients that a node gives to nodes of other operators and to parameters.
class given_gradients final : public torch::autograd::FunctionPostHook {
 public:
  given_gradients(std::shared_ptr<chart> to, std::size_t entry, const torch::autograd::Node* of, node_span span)
      : to_{std::move(to)}, entry_{entry}, of_{of}, span_{span} {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gives,
                                            const torch::autograd::variable_list& /*got*/) override {
    for (std::size_t i = 0; i < gives.size(); ++i) {
      const torch::autograd::Edge& edge = of_->next_edge(i);
      if (gives[i].defined() && edge.is_valid() && !span_.has(*edge.function)) to_->add_gradient(entry_, gives[i]);
    }
    return gives;
  }

 private:
  std::shared_ptr<chart> to_;
  std::size_t entry_;
  const torch::autograd::Node* of_;  // the node that owns this hook
  node_span span_;
};

/// Runs the operators of a region as they are, and enters them into a chart.
class examining_session final : public recording_session {
 public:
  examining_session(std::shared_ptr<recording> names, std::shared_ptr<chart> to, std::shared_ptr<low_errors> errors,
                    std::string segment, at::DeviceType device)
      : recording_session{std::move(names), std::move(segment), device},
        chart_{std::move(to)},
        errors_{std::move(errors)} {}

 private:
  void run(const recorder::call& now, torch::jit::Stack& stack) override {
    const c10::OperatorHandle& op = now.op.op;
    const op_traits& known = traits(op);
    examined entry{.name = now.info.name, .kind = known.kind};
    entry.inputs = chart_->read(entry.name, known, now.arguments, entry.constants);
    node_span nodes;
    const comp::detail::stopwatch watch;
    op.callBoxed(stack);
    const double seconds = watch.seconds();
    nodes.close();
    const std::size_t returns = op.schema().returns().size();
    const torch::jit::Stack results{stack.end() - static_cast<std::ptrdiff_t>(returns), stack.end()};
    const auto at = chart_->add_results(std::move(entry), known, now.arguments, results);
    if (!at) return;
    nodes.for_each(stack, returns, [&](torch::autograd::Node& node) {
      node.add_post_hook(std::make_unique<given_gradients>(chart_, *at, &node, nodes));
    });
    if (now.op.role != op_role::choosable) return;
    const auto is_weight = [&](const at::Tensor& t) { return recording_->is_of_parameters(t); };
    chart_->set_error(*at, errors_->measure(op, now.arguments, results, seconds, is_weight));
  }

  std::shared_ptr<chart> chart_;
  std::shared_ptr<low_errors> errors_;
};

class examining {
 public:
  examining(const std::vector<named_module>& models, const doctor_settings& settings) : device_{device_of(models)} {
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
    }
    recording_ = std::make_shared<recording>(names_, device_.type(), false);
    chart_ = std::make_shared<chart>(names_, settings.low);
    errors_ = std::make_shared<low_errors>(settings.low, settings.share, device_.type());
  }

  region examine(std::string segment) {
    return scripts_.open(
        std::make_unique<examining_session>(recording_, chart_, errors_, std::move(segment), device_.type()));
  }
  examination finish() const { return chart_->finish(); }

 private:
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

}  // namespace comp::libtorch
