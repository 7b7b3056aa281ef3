// SPDX-License-Identifier: Apache-2.0
// Makes a torch::nn::Module of a TorchScript module, traced or scripted: with the same parameters, buffers and parts
// under the same names, and with the same mode.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>

namespace comp::libtorch::detail {

class scripted final : public torch::nn::Module {
 public:
  explicit scripted(torch::jit::Module script) : script_{std::move(script)} {
    for (const auto& p : script_.named_parameters(/*recurse=*/false))
      register_parameter(p.name, p.value, p.value.requires_grad());
    for (const auto& b : script_.named_buffers(/*recurse=*/false)) register_buffer(b.name, b.value);
    for (const auto& part : script_.named_children())
      register_module(part.name, std::make_shared<scripted>(part.value));
  }
  void train(bool on) override {
    torch::nn::Module::train(on);
    if (script_.hasattr("training")) script_.setattr("training", on);
  }
  bool is_training() const noexcept override { return script_.is_training(); }
  const torch::jit::Module& script() const { return script_; }

 private:
  torch::jit::Module script_;
};

}  // namespace comp::libtorch::detail
