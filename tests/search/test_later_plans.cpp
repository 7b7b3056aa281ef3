// SPDX-License-Identifier: Apache-2.0
// Trainings whose plan changes though it does no harm: by a plan file's later plans, or to a higher precision at the
// end.
#include <doctest/doctest.h>

#include <comp/core/later_plan.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <comp/search/training/plan_changes.hpp>
#include <map>
#include <random>

#include "fake_trainer.hpp"

using comp::later_plan;
using comp::parse_plan;
using comp::post_training;

namespace {

/// An outcome for three operators, whose epochs have ten batches.
comp::outcome found(const std::string& plan, std::vector<later_plan> later = {}) {
  comp::outcome o;
  o.plan = parse_plan(plan);
  o.fallbacks = {o.plan, comp::plan{3}};
  o.baseline.loss = 1;
  o.batches_per_epoch = 10;
  o.later = std::move(later);
  return o;
}

/// A world in which operators raise the loss that the training would end at: those below 16 bits by `floor` each, those
/// in 16 bits by a tenth of it.
fake::world with_floor(double floor) {
  fake::world w{.graph = fake::chain({"a", "b", "c"})};
  w.harm = [floor](const comp::plan& p) {
    double sum = 0;
    for (const auto q : p) sum += comp::is_scaled(q) ? 1 : comp::is_low(q) ? 0.1 : 0;
    return 0.01 * floor * sum;
  };
  w.precisions = {comp::precision::fp32, comp::precision::bf16, comp::precision::nvfp4};
  return w;
}

/// A trainer that keeps the plan of each batch that leads to its state.
struct recording_trainer : fake::trainer {
  using fake::trainer::trainer;
  std::map<std::uint64_t, std::string> plans = {};
  void note(std::uint64_t steps) { plans[steps] = now().str(); }
};
/// The plans of a training's batches, as runs: "bbb 17, 111 13".
std::string plans_of(recording_trainer& t) {
  std::string text, last;
  std::size_t count = 0;
  const auto end_run = [&] {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", last, count);
  };
  for (const auto& [batch, plan] : t.plans) {
    if (plan != last) end_run(), count = 0;
    last = plan;
    ++count;
  }
  end_run();
  return text;
}
recording_trainer recording(fake::world w) { return recording_trainer{std::move(w)}; }
/// Lets `t` note the plan of each batch; a batch that is undone is noted anew when it is trained again.
void watch(recording_trainer& t) {
  t.change().before_batch = [&t](const comp::plan&, std::uint64_t) { t.note(t.weights().steps); };
}

/// The weights of a training that changes its plans by hand.
double by_hand(fake::world w, const std::string& first, const std::vector<later_plan>& later, std::size_t batches) {
  fake::trainer t{std::move(w)};
  for (std::size_t b = 0; b < batches; ++b) {
    t.set_precision(comp::plan_at(b, parse_plan(first), later));
    (void)t.run_batch();
  }
  return t.weights().error;
}

post_training unguarded_for(std::size_t epochs) { return {.epochs = epochs, .guard = {.on = false}}; }
const post_training unguarded = unguarded_for(5);

}  // namespace

TEST_CASE("later plans train from the batch that they name on, in the midst of an epoch too") {
  std::mt19937_64 drawn{7};
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>{0, n - 1}(drawn); };
  for (int world = 0; world < 30; ++world) {
    std::vector<later_plan> later;
    for (std::size_t batch = 1 + below(15); batch < 60; batch += 1 + below(25)) {
      comp::plan p{3};
      for (std::size_t i = 0; i < 3; ++i) p[i] = below(2) == 0 ? comp::precision::fp32 : comp::precision::bf16;
      later.push_back({batch, p});
    }
    recording_trainer t = recording(with_floor(0.01));
    watch(t);
    const auto got = unguarded.run(t, found("bbb", later));
    CHECK(t.count().batches == 50);
    REQUIRE(got.epochs.size() == 5);
    for (const comp::sample& epoch : got.epochs) CHECK(epoch.batches == 10);
    for (const auto& [batch, plan] : t.plans) CHECK(plan == comp::plan_at(batch, parse_plan("bbb"), later).str());
    CHECK(t.weights().error == by_hand(with_floor(0.01), "bbb", later, 50));
    for (const later_plan& change : got.later) {
      CHECK(change.batch < 50);
      CHECK(change.plan == comp::plan_at(change.batch, comp::plan{3}, later));
    }
  }
}

