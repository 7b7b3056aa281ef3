// SPDX-License-Identifier: Apache-2.0
// Whatever plans do to weights and moments, a search and a training after it leave a state that FP32 could have made.
#include <doctest/doctest.h>

#include <cmath>
#include <comp/observe/summary.hpp>
#include <comp/search/losses/sound_state.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/two_stage.hpp>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fake_search.hpp"

namespace {

using comp::plan;
using comp::sample;

/// What operators do to the training if all of them are low, in some of the batches from `first` on.
struct damaging {
  enum class effect { loses_and_applies, loses_and_skips, nan_weights, nan_moment, huge_weights, huge_moment };
  effect what = effect::loses_and_applies;
  std::vector<std::size_t> operators = {};
  double rate = 1;
  std::uint64_t first = 0;
};

struct world {
  std::vector<double> fp32_seconds = {}, low_seconds = {};  // of each operator
  std::vector<damaging> spoilers = {};
  double bad_data = 0;  // fraction of the batches whose loss is not finite under any plan; their step is skipped
  std::uint64_t seed = 0;
};

struct weights {
  double error = 1, moment = 0;
  std::uint64_t steps = 0;
  bool sound() const { return error < 3 && std::abs(moment) < 3; }  // false for NaN
};

/// Its loss is its error, which falls by a hundredth a step and by its moment, and a little noise of the batch.
class minimal_trainer {
 public:
  virtual ~minimal_trainer() = default;
  explicit minimal_trainer(world w) : world_{std::move(w)}, now_{world_.fp32_seconds.size()} {
    std::vector<comp::op_info> ops;
    for (std::size_t i = 0; i < now_.size(); ++i)
      ops.push_back({.name = std::to_string(i), .kind = i % 3 == 2 ? "deny.norm" : "allow.linear"});
    graph_ = fake::sized(std::move(ops));
  }
  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const plan& p) { now_ = p; }
  virtual sample run_batch() { return step(); }
  sample run_epoch() {
    return run_epoch([](const sample&) { return false; });
  }
  sample run_epoch(const comp::stop_predicate& stop) {
    sample epoch;
    do comp::detail::append(epoch, run_batch());
    while (epoch.batches < 20 && !stop(epoch));
    return epoch;
  }
  std::uint64_t batches_per_epoch() const { return 20; }

  const weights& state() const { return weights_; }

 protected:
  double drawn(std::uint64_t what) const {  // the same for a batch, whatever the plan and however often it is repeated
    std::mt19937_64 random{world_.seed * 1'000'003 + weights_.steps * 101 + what};
    random.discard(2);
    return std::uniform_real_distribution<double>{}(random);
  }
  sample step() {
    double seconds = 0;
    for (std::size_t i = 0; i < now_.size(); ++i)
      seconds += comp::is_low(now_[i]) ? world_.low_seconds[i] : world_.fp32_seconds[i];
    sample got{.loss = weights_.error * (1 + 0.02 * drawn(0)), .seconds = seconds, .batches = 1};
    bool skips = drawn(1) < world_.bad_data;
    if (skips) got.loss = fake::nan;
    weights next{.error = 0.2 + 0.99 * (weights_.error - 0.2) + weights_.moment, .moment = weights_.moment / 2};
    for (std::size_t s = 0; s < world_.spoilers.size() && !skips; ++s) {
      const damaging& one = world_.spoilers[s];
      const bool low = std::ranges::all_of(one.operators, [&](std::size_t op) { return comp::is_low(now_[op]); });
      if (!low || weights_.steps < one.first || drawn(2 + s) >= one.rate) continue;
      using enum damaging::effect;
      if (one.what == loses_and_applies || one.what == loses_and_skips) got.loss = fake::nan;
      if (one.what == loses_and_skips) skips = true;
      if (one.what == loses_and_applies || one.what == nan_weights) next.error = fake::nan;
      if (one.what == nan_moment) next.moment = fake::nan;
      if (one.what == huge_weights) next.error = 1e6;
      if (one.what == huge_moment) next.moment = 1e4;
    }
    const std::uint64_t steps = weights_.steps + 1;
    if (!skips) weights_ = next;
    weights_.steps = steps;
    return got;
  }

  world world_;
  comp::op_graph graph_;
  plan now_;
  weights weights_;
};

