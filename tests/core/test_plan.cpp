// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <comp/core/plan.hpp>
#include <unordered_set>

using comp::plan;
using comp::precision;

namespace {

std::vector<precision> any_choices() {
  return *rc::gen::container<std::vector<precision>>(rc::gen::elementOf(comp::all_precisions));
}

comp::op_graph two_operators() { return {{{.name = "conv"}, {.name = "view", .choosable = false}}}; }

plan any_plan() {
  const plan by_operators{any_choices()};
  const int how = *rc::gen::inRange(0, 3);
  return how == 0 ? by_operators : how == 1 ? by_operators.as_autocast() : by_operators.as_tuned();
}

}  // namespace

TEST_CASE("a plan prints one letter per operator, as in the paper") {
  CHECK(plan{precision::fp16, precision::fp32, precision::fp32}.str() == "011");
  CHECK(plan{precision::tf32, precision::bf16, precision::fp8_e4m3, precision::fp8_e5m2}.str() == "tbeE");
  CHECK(plan{}.str().empty());
}

TEST_CASE("a plan of n operators is FP32 everywhere unless told otherwise") {
  CHECK(plan{3}.str() == "111");
  CHECK(plan(3, precision::bf16).str() == "bbb");
  CHECK(plan{0}.empty());
}

TEST_CASE("any plan survives its string") {
  CHECK(rc::check([] {
    const plan original = any_plan();
    RC_ASSERT(comp::parse_plan(original.str()) == original);
  }));
}

TEST_CASE("a plan that autocast runs is another plan than its precisions, and its string says so") {
  const plan by_operators{precision::bf16, precision::fp32}, real = by_operators.as_autocast();
  CHECK(real.runs_autocast());
  CHECK_FALSE(by_operators.runs_autocast());
  CHECK(real.str() == "b1@autocast");
  CHECK(real != by_operators);
  CHECK((by_operators < real) != (real < by_operators));
  CHECK(std::hash<plan>{}(real) != std::hash<plan>{}(by_operators));
  CHECK(comp::parse_plan("b1@autocast") == real);
  CHECK(real.operator_by_operator() == by_operators);
  CHECK_THROWS_AS((void)comp::parse_plan("b1@auto"), comp::plan_error);
}

TEST_CASE("tuned FP32 is another plan than FP32, and no other plan has that mark") {
  const plan fp32{2}, tuned = fp32.as_tuned();
  CHECK(tuned.is_tuned());
  CHECK_FALSE(fp32.is_tuned());
  CHECK_FALSE(tuned.runs_autocast());
  CHECK(tuned.str() == "11@tuned");
  CHECK(comp::parse_plan("11@tuned") == tuned);
  CHECK(tuned != fp32);
  CHECK(tuned != fp32.as_autocast());
  CHECK((tuned < fp32) != (fp32 < tuned));
  CHECK(std::hash<plan>{}(tuned) != std::hash<plan>{}(fp32));
  CHECK(tuned.operator_by_operator() == fp32);
  CHECK(fp32.run_like(tuned) == tuned);
  CHECK(tuned.run_like(fp32) == fp32);
  const comp::op_graph graph{{{.name = "a"}, {.name = "b"}}};
  comp::require_fits(tuned, graph);
  CHECK_THROWS_WITH_AS(comp::require_fits(comp::parse_plan("1b@tuned"), graph),
                       "plan \"...@tuned\" lowers 1 operators (only FP32 has that mark: other plans are tuned without "
                       "it): delete the mark",
                       comp::plan_error);
}

TEST_CASE("plans are ordered, equal and hashed by what they say alone") {
  CHECK(rc::check([] {
    const plan a = any_plan(), b = any_plan();
    RC_ASSERT((a == b) == (a.str() == b.str()));
    RC_ASSERT((a < b) == (b > a));
    RC_ASSERT((a <=> b == 0) == (a == b));
    const plan copy = a;
    RC_ASSERT(std::hash<plan>{}(copy) == std::hash<plan>{}(a));
  }));
}

TEST_CASE("all plans of twelve operators in two precisions have hashes of their own") {
  std::unordered_set<std::size_t> hashes;
  for (unsigned bits = 0; bits < 1U << 12; ++bits) {
    plan p{12};
    for (unsigned i = 0; i < 12; ++i) p[i] = (bits >> i & 1) != 0 ? precision::bf16 : precision::fp32;
    hashes.insert(std::hash<plan>{}(p));
  }
  CHECK(hashes.size() == std::size_t{1} << 12);
}

TEST_CASE("a mixture of two plans has the first one's mark, and the other's precision for the operators that take it") {
  const comp::plan p = comp::parse_plan("bb1@autocast"), other = comp::parse_plan("000");
  CHECK(comp::mix(p, other, [](std::size_t i) { return i != 1; }).str() == "0b0@autocast");
}

TEST_CASE("the operators in low precision are counted") {
  CHECK(comp::parse_plan("1t1b0").count_low() == 3);
  CHECK(plan{5}.count_low() == 0);
}

TEST_CASE("an unknown letter is refused with its operator") {
  CHECK_THROWS_WITH_AS(
      comp::parse_plan("01x1"),
      "plan \"01x1\" has 'x' for operator 2 (a precision is one of 1tb0eEk84ndB): save the plan again with comp::save",
      comp::plan_error);
}

TEST_CASE("a long plan is not repeated whole in its error") {
  const std::string text = std::string(1000, '1') + '?';
  try {
    comp::parse_plan(text);
    FAIL("nothing was thrown");
  } catch (const comp::plan_error& caught) {
    const std::string message = caught.what();
    CHECK(message.find("has '?' for operator 1000") != std::string::npos);
    CHECK(message.size() < 250);
  }
}

TEST_CASE("a plan fits a graph of as many operators") {
  CHECK_NOTHROW(comp::require_fits(comp::parse_plan("01"), two_operators()));
  CHECK_THROWS_WITH_AS(comp::require_fits(comp::parse_plan("011"), two_operators()),
                       "plan has 3 operators, the model 2 (they must agree): use a plan that was made for this model",
                       comp::plan_error);
}

TEST_CASE("a plan may not lower an operator that is not choosable") {
  CHECK_THROWS_WITH_AS(comp::require_fits(comp::parse_plan("1b"), two_operators()),
                       "plan gives operator 1 (\"view\") bf16 (its precision cannot be chosen): leave it at fp32",
                       comp::plan_error);
}
