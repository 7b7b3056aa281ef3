// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/post_training.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/plan_changes.hpp>

#include "fake_trainer.hpp"

using comp::category;
using comp::parse_plan;
using comp::post_training;
using comp::status;

namespace {

comp::outcome found(const std::string& plan, const std::vector<std::string>& fallbacks) {
  comp::outcome o;
  o.plan = parse_plan(plan);
  o.baseline.loss = 1;
  for (const auto& p : fallbacks) o.fallbacks.push_back(parse_plan(p));
  return o;
}

fake::trainer three_operators() { return fake::trainer{{.graph = fake::chain({"a", "b", "c"})}}; }

TEST_CASE("fallbacks give up deny-operators, then all but allow-operators, then everything, no plan twice") {
  const auto fallbacks = [](const std::string& plan, const std::vector<category>& categories) {
    std::vector<comp::decision> decisions;
    for (const auto c : categories) decisions.push_back({.category = c});
    std::vector<std::string> plans;
    const comp::plan from = parse_plan(plan);
    for (const auto& p : comp::conservative_plans(from, decisions, comp::plan{from.size()})) plans.push_back(p.str());
    return plans;
  };
  using enum category;
  CHECK(fallbacks("bbb", {allow, deny, follow}) == std::vector<std::string>{"bbb", "b1b", "b11", "111"});
  CHECK(fallbacks("b1b", {allow, deny, infer}) == std::vector<std::string>{"b1b", "b11", "111"});
  CHECK(fallbacks("111", {allow, deny, follow}) == std::vector<std::string>{"111"});
}

struct of_three {
  fake::trainer trainer = three_operators();
};

TEST_CASE_FIXTURE(of_three, "the outcome of another model is refused") {
  comp::outcome o = found("bb1", {"bb1", "111"});
  o.graph = fake::chain({"a", "b", "other"});
  CHECK_THROWS_WITH_AS(post_training{}.run(trainer, o), doctest::Contains("the outcome is of another model"),
                       comp::plan_error);
  CHECK_THROWS_AS(post_training{}.run(trainer, found("bb", {"bb", "11"})), comp::plan_error);
  CHECK(trainer.count().batches == 0);
}

TEST_CASE_FIXTURE(of_three, "a number of batches that an epoch does not have is told once") {
  comp::outcome o = found("bb1", {"bb1", "111"});
  o.batches_per_epoch = 7;
  const auto got = post_training{.epochs = 3}.run(trainer, o);
  REQUIRE(got.warnings.size() == 1);
  CHECK(got.warnings[0].starts_with("an epoch had 10 batches (batches_per_epoch() says 7"));
}

TEST_CASE_FIXTURE(of_three, "epochs that give the same loss again and again are told once") {
  trainer.change().swing = [](std::uint64_t k) {
    return (k % 2 == 0 ? 0.5 : 0.0) - std::pow(0.99, static_cast<double>(k));
  };
  const auto got = post_training{.epochs = 4}.run(trainer, found("111", {"111"}));
  REQUIRE(got.warnings.size() == 1);
  CHECK(got.warnings[0].starts_with("the loss of epoch 1 is that of the epoch before, 0.25 ("));
}

TEST_CASE_FIXTURE(of_three, "epochs that the search trained are the first ones") {
  auto o = found("bb1", {"bb1", "111"});
  o.batches_per_epoch = 10;
  const auto after_search = [&](std::size_t batches) {
    o.trained_batches = batches;
    o.trained = {.loss = 0};
    for (std::size_t b = 0; b < batches; ++b) comp::detail::append(o.trained, trainer.run_batch());
    return post_training{.epochs = 3}.run(trainer, o);
  };
  SUBCASE("a whole one") {
    const auto got = after_search(10);
    CHECK(trainer.count().epochs == 2);
    CHECK(trainer.count().batches == 30 + 4);  // FP32 checks the last state
    REQUIRE(got.epochs.size() == 3);
    CHECK(got.epochs[0].batches == 10);
    CHECK(got.epochs[0].loss == doctest::Approx(o.trained.loss));
    CHECK(got.fallbacks.empty());
  }
  SUBCASE("one that was begun is finished batch by batch, and its sample is the whole epoch's") {
    const auto got = after_search(14);
    CHECK(trainer.count().epochs == 1);
    CHECK(trainer.count().batches == 30 + 4);
    REQUIRE(got.epochs.size() == 3);
    CHECK(got.epochs[1].batches == 10);
    REQUIRE(got.epochs[1].curve.size() == 10);
    CHECK(got.epochs[1].curve[0] == o.trained.curve[10]);
    CHECK(got.epochs[1].curve[4] == doctest::Approx(std::pow(0.99, 14)));
    CHECK(got.epochs[1].seconds == doctest::Approx(10));
    CHECK(got.epochs[2].curve[0] == doctest::Approx(std::pow(0.99, 20)));
  }
  SUBCASE("more than were asked for: nothing is trained, and that is said") {
    const auto got = after_search(40);
    CHECK(got.epochs.size() == 4);
    CHECK(trainer.count().batches == 40);
    REQUIRE(got.warnings.size() == 1);
    CHECK(
        got.warnings[0].starts_with("the search's 40 batches are 4 epochs of 10, more than the 3 that were asked for"));
  }
  SUBCASE("as many as were asked for: of that nothing is said") { CHECK(after_search(34).warnings.empty()); }
  SUBCASE("not where the length of an epoch is not known") {
    o.batches_per_epoch = 0;
    CHECK(after_search(10).epochs.size() == 3);
    CHECK(trainer.count().batches == 40 + 4);
  }
}

struct validated : fake::trainer {
  double validate() { return 100 - count().batches; }
};

TEST_CASE("the last epoch has a score, whoever trained it, and of one batch too") {
  validated trainer{{three_operators()}};
  auto o = found("bb1", {"bb1", "111"});
  o.batches_per_epoch = 1;
  o.trained_batches = 2;
  for (int b = 0; b < 2; ++b) comp::detail::append(o.trained, trainer.run_batch());
  SUBCASE("the search") {
    const auto got = post_training{.epochs = 2}.run(trainer, o);
    REQUIRE(got.epochs.size() == 2);
    CHECK(!got.epochs[0].score);
    CHECK(got.epochs[1].score == 98);
  }
  SUBCASE("the training") {
    const auto got = post_training{.epochs = 4}.run(trainer, o);
    REQUIRE(got.epochs.size() == 4);
    CHECK(!got.epochs[1].score);
    CHECK(got.epochs[2].score.has_value());
    CHECK(got.epochs[3].score.has_value());
  }
}

TEST_CASE_FIXTURE(of_three, "a begun epoch that goes wrong is finished by FP32 from where the search left it") {
  auto o = found("bb1", {"bb1", "111"});
  o.batches_per_epoch = 10;
  o.trained_batches = 4;
  for (std::size_t b = 0; b < 4; ++b) comp::detail::append(o.trained, trainer.run_batch());
  trainer.change().harm = [](const comp::plan& p) { return p.count_low() > 0 ? fake::nan : 0; };
  const auto got = post_training{.epochs = 2}.run(trainer, o);
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.fallbacks[0].epoch == 0);
  REQUIRE(got.epochs.size() == 2);
  CHECK(got.epochs[0].batches == 10);
  CHECK(trainer.weights().steps == 20);
  CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, 20)));
}

