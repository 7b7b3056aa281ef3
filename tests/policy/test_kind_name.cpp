// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/policy/kind_name.hpp>

namespace {
using comp::policy::same_operator;
using comp::policy::without_namespace;

TEST_CASE("the namespace aten and the overload default are left out") {
  CHECK(without_namespace("aten::conv2d") == "conv2d");
  CHECK(without_namespace("aten::softmax.int") == "softmax.int");
  CHECK(without_namespace("aten::linear.default") == "linear");
  CHECK(without_namespace("mine::conv2d") == "mine::conv2d");
  CHECK(without_namespace("") == "");
  CHECK(comp::policy::without_overload("aten::softmax.int") == "softmax");
  CHECK(comp::policy::without_overload("conv2d") == "conv2d");
}

TEST_CASE("a bare kind is every overload of its name, two overloads are two operators") {
  CHECK(same_operator("aten::softmax.int", "softmax"));
  CHECK(same_operator("softmax", "softmax.int"));
  CHECK(same_operator("softmax", "aten::softmax"));
  CHECK_FALSE(same_operator("softmax.int", "softmax.Dimname"));
  CHECK_FALSE(same_operator("log_softmax", "softmax"));
  CHECK_FALSE(same_operator("softmax_backward", "softmax"));
}
}  // namespace