class saving_trainer : public minimal_trainer {
 public:
  using minimal_trainer::minimal_trainer;
  weights save() const { return weights_; }
  void restore(const weights& w) { weights_ = w; }
};
class counting_trainer : public saving_trainer {
 public:
  using saving_trainer::saving_trainer;
  std::int64_t count_extreme() const { return !(std::abs(weights_.error) < 1e7) + !(std::abs(weights_.moment) < 1e7); }
};

world drawn_world(std::uint64_t seed) {
  std::mt19937_64 random{seed};
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>{low, high}(random);
  };
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>{0, n - 1}(random); };
  world w{.seed = seed};
  const std::size_t operators = 2 + below(6);
  for (std::size_t i = 0; i < operators; ++i) {
    w.fp32_seconds.push_back(uniform(0.5, 2));
    w.low_seconds.push_back(w.fp32_seconds[i] * uniform(0.3, 1.1));
  }
  for (std::size_t s = 1 + below(2); s > 0; --s) {
    damaging one{.what = static_cast<damaging::effect>(below(6)), .operators = {below(operators)}};
    if (below(3) == 0) one.operators.push_back(below(operators));
    one.rate = std::array{1.0, 0.3, 0.1, 0.03}[below(4)];
    one.first = std::array{0, 0, 10, 40, 100}[below(5)];
    w.spoilers.push_back(std::move(one));
  }
  if (below(4) == 0) w.bad_data = 0.03;
  return w;
}

comp::search_settings settings() {
  comp::search_settings s;
  s.planned_epochs = 30;
  return s;
}

// Searches in drawn worlds and trains on. Returns: in how many of them the state was not sound afterwards.
template <class Trainer>
std::size_t count_damaged(std::uint64_t worlds, auto is_told) {
  std::size_t damaged = 0;
  for (std::uint64_t seed = 0; seed < worlds; ++seed) {
    CAPTURE(seed);
    Trainer trainer{drawn_world(seed)};
    const comp::outcome found = comp::two_stage<fake::lists>{.settings = settings()}.run(trainer);
    bool sound = trainer.state().sound() || is_told(found);
    CHECK_MESSAGE(sound, "after the search");
    if (trainer.state().sound()) {
      try {
        (void)comp::post_training{.epochs = 30}.run(trainer, found);
        sound = sound && trainer.state().sound();
      } catch (const comp::error& e) {
        sound = sound && (trainer.state().sound() ||
                          std::string{e.what()}.find("weights are damaged since") != std::string::npos);
      }
      CHECK_MESSAGE(sound, "after the training");
    }
    damaged += !sound;
  }
  return damaged;
}

const auto never = [](const comp::outcome&) { return false; };

}  // namespace

TEST_CASE("no search and no training leaves a state that a plan has damaged") {
  const std::uint64_t worlds = std::getenv("COMP_TEST_SMALL") != nullptr ? 60 : 500;
  CHECK(count_damaged<saving_trainer>(worlds, never) == 0);
  CHECK(count_damaged<counting_trainer>(worlds, never) == 0);
}

TEST_CASE("a training that cannot be restored is said to be damaged, and since when") {
  const auto is_told = [](const comp::outcome& found) { return found.damaged_since.has_value(); };
  CHECK(count_damaged<minimal_trainer>(200, is_told) == 0);
  using enum damaging::effect;
  world w{.fp32_seconds = {1, 1}, .low_seconds = {0.5, 0.5}};
  SUBCASE("a plan that damages it is dropped at the first batch that it loses") {
    w.spoilers = {{.what = loses_and_applies, .operators = {1}, .first = 30}};
    minimal_trainer trainer{w};
    const comp::outcome found = comp::two_stage<fake::lists>{.settings = settings()}.run(trainer);
    REQUIRE(found.damaged_since);
    CHECK(*found.damaged_since == 30);
    CHECK(trainer.state().steps == 30 + 1 + 4);  // four of FP32's show that the weights are damaged
    CHECK(found.plan.count_low() == 0);
    CHECK(comp::table(found).starts_with(
        "A plan damaged the training: its weights are of no use since batch 30, counted from 0.\n"));
    CHECK(comp::summary(found)["damaged_since"] == 30);
  }
  SUBCASE("one that only loses batches is dropped, too, and the training goes on") {
    w.spoilers = {{.what = loses_and_skips, .operators = {1}, .rate = 0.2}};
    minimal_trainer trainer{w};
    const comp::outcome found = comp::two_stage<fake::lists>{.settings = settings()}.run(trainer);
    CHECK_FALSE(found.damaged_since);
    CHECK(comp::summary(found)["damaged_since"].is_null());
    for (const comp::trial& t : found.trials) {
      if (comp::is_low(t.plan[1])) CHECK(t.sample.not_finite <= 1);
    }
    CHECK_FALSE(comp::is_low(found.plan[1]));
  }
}

