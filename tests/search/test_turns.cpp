// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
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

constexpr comp::turn_lengths alike{16, 16, 1}, third{12, 36, 1};  // batches of FP32's blocks, and of the plan's

/// `rounds` of such blocks: `loss(t, own)` of the t-th batch.
taken turns(std::size_t rounds, const std::function<double(double, bool)>& loss,
            const comp::turn_lengths& lengths = alike) {
  taken all;
  double t = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (const bool own : comp::order_of_turns) {
      for (std::size_t batch = 0; batch < (own ? lengths.candidate : lengths.reference); ++batch)
        (own ? all.own : all.fp32).push_back(loss(t++, own));
    }
  }
  return all;
}

comp::loss_verdict judged(const taken& all, bool last = true, double worse = 1,
                          const comp::turn_lengths& lengths = alike) {
  return comp::detail::judge_turns(all.fp32, all.own, lengths, 0.01, worse, last);
}

/// Returns: after how many of the plan's batches one is rejected beyond doubt, as it is asked after each 16 in a round;
/// 0 if it is not.
std::size_t batches_until_beyond_doubt(const taken& round, const comp::turn_lengths& lengths) {
  taken so_far;
  for (const bool own : comp::order_of_turns) {
    const std::vector<double>& from = own ? round.own : round.fp32;
    std::vector<double>& to = own ? so_far.own : so_far.fp32;
    for (std::size_t k = 1, block = own ? lengths.candidate : lengths.reference; k <= block; ++k) {
      to.push_back(from[to.size()]);
      const bool is_asked = own && (k % 16 == 0 || k == block) && to.size() < round.own.size();
      if (is_asked && judged(so_far, false, 1, lengths).answer != loss_answer::go_on) return to.size();
    }
  }
  return 0;
}

/// How many of 200 trainings with 20% noise are accepted.
int accepted(double harm, std::size_t rounds, const comp::turn_lengths& lengths = alike) {
  int count = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random{seed};
    std::normal_distribution<double> noise;
    const auto loss = [&](double t, bool own) {
      return (0.5 + 1.5 * std::exp(-t / 300)) * (1 + (own ? harm : 0)) * (1 + 0.2 * noise(random));
    };
    count += judged(turns(rounds, loss, lengths), true, 1, lengths).answer == loss_answer::accepted ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("a loss that falls is no harm, and what a plan adds to it is") {
  const auto falls = [](double t, bool own) { return (own ? 1.02 : 1) * (2 - 0.004 * t + 4e-6 * t * t); };
  for (const comp::turn_lengths& lengths : {alike, third}) {
    CAPTURE(lengths.candidate);
    const auto of = [&](auto loss) { return judged(turns(2, loss, lengths), true, 1, lengths); };
    CHECK(std::abs(of([&](double t, bool) { return falls(t, false); }).difference) < 1e-12);
    CHECK(of(falls).difference == doctest::Approx(0.02).epsilon(0.02));
    CHECK(of(falls).answer == loss_answer::rejected);
  }
  CHECK(judged(turns(2, [&](double t, bool own) { return -falls(t, own); }), true, -1).difference ==
        doctest::Approx(0.02).epsilon(0.01));
}

TEST_CASE("turns with noisy losses: what is harmless is mostly accepted, what harms by a tenth is not") {
  CHECK(accepted(0, 8) >= 160);
  CHECK(accepted(0.1, 8) == 0);
  CHECK(accepted(0.06, 8) <= 10);
  CHECK(accepted(-0.1, 8) >= 199);
}

TEST_CASE("blocks of FP32 that are a third as long as the plan's tell as much with 2/3 of FP32's batches") {
  CHECK(accepted(0, 7, third) >= 160);
  CHECK(accepted(0.1, 7, third) == 0);
  CHECK(accepted(0.06, 7, third) <= 10);
}

TEST_CASE("a plan that raises the loss several times as much as its noise is rejected after 16 of its batches") {
  for (const comp::turn_lengths& lengths : {comp::turn_lengths{4, 12, 1}, third, comp::turn_lengths{16, 48, 1}}) {
    CAPTURE(lengths.candidate);
    const std::size_t first = std::min<std::size_t>(lengths.candidate, 16);
    std::size_t at_once = 0, by_noise = 0;
    for (unsigned seed = 0; seed < 200; ++seed) {
      std::mt19937 random{seed};
      std::normal_distribution<double> noise;
      const auto rejected = [&](double harm) {
        const auto loss = [&](double t, bool own) {
          return (0.5 + 1.5 * std::exp(-t / 300)) * (1 + (own ? harm : 0)) * (1 + 0.05 * noise(random));
        };
        return batches_until_beyond_doubt(turns(1, loss, lengths), lengths);
      };
      at_once += rejected(1) == first ? 1 : 0;
      by_noise += rejected(0) > 0 ? 1 : 0;
    }
    CHECK(at_once >= 195);
    CHECK(by_noise == 0);
  }
}

TEST_CASE("a loss without noise that falls, rises or bends is no harm beyond doubt") {
  const std::vector<std::function<double(double)>> curves{
      [](double t) { return 2 - 0.01 * t; },         [](double t) { return 1 + 0.01 * t; },
      [](double t) { return std::exp(-t / 20); },    [](double t) { return 3 - std::exp(t / 150); },
      [](double t) { return 2 + std::sin(t / 40); }, [](double) { return 1.0; }};
  for (const auto& curve : curves) {
    CAPTURE(&curve - curves.data());
    CHECK(batches_until_beyond_doubt(turns(
                                         1, [&](double t, bool) { return curve(t); }, third),
                                     third) == 0);
  }
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
  for (const bool beside_fp32 : {false, true}) {
    for (const std::size_t planned : {1600U, 4000U, 10000U, 100000U}) {
      const auto lengths = comp::turn_lengths::of_training(planned, beside_fp32);
      CHECK(lengths.batches() <= planned / 20);
      CHECK(lengths.reference >= 4);
      CHECK(lengths.candidate == (beside_fp32 ? 3 : 1) * lengths.reference);
    }
    CHECK(comp::turn_lengths::of_training(0, beside_fp32).batches() == 1024);
  }
}
