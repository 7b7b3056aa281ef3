// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/autocast/not_run.hpp>
#include <comp/systems/paddle_pass.hpp>
#include <comp/systems/tvm_pass.hpp>

#include "model_graphs.hpp"

namespace not_run_tests {
using comp::precision;
using comp::autocast::not_run;
using sentences = std::vector<std::string>;

comp::op_graph two_products() {
  model_graphs::builder net;
  const std::size_t first = net.add("first", "conv2d", {}, {4, 8, 2, 2}, {{.shape = {4, 3, 2, 2}}});
  const std::size_t relu = net.same("relu", "relu", {first});
  net.same("flat", "flatten", {net.same("second", "conv2d", {relu})});
  return std::move(net).finish();
}
comp::policy::tvm with_results(precision accumulate, precision output) {
  comp::policy::tvm amp;
  amp.registry.add(
      "nn.conv2d",
      [=](const comp::op_info&, precision) {
        return comp::policy::conversion{comp::category::allow, accumulate, output};
      },
      11);
  return amp;
}

TEST_CASE("a plan whose operators write what they compute in is run whole") {
  CHECK(not_run(two_products(), comp::autocast::tvm_pass({}, two_products())).empty());
  CHECK(not_run(two_products(), comp::autocast::typed(two_products(), comp::parse_plan("0tb1"))).empty());
  CHECK(not_run(two_products(), comp::autocast::paddle_pass({}, two_products())).empty());
}

TEST_CASE("accumulation and output dtype that a backend does not run are told, a view of such a result is not") {
  const comp::op_graph graph = two_products();
  const auto describe = [&](precision accumulate, precision output,
                            const comp::autocast::tvm_pass_settings& settings = {}) {
    return not_run(graph, comp::autocast::tvm_pass(with_results(accumulate, output), graph, settings));
  };
  CHECK(describe(precision::fp32, precision::fp16) ==
        sentences{"first and second: written in fp32 and handed on in fp16; a backend does both in fp16"});
  CHECK(describe(precision::fp32, precision::fp32) ==
        sentences{"first and second: written in fp32 and handed on in fp32; a backend does both in fp16"});
  CHECK(describe(precision::fp32, precision::fp16, {.rounds_at_once = true}).empty());
}

TEST_CASE("what is not run is counted by kind, each combination of formats once") {
  const comp::op_graph vgg = model_graphs::vgg16();
  CHECK(not_run(vgg, comp::autocast::tvm_pass(with_results(precision::fp32, precision::fp16), vgg)) ==
        sentences{"13 conv2d: written in fp32 and handed on in fp16; a backend does both in fp16"});
  CHECK(not_run(vgg, comp::autocast::paddle_pass({}, vgg)) ==  // O1 adds the biases of convolutions in FP32
        sentences{"13 conv2d: written in fp32 and handed on in fp32; a backend does both in fp16"});
  CHECK(not_run(vgg, comp::autocast::paddle_pass({.level = comp::policy::paddle_level::o2}, vgg)) ==
        sentences{"13 conv2d and 3 linear: parameters stored in fp16; a backend stores them in fp32, and casts them in "
                  "each step"});
}

TEST_CASE("a plan for another model is refused before anything is said of it") {
  CHECK_THROWS_AS(not_run(two_products(), comp::autocast::typed(model_graphs::vgg16(), comp::plan{37})),
                  comp::plan_error);
}
}  // namespace not_run_tests