namespace {

struct user_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Its step throws the user's own exception; its steps may run compiled, and it has an autocast of its own.
class throwing_trainer : public counting_trainer {
 public:
  using counting_trainer::counting_trainer;
  sample run_batch() override {
    if (throws && throws(now_, calls++)) throw user_error{"the user's own"};
    return step();
  }
  // Trains a step and undoes it, also if it throws.
  void try_step() {
    const weights before = save();
    try {
      (void)run_batch();
    } catch (...) {
      restore(before);
      throw;
    }
    restore(before);
  }

  std::vector<comp::op_time> profile() {
    try_step();
    return std::vector<comp::op_time>(now_.size(), {now_.count_low() > 0 ? 0.1 : 0.2, 0.3});
  }
  std::vector<comp::op_error> sensitivity(comp::precision low) {
    const plan set = std::exchange(now_, plan{now_.size()});
    now_[0] = low;
    try_step();
    now_ = set;
    return std::vector<comp::op_error>(now_.size());
  }
  plan own_autocast(comp::precision low) {
    plan all{now_.size()};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = low;
    now_ = all.as_autocast();
    try_step();
    return now_;
  }
  bool run_compiled(bool) { return compiles; }

  std::function<bool(const plan&, std::uint64_t call)> throws = {};
  std::uint64_t calls = 0;
  bool compiles = false;
};

/// Searches and trains on with a step that throws in its calls from `first` on, `times` times. Returns: how many calls
/// there were.
std::uint64_t search_throwing(bool compiles, bool low, std::uint64_t first, std::uint64_t times, bool& thrown) {
  world w{.fp32_seconds = {1, 1, 1}, .low_seconds = {0.5, 0.6, 0.4}};
  w.spoilers = {{.what = damaging::effect::huge_weights, .operators = {2}}};  // so that there is something to ask about
  throwing_trainer trainer{w};
  trainer.compiles = compiles;
  trainer.throws = [&](const plan& p, std::uint64_t call) {
    return (p.count_low() > 0) == low && call >= first && call - first < times;
  };
  comp::search_settings how = settings();
  how.precisions = {comp::precision::bf16};
  thrown = false;
  try {
    const comp::outcome found = comp::two_stage<fake::lists>{.settings = how}.run(trainer);
    const std::uint64_t searched = trainer.state().steps;
    try {
      (void)comp::post_training{.epochs = 12, .finish = 0.3}.run(trainer, found);
    } catch (const user_error&) {
      thrown = true;
      CHECK(trainer.state().steps >= searched);
    }
  } catch (const user_error&) {
    thrown = true;
    CHECK(trainer.state().steps == 0);
  }
  CHECK(trainer.state().sound());
  return trainer.calls;
}

}  // namespace

TEST_CASE("what a step throws under a plan is that plan's failure, whoever tries it") {
  for (const bool compiles : {false, true}) {
    bool thrown = false;
    const std::uint64_t calls = search_throwing(compiles, true, 0, 0, thrown);
    CHECK(calls > 150);
    for (std::uint64_t first = 0; first < calls; ++first) {
      CAPTURE(compiles);
      CAPTURE(first);
      (void)search_throwing(compiles, true, first, 1, thrown);
      CHECK_FALSE(thrown);
      (void)search_throwing(compiles, true, first, 1'000'000, thrown);
      CHECK_FALSE(thrown);
    }
  }
}

TEST_CASE("what a step throws in FP32, too, comes out as it is, and the state is put back") {
  for (const bool compiles : {false, true}) {
    bool thrown = false;
    const std::uint64_t calls = search_throwing(compiles, false, 0, 0, thrown);
    std::size_t searches_ended = 0;
    for (std::uint64_t first = 0; first < calls; ++first) {
      CAPTURE(compiles);
      CAPTURE(first);
      (void)search_throwing(compiles, false, first, 1'000'000, thrown);
      searches_ended += thrown ? 1 : 0;
    }
    CHECK(searches_ended > 8);
  }
}
