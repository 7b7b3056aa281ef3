// SPDX-License-Identifier: Apache-2.0
// That no operator is on two lists, and none of ATen's has two names, is asserted as a table is made.
#include <doctest/doctest.h>

#include <comp/systems/paddle.hpp>
#include <comp/systems/tensorflow.hpp>
#include <comp/systems/tvm.hpp>
#include <map>

namespace lists_tests {
using comp::category;
using comp::precision;
using namespace comp::policy;

TEST_CASE("the lists have as many operators as those of TensorFlow 2.21.0, Paddle and TVM") {
  using enum category;
  using enum paddle_version;
  using sizes = std::map<category, std::size_t>;
  const auto paddle = [](paddle_version version, precision low, paddle_level level) {
    return paddle_lists::table(version, low, level);
  };
  const std::pair<kind_table, sizes> expected[] = {
      {tensorflow_lists::table(tensorflow_list::cuda_fp16), {{allow, 39}, {infer, 43}, {deny, 9}, {clear, 110}}},
      {tensorflow_lists::table(tensorflow_list::onednn_fp16), {{allow, 15}, {infer, 46}, {deny, 9}, {clear, 110}}},
      {tensorflow_lists::table(tensorflow_list::onednn_bf16), {{allow, 14}, {infer, 48}, {deny, 7}, {clear, 111}}},
      {paddle(v3, precision::fp16, paddle_level::o1), {{allow, 14}, {deny, 53}}},
      {paddle(v3, precision::bf16, paddle_level::o2), {{allow, 10}, {deny, 8}}},
      {paddle(guide, precision::fp16, paddle_level::o1), {{allow, 6}, {deny, 18}}},
      {paddle(guide, precision::fp16, paddle_level::o2), {{deny, 9}}},
      {paddle(guide, precision::bf16, paddle_level::o1), {{allow, 2}}},
      {tvm_lists::relay(), {{allow, 8}, {follow, 67}, {deny, 16}}}};
  for (const auto& [table, wanted] : expected) {
    sizes counted;
    for (const auto& entry : table.listed) ++counted[entry.second];
    CHECK(counted == wanted);
  }
}
}  // namespace lists_tests
