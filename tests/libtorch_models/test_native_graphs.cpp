// SPDX-License-Identifier: Apache-2.0
// The native trainer's GCN, GAT and SimpleNet on this CPU beside those in plain LibTorch: from the same weights on the
// same data the same losses, while both train.
#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/gat.hpp>
#include <examples/models/native/gcn.hpp>
#include <examples/models/native/graph_data.hpp>
#include <examples/models/native/simple_net.hpp>
#include <functional>
#include <libtorch/graph_jobs.hpp>
#include <libtorch/simple_net.hpp>
#include <vector>

#include "libtorch/torch_and_doctest.hpp"  // last: LibTorch has a CHECK of its own, which ends the program

namespace {

using comp::host::device;
namespace native = comp::native;

/// Gives the native model the weights of `net`, matrices transposed if their shapes say so.
void take_weights(native::trainer<device>& to, device& d, const std::vector<torch::Tensor>& from) {
  REQUIRE(to.network().all().size() == from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    auto& p = *to.network().all()[i];
    torch::Tensor values = from[i].detach();
    if (values.dim() == 2 && values.sizes() != torch::IntArrayRef(d.shape_of(p))) values = values.t();
    REQUIRE(values.sizes() == torch::IntArrayRef(d.shape_of(p)));
    values = values.contiguous();
    d.set_values(p, {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())});
  }
}

/// Trains both for ten steps.
void check_losses(native::trainer<device>& ours, torch::optim::Optimizer& optimizer,
                  const std::function<torch::Tensor()>& loss_of) {
  double first = 0;
  for (int step = 0; step < 10; ++step) {
    const torch::Tensor loss = loss_of();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    const double got = ours.run_batch().loss, want = loss.item<double>();
    CAPTURE(step);
    CHECK(got == doctest::Approx(want).epsilon(2e-5));
    first = step == 0 ? want : first;
    if (step == 9) CHECK(want < first);
  }
}

const data_sets::graph& made_up() {
  static const data_sets::graph graph = data_sets::made_up_graph(3);
  return graph;
}

TEST_CASE("native GCN has the losses of LibTorch's from the same weights") {
  torch::manual_seed(1);
  const auto theirs = torch_models::graph_data({.seed = 3});
  torch_models::gcn net(torch_models::gcn_options{.dropout = 0});
  const auto set = native_models::graph_data(made_up(), 3);
  device d{{.threads = 1}};
  native::trainer<device> ours{d,
                               native_models::gcn({.features = set.features, .adjacency = set.adjacency, .dropout = 0}),
                               set.train,
                               set.validation,
                               {.optimizer = native::adam(0.01, 5e-4)}};
  take_weights(ours, d, {net->layers[0]->weight, net->layers[0]->bias, net->layers[1]->weight, net->layers[1]->bias});
  using torch::optim::AdamOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (std::size_t i = 0; i < 2; ++i) {
    groups.emplace_back(net->layers[i]->parameters(),
                        std::make_unique<AdamOptions>(AdamOptions(0.01).weight_decay(i == 0 ? 5e-4 : 0)));
  }
  torch::optim::Adam optimizer{std::move(groups), AdamOptions(0.01)};
  check_losses(ours, optimizer, [&] {
    const torch::Tensor logits = net->forward(theirs.features, theirs.adjacency);
    return torch::cross_entropy_loss(logits.index_select(0, theirs.train[0][0]), theirs.train[1][0]);
  });
  const torch::NoGradGuard no_gradients;
  const torch::Tensor chosen =
      net->forward(theirs.features, theirs.adjacency).index_select(0, theirs.validation[0][0]).argmax(1);
  const double score = chosen.eq(theirs.validation[1][0]).to(torch::kDouble).mean().item<double>();
  CHECK(ours.validate() == doctest::Approx(score).epsilon(0.005));  // a node on the border may fall to either side
}

TEST_CASE("native GAT has the losses of LibTorch's from the same weights") {
  torch::manual_seed(2);
  const auto theirs = torch_models::graph_data({.seed = 3});
  torch_models::gat net(torch_models::gat_options{.dropout = 0});
  const auto set = native_models::graph_data(made_up(), 3);
  device d{{.threads = 1}};
  native::trainer<device> ours{d,
                               native_models::gat({.features = set.features, .edges = set.adjacency, .dropout = 0}),
                               set.train,
                               set.validation,
                               {.optimizer = native::adam(0.005, 5e-4)}};
  std::vector<torch::Tensor> weights;
  for (const auto& layer : {net->first, net->second}) {
    weights.insert(weights.end(), {layer->weight, layer->as_source, layer->as_target, layer->bias});
  }
  take_weights(ours, d, weights);
  torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions(0.005).weight_decay(5e-4)};
  check_losses(ours, optimizer, [&] {
    const torch::Tensor logits = net->forward(theirs.features, theirs.edges);
    return torch::cross_entropy_loss(logits.index_select(0, theirs.train[0][0]), theirs.train[1][0]);
  });
}

TEST_CASE("native SimpleNet has the losses of LibTorch's from the same weights") {
  torch::manual_seed(3);
  torch_models::simple_net net(torch_models::simple_net_options{.width = 64});
  const native_models::random_examples data{64, 16, 5};
  device d{{.threads = 1}};
  native::trainer<device> ours{
      d, native_models::simple_net({.batch = 16, .width = 64}), data, data, {.optimizer = native::sgd(0.1)}};
  take_weights(ours, d, net->parameters());
  torch::Tensor x = torch::empty({16, 64}), y = torch::empty({16, 64});
  for (std::size_t i = 0; i < 16; ++i) {
    data.write(i, {.values = {x.data_ptr<float>() + 64 * i, 64}, .targets = {y.data_ptr<float>() + 64 * i, 64}});
  }
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.1)};
  check_losses(ours, optimizer, [&] { return torch::mse_loss(net->forward(x), y); });
}

}  // namespace
