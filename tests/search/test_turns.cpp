// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp/search/losses/turns.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace {

using comp::loss_answer;

struct taken {
  std::vector<double> fp32 = {}, own = {};
};

/// `rounds` of blocks of 16 batches: `loss(t, own)` of the t-th batch.
taken turns(std::size_t rounds, const std::function<double(double, bool)>& loss) {
  taken all;
  double t = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (const bool own : comp::order_of_turns) {
      for (int batch = 0; batch < 16; ++batch) (own ? all.own : all.fp32).push_back(loss(t++, own));
    }
  }
  return all;
}

comp::loss_verdict judged(const taken& all, bool last = true, double worse = 1) {
  return comp::detail::judge_turns(all.fp32, all.own, 16, 0.01, worse, last);
}

/// How many of 200 trainings with 20% noise are accepted.
int accepted(double harm, std::size_t rounds) {
  int count = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random{seed};
    std::normal_distribution<double> noise;
    const auto loss = [&](double t, bool own) {
      return (0.5 + 1.5 * std::exp(-t / 300)) * (1 + (own ? harm : 0)) * (1 + 0.2 * noise(random));
    };
    count += judged(turns(rounds, loss)).answer == loss_answer::accepted ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("a loss that falls is no harm, and what a plan adds to it is") {
  const auto falls = [](double t, bool own) { return (own ? 1.02 : 1) * (2 - 0.004 * t + 4e-6 * t * t); };
  CHECK(judged(turns(2, [&](double t, bool) { return falls(t, false); })).difference ==
        doctest::Approx(0).epsilon(1e-9));
  CHECK(judged(turns(2, falls)).difference == doctest::Approx(0.02).epsilon(0.01));
  CHECK(judged(turns(2, falls)).answer == loss_answer::rejected);
  CHECK(judged(turns(2, [&](double t, bool own) { return -falls(t, own); }), true, -1).difference ==
        doctest::Approx(0.02).epsilon(0.01));
}

TEST_CASE("turns with noisy losses: what is harmless is mostly accepted, what harms by a tenth is not") {
  CHECK(accepted(0, 8) >= 160);
  CHECK(accepted(0.1, 8) == 0);
  CHECK(accepted(0.06, 8) <= 10);
  CHECK(accepted(-0.1, 8) >= 199);
}

TEST_CASE("noise that hides 5% shows nothing, and the plan is rejected") {
  std::mt19937 random{3};
  std::normal_distribution<double> noise;
  const auto wild = turns(1, [&](double, bool) { return 1 + 0.5 * noise(random); });
  CHECK(judged(wild, false).answer == loss_answer::go_on);
  CHECK(judged(wild).answer == loss_answer::rejected);
}

TEST_CASE("batches that the plan alone loses count as much as their losses") {
  taken all = turns(1, [](double t, bool) { return 1 + 0.001 * std::sin(t); });
  CHECK(judged(all).answer == loss_answer::accepted);
  for (const std::size_t at : {3U, 40U, 50U}) all.own[at] = std::numeric_limits<double>::quiet_NaN();
  CHECK(judged(all).difference == doctest::Approx(3.0 / 64).epsilon(0.01));
  CHECK(judged(all).answer == loss_answer::rejected);
}

TEST_CASE("turns take a twentieth of the training at most") {
  for (const std::size_t planned : {1600U, 4000U, 10000U, 100000U}) {
    const auto lengths = comp::turn_lengths::of_training(planned);
    CHECK(8 * lengths.block * lengths.rounds <= planned / 20);
    CHECK(lengths.block >= 4);
  }
  CHECK(comp::turn_lengths::of_training(0).rounds == 8);
}
