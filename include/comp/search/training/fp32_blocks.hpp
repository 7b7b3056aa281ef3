// SPDX-License-Identifier: Apache-2.0
// Tells whether a plan does harm that grows over tens to hundreds of batches, on a trainer that cannot restore its
// state, so that FP32 cannot train next to the plan (shadow.hpp). FP32 trains blocks among the plan's batches instead,
// at growing distances. If the plan harms, the loss falls in such a block and rises after it, each within as many
// batches as the harm takes to build up. Nobody knows how many these are, so several are tried.
// The losses around a block are fitted by a polynomial, which is how the training goes on, and by harm that follows the
// plan with that delay. If the fit is suspicious, the next block comes at once, and all are fitted together.
// If a plan harms, two halves of its low operators take turns in blocks, until the loss shows which half has the cause,
// and so on with the halves of that half; what is known to be harmless stays low. This tells two harms apart, h and -h,
// with a quarter of the batches that tell h from none.
// All batches are training, so that evidence only costs the time by which FP32 is slower.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <comp/core/plan.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/training/harm_bisection.hpp>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace comp::detail {

/// Within how many of FP32's blocks harm may build up. Nobody knows which is right.
inline constexpr std::array<double, 4> harm_delays{1.0 / 48, 1.0 / 12, 0.27, 0.8};

/// For each delay and batch: how much of a harm has built up.
class harm_exposure {
 public:
  /// `block`: batches of FP32's blocks. All of the harm has built up.
  explicit harm_exposure(std::size_t block) : block_{static_cast<double>(block)} {}

  /// Adds a batch. `harms`: true if its plan lowers what harms.
  void add(bool harms) {
    for (std::size_t d = 0; d < harm_delays.size(); ++d) {
      now_[d] += ((harms ? 1 : 0) - now_[d]) / (1 + harm_delays[d] * block_);
      all_[d].push_back(now_[d]);
    }
  }
  std::span<const double> operator[](std::size_t delay) const { return all_[delay]; }
  /// Forgets the batches, and not what has built up.
  void forget() { all_ = {}; }

 private:
  double block_;
  std::array<double, harm_delays.size()> now_{1, 1, 1, 1};
  std::array<std::vector<double>, harm_delays.size()> all_ = {};
};

/// Says when FP32 trains a block, and what the blocks say of the plan.
class fp32_blocks {
 public:
  /// `planned`: batches of the training. `tolerance`: harm of less is none.
  fp32_blocks(std::size_t planned, double tolerance)
      : fp32_blocks{planned, std::clamp<std::size_t>(planned / 40, 48, 768), tolerance} {}

  /// Another plan trains from now on.
  void restart() { *this = {left_, block_, tolerance_}; }
  /// Returns: the batches of a block. With losses of 20% noise one shows harm of 10% that takes half as many to build
  /// up.
  std::size_t length() const { return block_; }

  /// Returns: true if FP32 trains the next batches.
  bool in_block() const { return now() >= begin_ && now() < begin_ + block_; }
  /// Returns: how many batches follow under the same plan.
  std::size_t batches_to_change() const { return (in_block() ? begin_ + block_ : next_end()) - now(); }

  /// Takes the losses of the batches that followed, lower is better. Returns: true if they show that the plan harms.
  bool add(const std::vector<double>& losses) {
    for (const double loss : losses) {
      exposure_.add(!in_block());
      losses_.push_back(loss);
      left_ -= std::min<std::size_t>(left_, 1);
      if (now() == begin_ + (1 + margin) * block_ && judge()) return true;
    }
    return false;
  }
  /// Returns: the harm that is likeliest to be there.
  const harm_estimate& worst() const { return worst_; }
  std::size_t blocks() const { return blocks_; }

 private:
  static constexpr std::size_t margin = 2;  // blocks that are fitted before and after one, besides it
  static constexpr double suspicious = 0.5, clear = 3, clear_at_once = 4;  // standard errors above the tolerance
  static constexpr std::size_t longest_chain = 8;                          // then the plan counts as harmless
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max() / 2;

  fp32_blocks(std::size_t left, std::size_t block, double tolerance)
      : left_{left}, block_{block}, tolerance_{tolerance} {}

  std::size_t now() const { return losses_.size(); }
  // The end of the plan's batches before the next block, or of those after which the last block is judged.
  std::size_t next_end() const { return now() < begin_ ? begin_ : begin_ + (1 + margin) * block_; }