TEST_CASE("a part that is none is refused") {
  fake::trainer t{with_floor(0)};
  for (const double finish : {-0.1, 1.1, std::nan("")})
    CHECK_THROWS_AS(post_training{.finish = finish}.run(t, found("bbb")), comp::settings_error);
  CHECK(t.count().batches == 0);
}

TEST_CASE("later plans that are out of order, or of another model, are refused before anything is trained") {
  fake::trainer t{with_floor(0)};
  const auto refuses = [&](std::vector<later_plan> later, const char* words) {
    CHECK_THROWS_WITH_AS(post_training{}.run(t, found("bbb", std::move(later))), doctest::Contains(words),
                         comp::plan_error);
  };
  refuses({{8, parse_plan("111")}, {8, parse_plan("bbb")}},
          "a later plan begins at batch 8, the one before it at batch 8");
  refuses({{8, parse_plan("111")}, {3, parse_plan("bbb")}}, "begins at batch 3, the one before it at batch 8");
  refuses({{0, parse_plan("111")}}, "begins at batch 0");
  refuses({{8, parse_plan("11")}}, "plan has 2 operators, the model 3");
  CHECK(t.count().batches == 0);
}

TEST_CASE("a higher precision trains the last part where its loss is lower, and the file of that training repeats it") {
  recording_trainer t = recording(with_floor(0.02));
  watch(t);
  const post_training half{.epochs = 40, .guard = {.on = false}, .finish = 0.25};
  const auto got = half.run(t, found("bnn"));
  REQUIRE(got.later.size() == 1);
  CHECK(got.later[0].batch == 300);
  CHECK(got.later[0].plan == parse_plan("bbb"));
  CHECK(got.plan == parse_plan("bbb"));
  CHECK_MESSAGE(got.later[0].reason.starts_with("in 16 batches its loss was "), got.later[0].reason);
  CHECK(plans_of(t) == "bnn 300, bbb 100");
  CHECK(t.count().batches == 416);
  REQUIRE(got.epochs.size() == 40);
  CHECK(got.epochs[31].batches == 10);
  CHECK(t.weights().steps == 400);

  fake::trainer again{with_floor(0.02)};
  CHECK(post_training{.epochs = 40}.run(again, found("bnn", got.later)).plan == parse_plan("bbb"));
  CHECK(again.weights() == t.weights());
}

TEST_CASE("the plan stays where a higher precision gains nothing, and the training is as if it had not been tried") {
  fake::world w = with_floor(0);
  w.swing = [](std::uint64_t k) { return 0.01 * std::sin(static_cast<double>(k * k)); };
  for (const char* plan : {"bnn", "bb1"}) {
    fake::trainer t{w}, plain{w};
    const auto got = post_training{.epochs = 100, .guard = {.on = false}, .finish = 0.1}.run(t, found(plan));
    (void)post_training{.epochs = 100, .guard = {.on = false}}.run(plain, found(plan));
    CHECK(got.later.empty());
    CHECK(got.plan == parse_plan(plan));
    CHECK(t.weights() == plain.weights());
    CHECK(t.count().batches <= 1020);
    CHECK(got.compared == 1);
  }
}

TEST_CASE("where all is low in 16 bits the last part is FP32, and where nothing is low nothing is tried") {
  fake::trainer t{with_floor(0.2)};
  const auto got = post_training{.epochs = 40, .guard = {.on = false}, .finish = 0.1}.run(t, found("b1b"));
  REQUIRE(got.later.size() == 1);
  CHECK(got.later[0].plan == comp::plan{3});
  CHECK(got.later[0].batch == 360);
  fake::trainer fp32{with_floor(0.02)};
  CHECK(post_training{.epochs = 40, .finish = 0.1}.run(fp32, found("111")).later.empty());
  CHECK(fp32.count().batches == 400);
}

