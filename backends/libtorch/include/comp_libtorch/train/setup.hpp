// SPDX-License-Identifier: Apache-2.0
// What a user tells the trainer of a training: its models, its optimizers and how the plan is run.
// Every default is sound; models and optimizers stay the user's and must outlive the trainer.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <any>
#include <comp/core/error.hpp>
#include <comp/core/fnv1a.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/plan.hpp>
#include <comp/scaling/settings.hpp>
#include <comp_libtorch/plan/scripted.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::libtorch {

/// A model under the name that begins the names of its operators; "" for none. It takes modules, holders and
/// TorchScript's modules: {"net", net}.
struct named_module {
  std::string name;
  torch::nn::Module* module;
  std::shared_ptr<torch::nn::Module> owned = {};  // wraps a TorchScript module

  named_module(std::string called, torch::nn::Module& model) : name{std::move(called)}, module{&model} {}
  template <class Holder>
  requires requires(Holder& h) {
    { h.ptr().get() } -> std::convertible_to<torch::nn::Module*>;
  }
  named_module(std::string called, Holder& holder) : name{std::move(called)}, module{holder.ptr().get()} {}
  named_module(std::string called, const torch::jit::Module& script)
      : name{std::move(called)}, module{nullptr}, owned{std::make_shared<detail::scripted>(script)} {
    module = owned.get();
  }
};

/// State of the training that the trainer cannot know, as a schedule's counter or an average of the weights.
struct extra_state {
  std::function<std::any()> save = {};
  std::function<void(const std::any&)> restore = {};
  std::function<std::vector<at::Tensor>()> tensors = {};  // those that live from step to step, for the peak of memory
  std::function<std::vector<at::Tensor>()> others = {};   // more of the state, whose extreme values are counted
  std::function<void()> prepare = {};                     // is called before a run, whose time it does not count to
};

/// Whether losses are scaled against the underflow of FP16 gradients.
enum class loss_scaling { by_plan, always, never };  // by_plan: while the plan has FP16

struct setup {
  std::vector<named_module> modules;
  std::vector<torch::optim::Optimizer*> optimizers;
  std::vector<at::Generator> generators = {};  // the user's own; LibTorch's default ones are always saved
  extra_state extra = {};
  program_settings program = {};  // its device is that of the first parameter
  executor_choices choices = executor_choices::measured;
  optimizer_pass update = optimizer_pass::stock;  // every plan's, so that plans are compared with one optimizer
  bool moments =
      false;  // true: the optimizers' moments are operators, so that a plan has their formats (kept_moments.hpp)
  loss_scaling scale_loss = loss_scaling::by_plan;
  comp::scaling::settings scaling = {};
  std::optional<c10::Device> states_on = {};  // the device of saved states; none: each tensor's own
  int profile_steps = 2;                      // are measured, after one that is not
  // Has steps run compiled from now on, or operator by operator. Returns whether a compiler has any part of a step.
  // None: nothing of it is compiled.
  std::function<bool(bool)> run_compiled = {};
  agreement agree = {};  // of one of several ranks that train as one: comp::ranks::team::maximum; none: it trains alone
  std::string about = {};  // anything else that makes two trainings comparable: goes into the signature
};

/// Throws: `settings_error` in a process that torchrun or mpirun started as one of several.
inline void require_one_rank(std::string_view what, std::string_view instead) {
  for (const char* const counts : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const ranks = std::getenv(counts);
    const bool several = ranks != nullptr && std::strtol(ranks, nullptr, 10) > 1;
    require<settings_error>(!several,
                            "{} in one of several ranks ({} is {}; each would decide by its own times, and wait for "
                            "the others at another step): {}; unset {} where the ranks have nothing to do with each "
                            "other",
                            what, counts, ranks, instead, counts);
  }
}

