// SPDX-License-Identifier: Apache-2.0
// A large part of a rejected set that is accepted, found in few questions: which operators may stay low.
// Items come in order, those that are thought least harmful first. The longest accepted beginning is found by
// bisection; then blocks of what is left are added, as large as the harm seen so far lets hope for, and a block that is
// refused is bisected in turn. Each question is asked together with all that was accepted before, so harm that only
// appears in pairs is found. With a right order of 64 items: 7 questions; without one, a single harmful item of 64:
// about 10. Source: Hwang 1972 (generalized binary splitting), by an order instead of at random; HAWQ and ADAPT (the
// order).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace comp {

struct mending_settings {
  std::size_t questions = 200;  // at most; who asks them ends earlier where they no longer pay
  double worth = 0.03;          // of all that could be gained: less than this is not asked for
  std::size_t hopeless = 3;     // items refused one after the other, where an order is given: then the rest is given up
};

class mending {
 public:
  /// `gains`: what each item is worth, in the order of the items; the whole set is known to be rejected. `first`: how
  /// many items the first question is about, where something is known beforehand; 0: half of them. `ordered`: the order
  /// says something. `other_places`: of each item, its place in the order that is taken where that one proves wrong;
  /// empty: the items stay as they are.
  mending(std::vector<double> gains, std::size_t first, bool ordered, const mending_settings& settings = {},
          std::vector<std::size_t> other_places = {})
      : gains_{std::move(gains)},
        settings_{settings},
        ordered_{ordered},
        other_places_{std::move(other_places)},
        rest_(gains_.size()) {
    std::iota(rest_.begin(), rest_.end(), std::size_t{0});
    all_ = std::accumulate(gains_.begin(), gains_.end(), 0.0);
    refused_ = rest_.size();
    probe_ = first > 0 && first < refused_ ? first : refused_ / 2;
    if (refused_ <= 1) found_harmful();
  }

  /// The items of the next question; nothing when no further question is worth it.
  std::optional<std::vector<std::size_t>> next() {
    if (asked_ >= settings_.questions || rest_.empty()) return std::nullopt;
    if (refused_ == 0) {
      double left = 0;
      for (const auto item : rest_) left += gains_[item];
      if (left < settings_.worth * all_) return std::nullopt;
      if (ordered_ && in_vain_ >= settings_.hopeless && !disproved()) return std::nullopt;
      probe_ = std::min(block(), rest_.size());
    }
    std::vector<std::size_t> question = accepted_;
    question.insert(question.end(), rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(probe_));
    return question;
  }

  void tell(bool yes) {
    ++asked_;
    if (yes) {
      take(probe_);
      if (refused_ > 0) refused_ -= probe_;
      in_vain_ = 0;
      grown_ = 2 * probe_;
    } else {
      refused_ = probe_;
      grown_ = 0;
    }
    if (refused_ == 1) found_harmful();
    probe_ = refused_ / 2;
  }

  /// What was accepted together, in the order in which it was; with what was not asked for left out.
  const std::vector<std::size_t>& accepted() const { return accepted_; }
  /// What was refused by itself, given what was accepted before.
  const std::vector<std::size_t>& harmful() const { return harmful_; }
  std::size_t questions() const { return asked_; }

 private:
  // A right order has the harmless items first. Where a third of the items harm already, several refused
  // ones in a row say nothing of the rest: the order is dropped, and the questions go on. Returns: false for an order
  // that was right so far, in which the rest is thought to harm.
  bool disproved() {
    if (accepted_.size() > 2 * harmful_.size()) return false;
    ordered_ = false;
    if (!other_places_.empty()) {
      std::sort(rest_.begin(), rest_.end(),
                [&](std::size_t a, std::size_t b) { return other_places_[a] < other_places_[b]; });
    }
    return true;
  }
  void take(std::size_t count) {
    const auto end = rest_.begin() + static_cast<std::ptrdiff_t>(count);
    accepted_.insert(accepted_.end(), rest_.begin(), end);
    seen_.insert(seen_.end(), count, false);
    rest_.erase(rest_.begin(), end);
  }
  // The refused beginning of the rest has one item left.
  void found_harmful() {
    refused_ = 0;
    if (rest_.empty()) return;
    harmful_.push_back(rest_.front());
    seen_.push_back(true);
    rest_.erase(rest_.begin());
    ++in_vain_;
  }
  // So many that all of them are harmless about every second time. Where the order is known only what was decided last
  // says something of what comes next.
  std::size_t block() const {
    const std::size_t window = ordered_ ? std::min<std::size_t>(seen_.size(), 8) : seen_.size();
    const auto harmful = std::count(seen_.end() - static_cast<std::ptrdiff_t>(window), seen_.end(), true);
    const double density = (static_cast<double>(harmful) + 0.2) / (static_cast<double>(window) + 2);
    const double hoped = std::floor(std::log(0.5) / std::log1p(-std::min(density, 0.9)));
    return std::max({std::size_t{1}, static_cast<std::size_t>(std::max(hoped, 1.0)), grown_});
  }

  std::vector<double> gains_;
  mending_settings settings_;
  bool ordered_;
  std::vector<std::size_t> other_places_;
  std::vector<std::size_t> rest_, accepted_ = {}, harmful_ = {};
  std::vector<bool> seen_ = {};  // of what is decided: whether it was harmful
  double all_ = 0;
  std::size_t refused_ = 0;  // so many of the rest's first are known to be refused together
  std::size_t probe_ = 0, asked_ = 0, in_vain_ = 0, grown_ = 0;
};

}  // namespace comp