TEST_CASE_FIXTURE(of_three, "nothing of a training is recalled from a ledger") {
  auto o = found("bb1", {"bb1", "111"});
  o.batches_per_epoch = 10;
  o.trained_batches = 4;
  for (std::size_t b = 0; b < 4; ++b) comp::detail::append(o.trained, trainer.run_batch());
  fake::watcher watcher;
  watcher.recalls_from.push_back({.stage = comp::stage::training, .plan = o.plan, .sample = {.loss = 1, .batches = 6}});
  CHECK(post_training{.epochs = 2}.run(trainer, o, watcher).epochs.size() == 2);
  CHECK(trainer.weights().steps == 20);
}

TEST_CASE("a loss that is not finite in epoch 3 puts the last good state back and goes on with the next plan") {
  fake::trainer trainer = three_operators();
  trainer.change().harm = [&](const comp::plan& p) {
    return p.str() == "bb1" && trainer.weights().steps >= 34 ? fake::nan : 0;
  };
  fake::watcher watcher;
  const auto got = post_training{.epochs = 6}.run(trainer, found("bb1", {"bb1", "b11", "111"}), watcher);
  CHECK(got.epochs.size() == 6);
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.fallbacks[0].epoch == 3);
  CHECK(got.fallbacks[0].from.str() == "bb1");
  CHECK(got.fallbacks[0].to.str() == "b11");
  CHECK(got.fallbacks[0].why == status::not_finite);
  CHECK(got.plan.str() == "b11");
  CHECK(trainer.now().str() == "b11");
  CHECK(trainer.weights().steps == 60);  // as if the bad epoch had never been
  CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, 60)));
  CHECK(watcher.done[3].sample.batches == 9);  // ended by the fourth lost batch in a row, the first being number 35
}

