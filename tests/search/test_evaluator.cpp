// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/trainer/evaluator.hpp>
#include <new>

#include "fake_trainer.hpp"

using comp::parse_plan;
using comp::stage;
using comp::status;
using comp::trial;

namespace {

constexpr auto never = [](const comp::sample&) { return status::ok; };

// A trainer, what watches it, and an evaluator on both.
template <class Trainer = fake::trainer>
struct bench {
  explicit bench(fake::world world = {.graph = fake::chain({"a", "b"})}) : trainer{std::move(world)} {}
  Trainer trainer;
  fake::watcher watcher = {};
  comp::observer_list<fake::watcher> observers{watcher};
  comp::outcome log = {.baseline = {.loss = 1}, .tolerance = 1000};
  comp::trainer_of<Trainer> erased{trainer};
  comp::evaluator run{erased, observers, log};

  trial epoch(const comp::plan& p, auto cut) {
    trial t = run.run_epoch(stage::losses, p, "", cut);
    run.record(t);
    return t;
  }
};

struct scoring_trainer : fake::trainer {
  using fake::trainer::trainer;
  double validate() { return weights_.error < 1 ? 0.75 : 0.5; }
};

// Its epochs say nothing of their batches but what a test leaves of it.
struct uncounted_trainer : fake::trainer {
  using fake::trainer::trainer;
  std::function<void(comp::sample&)> leave = [](comp::sample&) {};
  comp::sample run_epoch() { return run_epoch({}); }
  comp::sample run_epoch(const comp::stop_predicate& stop) {
    comp::sample got = fake::trainer::run_epoch(stop);
    got.batches = 0;
    leave(got);
    return got;
  }
};

struct with_bench {
  bench<> b;
};

}  // namespace

TEST_CASE("an epoch that does not say how many batches it had has those that were seen of it, or an epoch's") {
  bench<uncounted_trainer> b;
  SUBCASE("by its losses") {
    b.trainer.leave = [](comp::sample& got) { got.batch_seconds.clear(); };
    CHECK(b.epoch(parse_plan("11"), never).sample.batches == 10);
  }
  SUBCASE("by its times, cut") {
    b.log.batches_per_epoch = 10;
    b.trainer.leave = [](comp::sample& got) { got.curve.clear(); };
    const auto third = [](const comp::sample& so_far) { return so_far.batches == 3 ? status::diverged : status::ok; };
    CHECK(b.epoch(parse_plan("11"), third).sample.batches == 3);
  }
  SUBCASE("by nothing") {
    b.log.batches_per_epoch = 10;
    b.trainer.leave = [](comp::sample& got) { got.curve.clear(), got.batch_seconds.clear(); };
    CHECK(b.epoch(parse_plan("11"), never).sample.batches == 10);
    CHECK(b.run.trained().batches == 10);
  }
}

TEST_CASE("a run goes on from where the trainer is, and a place brings it back with what was trained") {
  bench b;
  const auto start = b.run.save();
  const trial first = b.epoch(parse_plan("11"), never);
  const auto one_epoch = b.run.save();
  const trial next = b.epoch(parse_plan("bb"), never);
  CHECK(next.sample.loss < first.sample.loss);
  CHECK(b.trainer.weights().steps == 20);
  CHECK(b.run.trained().batches == 20);
  CHECK(b.run.trained().curve.size() == 20);
  b.run.restore(one_epoch);
  CHECK(b.trainer.weights().steps == 10);
  CHECK(b.run.trained().batches == 10);
  CHECK(b.run.trained().curve == first.sample.curve);
  b.run.restore(start);
  CHECK(b.trainer.weights() == fake::state{});
  CHECK(b.run.trained().batches == 0);
  CHECK(b.epoch(parse_plan("bb"), never).sample.loss == first.sample.loss);
  CHECK(b.run.seconds() == 30);  // undone or not
  SUBCASE("a state can be made the start of a training") {
    b.run.remember_start();
    CHECK(b.run.trained().batches == 0);
    CHECK(b.trainer.weights().steps == 10);
  }
}

