// SPDX-License-Identifier: Apache-2.0
// The paper's search as a whole: which runs it asks for, in which order, and the plan that algorithms 1 and 2 give by
// hand.
#include <doctest/doctest.h>

#include <comp/search/paper_search.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "fake_trainer.hpp"

using comp::plan;

namespace {

/// Loses and takes what a test says, and notes its runs: "epoch 11b1", "batch 11b1".
struct scripted {
  comp::op_graph operators = {};
  std::function<double(const plan&)> loss = [](const plan&) { return 1.0; };
  std::function<double(const plan&)> seconds = [](const plan&) { return 1.0; };  // of a batch
  std::vector<std::string> runs = {};
  int state = 0;

  const comp::op_graph& graph() const { return operators; }
  void set_precision(const plan& p) { now = p; }
  comp::sample run_epoch() { return run("epoch ", 4); }
  comp::sample run_batch() { return run("batch ", 1); }
  int save() const { return state; }
  void restore(int to) { state = to; }
  std::uint64_t batches_per_epoch() const { return 4; }
  std::vector<comp::precision> supported_precisions() const { return {comp::precision::fp32, comp::precision::bf16}; }
  plan now = {};

 private:
  comp::sample run(const std::string& what, int batches) {
    CHECK(state == 0);  // each run begins in the state in which FP32's began
    state += batches;
    runs.push_back(what + now.str());
    comp::sample got{.loss = loss(now), .batches = batches};
    for (int i = 0; i < batches; ++i) {
      got.curve.push_back(got.loss);
      got.batch_seconds.push_back(seconds(now));
      got.seconds += seconds(now);
    }
    return got;
  }
};
static_assert(comp::Backend<scripted>);

// Losses as the operators given lower them, FP32's being 1.
std::function<double(const plan&)> raised_by(std::map<std::size_t, double> raises) {
  return [raises = std::move(raises)](const plan& p) {
    double loss = 1;
    for (const auto& [op, raise] : raises) loss += comp::is_low(p[op]) ? raise : 0;
    return loss;
  };
}

comp::outcome search_on(scripted& trainer, comp::stages stages = comp::stages::both) {
  comp::paper_search search{fake::lists{}, comp::precision::bf16};
  search.stages = stages;
  return search.run(trainer);
}

const std::vector<std::string> figure_4{"allow.odd", "relu", "dropout", "allow", "deny", "allow", "relu", "allow.odd"};

// Of the figure: lowering 4 pays most, lowering 0 pays, lowering 7 does not; of the undecided, 1 and 6 pay.
scripted figure() {
  scripted trainer{.operators = fake::sized_chain(figure_4)};
  trainer.seconds = [](const plan& p) {
    const std::vector<double> gain{2, 1, 0, 3, 4, 3, 0.5, -1};
    double seconds = 20;
    for (std::size_t i = 0; i < p.size(); ++i) seconds -= comp::is_low(p[i]) ? gain[i] : 0;
    return seconds;
  };
  trainer.loss = raised_by({{0, 0.0099}, {4, 0.0101}});
  return trainer;
}

std::vector<std::string> epochs_of_the_figure() {
  return {"epoch 11111111", "epoch 111b1b11", "epoch b11b1b11", "epoch 111bbb11", "epoch b11bbb11",
          "epoch 111b1b1b", "epoch b11b1b1b", "epoch 111bbb1b", "epoch b11bbb1b"};
}

}  // namespace

TEST_CASE("the paper's figure 4, run by run: 1.0099 times FP32's loss is accepted, 1.0101 is not") {
  scripted trainer = figure();
  const comp::outcome found = search_on(trainer);
  std::vector<std::string> want = epochs_of_the_figure();
  // Plan* is b11b1b11. Operators 1 and 2 follow their neighbours 0 and 3; 6 lies between 5 and 7, which differ.
  want.insert(want.end(), {"batch bbbb1b11", "batch bbbb1bb1"});
  CHECK(trainer.runs == want);
  CHECK(found.plan.str() == "bbbb1bb1");
  CHECK(found.speedup == doctest::Approx(20 / 10.5));
  CHECK(found.trials.size() == want.size());
  CHECK(found.cost(comp::stage::losses).runs == 8);
  CHECK(found.cost(comp::stage::times).batches == 2);
  CHECK(trainer.now == found.plan);
  CHECK(trainer.state == 0);
  CHECK(found.trained_batches == 0);
}