TEST_CASE(
    "a plan that damages the weights near the end of an epoch is given up in it, and no batch that the data lose is") {
  for (const std::size_t batches : {2, 3, 8}) {
    CAPTURE(batches);
    fake::world w{.graph = fake::chain({"a", "b", "c"})};
    w.batches = batches;
    std::uint64_t harmed_at = 2 * batches - 2;  // the last batch of epoch 1 is lost, and all that follow
    fake::trainer trainer{w};
    trainer.change().harm = [&](const comp::plan& p) {
      return p.count_low() > 0 && trainer.weights().steps == harmed_at ? fake::nan : 0.0;
    };
    const auto got = post_training{.epochs = 4}.run(trainer, found("bb1", {"bb1", "111"}));
    REQUIRE(got.fallbacks.size() == 1);
    CHECK(got.fallbacks[0].epoch == 1);
    CHECK(got.fallbacks[0].why == status::not_finite);
    CHECK(got.epochs.size() == 4);
    CHECK(std::isfinite(trainer.weights().error));
  }
  fake::world w{.graph = fake::chain({"a", "b", "c"})};
  w.swing = [](std::uint64_t k) { return k == 29 ? fake::nan : 0.0; };
  fake::trainer trainer{w};
  CHECK(post_training{.epochs = 4}.run(trainer, found("bb1", {"bb1", "111"})).fallbacks.empty());
  CHECK(trainer.count().batches == 40 + 1 + 4);  // FP32's, after the lost batch and at the end, showed sound weights
}

TEST_CASE("epochs of one batch whose losses are not finite end a training, with a trainer that cannot go back, too") {
  fake::world w{.graph = fake::chain({"a", "b", "c"})};
  w.batches = 1;
  w.swing = [](std::uint64_t k) { return k >= 3 ? fake::nan : 0.0; };
  fake::trainer trainer{w};
  CHECK_THROWS_WITH_AS(post_training{.epochs = 20}.run(trainer, found("111", {"111"})),
                       doctest::Contains("training in FP32 ended as not_finite in epoch 3"), comp::error);
  fake::minimal_trainer bare{w};
  CHECK_THROWS_WITH_AS(post_training{.epochs = 20}.run(bare, found("111", {"111"})),
                       doctest::Contains("training in FP32 ended as not_finite in epoch 6"), comp::error);
}