  bool judge() {
    const std::size_t count = now() - from_;
    ++blocks_, ++in_chain_;
    worst_ = {};
    double likeliest = -std::numeric_limits<double>::infinity();
    std::array<harm_estimate, harm_delays.size()> all;
    for (std::size_t d = 0; d < harm_delays.size(); ++d) {
      const harm_estimate chain =
          fit_harm(std::span{losses_}.subspan(from_, count), exposure_[d].subspan(from_), 1 + in_chain_);
      all[d] = combine(before_[d], chain);
      const double errors = (all[d].harm - tolerance_) / all[d].error;
      if (errors > likeliest) likeliest = errors, worst_ = all[d];
    }
    if (likeliest > (blocks_ > 1 ? clear : clear_at_once)) return true;
    const bool small = worst_.harm + suspicious * worst_.error < 4 * tolerance_;
    if (likeliest > suspicious && !small && in_chain_ < longest_chain) {
      begin_ = now();
      return false;
    }
    before_ = all;
    in_chain_ = 0;
    const std::size_t distance = std::exchange(distance_, 8 * distance_);
    begin_ = distance > left_ / 2 ? never : now() + distance;
    from_ = begin_ - std::min(begin_, 2 * margin * block_);
    return false;
  }
  static harm_estimate combine(const harm_estimate& a, const harm_estimate& b) {
    const double of_a = 1 / (a.error * a.error), of_b = 1 / (b.error * b.error);
    if (!(of_a + of_b > 0)) return {};
    return {(of_a * a.harm + of_b * b.harm) / (of_a + of_b), 1 / std::sqrt(of_a + of_b)};
  }

  std::size_t left_, block_;  // batches of the training; of a block
  double tolerance_;
  std::size_t begin_ = 4 * block_ / 3;     // of the next block, or of the one that is not judged yet
  std::size_t distance_ = 21 * block_;     // from the last block to the next one
  std::size_t from_ = 0;                   // the first batch that is fitted
  std::size_t blocks_ = 0, in_chain_ = 0;  // all, and those that followed each other
  std::vector<double> losses_ = {};
  harm_exposure exposure_{block_};
  std::array<harm_estimate, harm_delays.size()> before_ = {};  // by the blocks before the chain
  harm_estimate worst_ = {};
};

/// Finds the operator by which a plan harms.
class block_bisection {
 public:
  /// `safer`: the part of `harmful` that is thought to do less harm. `block`: batches of a block.
  block_bisection(const comp::plan& harmful, const comp::plan& safer, const comp::plan& fp32, std::size_t block)
      : harmful_{harmful.operator_by_operator()}, fp32_{fp32}, block_{block} {
    for (const bool is_safer : {false, true}) {
      for (std::size_t i = 0; i < harmful.size(); ++i) {
        if (harmful[i] != fp32[i] && (safer[i] == harmful[i]) == is_safer) suspects_.push_back(i);
      }
    }
    all_ = suspects_.size();
  }

  /// Returns: true if the operator is found, or cannot be.
  bool is_over() const { return suspects_.size() < 2 || turn_ == most_turns; }
  /// Returns: the plan of the next batches.
  comp::plan plan() const { return without(half(!is_seconds_turn())); }
  /// Returns: how many batches follow under it.
  std::size_t batches_to_change() const { return (turn_ + 1) * block_ - losses_.size(); }
  /// Returns: the plan without the operator, or those among which it is; nothing if that may be any.
  std::optional<harmless_part> found() const {
    if (suspects_.size() == all_) return {};
    return harmless_part{without(suspects_), suspects_, blocks_};
  }

  /// Takes the losses of the batches that followed, lower is better.
  void add(const std::vector<double>& losses) {
    for (const double loss : losses) {
      for (const bool second : {false, true}) exposure_[second].add(is_seconds_turn() == second);
      losses_.push_back(loss);
    }
    if (batches_to_change() > 0) return;
    ++turn_, ++blocks_;
    const double errors[2] = {errors_above_none(exposure_[0]), errors_above_none(exposure_[1])};
    const bool second = errors[1] > errors[0];
    if (turn_ < 2 || !(errors[second] > clear)) return;
    const std::span<const std::size_t> cause = half(second);
    suspects_ = {cause.begin(), cause.end()};
    exposure_[!second] = exposure_[second];
    for (harm_exposure& each : exposure_) each.forget();
    losses_.clear();
    turn_ = 0;
  }

 private:
  static constexpr std::size_t most_turns = 16;
  static constexpr double clear = 2.5;  // standard errors

  // Turns have the order of order_of_turns, whose next terms these are after eight turns.
  bool is_seconds_turn() const { return std::popcount(turn_) % 2 == 1; }
  std::span<const std::size_t> half(bool second) const {
    const std::span all{suspects_};
    return second ? all.subspan(all.size() / 2) : all.first(all.size() / 2);
  }
  comp::plan without(std::span<const std::size_t> operators) const {
    comp::plan p = harmful_;
    for (const std::size_t i : operators) p[i] = fp32_[i];
    return p;
  }
  // Returns: by how many standard errors the likeliest harm of that exposure is above none.
  double errors_above_none(const harm_exposure& exposure) const {
    double most = 0;
    for (std::size_t d = 0; d < harm_delays.size(); ++d) {
      const harm_estimate fit = fit_harm(losses_, exposure[d], 1 + turn_ / 3);
      most = std::max(most, fit.harm / fit.error);
    }
    return most;
  }

  comp::plan harmful_, fp32_;
  std::size_t block_;
  std::vector<std::size_t> suspects_ = {};  // one of these operators harms
  std::size_t all_ = 0;                     // how many these were at first
  std::size_t turn_ = 0, blocks_ = 0;       // blocks of the halves of `suspects_`, and of all halves
  std::vector<double> losses_ = {};         // of the blocks of these halves
  std::array<harm_exposure, 2> exposure_{harm_exposure{block_}, harm_exposure{block_}};  // to each half
};

}  // namespace comp::detail
