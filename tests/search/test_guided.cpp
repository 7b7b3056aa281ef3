// SPDX-License-Identifier: Apache-2.0
// The default search on made-up trainers: what it finds, what it keeps, and what it does with trainers that cannot tell
// or tell nonsense. How good it is over drawn worlds is measured in the truth lab (bench/search).
#include <doctest/doctest.h>

#include <comp/search/decision/learned_costs.hpp>
#include <comp/search/post_training.hpp>
#include <comp/strategy/min_cut.hpp>

#include "fake_search.hpp"

using comp::op_error;
using comp::op_time;
using comp::outcome;
using comp::parse_plan;
using comp::plan;
using comp::precision;
using comp::stage;
using comp::trial;
using fake::warns;

namespace {

using guided_search = comp::two_stage<fake::lists>;

// Each compiled once.
template <class Trainer>
outcome search_on(Trainer& on, const comp::search_settings& settings, fake::watcher& watching) {
  if constexpr (std::same_as<Trainer, fake::full_trainer>) {
    return fake::search_by(true, on, settings, watching);
  } else {
    return guided_search{.settings = settings}.run(on, watching);
  }
}
outcome search_on(auto& on, const comp::search_settings& settings = {}) {
  fake::watcher silent;
  return search_on(on, settings, silent);
}

// A chain of `n` operators of some kinds, of which low precision saves most of, some only little, some nothing.
fake::world drawn(std::uint64_t seed, std::size_t n, std::vector<std::size_t> harmful, double cast = 0.1) {
  std::mt19937_64 random{seed};
  const auto share = [&] { return std::uniform_real_distribution<double>{0, 1}(random); };
  std::vector<std::string> kinds;
  fake::costs times{.cast = cast};
  for (std::size_t i = 0; i < n; ++i) {
    kinds.push_back(std::vector{"allow", "allow.odd", "deny", "relu"}[random() % 4]);
    times.fp32.push_back(0.5 + share());
    times.low.push_back(times.fp32.back() * (0.4 + 0.7 * share()));
  }
  fake::world world{.graph = fake::sized_chain(kinds), .batches = 150};
  fake::timed_by(world, times);
  world.harm = fake::harmed_by(harmful);
  world.sensitivity = [n, harmful](precision) {
    std::vector<op_error> errors(n);
    for (std::size_t i = 0; i < n; ++i) errors[i].output = 1e-3 * static_cast<double>(1 + i % 5);
    for (const auto i : harmful) errors[i].output = 0.1;
    return errors;
  };
  return world;
}

// The fastest plan that leaves `harmful` at FP32: a chain is solved by going along it.
double best_seconds(const fake::world& world, const std::vector<std::size_t>& harmful) {
  const std::size_t n = world.graph.size();
  comp::plan_costs costs{std::vector<comp::per_precision>(n), comp::detail::shared_tensors(world.graph)};
  plan low{n, precision::bf16};
  const auto fp32_times = world.profile(plan{n}), low_times = world.profile(low);
  for (std::size_t i = 0; i < n; ++i) {
    costs.seconds[i].fill(std::numeric_limits<double>::infinity());
    costs.seconds[i][0] = fp32_times[i].forward + fp32_times[i].backward;
    const bool harms = std::find(harmful.begin(), harmful.end(), i) != harmful.end();
    if (!harms) costs.seconds[i][comp::index_of(precision::bf16)] = low_times[i].forward + low_times[i].backward;
  }
  const plan one = [&] {
    plan p{n};
    p[0] = precision::bf16;
    return p;
  }();
  const double cast = n > 1 ? world.seconds(one) - world.seconds(plan{n}) + fp32_times[0].forward +
                                  fp32_times[0].backward - low_times[0].forward - low_times[0].backward
                            : 0;
  for (auto& t : costs.tensors) t.cast_seconds = cast;
  return world.seconds(comp::strategy::min_cut_plan(costs, plan{n}));
}

std::size_t judged_plans(const outcome& found) {
  return static_cast<std::size_t>(std::ranges::count_if(
      found.trials, [](const trial& t) { return t.stage == stage::losses && t.purpose == comp::purpose::judge; }));
}

// What has all but the number of batches of an epoch.
class endless {
 public:
  explicit endless(fake::world world) : inner_{std::move(world)} {}
  const comp::op_graph& graph() const { return inner_.graph(); }
  void set_precision(const plan& p) { inner_.set_precision(p); }
  comp::sample run_epoch() { return inner_.run_epoch(); }
  comp::sample run_batch() { return inner_.run_batch(); }
  fake::state save() { return inner_.save(); }
  void restore(const fake::state& s) { inner_.restore(s); }
  std::vector<precision> supported_precisions() const { return inner_.supported_precisions(); }
  const fake::trainer& inner() const { return inner_; }

