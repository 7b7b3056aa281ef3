// SPDX-License-Identifier: Apache-2.0
// GCN and GAT on a graph of papers or pages. A step reads the whole graph.
// Source of the hyper-parameters: Kipf and Welling 2017, section 5.2; Velickovic et al. 2018, section 3.3
#pragma once

#include <libtorch/graph_data.hpp>

namespace torch_models {
namespace detail {

/// logits: returns the logits of all nodes. A row of the columns has node numbers and their classes.
job node_job(std::string name, graph_set set, const job_options& o, std::shared_ptr<torch::nn::Module> net,
             auto logits) {
  job task{.name = std::move(name), .modules = {{"net", std::move(net)}}, .batch = 1};
  task.description = fmt::format("{} on {} nodes and {} edges of {} ({} classes)", task.name, set.features.size(0),
                                 set.edges.source.size(0), set.source, set.classes);
  for (const torch::Tensor& column : set.train)
    task.train.push_back(column.repeat({std::max<std::int64_t>(o.steps_per_epoch, 1), 1}));
  task.validation = set.validation;
  task.phases = {{"forward", [logits](const columns& rows) mutable {
                    return torch::cross_entropy_loss(logits().index_select(0, rows[0].flatten()), rows[1].flatten());
                  }}};
  task.score = [logits](const job& of) mutable {
    const torch::Tensor chosen = logits().index_select(0, of.validation[0].flatten());
    return chosen.argmax(1).eq(of.validation[1].flatten()).to(torch::kDouble).mean().template item<double>();
  };
  return task;
}

}  // namespace detail

inline job gcn_job(const job_options& o) {
  torch::manual_seed(o.seed);
  graph_set set = graph_data(o);
  gcn net(gcn_options{.features = set.features.size(1), .classes = set.classes});
  net->to(o.device);
  using torch::optim::AdamOptions;
  const double rate = detail::rate(o, 0.01);
  std::vector<torch::optim::OptimizerParamGroup> groups;  // only the first layer has weight decay, as in the paper
  for (std::size_t i = 0; i < net->layers.size(); ++i) {
    groups.emplace_back(net->layers[i]->parameters(),
                        std::make_unique<AdamOptions>(AdamOptions(rate).weight_decay(i == 0 ? 5e-4 : 0)));
  }
  job task = detail::node_job("gcn", set, o, net.ptr(),
                              [net, x = set.features, a = set.adjacency]() mutable { return net->forward(x, a); });
  task.optimizers = {std::make_shared<torch::optim::Adam>(std::move(groups), AdamOptions(rate))};
  return task;
}

inline job gat_job(const job_options& o) {
  torch::manual_seed(o.seed);
  graph_set set = graph_data(o);
  gat net(gat_options{.features = set.features.size(1), .classes = set.classes});
  net->to(o.device);
  job task = detail::node_job("gat", set, o, net.ptr(),
                              [net, x = set.features, e = set.edges]() mutable { return net->forward(x, e); });
  task.optimizers = {std::make_shared<torch::optim::Adam>(
      net->parameters(), torch::optim::AdamOptions(detail::rate(o, 0.005)).weight_decay(5e-4))};
  return task;
}

}  // namespace torch_models