TEST_CASE("a loss that leaves its recent levels is given up too, and FP32's epoch in its place is kept") {
  fake::trainer trainer = three_operators();
  trainer.change().harm = [&](const comp::plan& p) {
    return p.count_low() > 0 && trainer.weights().steps >= 20 ? 1.0 : 0;
  };
  const auto got = post_training{.epochs = 5}.run(trainer, found("bb1", {"bb1", "b11", "111"}));
  REQUIRE(got.fallbacks.size() == 2);
  CHECK(got.fallbacks[0].why == status::diverged);
  CHECK(got.fallbacks[0].epoch == 2);
  CHECK(got.fallbacks[1].epoch == 3);
  CHECK(got.compared == 2);
  CHECK(got.plan.str() == "111");
  CHECK(got.epochs.size() == 5);
  CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, 50)));
  SUBCASE("not when the guard is off") {
    fake::trainer again = three_operators();
    again.change().harm = [&](const comp::plan& p) {
      return p.count_low() > 0 && again.weights().steps >= 20 ? 1.0 : 0;
    };
    CHECK(post_training{.epochs = 5, .guard = {.on = false}}
              .run(again, found("bb1", {"bb1", "b11", "111"}))
              .fallbacks.empty());
    CHECK(again.count().batches == 50);
  }
  SUBCASE("a backend that cannot restore is judged by its own levels alone") {
    fake::minimal_trainer minimal{{.graph = fake::chain({"a", "b", "c"})}};
    minimal.change().harm = [&](const comp::plan& p) {
      return p.count_low() > 0 && minimal.weights().steps >= 20 ? 1.0 : 0;
    };
    const auto alone = post_training{.epochs = 4}.run(minimal, found("bb1", {"bb1", "111"}));
    REQUIRE(alone.fallbacks.size() == 1);
    CHECK(alone.fallbacks[0].why == status::diverged);
    CHECK(alone.compared == 0);
    CHECK(alone.epochs.size() == 4);
  }
}

TEST_CASE_FIXTURE(of_three, "FP32 is never given up for its loss: a warning tells of it") {
  trainer.change().harm = [&](const comp::plan&) { return trainer.weights().steps == 25 ? 5.0 : 0; };
  const auto got = post_training{.epochs = 4}.run(trainer, found("111", {"111"}));
  CHECK(got.epochs.size() == 4);
  CHECK(got.fallbacks.empty());
  REQUIRE(got.warnings.size() == 1);
  CHECK(got.warnings[0] ==
        "FP32's loss is 5.627 at the end of epoch 2 (it was 0.995 at most in the epochs before): where it should not "
        "rise, lower the learning rate");
}

TEST_CASE("checks are due at powers of two since a plan began, and ever rarer while they pass") {
  const std::vector<double> flat(64, 1.0);
  const auto due = [&](const comp::detail::check_times& times, std::size_t from) {
    std::vector<std::size_t> epochs;
    for (std::size_t epoch = from + 1; epoch <= from + 32; ++epoch) {
      if (times.is_due(epoch, {flat.begin(), flat.begin() + static_cast<std::ptrdiff_t>(epoch)}))
        epochs.push_back(epoch);
    }
    return epochs;
  };
  using epochs = std::vector<std::size_t>;
  comp::check_state state;
  comp::detail::check_times times{state};
  CHECK(due(times, 0) == epochs{4, 8, 16, 32});
  times.record_passed(4);
  CHECK(due(times, 0) == epochs{8, 16, 32});
  times.record_passed(8);
  CHECK(due(times, 0) == epochs{32});
  times.plan_changed(10);
  CHECK(due(times, 10) == epochs{11, 12, 14, 18, 26, 42});
}

TEST_CASE_FIXTURE(of_three, "a plan passes whose loss FP32 raises as well") {
  trainer.change().harm = [&](const comp::plan&) { return trainer.weights().steps == 22 ? 5.0 : 0; };
  const auto got = post_training{.epochs = 4}.run(trainer, found("bb1", {"bb1", "111"}));
  CHECK(got.fallbacks.empty());
  CHECK(got.compared == 1);
  CHECK(got.plan.str() == "bb1");
  CHECK(trainer.now().str() == "bb1");
  CHECK(trainer.weights().steps == 40);
}

TEST_CASE_FIXTURE(of_three, "a backend that throws costs its plan, not the training") {
  trainer.change().before_batch = [](const comp::plan& p, std::uint64_t batch) {
    if (p.str() == "bb1" && batch == 15) throw std::runtime_error{"no kernel"};
  };
  const auto got = post_training{.epochs = 3}.run(trainer, found("bb1", {"bb1", "111"}));
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.fallbacks[0].why == status::failed);
  CHECK(got.fallbacks[0].message == "no kernel");
  CHECK(trainer.weights().steps == 30);
}