TEST_CASE_FIXTURE(with_bench, "a run that fails puts the trainer back to the state that was last kept") {
  (void)b.epoch(parse_plan("11"), never);
  b.trainer.change().before_batch = [](const comp::plan& p, std::uint64_t) {
    if (p.count_low() == 2) throw std::runtime_error{"no kernel"};
  };
  SUBCASE("kept now") {
    b.run.keep_state();
    (void)b.epoch(parse_plan("bb"), never);
    CHECK(b.trainer.weights().steps == 10);
    CHECK(b.run.trained().batches == 10);
  }
  SUBCASE("not kept: the start") {
    (void)b.epoch(parse_plan("bb"), never);
    CHECK(b.trainer.weights() == fake::state{});
    CHECK(b.run.trained().batches == 0);
  }
}

TEST_CASE_FIXTURE(with_bench, "batches are trained in parts that make one run") {
  comp::sample got;
  const trial t = b.run.run(stage::losses, parse_plan("b1"), "", [&](const trial& begun) {
    b.run.train(begun, parse_plan("b1"), 3, got, never);
    b.run.train(begun, parse_plan("b1"), 7, got, never);
    return got;
  });
  CHECK(t.sample.batches == 7);
  CHECK(t.sample.curve.size() == 7);
  CHECK(t.sample.seconds == 7);
  CHECK(t.seconds == 1);
  CHECK(b.trainer.weights().steps == 7);
  fake::trainer alone{{.graph = fake::chain({"a", "b"}), .batches = 7}};
  const comp::sample epoch = alone.run_epoch();
  CHECK(t.sample.curve == epoch.curve);
  CHECK(t.sample.loss == doctest::Approx(epoch.loss).epsilon(1e-14));
  SUBCASE("until one is cut") {
    const trial cut = b.run.run(stage::losses, parse_plan("bb"), "", [&](const trial& begun) {
      comp::sample more;
      b.run.train(begun, parse_plan("bb"), 50, more,
                  [](const comp::sample& s) { return s.batches == 4 ? status::diverged : status::ok; });
      return more;
    });
    CHECK(cut.sample.status == status::diverged);
    CHECK(cut.sample.batches == 4);
    CHECK(std::isinf(cut.seconds));
  }
}

TEST_CASE("a backend that throws in the middle of an epoch gives a failed trial, and its state is put back") {
  bench b;
  b.trainer.change().before_batch = [](const comp::plan& p, std::uint64_t batch) {
    if (p.count_low() > 0 && batch == 4) throw std::runtime_error{"cuDNN: not supported"};
  };
  const trial got = b.epoch(parse_plan("b1"), never);
  CHECK(got.sample.status == status::failed);
  CHECK(got.sample.message == "cuDNN: not supported");
  CHECK_FALSE(got.accepted);
  CHECK(std::isinf(got.seconds));
  CHECK(got.sample.batches == 0);  // how far it came is not known
  CHECK(b.trainer.weights() == fake::state{});
  CHECK(b.epoch(parse_plan("11"), never).sample.ok());
  CHECK(b.log.trials.size() == 2);
}

TEST_CASE_FIXTURE(with_bench, "a plan that does not fit in memory is told from one that fails") {
  SUBCASE("by the C++ library") {
    b.trainer.change().before_batch = [](auto&&...) { throw std::bad_alloc{}; };
  }
  SUBCASE("by the backend") {
    b.trainer.change().before_batch = [](auto&&...) { throw comp::out_of_memory{"no room for 3 GB"}; };
  }
  CHECK(b.run.run_epoch(stage::losses, parse_plan("11"), "", never).sample.status == status::out_of_memory);
  CHECK(b.run.run_batch(stage::times, parse_plan("11"), "").sample.status == status::out_of_memory);
}

