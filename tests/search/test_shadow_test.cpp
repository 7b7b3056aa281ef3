// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/training/shadow.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

using comp::detail::shadow_answer;

namespace {

constexpr double lost_loss = std::numeric_limits<double>::quiet_NaN();

/// A path that drifts by `drift` a batch, wanders by steps of `walk` and has `noise` of its own in each batch.
std::vector<double> drifting_path(std::uint32_t seed, std::size_t batches, double drift, double walk, double noise) {
  std::mt19937 random{seed};
  std::normal_distribution<double> normal;
  std::vector<double> path;
  double at = 0;
  for (std::size_t i = 0; i < batches; ++i) {
    at += drift + walk * normal(random);
    path.push_back(at + noise * normal(random));
  }
  return path;
}

/// The last answer of a test that looks every fourth batch, until it knows or there are no more.
shadow_answer last_answer(const std::vector<double>& path, const comp::detail::shadow_question& asked = {}) {
  shadow_answer got = shadow_answer::go_on;
  for (std::size_t n = 8; n <= path.size(); n += 4) {
    got = comp::detail::judge_shadow(asked, std::span{path}.first(n));
    if (got == shadow_answer::harmless || got == shadow_answer::harmful) break;
  }
  return got;
}

std::size_t count_answers(shadow_answer wanted, double drift, double walk, double noise, std::size_t batches) {
  std::size_t got = 0;
  for (std::uint32_t seed = 1; seed <= 1000; ++seed)
    got += last_answer(drifting_path(seed, batches, drift, walk, noise)) == wanted ? 1 : 0;
  return got;
}

}  // namespace

TEST_CASE("a path that only wanders is harmless, one that drifts by 3% in 100 batches is harmful, with few mistakes") {
  for (const double walk : {2e-4, 5e-4, 8e-4}) {
    CAPTURE(walk);
    CHECK(count_answers(shadow_answer::harmless, 0, walk, 0, 400) >= 960);
    CHECK(count_answers(shadow_answer::harmful, 0, walk, 0, 400) <= 40);  // of which few repeat themselves
    CHECK(count_answers(shadow_answer::harmful, 3e-4, walk, 0, 400) >= 940);
  }
}

TEST_CASE("noise that each batch has for itself hides a drift for longer, and feigns none") {
  CHECK(count_answers(shadow_answer::harmful, 0, 1e-4, 0.02, 400) <= 2);
  CHECK(count_answers(shadow_answer::harmful, 3e-4, 1e-4, 0.02, 400) >= 900);
  const std::vector<double> path = drifting_path(1, 256, 0, 1e-4, 0.02);
  CHECK(comp::detail::end_of_path(path).error < 0.04);  // a walk of such steps would end 0.4 away
}

TEST_CASE("what the search's batches said counts, and where wandering hides any drift more batches are not worth it") {
  const std::vector<double> path = drifting_path(3, 12, 0, 5e-4, 0);
  REQUIRE(last_answer(path) == shadow_answer::go_on);
  CHECK(last_answer(path, {.evidence = -2.9}) == shadow_answer::harmless);
  CHECK(last_answer(path, {.evidence = 4}) == shadow_answer::suspicious);
  CHECK(comp::detail::could_tell({}, path, 100));
  CHECK_FALSE(comp::detail::could_tell({}, drifting_path(3, 12, 0, 0.02, 0), 100));
}

TEST_CASE("losses that repeat themselves to the bit are judged at once") {
  CHECK(last_answer(std::vector<double>(8, 0.0)) == shadow_answer::harmless);
  CHECK(last_answer(std::vector<double>(16, 0.02)) == shadow_answer::harmful);
  CHECK(last_answer(std::vector<double>(7, 0.02)) == shadow_answer::go_on);
}

TEST_CASE("pairs are parts of the batch's own loss where that is quieter, and batches that either lost are left out") {
  const std::vector<double> fp32{1, 4, 0.5, 2, 1, 3, 0.2, 5}, plan{1.1, 4.4, 0.55, 2.2, 1.1, 3.3, 0.22, 5.5};
  for (const double part : comp::detail::paired_differences(plan, fp32)) CHECK(part == doctest::Approx(0.1));
  std::vector<double> below = fp32, worse = fp32;  // a critic's losses have no parts
  for (std::size_t i = 0; i < fp32.size(); ++i) below[i] -= 3, worse[i] = below[i] + 0.1;
  const std::vector<double> path = comp::detail::paired_differences(worse, below);
  CHECK(path.front() == doctest::Approx(path[4]));
  std::vector<double> lost = plan;
  lost[1] = lost_loss;
  CHECK(comp::detail::paired_differences(lost, fp32).size() == 7);
  CHECK(comp::detail::paired_differences(plan, lost).size() == 7);
  CHECK(comp::detail::paired_differences({}, fp32).empty());
}