 private:
  fake::trainer inner_;
};

// Nor do its epochs say how many they had.
struct wordless : endless {
  using endless::endless;
  comp::sample run_epoch() { return {.loss = endless::run_epoch().loss}; }
  double validate() { return 0.9; }
};

void check_kept(const fake::trainer& trainer, const outcome& found) {
  CHECK(trainer.weights().steps == found.trained_batches);
  CHECK(found.trained.batches == static_cast<std::int64_t>(found.trained_batches));
  double error = 1;
  for (std::size_t k = 0; k < found.trained_batches; ++k) error *= 0.99;
  CHECK(trainer.weights().error == error);  // nothing harmful is in it, to the bit
}

TEST_CASE("every batch trains: what the trainer has behind it is what the outcome says, and no rejected plan's") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random{seed};
    const std::size_t n = 2 + random() % 20;
    std::vector<std::size_t> harmful;
    for (std::size_t i = 0; i < n; ++i) {
      if (random() % 8 == 0) harmful.push_back(i);
    }
    fake::world world = drawn(seed, n, harmful, 0.2);
    world.batches = std::vector<std::size_t>{7, 10, 24, 150}[seed % 4];
    fake::full_trainer trainer{world};
    const outcome found = fake::search_by(seed < 40, trainer);
    check_kept(trainer, found);
    CHECK(found.trained_batches > 0);
    CHECK(trainer.now() == found.plan);
    CHECK(world.harm(found.plan) == 0);
    CHECK(found.trained_epochs() == found.trained_batches / world.batches);
    const auto begin = found.trained.curve;
    fake::full_trainer alone{world};
    std::vector<double> losses;
    while (losses.size() < begin.size()) losses.push_back(alone.run_batch().loss);
    CHECK(begin == losses);
  }
}

TEST_CASE("a training after the search makes as many epochs in all as were asked for, the search's counted in") {
  for (const std::size_t batches : {7U, 16U, 40U, 150U}) {
    CAPTURE(batches);
    fake::world world = drawn(3, 8, {2});
    world.batches = batches;
    fake::full_trainer trainer{world};
    const outcome found = search_on(trainer);
    const std::size_t epochs = found.trained_epochs() + 3;
    const auto trained = comp::post_training{.epochs = epochs}.run(trainer, found);
    CHECK(trained.epochs.size() == epochs);
    CHECK(trainer.weights().steps == epochs * batches);
    for (const comp::sample& epoch : trained.epochs) CHECK(epoch.batches == static_cast<std::int64_t>(batches));
  }
}

TEST_CASE("the best plan of a chain is found, harmless or not, to a part in a hundred") {
  double worst = 1;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    std::vector<std::size_t> harmful;
    if (seed % 3 > 0) harmful = {seed % 16, (5 * seed + 3) % 16};
    const fake::world world = drawn(seed, 16, harmful, 0.05 * static_cast<double>(seed % 6));
    fake::full_trainer trainer{world};
    const outcome found = search_on(trainer);
    CAPTURE(found.plan.str());
    CHECK(world.harm(found.plan) == 0);
    worst = std::max(worst, world.seconds(found.plan) / best_seconds(world, harmful));
    CHECK(found.speedup == doctest::Approx(world.seconds(plan{16}) / world.seconds(found.plan)).epsilon(0.01));
  }
  CHECK(worst < 1.02);
}

TEST_CASE("of 64 operators half harm: 0.95 of the saving is found in twenty judged plans by their sensitivity") {
  std::vector<std::size_t> harmful;
  for (std::size_t i = 0; i < 64; i += 2) harmful.push_back(i);
  const fake::world world = drawn(5, 64, harmful, 0.01);
  fake::full_trainer trainer{world};
  const outcome found = search_on(trainer);
  const double fp32 = world.seconds(plan{64}), best = best_seconds(world, harmful);
  CHECK(world.harm(found.plan) == 0);
  CHECK((fp32 - world.seconds(found.plan)) / (fp32 - best) > 0.95);
  CHECK(judged_plans(found) <= 20);
}