TEST_CASE(
    "an epoch whose loss is not finite is not ok, whatever the backend says, and leaves no trace in the weights") {
  bench b;
  b.trainer.change().harm = [](auto&&...) { return fake::nan; };
  const trial got = b.run.run_epoch(stage::losses, parse_plan("b1"), "", never);
  CHECK(got.sample.status == status::not_finite);
  CHECK(got.sample.batches == 10);
  CHECK(b.trainer.weights() == fake::state{});
}

TEST_CASE("a batch of which one of several losses is not finite is lost, and leaves the means of its run alone") {
  comp::sample run{.loss = 2, .losses = {1, 3}, .batches = 1, .curve = {2}};
  comp::sample got{.loss = 1, .losses = {1, fake::nan}};
  comp::detail::complete(got, 1);
  CHECK(got.ok());
  CHECK(got.not_finite == 1);
  comp::detail::append(run, got);
  CHECK(run.batches == 2);
  CHECK(run.not_finite == 1);
  CHECK(run.loss == 2);
  CHECK(run.losses == std::vector<double>{1, 3});
  CHECK(std::isnan(run.curve.back()));
  comp::detail::append(run, {.loss = 4, .losses = {2, 6}, .batches = 1});
  CHECK(run.loss == 3);
}

TEST_CASE("a run ends when its losses are lost again and again, not for one") {
  const auto ends = [](const std::vector<double>& curve) { return comp::keeps_losing({.loss = 1, .curve = curve}); };
  CHECK_FALSE(ends({1, fake::nan}));
  CHECK_FALSE(ends({fake::nan, fake::nan, fake::nan}));
  CHECK(ends({1, fake::nan, fake::nan, fake::nan, fake::nan}));
  CHECK_FALSE(ends({fake::nan, fake::nan, fake::nan, fake::nan, 1}));
  std::vector<double> fourth(50, 1);
  for (std::size_t i = 1; i < 50; i += 4) fourth[i] = fake::nan;
  CHECK(ends(fourth));  // 13 of 50, the last one too
  fourth[1] = fourth[5] = 1;
  CHECK_FALSE(ends(fourth));  // 11 may be a tenth by chance
  CHECK(comp::keeps_losing({.loss = fake::nan}));
}

TEST_CASE_FIXTURE(with_bench, "the cut's status ends the epoch at that batch") {
  const auto after_3 = [](const comp::sample& s) { return s.batches == 3 ? status::stopped_early : status::ok; };
  const trial got = b.epoch(parse_plan("b1"), after_3);
  CHECK(got.sample.status == status::stopped_early);
  CHECK(got.sample.batches == 3);
  CHECK(b.trainer.weights() == fake::state{});
  CHECK(b.log.cost(stage::losses).batches == 3);
}

TEST_CASE("a backend without a stop predicate runs its epochs to the end") {
  bench<fake::minimal_trainer> b;
  const trial got = b.run.run_epoch(stage::losses, parse_plan("b1"), "", [](auto&&) { return status::stopped_early; });
  CHECK(got.sample.ok());
  CHECK(got.sample.batches == 10);
  CHECK(b.trainer.weights().steps == 10);
}

TEST_CASE_FIXTURE(with_bench, "a recalled run is not made: the observer's sample counts") {
  b.watcher.recalls_from = {
      {.stage = stage::losses, .plan = parse_plan("b1"), .sample = {.loss = 5, .seconds = 7, .batches = 10}}};
  b.run.timed(stage::losses, [&] {
    const trial got = b.epoch(parse_plan("b1"), never);
    CHECK(got.sample.loss == 5);
    CHECK(got.seconds == doctest::Approx(0.7));
    CHECK(got.recalled);
  });
  CHECK(b.trainer.count().batches == 0);
  CHECK(b.watcher.calls == std::vector<std::string>{"recall", "trial_done"});
  CHECK(b.log.cost(stage::losses).seconds >= 7);
  CHECK(b.log.cost(stage::losses).batches == 10);
  CHECK(b.run.seconds() >= 7);  // budgets count it
  SUBCASE("the same plan again is another run") {
    const trial second = b.run.run_epoch(stage::losses, parse_plan("b1"), "", never);
    CHECK(second.repeat == 1);
    CHECK_FALSE(second.recalled);
    CHECK(b.trainer.count().batches == 10);
  }
}