TEST_CASE("a last part that cannot be compared is told") {
  const auto warnings = [](auto&& trainer, double finish) {
    return post_training{.epochs = 10, .guard = {.on = false}, .finish = finish}.run(trainer, found("bnn")).warnings;
  };
  const auto few = warnings(fake::trainer{with_floor(0.02)}, 0.1);
  REQUIRE(few.size() == 1);
  CHECK(few[0].starts_with("a higher precision for the last 10 batches was not tried (so few tell nothing)"));
  const auto fixed = warnings(fake::minimal_trainer{with_floor(0.02)}, 0.5);
  REQUIRE(fixed.size() == 1);
  CHECK(fixed[0].starts_with("a higher precision for the last 50 batches was not tried (the trainer cannot restore"));
}

TEST_CASE("a plan that cannot be run in a higher precision trains on") {
  fake::trainer t{with_floor(0.02)};
  t.change().before_batch = [](const comp::plan& p, std::uint64_t) {
    if (p == parse_plan("bbb")) throw std::runtime_error{"no room"};
  };
  const auto got = post_training{.epochs = 40, .finish = 0.25}.run(t, found("bnn"));
  CHECK(got.later.empty());
  CHECK(got.epochs.size() == 40);
  CHECK(t.weights().steps == 400);
}

TEST_CASE("what was given up for its harm is not lowered again by a later plan") {
  fake::trainer t{with_floor(0)};
  t.change().harm = [&t](const comp::plan& p) {
    return p[1] == comp::precision::bf16 && t.weights().steps >= 30 ? 1.0 : 0.0;
  };
  const auto got = post_training{.epochs = 12}.run(t, found("bb1", {{95, parse_plan("bbb")}}));
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.later.empty());
  CHECK(got.plan == comp::plan{3});
}

TEST_CASE("a training whose plan changes goes on from any moment as if it had not ended") {
  const post_training settings{.epochs = 40, .finish = 0.25};
  const auto begin = [] { return found("bnn", {{13, parse_plan("nnn")}, {47, parse_plan("bnn")}}); };
  fake::trainer whole{with_floor(0.02)};
  fake::training_keeper kept{.trainer = &whole};
  const auto all = settings.run(whole, begin(), kept);
  REQUIRE(all.later.size() == 3);
  REQUIRE(kept.progress.size() >= 41);  // before the first epoch, after each, and when the plan changes
  for (std::size_t k = 0; k < kept.progress.size(); k += 3) {
    fake::trainer t{with_floor(0.02)};
    t.restore(kept.states[k]);
    const auto rest = settings.go_on(t, kept.progress[k]);
    CHECK(t.weights() == whole.weights());
    REQUIRE(rest.later.size() == 3);
    CHECK(rest.later[2].batch == all.later[2].batch);
    CHECK(rest.epochs.size() == 40);
  }
}

TEST_CASE("the plans that a training says it changed to are those that trained, in order") {
  const post_training settings{.epochs = 40, .guard = {.on = false}, .finish = 0.25};
  const auto check = [&](comp::outcome search, const post_training& how, const std::vector<std::size_t>& batches) {
    const comp::plan first = search.plan;
    fake::trainer t{with_floor(0.2)};
    for (std::size_t b = 0; b < search.trained_batches; ++b) {
      t.set_precision(first);
      comp::detail::append(search.trained, t.run_batch());
    }
    const auto got = how.run(t, search);
    CHECK(t.weights().steps == 400);
    CHECK(t.weights().error == by_hand(with_floor(0.2), first.str(), got.later, 400));
    CHECK_NOTHROW(comp::require_in_order(got.later, t.graph()));
    REQUIRE(got.later.size() == batches.size());
    for (std::size_t i = 0; i < batches.size(); ++i) CHECK(got.later[i].batch == batches[i]);
  };
  SUBCASE("a plan that is raised where it would begin") {
    check(found("bnn", {{300, parse_plan("bbb")}}), settings, {300});
  }
  SUBCASE("a higher precision from the beginning") {
    check(found("bnn"), {.epochs = 40, .guard = {.on = false}, .finish = 1}, {1});
  }
  SUBCASE("a plan that was due while the search trained") {
    comp::outcome search = found("bnn", {{13, parse_plan("bbb")}, {47, parse_plan("bnn")}});
    search.trained_batches = 25;
    check(std::move(search), unguarded_for(40), {25, 47});
  }
  SUBCASE("a plan that is due where the comparison ends") {
    check(found("bnn", {{316, parse_plan("nnn")}}), settings, {300, 316});
  }
  SUBCASE("a plan that is due before a comparison could tell") {
    check(found("bnn", {{306, parse_plan("nnn")}}), settings, {306});
  }
}

