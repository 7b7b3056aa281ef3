// SPDX-License-Identifier: Apache-2.0
// The models of step.py in C++, operator by operator, over parameters that Python gives: what a step costs from C++ in
// the process that runs it from Python.
#include <torch/extension.h>
//
#include <comp/autocast/rule_plan.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp_libtorch/comp_libtorch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../python/src/regions.hpp"

namespace {

using at::Tensor;
using named_models = std::vector<std::pair<std::string, comp::python::parameter_tree::named>>;

/// A model's tensors in the order in which its forward reads them.
class next_of {
 public:
  explicit next_of(const std::vector<Tensor>& all) : all_{all} {}
  const Tensor& operator()() { return all_.at(at_++); }
  bool any() const { return at_ < all_.size(); }

 private:
  const std::vector<Tensor>& all_;
  std::size_t at_ = 0;
};

Tensor linear(const Tensor& x, next_of& p) {
  const Tensor &w = p(), &b = p();
  return torch::linear(x, w, b);
}

Tensor normed(const Tensor& x, next_of& p) {
  const Tensor &w = p(), &b = p();
  return torch::layer_norm(x, {w.size(0)}, w, b);
}

Tensor mlp(Tensor x, next_of p) {
  x = linear(x, p);
  while (p.any()) x = linear(torch::relu(x), p);
  return x;
}

Tensor cnn(Tensor x, next_of p) {
  for (const bool pools : {false, true, true}) {
    const Tensor &kernel = p(), &bias = p(), &w = p(), &b = p();
    const Tensor &mean = p(), &variance = p();
    x = torch::conv2d(x, kernel, bias, {1, 1}, at::IntArrayRef{1, 1});
    x = torch::relu(
        torch::batch_norm(x, w, b, mean, variance, true, 0.1, 1e-5, at::globalContext().userEnabledCuDNN()));
    if (pools) x = torch::max_pool2d(x, {2, 2}, {2, 2});
  }
  return linear(torch::flatten(x, 1), p);
}

Tensor transformer(Tensor x, next_of p) {
  for (int layer = 0; layer < 2; ++layer) {
    const auto parts = linear(normed(x, p), p).chunk(3, -1);
    const auto heads = [&](const Tensor& t) { return t.unflatten(-1, {4, -1}).transpose(1, 2); };
    const Tensor attended = torch::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]));
    x = x + torch::dropout(linear(attended.transpose(1, 2).flatten(2), p), 0.1, true);
    const Tensor wide = torch::gelu(linear(normed(x, p), p));
    x = x + torch::dropout(linear(wide, p), 0.1, true);
  }
  return linear(x.mean({1}), p);
}

/// A training in C++: SGD with momentum on cross entropy.
class training {
 public:
  training(const std::string& model, const named_models& models, std::vector<Tensor> tensors, Tensor x, Tensor y)
      : trees_{comp::python::planned::trees_of(models)},
        modules_{comp::python::planned::named_modules(models, trees_)},
        tensors_{std::move(tensors)},
        x_{std::move(x)},
        y_{std::move(y)},
        forward_{model == "cnn"           ? cnn
                 : model == "transformer" ? transformer
                                          : mlp},
        optimizer_{trees_[0]->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.9)} {}

  /// Writes what autocast would run in BF16 as a plan file, and trains with it from now on.
  void plan(const std::string& path) {
    comp::libtorch::program program;
    for (const auto& m : modules_) program.name_parameters(*m.module, m.name);
    program.record(true);
    {
      const auto on = program.enter();
      (void)loss();
    }
    program.record(false);
    const comp::policy::pytorch lists{.list = comp::policy::pytorch_list::cpu, .low = comp::precision::bf16};
    comp::save(comp::autocast::rule_plan(lists, program.graph(), comp::precision::bf16), program.graph(),
               comp::libtorch::probe(x_.device()), path);
    planned_.emplace(modules_, path);
  }
  Tensor fp32_step() { return trained(loss()); }
  Tensor planned_step() {
    Tensor value;
    {
      const auto on = planned_->enter();
      value = loss();
    }
    return trained(std::move(value));
  }

 private:
  Tensor loss() const { return torch::cross_entropy_loss(forward_(x_, next_of{tensors_}), y_); }
  Tensor trained(Tensor loss) {
    loss.backward();
    optimizer_.step();
    optimizer_.zero_grad();
    return loss;
  }

  std::vector<std::shared_ptr<comp::python::parameter_tree>> trees_;
  std::vector<comp::libtorch::named_module> modules_;
  std::vector<Tensor> tensors_;
  Tensor x_, y_;
  std::function<Tensor(Tensor, next_of)> forward_;
  torch::optim::SGD optimizer_;
  std::optional<comp::libtorch::planned_region> planned_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  namespace py = pybind11;
  py::class_<training>(m, "Training")
      .def(py::init<const std::string&, const named_models&, std::vector<Tensor>, Tensor, Tensor>())
      .def("plan", &training::plan, py::call_guard<py::gil_scoped_release>())
      .def("fp32_step", &training::fp32_step, py::call_guard<py::gil_scoped_release>())
      .def("planned_step", &training::planned_step, py::call_guard<py::gil_scoped_release>());
}
