// SPDX-License-Identifier: Apache-2.0
// What the documents' programs with LibTorch have around them.
#pragma once
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <comp/comp.hpp>
#include <comp_libtorch/comp_libtorch.hpp>

using torch::nn::functional::cross_entropy;
struct batch_type {
  torch::Tensor data, target;
};
extern torch::nn::Sequential net, judge, make;
extern torch::optim::SGD optimizer, of_judge, of_make;
extern torch::Tensor x, images, labels;
extern batch_type batch, test;
extern std::vector<batch_type>* loader;
torch::Tensor judged(const torch::Tensor&images), fooled(const torch::Tensor&images);
double accuracy(const torch::nn::Sequential& net, const batch_type& test);
extern c10::intrusive_ptr<c10d::ProcessGroup> group;
void average_gradients(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const std::vector<torch::Tensor>& parameters, at::ScalarType format);
extern comp::libtorch::step& s;
extern torch::Tensor loss;
inline auto batches = comp::libtorch::tensor_batches(images, labels, {.batch = 64, .seed = 1});
inline auto step = [](comp::libtorch::step& s, const auto& batch) {
  s.backward(s.forward([&] { return cross_entropy(net->forward(batch.data), batch.target); }));
};
inline comp::libtorch::trainer trainer{{.modules = {{"net", net}}, .optimizers = {&optimizer}}, batches, step};