TEST_CASE_FIXTURE(with_bench, "repeats are counted per stage and plan and go on from those in the log") {
  CHECK(b.run.run_batch(stage::times, parse_plan("b1"), "").repeat == 0);
  CHECK(b.run.run_batch(stage::contest, parse_plan("b1"), "").repeat == 0);
  CHECK(b.run.run_batch(stage::times, parse_plan("11"), "").repeat == 0);
  CHECK(b.run.run_batch(stage::times, parse_plan("b1"), "").repeat == 1);
  comp::evaluator later{b.erased, b.observers, b.log};
  const trial next = later.run_epoch(stage::training, parse_plan("b1"), "", never);
  CHECK(next.number == 4);
  CHECK(later.run_batch(stage::times, parse_plan("b1"), "").repeat == 2);
}

TEST_CASE_FIXTURE(with_bench, "a plan's very first batch pays for what is made once and is not timed") {
  b.trainer.change().first_batch = 1000;
  CHECK(b.run.run_batch(stage::times, parse_plan("b1"), "").seconds == 1);
  CHECK(b.run.run_batch(stage::times, parse_plan("b1"), "").seconds == 1);
  CHECK(b.trainer.count().batches == 3);
  SUBCASE("nor in an epoch, whose median it would move") {
    b.trainer.change().batches = 4;
    CHECK(b.run.run_epoch(stage::losses, parse_plan("bb"), "", never).seconds == 1);
  }
}

TEST_CASE_FIXTURE(with_bench, "a stop after a run keeps that run") {
  b.watcher.stops_after = [](const trial&) { return true; };
  CHECK_THROWS_AS((void)b.epoch(parse_plan("b1"), never), comp::interrupted);
  CHECK(b.log.trials.size() == 1);
  CHECK(b.trainer.weights() == fake::state{});
}

TEST_CASE(
    "a stop, an interruption or an observer's exception in an epoch is no fault of the plan, and it is put back") {
  const auto ended_after = [](auto arrange, const char* message) {
    bench b;
    arrange(b);
    try {
      (void)b.run.run_epoch(stage::losses, parse_plan("b1"), "", never);
      FAIL_CHECK("it went on");
    } catch (const std::exception& e) {
      CHECK(std::string{e.what()} == message);
    }
    CHECK(b.trainer.weights() == fake::state{});
    CHECK(b.log.trials.empty());
    return b.trainer.count().batches;
  };
  CHECK(ended_after([](auto& b) { b.watcher.stops_now = [&b] { return b.trainer.count().batches >= 4; }; },
                    "search stopped after 0 runs (it was asked to): start it again with the same ledger to go on") ==
        4);
  const auto interrupted = [](const comp::plan&, std::uint64_t batch) {
    if (batch == 2) throw comp::interrupted{"SIGINT"};
  };
  CHECK(ended_after([&](auto& b) { b.trainer.change().before_batch = interrupted; }, "SIGINT") == 2);
  const auto full = [](const std::string& call) {
    if (call == "batch_done") throw std::logic_error{"disk full"};
  };
  CHECK(ended_after([&](auto& b) { b.watcher.at = full; }, "disk full") == 1);
}

TEST_CASE("an epoch of training is scored where the backend validates, an experiment and a batch are not") {
  bench<scoring_trainer> b;
  CHECK(b.run.run_epoch(stage::training, parse_plan("b1"), "", never).sample.score == 0.75);
  CHECK_FALSE(b.epoch(parse_plan("b1"), never).sample.score.has_value());
  CHECK_FALSE(b.run.run_batch(stage::times, parse_plan("b1"), "").sample.score.has_value());
}

TEST_CASE("what a backend leaves out is measured: seconds by the clock, one batch per run") {
  comp::sample got{.loss = 1};
  comp::detail::complete(got, 0.25);
  CHECK(got.seconds == 0.25);
  CHECK(got.batches == 1);
  CHECK(got.ok());
}