TEST_CASE("a higher precision is not tried on weights that the comparison itself damaged") {
  for (const char* damaged : {"bnn", "bbb"}) {
    fake::trainer t{with_floor(0)};
    t.change().harm = [&t, damaged](const comp::plan& p) {
      return p == parse_plan(damaged) && t.weights().steps == 314 ? fake::nan : p == parse_plan("bnn") ? 1e-5 : 0.0;
    };
    const auto got = post_training{.epochs = 40, .guard = {.on = false}, .finish = 0.25}.run(t, found("bnn"));
    CHECK(got.epochs.size() == 40);
    CHECK(std::isfinite(t.weights().error));
    CHECK(got.later.empty());
    CHECK(got.fallbacks.size() == (damaged == std::string{"bnn"} ? 1 : 0));
  }
}

TEST_CASE("a batch that is lost alone between two changes has its place in the curve") {
  fake::world w = with_floor(0);
  w.swing = [](std::uint64_t k) { return k == 10 ? fake::nan : 0.0; };
  fake::trainer t{w};
  const auto got = unguarded.run(t, found("bbb", {{11, parse_plan("b1b")}}));
  CHECK(got.epochs[1].batches == 10);
  CHECK(got.epochs[1].not_finite == 1);
  REQUIRE(got.epochs[1].curve.size() == 10);
  CHECK(std::isnan(got.epochs[1].curve[0]));
}

TEST_CASE("a change shortly before an epoch ends leaves the guard levels of as many batches") {
  fake::world w = with_floor(0);
  w.batches = 40;
  fake::trainer t{w};
  fake::training_keeper kept{.trainer = &t};
  comp::outcome search = found("bbb", {{79, parse_plan("bb1")}});
  search.batches_per_epoch = 40;
  (void)unguarded.run(t, search, kept);
  for (std::size_t k = 1; k < kept.progress.size(); ++k) CHECK(kept.progress[k].normal.window == 10);
}

TEST_CASE("later plans that change nothing do not end FP32's training beside the plan") {
  std::vector<later_plan> same;
  for (std::size_t batch = 5; batch < 1000; batch += 5) same.push_back({batch, parse_plan("bbb")});
  const auto given_up = [](std::vector<later_plan> later) {
    fake::trainer t{with_floor(0)};
    t.change().harm = [](const comp::plan& p) { return 0.01 * (p[1] == comp::precision::bf16 ? 0.5 : 0.45); };
    return post_training{.epochs = 100}.run(t, found("bbb", std::move(later))).fallbacks.size();
  };
  CHECK(given_up({}) == 1);
  CHECK(given_up(same) == 1);
}

TEST_CASE("a higher precision that was tried stays tried, whoever goes on") {
  fake::trainer t{with_floor(0.02)};
  fake::training_keeper kept{.trainer = &t};
  comp::training_progress from{.plans = {parse_plan("bnn"), comp::plan{3}}, .raise_tried = true};
  (void)unguarded.go_on(t, from, kept);
  CHECK(kept.progress.back().raise_tried);
}

