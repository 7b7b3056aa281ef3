// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <comp/search/losses/loss_test.hpp>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

using comp::judge;
using comp::loss_answer;
using comp::loss_evidence;
using comp::loss_test_settings;
using comp::loss_verdict;

namespace {

using losses = std::vector<double>;

losses losses_of(std::size_t n, auto loss_of) {
  losses result(n);
  for (std::size_t i = 0; i < n; ++i) result[i] = loss_of(i);
  return result;
}

/// What trainings on the same batches do: the batch's own loss, of mean about 1, times 1 + what differs between runs.
struct world {
  double noise = 0.01;   // of the difference of two runs in a batch, relative
  double alike = 0;      // correlation of that noise in neighbouring batches
  double heavy = 0;      // 1: noise by Student's t of 3 degrees of freedom
  double drift = 0;      // step of each run's own random walk, per batch
  double run_level = 0;  // standard deviation of a run's loss as a whole
  double harm = 0;       // of the candidate
  std::size_t spread = 0, batches = 100;
};

losses training(const world& w, double harm, std::mt19937_64& draw) {
  std::normal_distribution<double> normal;
  std::student_t_distribution<double> student{3};
  const double level = w.run_level * normal(draw);
  double walk = 0, lasting = normal(draw);
  return losses_of(w.batches, [&](std::size_t i) {
    lasting = w.alike * lasting + std::sqrt(1 - w.alike * w.alike) * normal(draw);
    walk += w.drift * normal(draw);
    const double off = w.heavy > 0 ? student(draw) / std::sqrt(3.0) : lasting;
    const double batch = 1 + 0.2 * std::sin(12.9898 * static_cast<double>(i));
    return batch * (1 + harm + level + walk + w.noise / std::sqrt(2.0) * off);
  });
}

struct asked {
  loss_answer answer = loss_answer::go_on;
  std::size_t batches = 0;
  bool by_evidence = false;  // before the last batch
};

/// Asks after every batch (every fourth from the 40th on) until there is an answer, as a search does.
asked ask(const losses& fp32, const losses& candidate, const std::vector<losses>& spread = {},
          const loss_test_settings& settings = {}) {
  for (std::size_t n = 4;; n += n < 40 ? 1 : 4) {
    const bool last = n >= fp32.size();
    n = std::min(n, fp32.size());
    loss_evidence evidence{.fp32 = std::span{fp32}.first(n), .candidate = std::span{candidate}.first(n)};
    for (const losses& run : spread) evidence.spread.push_back(std::span{run}.first(std::min(n, run.size())));
    if (const auto now = judge(settings, evidence).answer; now != loss_answer::go_on) return {now, n, true};
    if (last) return {judge(settings, evidence, true).answer, n, false};
  }
}

/// Asks of `runs` drawn trainings.
struct counted {
  double accepted = 0, rejected = 0;              // parts of the runs
  double accepted_early = 0, rejected_early = 0;  // before the last batch
  std::size_t typical = 0;                        // median batches until an early answer
};
counted count(const world& w, std::size_t runs) {
  std::mt19937_64 draw{runs};
  counted got;
  std::vector<std::size_t> batches;
  for (std::size_t r = 0; r < runs; ++r) {
    const losses fp32 = training(w, 0, draw), candidate = training(w, w.harm, draw);
    std::vector<losses> spread(w.spread);
    for (losses& run : spread) run = training(w, 0, draw);
    const asked one = ask(fp32, candidate, spread);
    const double part = 1 / static_cast<double>(runs);
    (one.answer == loss_answer::accepted ? got.accepted : got.rejected) += part;
    if (!one.by_evidence) continue;
    (one.answer == loss_answer::accepted ? got.accepted_early : got.rejected_early) += part;
    batches.push_back(one.batches);
  }
  std::sort(batches.begin(), batches.end());
  if (!batches.empty()) got.typical = batches[batches.size() / 2];
  return got;
}

losses plain(std::size_t n) {
  return losses_of(n, [](std::size_t i) { return 2 + 0.5 * std::sin(static_cast<double>(i)); });
}
losses scaled(losses from, double factor) {
  for (double& loss : from) loss *= factor;
  return from;
}
losses shifted(losses from, double by) {
  for (double& loss : from) loss += by;
  return from;
}

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("nothing is accepted before `least` batches, then an equal candidate is at once") {
  const losses fp32 = plain(64);
  for (const std::size_t least : {16U, 24U}) {
    const asked got = ask(fp32, fp32, {}, {.least = least});
    CHECK(got.answer == loss_answer::accepted);
    CHECK(got.batches == least);
  }
  CHECK(ask(fp32, fp32, {}, {.tolerance = 0}).answer == loss_answer::accepted);
  CHECK(ask(fp32, scaled(fp32, 0.5)).answer == loss_answer::accepted);
}

TEST_CASE("the verdict tells difference, radius and line in parts of FP32's mean loss") {
  const losses fp32 = plain(32);
  const loss_verdict got = judge({.tolerance = 0.02}, {fp32, shifted(fp32, 0.1)});
  double mean = 0;
  for (const double loss : fp32) mean += loss / 32;
  CHECK(got.difference == doctest::Approx(0.1 / mean));
  CHECK(got.radius == doctest::Approx(0));
  CHECK(got.line == 0.02);
  CHECK(got.answer == loss_answer::rejected);
}

TEST_CASE("batches that the candidate alone loses count one loss each, those that both lose nothing") {
  losses fp32 = plain(32);
  losses candidate = fp32;
  for (const double bad : {not_a_number, std::numeric_limits<double>::infinity()}) {
    candidate[2] = bad;
    CHECK(judge({}, {fp32, candidate}).answer == loss_answer::go_on);  // one of 32 is no rate yet
    CHECK(judge({}, {fp32, candidate}).difference == doctest::Approx(1.0 / 32));
    CHECK(judge({}, {fp32, candidate}, true).answer == loss_answer::rejected);
    CHECK(judge({.tolerance = 0.1}, {fp32, candidate}, true).answer == loss_answer::accepted);
  }
  fp32[2] = not_a_number;
  CHECK(judge({}, {fp32, candidate}).answer == loss_answer::accepted);
  fp32[3] = not_a_number;
  CHECK(judge({}, {fp32, candidate}).difference == doctest::Approx(-1.0 / 32));
}

TEST_CASE("without a batch to compare the answer is to go on, and at the end rejected") {
  const losses none, some = plain(8);
  CHECK(judge({}, {}).answer == loss_answer::go_on);
  CHECK(judge({}, {none, some}).answer == loss_answer::go_on);
  CHECK(judge({}, {none, some}, true).answer == loss_answer::rejected);
  CHECK(judge({}, {losses{not_a_number, 1}, some}, true).answer == loss_answer::rejected);
}

TEST_CASE("the shorter of two runs says how many batches are compared, and FP32's first loss that is not finite") {
  losses fp32 = plain(40);
  const losses candidate = fp32;
  CHECK(judge({}, {std::span{fp32}.first(10), candidate}).answer == loss_answer::go_on);
  CHECK(judge({}, {std::span{fp32}.first(20), candidate}).answer == loss_answer::accepted);
  fp32[12] = not_a_number;
  CHECK(judge({}, {fp32, candidate}).answer == loss_answer::go_on);
  CHECK(judge({}, {fp32, candidate}, true).answer == loss_answer::accepted);
}

TEST_CASE("the last batch decides by the estimate") {
  const losses fp32 = plain(3);
  CHECK(judge({}, {fp32, scaled(fp32, 1.005)}).answer == loss_answer::go_on);
  CHECK(judge({}, {fp32, scaled(fp32, 1.005)}, true).answer == loss_answer::accepted);
  CHECK(judge({}, {fp32, scaled(fp32, 1.02)}, true).answer == loss_answer::rejected);
}

TEST_CASE("what is at the line is over it, but for a plan that is no worse than FP32") {
  using comp::detail::stays_under;
  CHECK(stays_under(0.5, 1));
  CHECK_FALSE(stays_under(1, 1));
  CHECK(stays_under(0, 0));
  CHECK(stays_under(-1, -2));
}

TEST_CASE("the scale is right for losses of any sign") {
  std::mt19937_64 draw{5};
  std::normal_distribution<double> normal;
  const losses noise = losses_of(64, [&](std::size_t) { return 0.005 * normal(draw); });
  const auto with = [&](const losses& base, double harm) {
    return losses_of(64, [&](std::size_t i) { return base[i] + noise[i] + harm; });
  };
  SUBCASE("negative: 1% of |loss|") {
    const losses fp32 = shifted(plain(64), -4);
    CHECK(ask(fp32, with(fp32, 0)).answer == loss_answer::accepted);
    CHECK(ask(fp32, with(fp32, -0.2)).answer == loss_answer::accepted);
    CHECK(ask(fp32, with(fp32, 0.06)).answer == loss_answer::rejected);
  }
  SUBCASE("crossing zero: 1% of how much it varies") {
    const losses fp32 = losses_of(64, [](std::size_t i) { return std::sin(static_cast<double>(i)); });
    CHECK(ask(fp32, with(fp32, 0)).answer == loss_answer::accepted);
    CHECK(ask(fp32, with(fp32, 0.03)).answer == loss_answer::rejected);
  }
  SUBCASE("all zero: any harm is harm") {
    const losses fp32(64, 0.0);
    CHECK(ask(fp32, fp32).answer == loss_answer::accepted);
    CHECK(ask(fp32, losses(64, 0.5)).answer == loss_answer::rejected);
  }
}

TEST_CASE("a batch that explodes under both plans neither hides harm nor makes any") {
  std::mt19937_64 draw{7};
  for (const double huge : {1e6, 1e300}) {
    CAPTURE(huge);
    losses fp32 = training({.batches = 32}, 0, draw), same = training({.batches = 32}, 0, draw),
           worse = training({.batches = 32}, 0.2, draw);
    fp32[9] = huge, same[9] = 1.001 * huge, worse[9] = 1.001 * huge;
    CHECK(judge({}, {fp32, worse}, true).answer == loss_answer::rejected);
    CHECK(judge({}, {fp32, same}).answer != loss_answer::rejected);
    CHECK(judge({}, {fp32, same}, true).answer == loss_answer::accepted);
  }
}

TEST_CASE("blatant harm takes few batches") {
  std::mt19937_64 draw{6};
  std::normal_distribution<double> normal;
  const losses fp32 = losses_of(200, [&](std::size_t) { return 2 + 0.2 * normal(draw); });
  const auto rejected_after = [&](auto loss_of) {
    const asked got =
        ask(fp32, losses_of(200, [&](std::size_t i) { return loss_of(static_cast<double>(i), fp32[i]); }));
    CHECK(got.answer == loss_answer::rejected);
    return got.batches;
  };
  CHECK(rejected_after([](double, double loss) { return 7 * loss; }) <= 8);
  CHECK(rejected_after([&](double i, double loss) { return i < 5 ? loss : (7 + normal(draw)) * loss; }) <= 12);
  CHECK(rejected_after([&](double i, double loss) { return i < 14 ? loss : (7 + normal(draw)) * loss; }) <= 28);
  CHECK(rejected_after([](double i, double loss) { return loss * (1 + 0.01 * std::exp2(i)); }) <= 16);
  CHECK(rejected_after([](double i, double loss) { return loss * (1 + 0.01 * std::pow(1e9, i)); }) <= 8);
}

TEST_CASE("harm that grows is not accepted while it is small, and rejected by its later half") {
  std::mt19937_64 draw{7};
  std::normal_distribution<double> normal;
  const losses fp32 = plain(150);
  const losses growing = losses_of(
      150, [&](std::size_t i) { return fp32[i] * (1 + 0.0008 * static_cast<double>(i) + 0.002 * normal(draw)); });
  const asked got = ask(fp32, growing);
  CHECK(got.answer == loss_answer::rejected);
  CHECK(got.batches <= 36);  // when the mean of all batches is 1.4%, of 12% that the last batches reach
  SUBCASE("what has grown decides at the end") {
    const losses all = losses_of(24, [&](std::size_t i) { return fp32[i] * (1 + 0.0007 * static_cast<double>(i)); });
    const auto evidence = loss_evidence{std::span{fp32}.first(24), all};
    CHECK(judge({}, evidence).difference < 0.01);
    CHECK(judge({}, evidence, true).answer == loss_answer::rejected);
  }
}

TEST_CASE("what FP32 does to itself raises the line, or lowers it if it is little, and more FP32 runs make it sharp") {
  const losses fp32 = plain(32), above = scaled(fp32, 1.02), below = scaled(fp32, 0.98);
  const auto line = [&](const std::vector<losses>& spread) {
    loss_evidence evidence{fp32, fp32};
    for (const losses& run : spread) evidence.spread.push_back(run);
    return judge({}, evidence).line;
  };
  CHECK(line({}) == 0.01);
  CHECK(line({fp32}) == 0.01);
  CHECK(line({above}) == doctest::Approx(line({below})));
  CHECK(line({above}) > 0.04);
  CHECK(line({above, below}) < line({above}));
  CHECK(line({above, below, above, below}) < line({above, below}));
  CHECK(line({above, below, above, below}) > 0.03);  // for runs that differ by 2% there is no sharper answer
  const losses near = scaled(fp32, 1.0005), nearer = scaled(fp32, 0.9995);
  CHECK(line({near}) < 0.01);
  CHECK(line({near}) > 0.005);
  CHECK(line({near, nearer, near, nearer}) > line({near}));  // known better, it takes less off
  CHECK(line({near, nearer, near, nearer}) < 0.01);
  SUBCASE("a run that happens to meet FP32's at the end is not taken for an equal one") {
    const losses meets = losses_of(32, [&](std::size_t i) { return fp32[i] * (i < 16 ? 1.02 : 0.98); });
    CHECK(line({meets}) > 0.02);
  }
  SUBCASE("shorter, longer and broken runs count as far as they go") {
    losses broken = above;
    broken[16] = not_a_number;
    CHECK(line({losses(above.begin(), above.begin() + 16)}) > 0.03);
    CHECK(line({broken}) > line({above}));  // FP32 loses a batch by itself
    CHECK(line({scaled(plain(64), 1.02)}) == doctest::Approx(line({above})));
    CHECK(line({losses{}}) == 0.01);
  }
}

TEST_CASE("wrong answers are no more often than the level says, whenever they are given") {
  struct row {
    const char* what;
    world w;
  };
  for (const row& each : std::initializer_list<row>{{"independent", {}},
                                                    {"wide noise", {.noise = 0.02}},
                                                    {"correlated", {.alike = 0.6}},
                                                    {"long correlated", {.alike = 0.9}},
                                                    {"heavy tails", {.noise = 0.02, .heavy = 1}},
                                                    {"drifting apart, one spread", {.drift = 0.001, .spread = 1}}}) {
    CAPTURE(each.what);
    world w = each.w;
    const counted harmless = count(w, 1000);
    CHECK(harmless.rejected <= 0.05);
    w.harm = 0.005;
    CHECK(count(w, 1000).rejected_early <= 0.05);
    if (w.spread > 0) continue;
    w.harm = 0.03;
    CHECK(count(w, 1000).accepted <= 0.05);
  }
}

TEST_CASE("a harmless plan is accepted after 16 to 32 batches where noise is 1% of a batch's loss, 64 where 2%") {
  CHECK(count({.noise = 0.01}, 2000).typical <= 24);
  const counted wide = count({.noise = 0.02}, 2000);
  CHECK(wide.typical <= 48);
  CHECK(wide.accepted_early >= 0.9);
}

TEST_CASE("a chaotic training keeps its harmless plans once its spread is known") {
  const world chaos{.noise = 0.005, .run_level = 0.01, .batches = 10};
  const auto with = [&](std::size_t spread) {
    world w = chaos;
    w.spread = spread;
    return count(w, 2000).accepted;
  };
  CHECK(with(0) < 0.85);  // a coin toss for one in five
  CHECK(with(1) >= 0.90);
  CHECK(with(4) >= 0.95);
  SUBCASE("and harm beyond it is still seen, the better the more runs are known") {
    world w = chaos;
    w.harm = 0.08;
    w.spread = 4;
    CHECK(count(w, 2000).accepted <= 0.05);
  }
}
