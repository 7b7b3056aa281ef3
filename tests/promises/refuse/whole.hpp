// SPDX-License-Identifier: Apache-2.0
// One class that models each concept with everything that is optional, and nothing else wrong: a program that must not
// compile derives from one and has a single fault. tests/core/test_concepts.cpp asserts that these are accepted.
#pragma once

#include <comp/core/concepts.hpp>
#include <comp/core/strategy.hpp>
#include <comp/search/observers.hpp>

namespace whole {

struct backend {
  comp::op_graph operators;
  const comp::op_graph& graph() const { return operators; }
  void set_precision(const comp::plan&) {}
  comp::sample run_epoch() { return {}; }
  comp::sample run_batch() { return {}; }
};

struct capable_backend : backend {
  using backend::run_epoch;
  comp::sample run_epoch(const comp::stop_predicate&) { return {}; }
  int save() const { return 0; }
  void restore(const int&) {}
  std::vector<comp::op_time> profile() { return {}; }
  std::vector<comp::op_error> sensitivity(comp::precision) { return {}; }
  void perturb(std::uint64_t) {}
  std::uint64_t batches_per_epoch() const { return 0; }
  double validate() { return 0; }
  std::vector<comp::precision> supported_precisions() const { return {}; }
  bool supports(const comp::op_info&, comp::precision) const { return true; }
  comp::plan own_autocast(comp::precision) { return {}; }
  comp::plan tuned_fp32() { return {}; }
  comp::execution execution() { return {}; }
  comp::hardware hardware() const { return {}; }
  std::string signature() const { return {}; }
  void post_training(bool) {}
  bool run_compiled(bool) { return false; }
};

struct policy {
  comp::decision classify(const comp::op_info&) const { return {}; }
};

struct run {
  std::vector<comp::plan> ask(std::size_t) { return {}; }
  void tell(const comp::trial&) {}
};

struct strategy {
  run start(comp::search_space) const { return {}; }
};

struct observer {
  void search_started(const comp::search_info&) {}
  std::optional<comp::trial> recall(const comp::trial&) { return std::nullopt; }
  void trial_started(const comp::trial&) {}
  void batch_done(const comp::trial&, const comp::sample&) {}
  bool trial_done(const comp::trial&) { return false; }
  bool stop_requested() { return false; }
  void warned(const std::string&) {}
  void search_done(const comp::outcome&) {}
  void training_progressed(const comp::training_progress&) {}
};

}  // namespace whole
