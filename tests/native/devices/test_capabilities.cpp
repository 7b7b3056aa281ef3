// SPDX-License-Identifier: Apache-2.0
// What lowering one operator alone does, and perturbed weights, on the device that tested_device.hpp names.
#include <doctest/doctest.h>

#include <cmath>
#include <comp_native/trainer.hpp>
#include <cstddef>
#include <examples/models/native/models.hpp>

#include "../support.hpp"
#include "tested_device.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::op_error;
using comp::precision;
using device_trainer = trainer<comp::tested::device>;

namespace {

namespace tested = comp::tested;

/// Every kind of operator that trains, two readers of one value, running statistics, dropout.
model branched_net() {
  model_builder net{"some", input_kind::values, {4, 2, 8, 8}};
  const value x = net.input().conv2d("conv", 6, {.padding = 1}).batch_norm("norm").relu("relu");
  x.conv2d("branch", 6, {.padding = 1, .bias = false})
      .tanh("tanh")
      .add("add", x)
      .max_pool2d("pool")
      .flatten("flatten")
      .dropout("dropout", 0.2)
      .linear("head", 4)
      .cross_entropy_loss("loss");
  return net.finish();
}
model attention_net() {
  return native_models::gpt(
      {.batch = 2, .vocabulary = 9, .context = 6, .layers = 1, .width = 12, .heads = 2, .dropout = 0});
}

std::size_t index_of(const device_trainer& t, std::string_view name) {
  std::size_t i = 0;
  while (t.graph()[i].name != name) ++i;
  return i;
}

}  // namespace

TEST_CASE(
    "sensitivities are those of a few roundings, for every operator that can be lowered, and FP32's are nothing") {
  auto device = tested::of_networks();
  const auto check = [&](device_trainer& t) {
    const auto fp32 = t.sensitivity(precision::fp32);
    REQUIRE(fp32.size() == t.graph().size());
    for (const op_error& e : fp32) {
      CHECK(e.output == 0);
      CHECK(e.gradient < tolerance::fp32);
    }
    for (const precision low : {precision::bf16, precision::fp16}) {
      const auto errors = t.sensitivity(low);
      REQUIRE(errors.size() == t.graph().size());
      for (std::size_t i = 0; i < errors.size(); ++i) {
        CAPTURE(t.graph()[i].name);
        CAPTURE(name(low));
        CHECK(errors[i].output <= tolerance::one_operator(low));
        CHECK(errors[i].gradient <= tolerance::network(low));
        if (!t.graph()[i].choosable) {
          CHECK(errors[i].output == 0);
          CHECK(errors[i].gradient == 0);
        } else if (t.graph()[i].kind == "linear" || t.graph()[i].kind == "conv2d") {
          CHECK(errors[i].output > comp::traits(low).half_ulp / 8);
          CHECK(errors[i].gradient > comp::traits(low).half_ulp / 8);
        }
      }
    }
  };
  SUBCASE("of images") {
    device_trainer t{device, branched_net(), bars({2, 8, 8}, 4, 16, 1), bars({2, 8, 8}, 4, 8, 2)};
    check(t);
  }
  SUBCASE("of tokens") {
    const auto tokens = counting_tokens(9, 100, 6);
    device_trainer t{device, attention_net(), tokens, tokens};
    check(t);
  }
}

TEST_CASE("separate products have times and errors of their own") {
  auto device = tested::of_networks();
  model m = attention_net();
  m.separate_products = true;
  const auto tokens = counting_tokens(9, 100, 6);
  device_trainer t{device, std::move(m), tokens, tokens};
  const auto times = t.profile();
  const auto errors = t.sensitivity(precision::bf16);
  REQUIRE(times.size() == t.graph().size());
  REQUIRE(errors.size() == t.graph().size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    const comp::op_info& op = t.graph()[i];
    if (op.product == comp::product::all) continue;
    CAPTURE(op.name);
    const bool forward = op.product == comp::product::forward;
    CHECK((times[i].forward > 0) == forward);
    CHECK((times[i].backward > 0) == !forward);
    CHECK((errors[i].output > comp::traits(precision::bf16).half_ulp / 8) == forward);
    CHECK((errors[i].gradient > comp::traits(precision::bf16).half_ulp / 8) == !forward);
  }
}

TEST_CASE("what leaves the range of a precision has an infinite error") {
  auto device = tested::of_networks();
  device_trainer t{device, branched_net(), bars({2, 8, 8}, 4, 16, 1), bars({2, 8, 8}, 4, 8, 2)};
  const std::size_t loss = index_of(t, "loss"), head = index_of(t, "head"), conv = index_of(t, "conv");
  auto& weight = t.network().parameters()[t.model().nodes[head].parameters[0]];
  auto values = device.values(weight);
  for (float& v : values) v *= 1e6F;
  device.set_values(weight, values);
  const auto errors = t.sensitivity(precision::fp16);
  CHECK(std::isinf(errors[head].output));  // scores of 10^5 and more
  CHECK(std::isinf(errors[loss].output));  // which the loss reads
  CHECK(errors[conv].output < tolerance::one_operator(precision::fp16));
  CHECK(t.sensitivity(precision::bf16)[head].output < tolerance::one_operator(precision::bf16));
}

TEST_CASE("gradients that a high loss scale drives out of FP16's range are judged at a lower one") {
  auto device = tested::of_networks();
  const auto errors_at = [&](comp::scaling::settings scaling) {
    device_trainer t{device, branched_net(), bars({2, 8, 8}, 4, 16, 1), bars({2, 8, 8}, 4, 8, 2), {.scaling = scaling}};
    return t.sensitivity(precision::fp16)[index_of(t, "head")];
  };
  CHECK(errors_at({.initial = 0x1p22}).gradient < tolerance::network(precision::fp16));
  CHECK(std::isinf(errors_at({.initial = 0x1p22, .dynamic = false}).gradient));  // this one stays as it is
  CHECK(errors_at({.initial = 1, .dynamic = false}).gradient < tolerance::network(precision::fp16));
}
