// SPDX-License-Identifier: Apache-2.0
// Attention as one operator, on a Device that has it only in parts.
#include <doctest/doctest.h>

#include <comp_host/device.hpp>
#include <comp_native/model_builder.hpp>
#include <comp_native/network.hpp>
#include <vector>

#include "../native/support.hpp"

namespace comp::host::test {
namespace {

native::model attending(bool in_one, double dropout) {
  native::model_builder net{"attending", native::input_kind::values, {2, 5, 12}};
  const native::value x = net.input().linear("x", 12), k = x.linear("k", 12), v = x.linear("v", 12);
  constexpr auto causal = native::op::softmax_mask::causal;
  const native::value y = in_one ? x.attention("all", k, v, {.heads = 3, .mask = causal, .dropout = dropout})
                                 : x.attention_scores("scores", k, 3)
                                       .softmax("shares", causal)
                                       .dropout("dropout", dropout)
                                       .attention_context("context", v, 3);
  y.linear("after", 2).mse_loss("loss");
  return net.finish();
}
/// The loss, and the gradient of each parameter.
std::vector<std::vector<float>> step_of(const native::model& m, precision p) {
  device d;
  native::network<device> net{d, m, 1};
  net.set_precision(plan{net.graph().size(), p});
  const auto batch = native::uploaded(d, m, native::testing::random_batch(m, 3));
  std::vector<std::vector<float>> seen{{static_cast<float>(net.forward(batch))}};
  net.backward(batch);
  for (const auto* each : net.trainable()) seen.push_back(d.gradient(*each));
  return seen;
}

}  // namespace

TEST_CASE("attention as one operator has the bits of its parts, forward and backward") {
  for (const precision p : {precision::fp32, precision::bf16, precision::fp16}) {
    for (const double dropout : {0.0, 0.25}) {
      CAPTURE(p);
      CAPTURE(dropout);
      CHECK(step_of(attending(true, dropout), p) == step_of(attending(false, dropout), p));
    }
  }
}

}  // namespace comp::host::test
