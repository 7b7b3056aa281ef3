// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/losses/paths.hpp>
#include <limits>
#include <random>

using comp::loss_answer;

namespace {

// `n` steps of a walk from 0, or of noise around 0, with the standard deviation `step`.
std::vector<double> drawn(std::size_t n, double step, bool walk, std::uint64_t seed) {
  std::mt19937_64 machine{seed};
  std::normal_distribution<double> normal{0, step};
  std::vector<double> path(n);
  double at = 0;
  for (double& d : path) d = at = (walk ? at : 0) + normal(machine);
  return path;
}

int how_often(auto says) {
  int yes = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) yes += says(seed) ? 1 : 0;
  return yes;
}

}  // namespace

TEST_CASE("a path is the difference from FP32, as a part of FP32's mean loss") {
  const std::vector<double> fp32{2, 2, 4}, own{2.2, 1.9, 4.0, 9.0};
  const auto path = comp::loss_path(fp32, own, 1);
  REQUIRE(path.size() == 3);
  CHECK(path[0] == doctest::Approx(0.075));
  CHECK(path[1] == doctest::Approx(-0.0375));
  CHECK(path[2] == 0);
  CHECK(comp::loss_path(fp32, own, -1)[0] == doctest::Approx(-0.075));  // losses that are maximised
  SUBCASE("losses that cross zero have a size, too") {
    CHECK(comp::loss_path(std::vector{-1.0, 1.0}, std::vector{-0.5, 1.0}, 1)[0] == doctest::Approx(0.5));
  }
  SUBCASE("losses that are all zero") { CHECK(comp::loss_path(std::vector{0.0}, std::vector{0.5}, 1)[0] == 0.5); }
  SUBCASE("no batch") { CHECK(comp::loss_path({}, own, 1).empty()); }
}

TEST_CASE("FP32 that walks away from itself strays; one whose batches differ by chance does not") {
  CHECK(how_often([](auto seed) { return comp::strays(drawn(16, 0.01, true, seed), 0.01); }) >= 190);
  CHECK(how_often([](auto seed) { return comp::strays(drawn(16, 0.004, false, seed), 0.01); }) <= 2);
  CHECK(how_often([](auto seed) { return comp::strays(drawn(16, 0.0005, true, seed), 0.01); }) <= 2);
  CHECK_FALSE(comp::strays(std::vector{9.0, 9.0}, 0.01));  // too few to say
}

TEST_CASE("a path that leads away step by step wanders; noise and small steps do not") {
  CHECK(how_often([](auto seed) { return comp::wanders(drawn(16, 0.01, true, seed), 0.01); }) >= 170);
  CHECK(how_often([](auto seed) { return comp::wanders(drawn(16, 0.02, false, seed), 0.01); }) <= 10);
  CHECK(how_often([](auto seed) { return comp::wanders(drawn(16, 0.0005, true, seed), 0.01); }) == 0);
  CHECK_FALSE(comp::wanders(drawn(7, 1, true, 1), 0.01));
}

TEST_CASE("a path is near FP32 while it leaves it like perturbed roundings, a batch earlier at most") {
  const std::vector<std::vector<double>> chaos{{1e-7, 0.002, 0.02, 0.05}}, calm{{0, 1e-7, 1e-7}},
      two{{0, 0}, {0, 0.02}};
  const auto near_fp32 = [&](const std::vector<double>& path) { return comp::batches_near_fp32(path, chaos, 1e-4); };
  CHECK(near_fp32({2e-6, -0.05, 0.14, -0.14}) == 4);
  CHECK(near_fp32({0, 0, 0, 0, 0.1, 0.2}) == 5);
  CHECK(near_fp32({2e-6, 0.07, 0, 0}) == 1);
  CHECK(near_fp32({2e-6, 0.05, -0.16, 0.1}) == 2);
  CHECK(near_fp32({0.001, 0, 0, 0}) == 0);  // its first forward is another
  CHECK(comp::batches_near_fp32(std::vector{0.0, 0.05}, two, 1e-4) == 2);
  CHECK(comp::batches_near_fp32(std::vector{0.0, 9e-5, 2e-4}, calm, 1e-4) == 2);
  CHECK(comp::batches_near_fp32(std::vector{0.009, -0.02}, {}, 0.01) == 1);
}

TEST_CASE("harm is beyond doubt when each batch is far above FP32's, and above what FP32 does to itself") {
  const std::vector<double> half(8, 0.5), tenth(8, 0.1);
  CHECK(comp::beyond_doubt(half, {}, 0.01));
  CHECK_FALSE(comp::beyond_doubt(tenth, {}, 0.01));
  CHECK_FALSE(comp::beyond_doubt(std::span{half}.first(3), {}, 0.01));
  const std::vector<std::vector<double>> quiet{std::vector(8, 0.001)}, wild{std::vector(8, -0.2)};
  CHECK(comp::beyond_doubt(tenth, quiet, 0.01));
  CHECK_FALSE(comp::beyond_doubt(half, wild, 0.01));
  std::vector<double> once = half;
  once[5] = 0;
  CHECK_FALSE(comp::beyond_doubt(once, {}, 0.01));
  once[5] = std::numeric_limits<double>::quiet_NaN();
  CHECK(comp::beyond_doubt(once, {}, 0.01));
}

TEST_CASE("repeats: harm that stands out is rejected, its absence accepted, at the end by what they say") {
  const auto repeats = [](double mean, double spread, std::size_t count, std::uint64_t seed) {
    auto differences = drawn(count, spread, false, seed);
    for (double& d : differences) d += mean;
    return differences;
  };
  using comp::judge_repeats;
  CHECK(judge_repeats(std::vector{0.5, 0.5, 0.5}, 0.01, false).answer == loss_answer::go_on);  // three are too few
  CHECK(judge_repeats(repeats(0.05, 0.004, 8, 1), 0.01, false).answer == loss_answer::rejected);
  CHECK(judge_repeats(repeats(-0.01, 0.004, 8, 1), 0.01, false).answer == loss_answer::accepted);
  CHECK(how_often([&](auto seed) {
          return judge_repeats(repeats(0, 0.035, 12, seed), 0.01, true).answer == loss_answer::rejected;
        }) <= 10);
  CHECK(how_often([&](auto seed) {
          return judge_repeats(repeats(0.05, 0.021, 12, seed), 0.01, true).answer == loss_answer::accepted;
        }) <= 4);
}
