// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp_native/capture_choice.hpp>
#include <functional>
#include <string>

using comp::native::capture_choice;

namespace {

/// Steps until it has decided. Returns: how many; P for a plain one, C for a captured one.
std::string steps(capture_choice& choice, const std::function<double(std::size_t step, bool captured)>& seconds) {
  std::string all;
  while (!choice.decided() && all.size() < 1000) {
    const bool captured = choice.captured();
    choice.took(seconds(all.size(), captured));
    all += captured ? 'C' : 'P';
  }
  return all;
}

}  // namespace

TEST_CASE("blocks of plain and captured steps take turns, and the faster ones are kept") {
  for (const bool faster : {true, false}) {
    capture_choice choice;
    CHECK(text(choice.report()) == "");
    const std::string all =
        steps(choice, [&](std::size_t, bool captured) { return captured == faster ? 0.001 : 0.0025; });
    CHECK(all.size() == capture_choice::all_steps);
    CHECK(all.starts_with("PPPPPPPCCCCCCCPPPPPCCCCCPPPPP"));
    CHECK(choice.captured() == faster);
    const auto report = choice.report();
    CHECK(report.captured == faster);
    CHECK(report.plain_steps == 20);
    CHECK(report.captured_steps == 20);
    CHECK(report.captured_seconds == (faster ? 0.001 : 0.0025));
    CHECK(report.plain_seconds == (faster ? 0.0025 : 0.001));
    CHECK(text(report) == (faster
                               ? "steps are captured: 1.000 ms captured, 2.500 ms call by call (medians of 20 and 20 "
                                 "steps)"
                               : "steps are given call by call: 2.500 ms captured, 1.000 ms call by call (medians of "
                                 "20 and 20 steps)"));
    choice.took(100);  // no longer asked for
    CHECK(choice.report().captured_steps + choice.report().plain_steps == 40);
  }
}

TEST_CASE("steps that are equally fast stay plain") {
  capture_choice choice;
  steps(choice, [](std::size_t, bool) { return 1.0; });
  CHECK_FALSE(choice.captured());
}

TEST_CASE("the first steps of a block, some slow ones and a drift of the machine do not decide") {
  capture_choice choice;
  std::size_t in_block = 0;
  bool before = true;
  const std::string all = steps(choice, [&](std::size_t step, bool captured) {
    in_block = captured == before ? in_block + 1 : 0;
    before = captured;
    if (in_block < (step < 14 ? 3U : 1U)) return captured ? 10.0 : 0.0;  // what a block begins with
    if (step % 9 == 0) return 10.0;
    return (captured ? 0.9 : 1.0) * (1 + 0.002 * static_cast<double>(step));
  });
  CHECK(all.size() == capture_choice::all_steps);
  CHECK(choice.captured());
}

TEST_CASE("what was refused is not measured on, and said") {
  capture_choice choice;
  for (int i = 0; i < 8; ++i) choice.took(1);
  CHECK(choice.captured());
  choice.refuse("a step (too long): train on");
  CHECK(choice.decided());
  CHECK_FALSE(choice.captured());
  CHECK(text(choice.report()) == "steps are not captured: a step (too long): train on");
  capture_choice decided;  // and refused later
  steps(decided, [](std::size_t, bool captured) { return captured ? 0.001 : 0.002; });
  CHECK(decided.captured());
  decided.refuse("a step (too often): train on");
  CHECK_FALSE(decided.captured());
  CHECK_FALSE(decided.report().captured);
}

TEST_CASE("a training that ends before the decision says what it has seen") {
  capture_choice choice;
  for (std::size_t i = 0; i < 12; ++i) {
    if (i <= 10) CHECK(text(choice.report()) == "");  // nothing to compare yet
    choice.took(choice.captured() ? 0.001 : 0.002);
  }
  CHECK(text(choice.report()) ==
        "steps are still measured: 1.000 ms captured, 2.000 ms call by call (medians of 2 and 4 steps)");
}