TEST_CASE("what the search costs stays within its budget where nothing harms") {
  for (const std::size_t batches : {60U, 150U, 400U}) {
    CAPTURE(batches);
    fake::world world = drawn(6, 30, {});
    world.batches = batches;
    fake::full_trainer trainer{world};
    const outcome found = search_on(trainer);
    const double beyond = found.run_seconds - static_cast<double>(found.trained_batches) * found.batch_seconds;
    CHECK(beyond <= 0.011 * 100 * static_cast<double>(batches) * found.batch_seconds);
  }
}

TEST_CASE("a search that its budget ended is the same when all of it is recalled") {
  std::vector<std::size_t> harmful;
  for (std::size_t i = 1; i < 40; i += 2) harmful.push_back(i);
  fake::world world = drawn(24, 40, harmful);
  world.batches = 20;
  comp::search_settings settings;
  settings.budget = 0.02;
  const auto searched = [](fake::trainer& on, const comp::search_settings& by, fake::watcher watching = {}) {
    return guided_search{.stage1 = {.bisection = {.questions = 96, .worth = 0}}, .settings = by}.run(on, watching);
  };
  fake::trainer whole{world};
  const outcome expected = searched(whole, settings);
  fake::trainer unlimited{world};
  comp::search_settings more = settings;
  more.budget = 1e6;
  REQUIRE(judged_plans(expected) < judged_plans(searched(unlimited, more)));  // or it shows nothing
  fake::watcher watcher;
  watcher.recalls_from = expected.trials;
  fake::trainer trainer{world};
  const outcome found = searched(trainer, settings, watcher);
  CHECK(found.plan == expected.plan);
  CHECK(found.trials.size() == expected.trials.size());
  CHECK(trainer.count().batches == 2);  // of the look at the start
}

TEST_CASE("profiles and sensitivities that make no sense are told of in a sentence, and the search goes on") {
  const fake::world sound = drawn(10, 8, {2});
  std::vector<std::pair<fake::world, const char*>> cases;
  const auto profiled = [&](auto profile, const char* about) {
    cases.emplace_back(sound, about).first.profile = profile;
  };
  const auto scored = [&](auto scores, const char* about) {
    cases.emplace_back(sound, about).first.sensitivity = scores;
  };
  using times = std::vector<op_time>;
  using errors = std::vector<op_error>;
  profiled([](const plan&) { return times(3, {1, 1}); }, "a profile of 3 operators was not used");
  profiled([](const plan& p) { return times(p.size(), {1, fake::nan}); }, "a profile of ");
  profiled([](const plan& p) { return times(p.size()); }, "a profile of ");
  profiled([](const plan&) -> times { throw std::runtime_error{"no events"}; },
           "no profile (no events): costs were estimated from operations and bytes");
  scored([](precision) { return errors(3); }, "sensitivities were not used (3 scores for 8 operators)");
  scored([](precision) -> errors { throw std::runtime_error{"no gradient"}; },
         "sensitivities were not used (no gradient)");
  for (const auto& [world, about] : cases) {
    fake::full_trainer trainer{world};
    const outcome found = search_on(trainer);
    CAPTURE(found.plan.str());
    CHECK(warns(found, about));
    CHECK(world.harm(found.plan) == 0);
    CHECK(found.speedup > 1.1);
    check_kept(trainer, found);
  }
}

TEST_CASE("sensitivities that are not a number count as the worst") {
  fake::world world = drawn(10, 8, {2});
  world.sensitivity = [](precision) {
    std::vector<op_error> errors(8, {1e-3, 1e-3});
    errors[2].gradient = fake::nan;
    return errors;
  };
  fake::full_trainer trainer{world};
  const outcome found = search_on(trainer);
  CHECK(found.warnings.empty());
  CHECK(world.harm(found.plan) == 0);
  CHECK(world.seconds(found.plan) == doctest::Approx(best_seconds(world, {2})).epsilon(0.02));
}

TEST_CASE("batches count for more than a profile that says that nothing is gained") {
  fake::world world = drawn(11, 6, {});
  world.batches = 10;  // FP32 is not timed in the contest of so short a training
  world.profile = [](const plan& p) { return std::vector<op_time>(p.size(), {1, 1}); };
  fake::full_trainer trainer{world};
  CHECK(search_on(trainer).plan.count_low() > 0);
}

