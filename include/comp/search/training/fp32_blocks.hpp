// SPDX-License-Identifier: Apache-2.0
// Tells whether a plan does harm that grows over tens to hundreds of batches, on a trainer that cannot restore its
// state, so that FP32 cannot train next to the plan (shadow.hpp). FP32 trains blocks among the plan's batches instead,
// at distances that double. If the plan harms, the loss falls in such a block and rises after it, each within as many
// batches as the harm takes to build up. Nobody knows how many these are, so several are tried.
// The losses around a block are fitted by a polynomial, which is how the training goes on, and by harm that follows the
// plan with that delay. If the fit is suspicious, the next block comes at once, and all are fitted together.
// All batches are training, so that evidence only costs the time by which FP32 is slower.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace comp::detail {

/// By how much harm raises the loss once it has built up, as a part of the loss.
struct harm_estimate {
  double harm = 0, error = std::numeric_limits<double>::infinity();
};

/// Returns: how many times as large as that of independent numbers the deviation of a mean of some successive
/// `residuals` is, because what the fit leaves goes up and down slowly; 1 at least.
inline double growth_of_noise(std::span<const double> residuals) {
  const std::size_t length = std::max<std::size_t>(residuals.size() / 32, 2), parts = residuals.size() / length;
  double squares = 0, of_means = 0;
  for (std::size_t p = 0; p < parts; ++p) {
    double sum = 0;
    for (const double r : residuals.subspan(p * length, length)) sum += r, squares += r * r;
    of_means += sum * sum;
  }
  return squares > 0 ? std::sqrt(std::max(of_means / squares, 1.0)) : 1;
}

/// Fits `losses` by a polynomial of `degree` and a multiple of `exposure`. Losses that are not finite are left out.
inline harm_estimate fit_harm(std::span<const double> losses, std::span<const double> exposure, std::size_t degree) {
  const std::size_t unknown = degree + 2;
  std::vector<double> loss, harm;
  std::vector<std::vector<double>> trend(degree + 1);  // orthonormal
  double scale = 0;
  for (std::size_t k = 0; k < losses.size(); ++k) {
    if (!std::isfinite(losses[k])) continue;
    const double t = 2 * static_cast<double>(k) / static_cast<double>(losses.size()) - 1;
    for (std::size_t i = 0; i < trend.size(); ++i) trend[i].push_back(std::pow(t, static_cast<double>(i)));
    loss.push_back(losses[k]);
    harm.push_back(exposure[k]);
    scale += std::abs(losses[k]);
  }
  const std::size_t n = loss.size();
  if (n <= 2 * unknown) return {};
  const auto product = [n](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t k = 0; k < n; ++k) sum += a[k] * b[k];
    return sum;
  };
  const auto remove = [&](std::vector<double>& from, const std::vector<double>& unit) {
    const double part = product(from, unit);
    for (std::size_t k = 0; k < n; ++k) from[k] -= part * unit[k];
  };
  for (std::size_t i = 0; i < trend.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) remove(trend[i], trend[j]);
    const double length = std::sqrt(product(trend[i], trend[i]));
    for (double& each : trend[i]) each /= length;
    remove(loss, trend[i]);
    remove(harm, trend[i]);
  }
  const double exposed = product(harm, harm), estimate = product(harm, loss) / exposed;
  for (std::size_t k = 0; k < n; ++k) loss[k] -= estimate * harm[k];
  const double deviation = std::sqrt(product(loss, loss) / static_cast<double>(n - unknown)) * growth_of_noise(loss);
  scale = std::max(scale / static_cast<double>(n), deviation);
  if (!(exposed > 0) || !(scale > 0)) return {};
  return {estimate / scale, std::max(deviation / std::sqrt(exposed) / scale, 1e-6)};
}

/// Says when FP32 trains a block, and what the blocks say of the plan.
class fp32_blocks {
 public:
  /// `planned`: batches of the training. `tolerance`: harm of less is none.
  fp32_blocks(std::size_t planned, double tolerance) : fp32_blocks{planned, longest_of(planned), tolerance} {}

  /// Another plan trains from now on. It may have the operators that harmed in the last one, so its blocks are long.
  void restart() {
    *this = {left_, longest_, tolerance_};
    block_ = longest_;
  }

  /// Returns: true if FP32 trains the next batches.
  bool in_block() const { return now() >= begin_ && now() < begin_ + block_; }
  /// Returns: how many batches follow under the same plan.
  std::size_t batches_to_change() const { return (in_block() ? begin_ + block_ : next_end()) - now(); }

  /// Takes the losses of the batches that followed, lower is better. Returns: true if they show that the plan harms.
  bool add(const std::vector<double>& losses) {
    for (const double loss : losses) {
      const double target = in_block() ? 0 : 1;
      for (std::size_t d = 0; d < delays.size(); ++d) {
        const double before = losses_.empty() ? 1 : exposure_[d].back();
        exposure_[d].push_back(before + (target - before) / (1 + delays[d] * static_cast<double>(longest_)));
      }
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
  static constexpr std::array<double, 4> delays{1.0 / 32, 1.0 / 8, 0.4, 1.2};  // longest blocks in which harm builds up
  static constexpr std::size_t margin = 2;            // blocks that are fitted before and after one, besides it
  static constexpr double suspicious = 1, clear = 3;  // standard errors above the tolerance
  static constexpr std::size_t longest_chain = 8;     // then the plan counts as harmless
  static constexpr std::size_t never = std::numeric_limits<std::size_t>::max() / 2;

  fp32_blocks(std::size_t left, std::size_t longest, double tolerance)
      : left_{left}, longest_{longest}, tolerance_{tolerance} {}

  // With losses of 20% noise such a block shows harm of 10% that takes as many batches to build up.
  static std::size_t longest_of(std::size_t planned) { return std::clamp<std::size_t>(planned / 60, 32, 512); }
  std::size_t now() const { return losses_.size(); }
  // The end of the plan's batches before the next block, or of those after which the last block is judged.
  std::size_t next_end() const { return now() < begin_ ? begin_ : begin_ + (1 + margin) * block_; }

  bool judge() {
    const std::size_t count = now() - from_;
    ++blocks_, ++in_chain_;
    worst_ = {};
    double likeliest = -std::numeric_limits<double>::infinity();
    std::array<harm_estimate, delays.size()> all;
    for (std::size_t d = 0; d < delays.size(); ++d) {
      const std::span exposure{exposure_[d]};
      const harm_estimate chain =
          fit_harm(std::span{losses_}.subspan(from_, count), exposure.subspan(from_), 1 + in_chain_);
      all[d] = combine(before_[d], chain);
      const double errors = (all[d].harm - tolerance_) / all[d].error;
      if (errors > likeliest) likeliest = errors, worst_ = all[d];
    }
    if (blocks_ > 1 && likeliest > clear) return true;
    block_ = longest_;
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

  std::size_t left_, longest_;  // batches of the training; of a block
  double tolerance_;
  std::size_t block_ = longest_ / 2;       // of the next block, or of the one that is not judged yet
  std::size_t begin_ = margin * longest_;  // of that block
  std::size_t distance_ = 4 * longest_;    // from the plan's start, or the last block, to the next one
  std::size_t from_ = 0;                   // the first batch that is fitted
  std::size_t blocks_ = 0, in_chain_ = 0;  // all, and those that followed each other
  std::vector<double> losses_ = {};
  std::array<std::vector<double>, delays.size()> exposure_ = {};  // for each delay: how much of the harm has built up
  std::array<harm_estimate, delays.size()> before_ = {};          // by the blocks before the chain
  harm_estimate worst_ = {};
};

}  // namespace comp::detail
