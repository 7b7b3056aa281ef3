// SPDX-License-Identifier: Apache-2.0
// Searches one trainer with several strategies, each chosen by its type: guided (the default, which does both stages),
// exhaustive, random, greedy, and one of your own. The trainer is made up, so that a search takes no time: BF16 makes
// its convolutions and GELUs faster, and its loss worse if the softmax is low.
#include <comp/comp.hpp>

class made_up_trainer {  // models comp::Backend
 public:
  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const comp::plan& p) { plan_ = p; }
  comp::sample run_epoch() { return ++epochs, run(100); }
  comp::sample run_batch() { return ++batches, run(1); }
  int epochs = 0, batches = 0;

 private:
  comp::sample run(int count) const {
    comp::sample got{.loss = 1, .seconds = 0, .batches = count};
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      const bool low = plan_[i] != comp::precision::fp32;
      got.seconds += count * (low ? low_seconds[i] : fp32_seconds[i]);
      if (i > 0 && plan_[i] != plan_[i - 1]) got.seconds += count * 0.1;  // a cast
      if (low && graph_[i].kind == "softmax") got.loss = 2;
    }
    return got;
  }
  static constexpr double fp32_seconds[] = {3, 1, 0.5, 3, 1, 0.5, 1};
  static constexpr double low_seconds[] = {1, 0.9, 0.2, 1, 0.9, 0.2, 0.5};
  comp::op_graph graph_{{{.name = "1.conv", .kind = "conv2d"},
                         {.name = "1.norm", .kind = "batch_norm"},
                         {.name = "1.gelu", .kind = "gelu"},
                         {.name = "2.conv", .kind = "conv2d"},
                         {.name = "2.norm", .kind = "batch_norm"},
                         {.name = "2.gelu", .kind = "gelu"},
                         {.name = "head", .kind = "softmax"}}};
  comp::plan plan_;
};

/// A strategy of your own. It begins with all operators low, raises one group at a time, and keeps what is accepted and
/// not slower.
struct give_back {
  class run {
   public:
    explicit run(comp::search_space over) : space_{std::move(over)}, now_{space_.base()} {
      for (std::size_t g = 0; g < space_.groups().size(); ++g)
        space_.set(now_, g, space_.groups()[g].levels.size() - 1);
    }
    std::vector<comp::plan> ask(std::size_t) {
      if (first_) return first_ = false, std::vector{now_};
      if (group_ == space_.groups().size()) return {};
      comp::plan next = now_;
      space_.set(next, group_++, 0);
      return {next};
    }
    void tell(const comp::trial& result) {
      if (result.accepted && result.seconds <= best_) now_ = result.plan, best_ = result.seconds;
    }

   private:
    comp::search_space space_;
    comp::plan now_;
    double best_ = std::numeric_limits<double>::infinity();
    std::size_t group_ = 0;
    bool first_ = true;
  };
  run start(comp::search_space over) const { return run{std::move(over)}; }
};

void search_with(const char* name, auto stage1, auto stage2) {
  made_up_trainer trainer;
  comp::two_stage search{comp::policy::pytorch{}, stage1, stage2};
  search.settings.precisions = {comp::precision::bf16};
  const comp::outcome best = search.run(trainer);
  fmt::print("{:<22} {}  {:.2f}x as fast as FP32, after {} epochs and {} batches\n", name, best.plan.str(),
             best.speedup, trainer.epochs, trainer.batches);
}

int main() {
  namespace strategy = comp::strategy;
  search_with("guided", strategy::guided{}, strategy::greedy{});
  search_with("exhaustive, exhaustive", strategy::exhaustive{}, strategy::exhaustive{});
  search_with("greedy, greedy", strategy::greedy{}, strategy::greedy{});
  search_with("greedy, exhaustive", strategy::greedy{}, strategy::exhaustive{});
  search_with("give_back, exhaustive", give_back{}, strategy::exhaustive{.limit = 64});
}