TEST_CASE("a trainer without profile, sensitivity and perturb is searched by the policy's lists and batches") {
  const fake::world world = drawn(12, 16, {5});
  fake::trainer trainer{world};
  const outcome found = search_on(trainer);
  CHECK(found.warnings.empty());
  CHECK(world.harm(found.plan) == 0);
  CHECK(found.speedup > 1.1);
  check_kept(trainer, found);
}

TEST_CASE("where an epoch's batches are not known, all are undone and the search is the same") {
  fake::world world = drawn(13, 12, {5});
  endless trainer{world};
  const outcome found = search_on(trainer);
  CHECK(found.trained_batches == 0);
  CHECK(found.trained.batches == 0);
  CHECK(trainer.inner().weights() == fake::state{});
  CHECK(trainer.inner().now() == found.plan);
  CHECK(std::isnan(found.overhead_share()));
  CHECK(world.harm(found.plan) == 0);
  CHECK(found.speedup > 1.1);
}

TEST_CASE("where epochs do not say how many batches they have, none of them counts, and scores decide nothing") {
  wordless trainer{drawn(13, 12, {})};
  fake::watcher silent;
  const outcome found = search_on(trainer, {.criterion = comp::criterion::epoch_losses}, silent);
  CHECK(found.batches_per_epoch == 0);
  CHECK(found.trained_batches == 0);
  CHECK(trainer.inner().weights() == fake::state{});
  CHECK(warns(found, "run_epoch() does not say how many batches it trained: set sample.batches"));
  CHECK_THROWS_WITH_AS((void)search_on(trainer, {.criterion = comp::criterion::scores}, silent),
                       doctest::Contains("run_epoch() does not say how many batches it trained"), comp::settings_error);
}

TEST_CASE("a run that is recalled from a search with a wider tolerance goes on until this one's is decided") {
  fake::world world = drawn(8, 6, {});
  world.harm = [n = 0](const plan& p) mutable { return p.count_low() == 0 ? 0 : ++n % 2 ? 0.012 : -0.0117; };
  const auto first_judged = [](const outcome& found) {
    return *std::ranges::find(found.trials, stage::losses, &trial::stage);
  };
  fake::full_trainer whole{world};
  const outcome wide = search_on(whole, {.tolerance = 0.05});
  const trial lax = first_judged(wide);
  REQUIRE(lax.accepted);
  fake::full_trainer anew{world};
  REQUIRE(first_judged(search_on(anew, {.tolerance = 0.01})).sample.batches > lax.sample.batches);
  fake::full_trainer trainer{world};
  fake::watcher watcher;
  watcher.recalls_from = wide.trials;
  const outcome found = search_on(trainer, {.tolerance = 0.01}, watcher);
  std::vector<trial> judged = found.trials;
  std::erase_if(judged, [&](const trial& t) {
    return t.stage != stage::losses || t.plan != lax.plan || t.purpose != comp::purpose::judge;
  });
  REQUIRE(judged.size() >= 2);
  CHECK_FALSE(judged[0].accepted);
  CHECK(judged[0].sample.batches == lax.sample.batches);
  CHECK(judged[1].sample.batches > lax.sample.batches);
  CHECK(judged[1].sample.curve[0] == lax.sample.curve[0]);
  fake::watcher again;
  again.recalls_from = watcher.done;
  fake::full_trainer resumed{world};
  CHECK(search_on(resumed, {.tolerance = 0.01}, again).plan == found.plan);
  CHECK(again.done.size() == watcher.done.size());
  CHECK(resumed.count().batches == 2);  // of the look at the start
}

