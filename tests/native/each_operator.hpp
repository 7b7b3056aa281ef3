// SPDX-License-Identifier: Apache-2.0
// Each operator of the native trainer in a small network of its own: what tests hold each Device against, and the
// slopes that its gradients have to be.
#pragma once

#include <functional>

#include "graphs.hpp"
#include "support.hpp"

namespace comp::native::testing {

inline model of_images(const std::function<value(value)>& build) {
  model_builder net{"images", input_kind::values, {4, 3, 9, 9}};
  build(net.input().conv2d("before", 8, {.padding = 1})).conv2d("after", 3, {.kernel = 1}).mse_loss("loss");
  return net.finish();
}
inline model of_rows(const std::function<void(value)>& build) {
  model_builder net{"rows", input_kind::values, {6, 10}};
  build(net.input().linear("before", 12));
  return net.finish();
}
inline model of_heads(const std::function<value(value, value)>& build) {
  model_builder net{"heads", input_kind::tokens, {3, 7}};
  const value x = net.input().embedding("tokens", 9, 12);
  build(x.linear("a", 12), x.linear("b", 12)).linear("after", 5).cross_entropy_loss("loss");
  return net.finish();
}

/// `build` reads rows of the nodes of a small graph, and the graph.
inline model of_nodes(const std::function<value(value, sparse)>& build) {
  const auto set = community_set();
  model_builder net{"nodes", input_kind::values, {1, std::ssize(set.features->column)}};
  const value x =
      net.input().linear("values", std::ssize(set.features->column)).sparse_linear("before", set.features, 6);
  build(x, set.adjacency).linear("after", 4).cross_entropy_loss("loss");
  return net.finish();
}

/// Of tokens with segments and padding, judged by spans.
inline model of_segments(const std::function<value(value)>& build) {
  model_builder net{"segments", input_kind::tokens, {3, 2, 7}};
  const value token = net.input().embedding("tokens", 9, 12);
  build(token.add("sum", net.input().embedding("segment", 2, 12, op::looked_up::segments))).cross_entropy_loss("loss");
  return net.finish();
}

/// Each operator of the trainer once, called "it", between operators that differentiate it.
inline std::vector<std::pair<std::string, model>> each_operator() {
  return {
      {"linear", of_rows([](value x) { x.linear("it", 7).mse_loss("loss"); })},
      {"conv2d", of_images([](value x) { return x.conv2d("it", 5, {.padding = 1}); })},
      {"conv2d strided", of_images([](value x) { return x.conv2d("it", 5, {.stride = 2, .bias = false}); })},
      {"conv2d in groups",
       of_images([](value x) { return x.conv2d("it", 4, {.padding = 2, .dilation = 2, .groups = 4}); })},
      {"batch_norm", of_images([](value x) { return x.batch_norm("it"); })},
      {"batch_norm of rows", of_rows([](value x) { x.batch_norm("it").tanh("tanh").mse_loss("loss"); })},
      {"layer_norm", of_heads([](value x, value) { return x.layer_norm("it"); })},
      {"relu", of_images([](value x) { return x.relu("it"); })},
      {"gelu", of_images([](value x) { return x.gelu("it"); })},
      {"gelu_tanh", of_images([](value x) { return x.gelu_tanh("it"); })},
      {"tanh", of_images([](value x) { return x.tanh("it"); })},
      {"sigmoid", of_images([](value x) { return x.sigmoid("it"); })},
      {"elu", of_images([](value x) { return x.elu("it"); })},
      {"leaky_relu", of_images([](value x) { return x.leaky_relu("it"); })},
      {"dropout", of_images([](value x) { return x.dropout("it", 0.3); })},
      {"max_pool2d", of_images([](value x) {
         return x.max_pool2d("it", {{3, 3}, {2, 2}, {1, 1}});
       })},
      {"avg_pool2d", of_images([](value x) {
         return x.avg_pool2d("it", {{3, 3}, {2, 2}, {1, 1}});
       })},
      {"adaptive_avg_pool2d", of_images([](value x) {
         return x.adaptive_avg_pool2d("it", {4, 2});
       })},
      {"flatten", of_rows([](value x) { x.flatten("it").mse_loss("loss"); })},
      {"add", of_images([](value x) { return x.add("it", x.tanh("other")); })},
      {"add of itself", of_images([](value x) { return x.add("it", x); })},
      {"linear over the last axis", of_images([](value x) { return x.linear("it", 7); })},
      {"mul", of_images([](value x) { return x.mul("it", x.tanh("other")); })},
      {"embedding",
       [] {
         model_builder net{"embedding", input_kind::tokens, {3, 7}};
         net.input().embedding("it", 9, 12).linear("after", 5).cross_entropy_loss("loss");
         return net.finish();
       }()},
      {"bmm scores",
       of_heads([](value a, value b) { return a.attention_scores("it", b, 3).attention_context("c", b, 3); })},
      {"bmm context", of_heads([](value a, value b) {
         return a.attention_scores("s", b, 3).softmax("soft", op::softmax_mask::causal).attention_context("it", b, 3);
       })},
      {"causal softmax", of_heads([](value a, value b) {
         return a.attention_scores("s", b, 3).softmax("it", op::softmax_mask::causal).attention_context("c", b, 3);
       })},
      {"padded softmax", of_segments([](value x) {
         return x.attention_scores("s", x.linear("b", 12), 3)
             .softmax("it", op::softmax_mask::padding)
             .attention_context("c", x, 3)
             .linear("after", 2)
             .masked_columns("spans");
       })},
      {"padded attention", of_segments([](value x) {
         const attention_options o{.heads = 3, .mask = op::softmax_mask::padding};
         return x.attention("it", x.linear("b", 12), x, o).linear("after", 2).masked_columns("spans");
       })},
      {"causal attention", of_heads([](value a, value b) {
         return a.attention("it", b, a, {.heads = 3, .mask = op::softmax_mask::causal});
       })},
      {"masked_columns", of_segments([](value x) { return x.linear("after", 2).masked_columns("it"); })},
      {"binary_cross_entropy_loss", of_rows([](value x) { x.binary_cross_entropy_loss("it", 1); })},
      {"softmax", of_rows([](value x) { x.softmax("it").mse_loss("loss"); })},
      {"log_softmax", of_rows([](value x) { x.log_softmax("it").nll_loss("loss"); })},
      {"cross_entropy_loss", of_rows([](value x) { x.cross_entropy_loss("it"); })},
      {"nll_loss", of_rows([](value x) { x.log_softmax("log").nll_loss("it"); })},
      {"mse_loss", of_rows([](value x) { x.mse_loss("it"); })},
      {"sparse_linear",
       [] {
         const auto set = community_set();
         model_builder net{"sparse", input_kind::values, {1, std::ssize(set.features->column)}};
         net.input()
             .linear("values", std::ssize(set.features->column))
             .sparse_linear("it", set.features, 7)
             .cross_entropy_loss("loss");
         return net.finish();
       }()},
      {"spmm", of_nodes([](value x, sparse a) { return x.spmm("it", a); })},
      {"edge_scores", of_nodes([](value x, sparse a) {
         return x.edge_scores("it", a, 3).edge_softmax("soft", a).weighted_sum("sum", a, x);
       })},
      {"edge_softmax", of_nodes([](value x, sparse a) {
         return x.edge_scores("scores", a, 3).edge_softmax("it", a).weighted_sum("sum", a, x);
       })},
      {"weighted_sum", of_nodes([](value x, sparse a) {
         return x.edge_scores("scores", a, 2).edge_softmax("soft", a).weighted_sum("it", a, x);
       })},
  };
}

}  // namespace comp::native::testing
