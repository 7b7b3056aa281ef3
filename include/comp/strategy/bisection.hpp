// SPDX-License-Identifier: Apache-2.0
// Repairs a rejected plan: of a set of operators whose lowering was rejected, finds a large part that is accepted, in
// few questions. A question is a plan to judge by its losses, so each costs tens of batches.
// Items (operators) come in an order, those that are thought least harmful first. The longest accepted beginning of the
// order is found by bisection. Then blocks of the rest are added. Their size is such that, by the share of harmful
// items so far, every second block is accepted. A rejected block is bisected in turn. Each question includes all items
// that were accepted before, so that items that only harm together are found, too.
// With a right order of 64 items it takes 7 questions; with no order and a single harmful item of 64 about 10.
// Source: Hwang 1972 (generalized binary splitting), by an order instead of at random; HAWQ and ADAPT (the order).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace comp {

/// How many questions a repair may ask.
struct bisection_settings {
  std::size_t questions = 200;  // the most questions; the search ends earlier if they no longer pay
  double worth = 0.03;          // ends when the rest of the items is worth less than this fraction of all items
  std::size_t hopeless = 3;     // with an order: gives up the rest after this many rejected items in a row
};

/// Repairs one rejected set. Items are numbered from 0 in their order.
class bisection {
 public:
  /// `gains` says what each item is worth, in the order of the items; the whole set is known to be rejected. `first` is
  /// how many items the first question is about, if something is known beforehand; 0: half of them. `ordered`: the
  /// order means something, as it does with sensitivities. `other_places`: each item's place in a second order, which
  /// replaces the first one if that proves wrong; empty: there is none.
  bisection(std::vector<double> gains, std::size_t first, bool ordered, const bisection_settings& settings = {},
            std::vector<std::size_t> other_places = {})
      : gains_{std::move(gains)},
        settings_{settings},
        ordered_{ordered},
        other_places_{std::move(other_places)},
        rest_(gains_.size()) {
    std::iota(rest_.begin(), rest_.end(), std::size_t{0});
    all_ = std::accumulate(gains_.begin(), gains_.end(), 0.0);
    bisected_ = rest_.size();
    question_size_ = first > 0 && first < bisected_ ? first : bisected_ / 2;
    if (bisected_ <= 1) reject_single();
  }

  /// Returns: the items of the next question; nothing when no further question is worth its cost.
  std::optional<std::vector<std::size_t>> next() {
    if (questions_asked_ >= settings_.questions || rest_.empty()) return std::nullopt;
    if (bisected_ == 0) {
      double rest = 0;
      for (const auto item : rest_) rest += gains_[item];
      if (rest < settings_.worth * all_) return std::nullopt;
      if (ordered_ && rejected_in_a_row_ >= settings_.hopeless && !disproved()) return std::nullopt;
      question_size_ = std::min(block(), rest_.size());
    }
    std::vector<std::size_t> question = accepted_;
    question.insert(question.end(), rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(question_size_));
    return question;
  }

  /// Takes the answer to the last question: whether its items were accepted together.
  void tell(bool accepted_together) {
    ++questions_asked_;
    if (accepted_together) {
      accept(question_size_);
      if (bisected_ > 0) bisected_ -= question_size_;
      rejected_in_a_row_ = 0;
      least_block_ = 2 * question_size_;
    } else {
      bisected_ = question_size_;
      least_block_ = 0;
    }
    if (bisected_ == 1) reject_single();
    question_size_ = bisected_ / 2;
  }

  /// Returns the items that were accepted together, in the order in which they were. Items that no question was about
  /// are not among them.
  const std::vector<std::size_t>& accepted() const { return accepted_; }
  /// Returns the items that were rejected when they alone were added to the accepted ones.
  const std::vector<std::size_t>& harmful() const { return harmful_; }
  std::size_t questions() const { return questions_asked_; }

 private:
  // In a right order the harmless items come first, so several rejected items in a row mean that the rest harms, too.
  // An order is taken to be wrong if a third of the items decided so far harm: then the second order replaces it, and
  // the questions go on.
  // Returns: false if the order was right so far.
  bool disproved() {
    if (accepted_.size() > 2 * harmful_.size()) return false;
    ordered_ = false;
    if (!other_places_.empty()) {
      std::ranges::sort(rest_, {}, [&](std::size_t item) { return other_places_[item]; });
    }
    return true;
  }
  // Accepts the first `count` items of the rest.
  void accept(std::size_t count) {
    const auto end = rest_.begin() + static_cast<std::ptrdiff_t>(count);
    accepted_.insert(accepted_.end(), rest_.begin(), end);
    harmed_.insert(harmed_.end(), count, false);
    rest_.erase(rest_.begin(), end);
  }
  // Called when the rejected beginning of the rest has a single item left, which is then the harmful one.
  void reject_single() {
    bisected_ = 0;
    if (rest_.empty()) return;
    harmful_.push_back(rest_.front());
    harmed_.push_back(true);
    rest_.erase(rest_.begin());
    ++rejected_in_a_row_;
  }
  // Returns how many items are all harmless with even odds, by the share of harmful ones so far: a question with an
  // even chance tells most. With an order only the last 8 decided items count, since harm increases along the order.
  std::size_t block() const {
    const std::size_t window = ordered_ ? std::min<std::size_t>(harmed_.size(), 8) : harmed_.size();
    const auto harmful = std::count(harmed_.end() - static_cast<std::ptrdiff_t>(window), harmed_.end(), true);
    const double density = (static_cast<double>(harmful) + 0.2) / (static_cast<double>(window) + 2);
    const double harmless = std::floor(std::log(0.5) / std::log1p(-std::min(density, 0.9)));
    return std::max({std::size_t{1}, static_cast<std::size_t>(std::max(harmless, 1.0)), least_block_});
  }

  std::vector<double> gains_;
  bisection_settings settings_;
  bool ordered_;
  std::vector<std::size_t> other_places_;
  std::vector<std::size_t> rest_, accepted_ = {}, harmful_ = {};
  std::vector<bool> harmed_ = {};  // for each decided item in turn: whether it was harmful
  double all_ = 0;                 // sum of all gains
  std::size_t bisected_ = 0;       // above 0: so many first items of the rest are bisected; 0: a block is added next
  std::size_t question_size_ = 0;  // items of the rest in the question
  std::size_t least_block_ = 0;    // twice the last accepted question; 0 after a rejected one
  std::size_t questions_asked_ = 0, rejected_in_a_row_ = 0;
};

}  // namespace comp