TEST_CASE("the cheapest plan has two low precisions where one alone does not pay for its casts") {
  fake::world world{.precisions = {precision::fp32, precision::bf16, precision::fp8_e4m3}};
  std::vector<comp::op_info> ops{{.name = "a", .kind = "allow"}, {.name = "b", .kind = "allow", .producers = {0}}};
  for (comp::op_info& op : ops) op.outputs = {{.shape = {1000}}}, op.bytes = 8000;  // a cast takes 1.5 s
  world.graph = comp::op_graph{std::move(ops)};
  fake::timed_by(world, {{2, 2}, {1, 1}, 1.5});
  fake::full_trainer trainer{world};
  comp::trainer_of<fake::full_trainer> erased{trainer};
  comp::observer_list<> observers;
  outcome log{.graph = world.graph};
  comp::evaluator run{erased, observers, log};
  const comp::search_settings settings;
  comp::loss_trials trials{run, log, settings, plan{2}};
  trials.begin(8, 32, settings.cut());
  const std::vector<std::vector<precision>> levels{{precision::fp32, precision::bf16},
                                                   {precision::fp32, precision::fp8_e4m3}};
  comp::learned_costs costs{comp::search_session{run, log, settings, trials}, levels};
  costs.profile(std::vector{precision::bf16, precision::fp8_e4m3});
  const plan allowed = parse_plan("be");
  REQUIRE(costs.batch_seconds(allowed) < costs.batch_seconds(plan{2}));
  REQUIRE(costs.batch_seconds(parse_plan("b1")) > costs.batch_seconds(plan{2}));
  CHECK(costs.cheapest(levels, {allowed}) == allowed);
}

TEST_CASE("operators without FP32 and operators that the policy fixes stay where they are in every plan") {
  fake::world world = drawn(14, 10, {4});
  std::vector<comp::op_info> ops{world.graph.begin(), world.graph.end()};
  ops[1].kind = "fix";
  ops[6].kind = "deny";
  world.graph = fake::sized(std::move(ops));
  fake::costs times{.fp32 = std::vector(10, 1.0), .low = std::vector(10, 0.6), .cast = 0.05};
  fake::timed_by(world, times);
  world.runs = [](const comp::op_info& op, precision p) { return op.name != "6" || p != precision::fp32; };
  world.before_batch = [](const plan& p, std::uint64_t) {
    if (p[6] == precision::fp32) throw std::runtime_error{"no such kernel"};
  };
  fake::full_trainer trainer{world};
  comp::search_settings settings;
  settings.rivals = [](auto&&, auto&&) { return std::vector<comp::rival>{{"mine", parse_plan("b111b1b111")}}; };
  const outcome found = search_on(trainer, settings);
  CHECK(found.plan.str() == "bbbb1bbbbb");
  CHECK(found.contest.front().plan.str() == "1b1111b111");
  CHECK(found.fallbacks.back().str() == "1b1111b111");
  CHECK(std::ranges::any_of(found.contest, [](const auto& c) { return c.plan.str() == "bb11b1b111"; }));  // the rival's
  for (const trial& t : found.trials) {
    CHECK(t.plan[1] == precision::bf16);
    CHECK(t.plan[6] == precision::bf16);
    CHECK(t.sample.status != comp::status::failed);
  }
  for (const plan& p : found.fallbacks) CHECK((p[1] == precision::bf16 && p[6] == precision::bf16));
  check_kept(trainer, found);
}

TEST_CASE("losses that are maximised are judged the other way round, and the outcome says that they are") {
  fake::world world = drawn(15, 10, {4});
  world.loss_sign = -1;
  fake::full_trainer trainer{world};
  const outcome found = search_on(trainer, {.direction = comp::loss_direction::higher_is_better});
  CHECK(found.higher_is_better);
  CHECK(found.plan[4] == precision::fp32);
  CHECK(world.seconds(found.plan) == doctest::Approx(best_seconds(world, {4})).epsilon(0.02));
  check_kept(trainer, found);
}

TEST_CASE("FP16 that is 50 times slower costs a few batches, and BF16 is still found") {
  fake::world world = drawn(16, 10, {});
  world.precisions = {precision::fp32, precision::bf16, precision::fp16};
  world.seconds = [inner = world.seconds](const plan& p) {
    return inner(p) * (std::find(p.begin(), p.end(), precision::fp16) != p.end() ? 50 : 1);
  };
  fake::full_trainer trainer{world};
  const outcome found = search_on(trainer);
  std::int64_t in_fp16 = 0;
  for (const trial& t : found.trials) {
    if (std::find(t.plan.begin(), t.plan.end(), precision::fp16) != t.plan.end()) in_fp16 += t.sample.batches;
  }
  CHECK(in_fp16 > 0);
  CHECK(in_fp16 <= 6);
  CHECK(warns(found, "fp16 was not searched: a batch with all operators in it took "));
  CHECK(world.seconds(found.plan) == doctest::Approx(best_seconds(world, {})).epsilon(0.02));
}

