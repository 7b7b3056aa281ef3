// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/concepts.hpp>
#include <comp/policy/all_fp32.hpp>
#include <comp/policy/custom.hpp>
#include <type_traits>

namespace {
using comp::category;
using comp::precision;
using comp::settings_error;
using namespace comp::policy;
static_assert(comp::OperatorPolicy<custom<pytorch>>);
static_assert(comp::OperatorPolicy<custom<custom<all_fp32>>>);

const comp::op_info softmax{.name = "block1.attention.softmax", .kind = "aten::softmax.int", .scopes = {"block1"}};
const comp::op_info head{.name = "head.linear", .kind = "linear"};

TEST_CASE("what no rule selects is the decision of the policy beneath") {
  const custom listed{.over = pytorch{.low = precision::bf16}, .rules = {by_kind("gelu", deny())}};
  static_assert(std::is_same_v<decltype(listed), const custom<pytorch>>);
  CHECK(listed.classify(head) == pytorch{.low = precision::bf16}.classify(head));
  CHECK(custom{.over = all_fp32{}}.classify(head) == all_fp32{}.classify(head));
}

TEST_CASE("a rule selects by kind, by name or by scope") {
  SUBCASE("kind, whatever its overload or namespace") {
    CHECK(custom<>{.rules = {by_kind("softmax", allow(precision::bf16))}}.classify(softmax) == allow(precision::bf16));
    CHECK(custom<>{.rules = {by_kind("aten::softmax", follow())}}.classify(softmax) == follow());
    CHECK(custom<>{.rules = {by_kind("softmax.Dimname", follow())}}.classify(softmax).category == category::deny);
  }
  SUBCASE("name, with wildcards") {
    CHECK(custom<>{.rules = {by_name("block?.attention.*", follow())}}.classify(softmax) == follow());
    CHECK(custom<>{.rules = {by_name("block?", follow())}}.classify(softmax).category == category::deny);
  }
  SUBCASE("scope: a tag, or the beginning of the name up to a dot") {
    CHECK(custom<>{.rules = {by_scope("block1", follow())}}.classify(softmax) == follow());
    CHECK(custom<>{.rules = {by_scope("block1.attention", follow())}}.classify(softmax) == follow());
    CHECK(custom<>{.rules = {by_scope("head", fixed(precision::fp32))}}.classify(head) == fixed(precision::fp32));
    CHECK(custom<>{.rules = {by_scope("hea", deny())}}.classify(head).category == category::allow);
    CHECK(custom<>{.rules = {by_scope("head.linear", deny())}}.classify(head).category == category::allow);
  }
}

TEST_CASE("a later rule wins over an earlier one") {
  const custom<> listed{.rules = {by_kind("linear", deny()), by_scope("head", allow(precision::fp16))}};
  CHECK(listed.classify(head) == allow(precision::fp16));
  CHECK(listed.classify({.name = "body.linear", .kind = "linear"}) == deny());
}

TEST_CASE("fixed holds a precision against every search") {
  CHECK(fixed(precision::bf16).fixed);
  CHECK(fixed(precision::bf16).category == category::allow);
  CHECK(fixed(precision::fp32).category == category::deny);
  CHECK_FALSE(allow(precision::bf16).fixed);
}

TEST_CASE("an empty pattern is refused") {
  CHECK_THROWS_WITH_AS(
      by_kind("", deny()),
      "by_kind(\"\") has an empty pattern (it selects nothing): write an operator kind such as \"softmax\"",
      settings_error);
  CHECK_THROWS_WITH_AS(by_name("", deny()),
                       "by_name(\"\") has an empty pattern (it selects nothing): "
                       "write a name or a pattern such as \"block?.attention.*\"",
                       settings_error);
  CHECK_THROWS_WITH_AS(by_scope("", deny()),
                       "by_scope(\"\") has an empty pattern (it selects nothing): write a scope such as \"head\"",
                       settings_error);
}

TEST_CASE("allow(fp64) is refused; allow(fp32) is for models in FP64") {
  CHECK(allow(precision::fp32).compute == precision::fp32);
  CHECK_THROWS_WITH_AS(allow(precision::fp64),
                       "allow(fp64) lowers nothing (allow names a low precision): use deny() or fixed(fp64)",
                       settings_error);
}

TEST_CASE("two decisions for one selector are refused, both named; the same twice is one rule") {
  CHECK_THROWS_WITH_AS((rule_list{by_kind("softmax", deny()), by_kind("aten::softmax", allow(precision::bf16))}),
                       "by_kind(\"aten::softmax\") is given both deny() and allow(bf16) (one selector, two decisions): "
                       "drop one of the rules",
                       settings_error);
  CHECK_THROWS_WITH_AS((rule_list{by_scope("head", fixed(precision::fp32)), by_scope("head", follow())}),
                       "by_scope(\"head\") is given both fixed(fp32) and follow() (one selector, two decisions): "
                       "drop one of the rules",
                       settings_error);
  CHECK(rule_list{by_kind("softmax", deny()), by_kind("softmax", deny())}.all().size() == 1);
  CHECK(rule_list{by_kind("head", deny()), by_name("head", follow())}.all().size() == 2);
}
}  // namespace