/// Returns: `asked`; fixed if ranks that agree run on different machines, which have other kernels to choose from.
inline executor_choices choices_on(executor_choices asked, const agreement& agree, const hardware& here) {
  if (!agree) return asked;
  comp::detail::fnv1a hash;
  for (const std::string& part : here.isa) hash.add_bytes(part.data(), part.size());
  hash.add_bytes(here.name.data(), here.name.size());
  const auto own = static_cast<double>(hash.hash >> 11);  // has the bits of a double
  const std::vector<double> ends = agree({own, -own});
  return ends[0] == -ends[1] ? asked : executor_choices::fixed;
}

/// Throws: `settings_error`, naming what is missing.
inline void require_usable(const setup& s) {
  require<settings_error>(
      !s.modules.empty() && !s.optimizers.empty(),
      "training with {} models and {} optimizers (a step needs both): name the torch::nn::Module and "
      "the optimizer, {{.modules = {{{{\"net\", net}}}}, .optimizers = {{&optimizer}}}}",
      s.modules.size(), s.optimizers.size());
  for (std::size_t i = 0; i < s.modules.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      require<settings_error>(
          s.modules[i].name != s.modules[k].name,
          "two models named \"{}\" (operators are told apart by their names): name them differently",
          s.modules[i].name);
    }
  }
  for (const auto* optimizer : s.optimizers) {
    require<settings_error>(optimizer != nullptr, "optimizer is null (each is stepped and saved): give its address");
  }
  require<settings_error>(s.profile_steps > 0, "profile of {} steps (at least one): change it", s.profile_steps);
  require<settings_error>(bool(s.extra.save) == bool(s.extra.restore),
                          "extra state with only one of save and restore (one undoes the other): give both");
  require<settings_error>(s.scaling.micro_batches == 1,
                          "loss scaling over {} micro-batches (a step calls backward as often as it likes before an "
                          "update): leave it 1",
                          s.scaling.micro_batches);
  comp::scaling::require_usable(s.scaling);
}

/// Returns: whether losses are scaled under `p`.
inline bool scales(const setup& s, const plan& p) {
  if (s.scale_loss != loss_scaling::by_plan) return s.scale_loss == loss_scaling::always;
  return std::ranges::find(p, precision::fp16) != p.end();
}

/// Returns: the parameters of the models, or their buffers; undefined ones are left out.
inline std::vector<at::Tensor> tensors_of(const std::vector<named_module>& models, bool buffers) {
  std::vector<at::Tensor> all;
  for (const named_module& m : models) {
    for (const at::Tensor& t : buffers ? m.module->buffers() : m.module->parameters()) {
      if (t.defined()) all.push_back(t);
    }
  }
  return all;
}

/// Returns: the device of the first parameter; the CPU for models without any.
inline c10::Device device_of(const std::vector<named_module>& models) {
  const auto parameters = tensors_of(models, false);
  return parameters.empty() ? c10::Device{at::kCPU} : parameters.front().device();
}
inline program_settings on_device_of(const std::vector<named_module>& models, program_settings settings) {
  settings.device = device_of(models);
  return settings;
}

/// Returns: `given` with a model "optimizer" of the parameters that an optimizer trains and no model has, as the image
/// of a style transfer. They belong to the state, and operators are named after them.
inline setup with_free_parameters(setup given) {
  std::vector<at::Tensor> known = tensors_of(given.modules, false);
  const auto free = std::make_shared<torch::nn::Module>();
  for (const auto* optimizer : given.optimizers) {
    if (optimizer == nullptr) continue;  // require_usable() says so
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& p : group.params()) {
        if (std::ranges::any_of(known, [&](const at::Tensor& k) { return k.is_same(p); })) continue;
        free->register_parameter(std::to_string(free->parameters().size()), p, p.requires_grad());
        known.push_back(p);
      }
    }
  }
  if (given.modules.empty() || free->parameters().empty()) return given;
  given.modules.emplace_back("optimizer", *free).owned = free;
  return given;
}

}  // namespace comp::libtorch