TEST_CASE("when every low plan fails the outcome is FP32, whose batches are kept, by either search") {
  const fake::world sound = drawn(17, 8, {});
  std::vector<fake::world> worlds(5, sound);
  worlds[0].harm = [](const plan& p) { return p.count_low() ? fake::nan : 0; };
  worlds[1].harm = [](const plan& p) { return p.count_low() ? 0.5 : 0; };
  worlds[2].before_batch = [](const plan& p, std::uint64_t) {
    if (p.count_low()) throw std::runtime_error{"no kernel"};
  };
  worlds[3].before_batch = [](const plan& p, std::uint64_t) {
    if (p.count_low()) throw std::bad_alloc{};
  };
  worlds[4].seconds = [](const plan& p) { return p.count_low() ? 50.0 : 1.0; };
  for (std::size_t i = 0; i < worlds.size(); ++i) {
    for (const bool guided : {true, false}) {
      CAPTURE(i);
      CAPTURE(guided);
      fake::full_trainer trainer{worlds[i]};
      const outcome found = fake::search_by(guided, trainer);
      CHECK(found.plan.count_low() == 0);
      CHECK(trainer.now() == found.plan);
      CHECK(found.speedup == 1);
      CHECK(found.trained_batches >= 16);
      check_kept(trainer, found);
      for (const trial& t : found.trials) {
        if (i == 4 && t.plan.count_low() > 0) CHECK(t.sample.batches <= 3);  // what is so slow costs a few batches
      }
    }
  }
}

TEST_CASE("one operator that has no low kernel is left out, and all others are found") {
  fake::world world = drawn(18, 12, {}, 0.02);
  world.before_batch = [](const plan& p, std::uint64_t) {
    if (comp::is_low(p[7])) throw std::runtime_error{"no kernel"};
  };
  fake::full_trainer trainer{world};
  const outcome found = search_on(trainer);
  CHECK(found.plan[7] == precision::fp32);
  CHECK(world.seconds(found.plan) == doctest::Approx(best_seconds(world, {7})).epsilon(0.03));
  CHECK(std::ranges::any_of(found.trials, [](const trial& t) { return t.sample.message == "no kernel"; }));
  check_kept(trainer, found);
}

TEST_CASE("what was seen of each operator is told, of a harmful one by a plan that was rejected for it") {
  fake::world world = drawn(20, 10, {6}, 0.01);
  fake::full_trainer trainer{world};
  const outcome found = search_on(trainer);
  REQUIRE(found.evidence.size() == 10);
  for (std::size_t i = 0; i < 10; ++i) {
    if (comp::is_low(found.plan[i])) CHECK(found.evidence[i].what == comp::op_evidence::kind::accepted);
    CHECK_FALSE(found.reasons[i].text.empty());
  }
  // Inferred: of two that were refused together one was accepted. The plan asked for last has it in FP32.
  CHECK(found.evidence[6].what == comp::op_evidence::kind::harmful);
  CHECK(found.evidence[6].low == precision::bf16);
  CHECK(found.evidence[6].difference > 0.01);
}

TEST_CASE("an earlier search's plan is a start, one of another model a warning") {
  const fake::world world = drawn(21, 8, {});
  const auto started = [&](const char* from) {
    fake::full_trainer trainer{world};
    const outcome found = search_on(trainer, {.warm_start = parse_plan(from)});
    CHECK(found.speedup > 1);
    return found;
  };
  const outcome known = started("bbbbbbbb");
  CHECK(known.warnings.empty());
  CHECK(std::ranges::any_of(known.trials, [](const trial& t) { return t.plan.str() == "bbbbbbbb"; }));
  CHECK(warns(started("bbb"), "the earlier plan was not used: it has 3 operators, this model 8"));
  for (const trial& t : started("eeeeeeee").trials) {  // a precision that is not searched
    for (const precision p : t.plan) CHECK((p == precision::fp32 || p == precision::bf16));
  }
}