TEST_CASE_FIXTURE(of_three, "when even FP32 does not train the error says so and the last good state is kept") {
  trainer.change().harm = [&](const comp::plan&) { return trainer.weights().steps >= 25 ? fake::nan : 0; };
  CHECK_THROWS_WITH_AS(
      (void)post_training{.epochs = 5}.run(trainer, found("bb1", {"bb1", "111"})),
      "training in FP32 ended as not_finite in epoch 2 (there is no more conservative plan): check the learning rate "
      "and the data; the trainer is in its last good state",
      comp::error);
  CHECK(trainer.weights().steps == 20);
  SUBCASE("a backend that cannot restore is not said to be in one") {
    fake::minimal_trainer minimal{{.graph = fake::chain({"a", "b", "c"}), .harm = [](auto&&) { return fake::nan; }}};
    CHECK_THROWS_WITH_AS(
        (void)post_training{.epochs = 1}.run(minimal, found("bb1", {"bb1", "111"})),
        "training in FP32 ended as not_finite in epoch 0 (there is no more conservative plan): check the learning rate "
        "and the data; its weights are damaged since epoch 0, in which the plan \"all but 1 in bf16\" lost a batch: begin "
        "it anew, and give the trainer save() and restore()",
        comp::error);
  }
}

TEST_CASE_FIXTURE(of_three, "a stop in training keeps the epochs that were finished") {
  fake::watcher watcher;
  watcher.stops_now = [&] { return trainer.count().batches >= 25; };
  CHECK_THROWS_AS((void)post_training{.epochs = 5}.run(trainer, found("bb1", {"bb1", "111"}), watcher),
                  comp::interrupted);
  CHECK(trainer.weights().steps == 20);
}

TEST_CASE("a training goes on from what it told after any epoch as if it had not ended") {
  const auto trained = [](fake::trainer& trainer) {  // begins an epoch in the search, and gives two plans up
    trainer.change().harm = [&](const comp::plan& p) {
      return p.count_low() > 0 && trainer.weights().steps >= 30 ? 1.0 : 0;
    };
  };
  auto o = found("bb1", {"bb1", "b11", "111"});
  o.batches_per_epoch = 10;
  o.trained_batches = 14;
  const post_training settings{.epochs = 7};
  fake::trainer whole = three_operators();
  trained(whole);
  for (std::size_t b = 0; b < 14; ++b) comp::detail::append(o.trained, whole.run_batch());
  fake::training_keeper keeper{.trainer = &whole};
  const auto expected = settings.run(whole, o, keeper);
  REQUIRE(expected.fallbacks.size() == 2);
  REQUIRE(keeper.progress.size() == 7);  // the first epoch is the search's
  CHECK(keeper.progress.front().begun->batches == 4);
  for (std::size_t i = 0; i < keeper.progress.size(); ++i) {
    CAPTURE(i);
    fake::trainer again = three_operators();
    trained(again);
    again.restore(keeper.states[i]);
    const auto got = settings.go_on(again, keeper.progress[i]);
    CHECK(got.epochs.size() == 7);
    CHECK(again.weights() == whole.weights());
    CHECK(got.plan == expected.plan);
    CHECK(got.compared == expected.compared);
    REQUIRE(got.fallbacks.size() == 2);
    CHECK(got.fallbacks[1].epoch == expected.fallbacks[1].epoch);
    for (std::size_t e = 0; e < 7; ++e) CHECK(got.epochs[e].loss == expected.epochs[e].loss);
  }
  comp::training_progress foreign = keeper.progress.back();
  foreign.plans = {parse_plan("11")};
  foreign.current = 0;
  CHECK_THROWS_AS((void)settings.go_on(whole, foreign), comp::plan_error);
  foreign.current = 1;
  CHECK_THROWS_WITH_AS((void)settings.go_on(whole, foreign),
                       "a training on plan 1 of 1 (there is none such): go on from what training_progressed() told",
                       comp::plan_error);
}

