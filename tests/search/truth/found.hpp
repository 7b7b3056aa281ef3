// SPDX-License-Identifier: Apache-2.0
// What the default search, as a user writes it, truly found in a world, and what that truly cost: by the trainer's own
// bill, never by what the outcome says of itself.
#pragma once

#include <algorithm>
#include <comp/autocast/rule_plan.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/two_stage.hpp>
#include <cstddef>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "best.hpp"
#include "trainer.hpp"

namespace truth {

struct found {
  bool ended = false;     // the search gave an outcome
  std::string why = {};   // else: what it threw
  comp::plan plan = {};   // all FP32 if it threw
  bool harms = false;     // the plan holds an operator or a pair that harms
  bool judged = false;    // its own losses were looked at and accepted; FP32's need not be
  double seconds = 0;     // of a batch of the plan
  double rule_based = 0;  // of a batch of the plan that the lists alone give
  double epochs = 0;      // batches that the search ran, kept or not, of an epoch's
  double cost = 0;  // seconds beyond those that the kept batches take under the plan, as a part of the planned epochs
  std::size_t tested = 0;  // plans other than FP32 whose loss was looked at
};

/// Plans that were judged by their loss.
inline std::size_t tested_plans(const comp::outcome& out) {
  std::set<comp::plan> judged;
  for (const comp::trial& t : out.trials) {
    if (t.stage == comp::stage::losses && t.plan.count_low() > 0) judged.insert(t.plan);
  }
  return judged.size();
}

/// Whether the losses of the plan that was found were accepted, or it is what others are judged against.
inline bool judged(const comp::outcome& out) {
  return out.plan == out.contest.front().plan ||
         std::any_of(out.trials.begin(), out.trials.end(), [&](const comp::trial& t) {
           return t.stage == comp::stage::losses && t.accepted && t.plan == out.plan;
         });
}

/// Searches on `trainer`, which is new. `kept`: gets the outcome, to be trained on.
template <class Trainer, class Search = comp::two_stage<lists>>
found search_on(Trainer& trainer, std::optional<comp::outcome>* kept = nullptr, const Search& search = {}) {
  const world& w = trainer.truth();
  found got;
  got.plan = comp::plan{w.graph.size()};
  try {
    comp::outcome out = search.run(trainer);
    got.ended = true;
    got.plan = out.plan;
    got.tested = tested_plans(out);
    got.judged = judged(out);
    if (kept != nullptr) *kept = std::move(out);
  } catch (const std::exception& e) {
    got.why = e.what();
  }
  got.harms = does_harm(w, got.plan);
  got.seconds = true_seconds(w, got.plan);
  got.rule_based = true_seconds(w, comp::autocast::rule_plan(lists{}, w.graph, w.precisions[1]));
  const auto epoch = static_cast<double>(w.batches);
  got.epochs = static_cast<double>(trainer.billed().batches) / epoch;
  const double beyond = trainer.billed().seconds - got.seconds * static_cast<double>(trainer.weights().step);
  double planned = 100;  // the paper's, whose search asks for no number
  if constexpr (requires { search.settings.planned_epochs; })
    planned = static_cast<double>(search.settings.planned_epochs);
  got.cost = beyond / (beyond + planned * epoch * got.seconds);
  return got;
}

template <class Search = comp::two_stage<lists>>
found search_in(const world& w, const Search& search = {}) {
  full_trainer trainer{w};
  return search_on(trainer, nullptr, search);
}

/// The same with the four members that a trainer must have, and no others.
inline found search_bare(const world& w) {
  bare_trainer trainer{w};
  return search_on(trainer);
}

/// How a training of some epochs with the found plan went.
struct followed {
  bool finished = false;  // all epochs, and nothing was thrown
  std::string why = {};   // else: what was thrown
  std::size_t fallbacks = 0;
  comp::plan plan = {};  // that the last epoch was trained with
  double last_loss = 0;  // mean of the last epoch
  double damage = 0;     // of the loss: harm in the weights at the end
  double cost = 0;       // seconds beyond those of the batches that are kept, under the plan, as a part of these
  double diverged = 0;   // longest run of batches while a divergence had at least doubled the loss, in epochs
  found search = {};
};

inline followed train_in(const world& w, std::size_t epochs) {
  full_trainer trainer{w};
  std::optional<comp::outcome> out;
  followed got;
  got.search = search_on(trainer, &out);
  if (!out) {
    got.why = got.search.why;
    return got;
  }
  const double seconds = trainer.billed().seconds, steps = static_cast<double>(trainer.weights().step);
  try {
    const auto result = comp::post_training{.epochs = epochs}.run(trainer, *out);
    got.finished = result.epochs.size() >= epochs;
    got.fallbacks = result.fallbacks.size();
    got.plan = result.plan;
    if (!result.epochs.empty()) got.last_loss = result.epochs.back().loss;
  } catch (const std::exception& e) {
    got.why = e.what();
  }
  const double kept = (static_cast<double>(trainer.weights().step) - steps) * got.search.seconds;
  got.cost = (trainer.billed().seconds - seconds) / kept - 1;
  got.damage = trainer.weights().damage + trainer.weights().slow;
  got.diverged = static_cast<double>(trainer.billed().diverged) / static_cast<double>(w.batches);
  return got;
}

}  // namespace truth