TEST_CASE("small models, short epochs and small budgets") {
  comp::search_settings settings;
  fake::world world = drawn(22, 8, {1});
  SUBCASE("one operator") { world = drawn(1, 1, {}); }
  SUBCASE("one operator that harms") { world = drawn(1, 1, {0}); }
  SUBCASE("nothing to choose") {
    std::vector<comp::op_info> ops{world.graph.begin(), world.graph.end()};
    for (auto& op : ops) op.choosable = false;
    world.graph = {std::move(ops)};
  }
  SUBCASE("FP32 alone") { world.precisions = {precision::fp32}; }
  SUBCASE("a batch is an epoch") { world.batches = 1; }
  SUBCASE("one epoch is planned") { settings.planned_epochs = 1; }
  SUBCASE("no budget") { settings.budget = 0; }
  SUBCASE("one epoch of one batch, and no budget") {
    world.batches = 1;
    settings.planned_epochs = 1;
    settings.budget = 0;
  }
  SUBCASE("a budget without end") { settings.budget = 1e9; }
  SUBCASE("whole epochs") {
    settings.criterion = comp::criterion::epoch_losses;
    world.batches = 20;
  }
  SUBCASE("a tolerance of nothing") { settings.tolerance = 0; }
  fake::full_trainer trainer{world};
  const outcome found = search_on(trainer, settings);
  CHECK(world.harm(found.plan) == 0);
  CHECK(world.seconds(found.plan) <= world.seconds(plan{world.graph.size()}));
  CHECK_NOTHROW(comp::require_fits(found.plan, world.graph));
  CHECK(trainer.now() == found.plan);
  check_kept(trainer, found);
}

// Nine operators of which a third each is fastest in FP32, in BF16 and in FP8.
fake::world of_three(std::vector<precision> precisions) {
  fake::world world = drawn(23, 9, {});
  world.precisions = std::move(precisions);
  const auto each = [](std::size_t i, precision p) {
    if (p == precision::fp32) return i % 3 == 0 ? 0.5 : 1.0;
    if (p == precision::bf16) return i % 3 == 1 ? 0.4 : 0.8;
    return i % 3 == 2 ? 0.3 : 0.9;
  };
  world.seconds = [each](const plan& p) {
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i) sum += each(i, p[i]) + (i > 0 && p[i] != p[i - 1] ? 0.01 : 0);
    return sum;
  };
  world.profile = [each](const plan& p) {
    std::vector<op_time> times;
    for (std::size_t i = 0; i < p.size(); ++i) times.push_back({each(i, p[i]), 0});
    return times;
  };
  return world;
}
const std::vector fp8_last{precision::fp32, precision::bf16, precision::fp8_e4m3};
const std::vector fp8_first{precision::fp32, precision::fp8_e4m3, precision::bf16};

}  // namespace

TEST_CASE("of three precisions each operator gets its best, and where that harms another") {
  for (const auto& precisions : {fp8_last, fp8_first}) {
    fake::world world = of_three(precisions);
    fake::full_trainer trainer{world};
    CHECK(search_on(trainer).plan.str() == "1be1be1be");
    world.harm = [](const plan& p) { return p[5] == precision::fp8_e4m3 ? 0.1 : 0; };
    fake::full_trainer harmed{world};
    CHECK(search_on(harmed).plan.str() == "1be1bb1be");
  }
}

TEST_CASE("what BF16 harms may keep its products in BF16 if their sums stay FP32; nobody gets that unasked") {
  fake::world world{.graph = fake::sized_chain({"allow", "allow", "deny", "allow"}),
                    .precisions = {precision::fp32, precision::bf16, precision::bf16_fp32}};
  world.seconds = [](const plan& p) {
    double seconds = 0;
    for (const precision each : p) seconds += each == precision::fp32 ? 1 : each == precision::bf16 ? 0.5 : 0.6;
    return seconds;
  };
  world.harm = [](const plan& p) { return p[3] == precision::bf16 ? 0.1 : 0; };
  world.runs = [](const comp::op_info& op, precision p) { return p != precision::bf16_fp32 || op.kind == "allow"; };
  fake::full_trainer trainer{world}, unasked{world};
  const outcome found = search_on(trainer, {.precisions = {precision::bf16, precision::bf16_fp32}});
  CHECK(found.plan.str() == "bbbB");
  CHECK(std::ranges::any_of(found.contest, [](const comp::contestant& c) {
    return c.label == "rule-based bf16, head in bf16>fp32" && c.plan.str() == "bb1B";
  }));
  CHECK(search_on(unasked).plan.str() == "bbb1");
}