TEST_CASE("a trainer that wants to know is told when training begins and when it ends, however it ends") {
  struct listener : fake::trainer {
    using fake::trainer::run_epoch;
    using fake::trainer::trainer;
    std::string heard = {};
    void post_training(bool on) { heard += on ? "begin " : "end "; }
    comp::sample run_epoch(const comp::stop_predicate& stop) {
      heard += "epoch ";
      return fake::trainer::run_epoch(stop);
    }
  };
  listener trainer{{.graph = fake::chain({"a", "b", "c"})}};
  (void)post_training{.epochs = 2}.run(trainer, found("bb1", {"bb1", "111"}));
  CHECK(trainer.heard == "begin epoch epoch end ");
  trainer.heard.clear();
  trainer.change().harm = [](const comp::plan&) { return fake::nan; };
  CHECK_THROWS_AS((void)post_training{}.run(trainer, found("bb1", {"bb1", "111"})), comp::error);
  CHECK(trainer.heard == "begin epoch epoch end ");
}

/// What a loss does over a training: its level at a time in epochs, and how much batches and runs differ.
struct course {
  std::function<double(double epoch)> level = {};
  double batch_noise = 0.1;       // standard deviation, of `scale`
  double heavy = 0;               // instead: of the logarithm of a batch's factor
  double chaos = 0.01;            // how far runs that differ in a rounding drift apart, of `scale`
  double scale = 0;               // 0: |level|
  std::size_t stuck_from = 1000;  // epoch from which a low plan learns nothing more
};

