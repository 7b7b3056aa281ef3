// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/concepts.hpp>
#include <comp/systems/tvm.hpp>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>

namespace tvm_tests {
using comp::category;
using comp::precision;
using comp::settings_error;
using comp::policy::conversion;
using comp::policy::missing_rule;
using comp::policy::tvm;
using comp::policy::tvm_registry;
static_assert(comp::OperatorPolicy<tvm>);

category at(const tvm& amp, const std::string& kind) { return amp.classify({.name = kind, .kind = kind}).category; }
comp::policy::conversion_rule always(category c) {
  return [c](const comp::op_info&, precision low) { return conversion{c, low, low}; };
}

TEST_CASE("TVM's names and ATen's say the same") {
  for (const std::string kind : {"nn.conv2d", "conv2d", "aten::conv2d.padding"}) CHECK(at({}, kind) == category::allow);
  CHECK(at({}, "aten::softmax.int") == category::deny);
  CHECK(at({}, "add.Tensor") == category::follow);
  CHECK(at({}, "erf") == category::deny);
}

TEST_CASE(
    "the RFC's example: conv2d is ALLOW when its input has more than 100 elements, else FOLLOW; it sums in FP32") {
  tvm amp;
  amp.registry.add(
      "nn.conv2d",
      [](const comp::op_info& call, precision low) {
        const auto& shape = call.inputs.at(0).shape;
        const auto elements = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>{});
        return conversion{elements > 100 ? category::allow : category::follow, precision::fp32, low};
      },
      11);
  const auto conv = [&](std::int64_t width) {
    return amp.classify({.name = "c", .kind = "conv2d", .inputs = {{.shape = {1, 1, 10, width}}}});
  };
  CHECK(conv(11).category == category::allow);
  CHECK(conv(11).accumulate == precision::fp32);
  CHECK(conv(11).output == precision::fp16);
  CHECK(conv(10).category == category::follow);
}

TEST_CASE("a higher level replaces a lower one, whichever was registered first") {
  tvm amp;
  amp.registry.add("nn.softmax", always(category::follow), 11);
  CHECK(at(amp, "softmax") == category::follow);
  amp.registry.add("softmax", always(category::allow), 12);
  CHECK(at(amp, "nn.softmax") == category::allow);
  amp.registry.add("nn.softmax", always(category::deny), 5);
  CHECK(at(amp, "nn.softmax") == category::allow);
  amp.registry.add("exp", always(category::allow), 9);  // below TVM's own
  CHECK(at(amp, "exp") == category::deny);
}

TEST_CASE("a rule of a level that is taken is an error") {
  tvm_registry registry;
  CHECK_THROWS_WITH_AS(registry.add("nn.conv2d", always(category::deny)),
                       "\"nn.conv2d\" has a conversion rule of level 10 already (a higher level replaces, equal ones "
                       "contradict): register it with level 11",
                       settings_error);
  registry.add("my.op", always(category::allow));
  CHECK_THROWS_AS(registry.add("my.op", always(category::allow)), settings_error);
  CHECK_NOTHROW(registry.add("my.op", always(category::allow), 11));
}

TEST_CASE("an empty rule is refused when it is registered") {
  CHECK_THROWS_WITH_AS(tvm_registry{}.add("my.op", nullptr),
                       "the conversion rule of \"my.op\" is empty (it cannot be called): give a function",
                       settings_error);
}

TEST_CASE("an operator without a rule follows, or is an error that names the nearest") {
  CHECK(at({}, "log_softmax") == category::follow);
  CHECK(at({.missing = missing_rule::silent}, "log_softmax") == category::follow);
  CHECK_THROWS_WITH_AS(
      at({.missing = missing_rule::error}, "nn.con2d"),
      "\"nn.con2d\" has no conversion rule, 1 time in this model (it follows its inputs): register one, or "
      "did you mean \"nn.conv2d\"?",
      settings_error);
}

TEST_CASE("unregistered operators are named once per kind, with how often they appear") {
  const comp::op_graph graph{
      {{.name = "a", .kind = "zeta"}, {.name = "b", .kind = "aten::zeta"}, {.name = "c", .kind = "relu"}}};
  const auto warnings = tvm{}.warnings(graph);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].starts_with("\"zeta\" has no conversion rule, 2 times in this model (it follows its inputs)"));
}

TEST_CASE("a rule that throws is an error that names rule, operator and cause") {
  tvm amp;
  amp.registry.add("my.op", [](const comp::op_info&, precision) -> conversion { throw std::out_of_range{"no shape"}; });
  CHECK_THROWS_WITH_AS(amp.classify({.name = "block.op", .kind = "my.op"}),
                       "the conversion rule of \"my.op\" failed for operator \"block.op\" (no shape): correct the rule",
                       settings_error);
}

TEST_CASE("a rule that answers with another system's category is an error") {
  tvm amp;
  amp.registry.add("my.op", always(category::clear));
  CHECK_THROWS_WITH_AS(
      amp.classify({.name = "block.op", .kind = "my.op"}),
      "the conversion rule of \"my.op\" says clear for operator \"block.op\" (TVM has allow, follow and "
      "deny): answer with one of them",
      settings_error);
}

TEST_CASE("a precision that the device lacks is an error, in the policy or in a rule") {
  tvm amp{.supported = {precision::fp32, precision::bf16}};
  CHECK_THROWS_WITH_AS(
      amp.classify({.name = "fc", .kind = "linear"}),
      "operator \"fc\" (\"linear\") is to use fp16 (this device lacks it): choose another low precision or "
      "correct the rule",
      settings_error);
  CHECK_NOTHROW(amp.classify({.name = "s", .kind = "softmax"}));
  amp.low = precision::bf16;
  CHECK_NOTHROW(amp.classify({.name = "fc", .kind = "linear"}));
  amp.registry.add("my.op", [](const comp::op_info&, precision) {
    return conversion{category::allow, precision::fp8_e5m2, precision::fp32};
  });
  CHECK_THROWS_AS(amp.classify({.name = "o", .kind = "my.op"}), settings_error);
}
}  // namespace tvm_tests
