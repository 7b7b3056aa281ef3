// SPDX-License-Identifier: Apache-2.0
// A search with what was added: a strategy, a policy, an observer, and a model that tells its graph.
#include <comp/comp.hpp>
#include <comp/observe/added.hpp>
#include <comp/policy/added.hpp>
#include <comp/strategy/added.hpp>
#include <comp_native/model_graph.hpp>
#include <examples/models/native/added.hpp>

class made_up_trainer {  // linear layers take half the time in BF16
 public:
  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const comp::plan& p) { plan_ = p; }
  comp::sample run_epoch() { return run(100); }
  comp::sample run_batch() { return run(1); }

 private:
  comp::sample run(int count) const {
    comp::sample got{.loss = 1, .seconds = 0, .batches = count};
    for (const comp::precision p : plan_) got.seconds += count * (p == comp::precision::fp32 ? 1 : 0.5);
    return got;
  }
  comp::op_graph graph_ = comp::native::graph_of(native_models::added(4));
  comp::plan plan_;
};

int main() {
  made_up_trainer trainer;
  int trials = 0;
  comp::two_stage search{comp::policy::added{}, comp::strategy::added{}, comp::strategy::added{}};
  const comp::outcome best = search.run(trainer, comp::added_observer{&trials});
  fmt::print("{} {}\n", best.plan.str(), trials > 0 ? "observed" : "not observed");
}