TEST_CASE("the last part is counted in epochs where these are longer than the trainer says") {
  fake::world w = with_floor(0.02);
  w.batches = 35;
  fake::minimal_trainer t{w};
  const auto got = post_training{.epochs = 10, .guard = {.on = false}, .finish = 0.01}.run(t, found("bnn"));
  REQUIRE(!got.warnings.empty());
  CHECK_MESSAGE(got.warnings.back().starts_with("a higher precision for the last 70 batches was not tried"),
                got.warnings.back());
}

TEST_CASE("at most four states are kept while two plans are compared and a state is checked") {
  static std::size_t alive, most;
  alive = most = 0;
  struct counted {
    explicit counted(const fake::state& s) : weights{s} { most = std::max(most, ++alive); }
    counted(counted&& o) noexcept : weights{o.weights} { ++alive; }
    counted(const counted&) = delete;
    counted& operator=(const counted&) = delete;
    ~counted() { --alive; }
    fake::state weights;
  };
  struct counting_trainer : fake::trainer {
    using fake::trainer::trainer;
    counted save() { return counted{fake::trainer::save()}; }
    void restore(const counted& c) { fake::trainer::restore(c.weights); }
  };
  fake::world w = with_floor(0);
  w.harm = [machine = std::mt19937_64{1}](const comp::plan&) mutable {
    return 0.005 * std::uniform_real_distribution<double>{0.5, 1.5}(machine);
  };
  counting_trainer t{w};
  (void)post_training{.epochs = 200, .guard = {.evidence = 0.1}, .finish = 0.25}.run(t, found("bnn"));
  CHECK(most == 4);
}

TEST_CASE("a gain is told from noise and from wandering in a few dozen batches") {
  std::mt19937_64 machine{11};
  std::normal_distribution<double> normal;
  const auto detections = [&](double gain, double noise, double wandering) {
    int count = 0;
    for (int drawn = 0; drawn < 400; ++drawn) {
      std::vector<double> path;
      double apart = 0;
      for (int k = 0; k < 40; ++k)
        path.push_back(gain + noise * normal(machine) + (apart += wandering * normal(machine)));
      const comp::detail::path_mean mean = comp::detail::mean_of_path(path);
      count += mean.mean > comp::detail::beyond_wandering * mean.error ? 1 : 0;
    }
    return count;
  };
  CHECK(detections(0, 0.001, 0) <= 4);
  CHECK(detections(0, 0, 0.001) <= 60);
  CHECK(detections(0.004, 0.002, 0) >= 280);
  CHECK(detections(0.004, 0.004, 0) >= 190);
  CHECK(comp::detail::mean_of_path(std::vector(16, 0.25)).mean == 0.25);
  CHECK(comp::detail::mean_of_path(std::vector(16, 0.25)).error < 1e-9);
}

TEST_CASE("formats below 16 bits are raised to the 16 bits that the trainer has, all others to FP32") {
  using enum comp::precision;
  const comp::plan top{3};
  CHECK(comp::detail::raise_precision(parse_plan("n81"), {fp32, bf16, fp16}, top) == parse_plan("bb1"));
  CHECK(comp::detail::raise_precision(parse_plan("n81"), {fp32, fp16}, top) == parse_plan("001"));
  CHECK(comp::detail::raise_precision(parse_plan("nb0"), {fp32, nvfp4}, top) == parse_plan("1b0"));
  CHECK(comp::detail::raise_precision(parse_plan("bt0"), {fp32, bf16}, top) == top);
}

TEST_CASE("slow harm of a training in one epoch is found before its plan changes") {
  fake::world w = with_floor(0);
  w.batches = 1000;
  w.harm = [](const comp::plan& p) { return p.count_low() > 0 ? 0.003 : 0.0; };
  fake::trainer t{w};
  comp::outcome o = found("bnn", {{500, parse_plan("bbn")}});
  o.batches_per_epoch = 1000;
  const auto got = post_training{.epochs = 1}.run(t, o);
  REQUIRE(got.fallbacks.size() == 1);
  CHECK(got.later.empty());
  REQUIRE(got.epochs.size() == 1);
  CHECK(got.epochs[0].batches == 1000);
  CHECK(t.weights().steps == 1000);
  CHECK(got.plan == comp::plan{3});
}