/// Trains along a course. Batches are the same for every plan; what wanders is another for every plan and start.
class wanderer {
 public:
  struct state {
    double progress = 0, wander = 0;
    std::uint64_t steps = 0, key = 0;
  };
  wanderer(course along, std::uint64_t seed) : along_{std::move(along)}, seed_{seed} { now_.key = seed; }

  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const comp::plan& p) { plan_ = p; }
  comp::sample run_batch() { return train(1, {}); }
  comp::sample run_epoch() { return train(batches, {}); }
  comp::sample run_epoch(const comp::stop_predicate& stop) { return train(batches, stop); }
  state save() const { return now_; }
  void restore(const state& s) { now_ = s; }

  static constexpr std::size_t batches = 100;
  std::uint64_t trained = 0;

 private:
  comp::sample train(std::size_t count, const comp::stop_predicate& stop) {
    comp::sample got{.loss = 0};
    while (count-- > 0) {
      const double loss = step();
      got.curve.push_back(loss);
      got.loss += (loss - got.loss) / static_cast<double>(got.curve.size());
      got.batches = static_cast<std::int64_t>(got.curve.size());
      got.seconds += 1;
      if (stop && stop(got)) break;
    }
    return got;
  }
  static std::uint64_t mixed(std::uint64_t x) {  // splitmix64
    x = ((x + 0x9e3779b97f4a7c15) ^ ((x + 0x9e3779b97f4a7c15) >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  double step() {
    ++trained;
    std::normal_distribution<double> normal;
    std::minstd_rand batch{static_cast<std::uint32_t>(mixed(seed_ * 100'000 + now_.steps))};
    std::minstd_rand own{static_cast<std::uint32_t>(mixed(now_.key))};
    const double level = along_.level(now_.progress), scale = along_.scale > 0 ? along_.scale : std::abs(level);
    const double off = scale * now_.wander, drawn = normal(batch);
    const double loss = along_.heavy > 0
                            ? (level + off) * std::exp(along_.heavy * drawn - along_.heavy * along_.heavy / 2)
                            : level + off + scale * along_.batch_noise * drawn;
    now_.wander = 0.98 * now_.wander + 0.2 * along_.chaos * normal(own);
    now_.key = mixed(now_.key + plan_.count_low());
    if (plan_.count_low() == 0 || now_.progress < static_cast<double>(along_.stuck_from))
      now_.progress += 1.0 / batches;
    ++now_.steps;
    return loss;
  }

  comp::op_graph graph_ = fake::chain({"a", "b", "c"});
  course along_;
  std::uint64_t seed_;
  state now_;
  comp::plan plan_;
};

post_training::result trained(const course& along, std::uint64_t seed, const std::string& plan, std::size_t epochs) {
  wanderer trainer{along, seed};
  return post_training{.epochs = epochs}.run(trainer, found(plan, {plan, "111"}));
}

}  // namespace

TEST_CASE("healthy trainings that look ill are let alone, in FP32 and with a plan") {
  struct named {
    const char* name;
    course along;
  };
  const named healthy[] = {
      {"late losses near zero whose batches differ by more than they are",
       {.level = [](double e) { return 2.3 / (1 + std::pow(e / 0.3, 1.7)) + 1e-4; }, .heavy = 1.5, .chaos = 0.15}},
      {"warm restarts",
       {.level = [](double e) { return (0.1 + std::exp(-e / 10)) * (1 + 1.5 * std::exp(-std::fmod(e, 8))); }}},
      {"a generator's, that grows", {.level = [](double e) { return 1 + 0.15 * e; }}},
      {"crossing zero", {.level = [](double e) { return 1 - 0.1 * e; }, .scale = 1}}};
  for (const named& one : healthy) {
    CAPTURE(one.name);
    double batches = 0;
    for (std::uint64_t seed = 1; seed <= 150; ++seed) {
      CAPTURE(seed);
      CHECK(trained(one.along, seed, "111", 20).fallbacks.empty());
      wanderer trainer{one.along, seed};
      CHECK(post_training{.epochs = 20}.run(trainer, found("bb1", {"bb1", "111"})).fallbacks.empty());
      batches += static_cast<double>(trainer.trained) / 150;
    }
    CHECK(batches < 20 * 100 * 1.1);  // what comparing with FP32 costs
  }
}

TEST_CASE("a plan that learns nothing more is found out and given up") {
  const course along{.level = [](double e) { return 0.05 + 1.95 * std::exp(-e / 3); }, .stuck_from = 6};
  std::size_t caught = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const auto got = trained(along, seed, "bb1", 40);
    caught += got.fallbacks.size() == 1 && got.fallbacks[0].epoch <= 16 && got.epochs.back().loss < 0.06 ? 1 : 0;
    if (seed == 1) {
      REQUIRE(got.fallbacks.size() == 1);
      CHECK(got.fallbacks[0].why == status::diverged);
      CHECK(got.fallbacks[0].message.starts_with("no progress: in "));
    }
  }
  CHECK(caught == 100);
}

TEST_CASE_FIXTURE(of_three, "a plan that needs comparing with an FP32 that does not run is given up for the next") {
  trainer.change().harm = [&](const comp::plan& p) { return p.str() == "bb1" ? fake::nan : 0; };
  trainer.change().before_batch = [](const comp::plan& p, std::uint64_t) {
    if (p.count_low() == 0) throw comp::out_of_memory{"too large in FP32"};
  };
  const auto got = post_training{.epochs = 2}.run(trainer, found("bb1", {"bb1", "b11", "111"}));
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.plan.str() == "b11");
  CHECK(trainer.weights().steps == 20);
}

TEST_CASE("losses are taken from the mean so far where a backend gives no curve") {
  const comp::guard_settings settings;
  comp::normal_levels levels;
  const comp::detail::recent_levels normal{settings, levels};
  comp::detail::epoch_watch watch{normal, true, 1};
  comp::sample so_far{.loss = 2, .batches = 1};
  CHECK(watch(so_far) == status::ok);
  so_far = {.loss = 3, .batches = 2};
  CHECK(watch(so_far) == status::ok);
  so_far = {.loss = 3, .batches = 4};
  CHECK(watch(so_far) == status::ok);
  const std::vector<double> losses = watch.losses_of(so_far);
  REQUIRE(losses.size() == 4);
  CHECK(losses[0] == doctest::Approx(2));
  CHECK(losses[1] == doctest::Approx(4));
  CHECK(losses[3] == doctest::Approx(3));
}