TEST_CASE("the loss of a plan of stage 2 is not looked at") {
  scripted trainer = figure();
  trainer.loss = [loss = trainer.loss](const plan& p) { return loss(p) + (comp::is_low(p[6]) ? fake::nan : 0); };
  CHECK(search_on(trainer).plan.str() == "bbbb1bb1");
}

TEST_CASE("where no plan is accepted, all operators are FP32 in the end, and nothing is left for stage 2") {
  scripted trainer = figure();
  trainer.loss = [](const plan& p) { return p.count_low() > 0 ? 1.0101 : 1.0; };
  const comp::outcome found = search_on(trainer);
  CHECK(trainer.runs == epochs_of_the_figure());
  CHECK(found.plan.str() == "11111111");
  CHECK(found.speedup == 1);
}

TEST_CASE("an epoch that loses a batch is rejected, and FP32 wins where it is fastest") {
  scripted trainer = figure();
  trainer.loss = [](const plan& p) { return comp::is_low(p[4]) || comp::is_low(p[0]) ? fake::nan : 1.0; };
  CHECK(search_on(trainer).plan.str() == "1b1b1bb1");
  scripted slow = figure();
  slow.seconds = [](const plan& p) { return 1.0 + static_cast<double>(p.count_low()); };
  CHECK(search_on(slow).plan.str() == "11111111");
}

TEST_CASE("each stage alone: the paper's ablation") {
  scripted first = figure(), second = figure();
  CHECK(search_on(first, comp::stages::losses_only).plan.str() == "b11b1b11");
  CHECK(first.runs == epochs_of_the_figure());
  const comp::outcome by_times = search_on(second, comp::stages::times_only);
  CHECK(by_times.plan.str() == "bb1bbbb1");  // and harm is not seen
  CHECK(second.runs.size() == 1 + 64);       // 3 and 5 stay low
}

TEST_CASE("on a graph that is no chain, what lies between decided operators that differ is enumerated") {
  scripted trainer;
  trainer.operators = fake::sized({{.name = "0", .kind = "allow"},
                                   {.name = "1", .kind = "relu", .producers = {0}},
                                   {.name = "2", .kind = "relu", .producers = {0}},
                                   {.name = "3", .kind = "deny", .producers = {1}},
                                   {.name = "4", .kind = "add", .producers = {2, 3}},
                                   {.name = "5", .kind = "allow", .producers = {4}}});
  trainer.loss = raised_by({{3, 0.02}});
  trainer.seconds = [](const plan& p) { return 10.0 - static_cast<double>(p.count_low()) + (p[4] == p[3] ? 0 : 2); };
  const comp::outcome found = search_on(trainer);
  CHECK(std::vector(trainer.runs.begin(), trainer.runs.begin() + 3) ==
        std::vector<std::string>{"epoch 111111", "epoch b1111b", "epoch b11b1b"});
  CHECK(trainer.runs.size() == 3 + 8);
  CHECK(std::set(trainer.runs.begin(), trainer.runs.end()).size() == trainer.runs.size());
  CHECK(found.plan.str() == "bbb11b");
}

TEST_CASE("a space that is too large and a trainer that cannot go back are refused before anything is run") {
  scripted trainer = figure();
  comp::paper_search search{fake::lists{}, comp::precision::bf16};
  search.limit = 7;
  CHECK_THROWS_AS((void)search.run(trainer), comp::space_error);
  CHECK(trainer.runs.empty());
  fake::minimal_trainer no_way_back{{.graph = fake::sized_chain(figure_4)}};
  CHECK_THROWS_WITH_AS((void)(comp::paper_search{fake::lists{}, comp::precision::bf16}.run(no_way_back)),
                       doctest::Contains("runs each plan from the same state"), comp::settings_error);
}
