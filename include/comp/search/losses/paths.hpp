// SPDX-License-Identifier: Apache-2.0
// A path is what losses say of two trainings on the same batches from the same state: the difference of each batch, as
// a fraction of the scale of FP32's losses; above 0 is worse. Its neighbours are correlated, and it may drift. This
// header estimates the mean of a path, with its error, and answers what a path shows by itself. loss_test.hpp accepts
// and rejects plans by it, and the guard of a training (search/training) looks for slow harm. The noise of the data is
// in both trainings and cancels. What is left of it is estimated in one of three ways:
//   - mean_of_series: a straight line with AR(1) noise around it, for the few batches that judge a plan.
//   - end_of_path: a random walk that began at 0 (trainings that roundings drive apart), for hundreds of batches.
//   - mean_of_path: both at once, for two trainings that never part far.
// If no batch can be trained twice, there is no path: fit_harm fits successive losses, some of which a plan may have
// harmed, by a polynomial, which is how the training goes on, and by harm.
// Source: AR(1) long-run variance, its correlation corrected for bias (Marriott and Pope 1954); Student's t by Wallace
// 1959; von Neumann 1941 (mean square successive difference); Allan 1966 (noise by the scale at which it is looked at).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/statistics.hpp>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// Returns: the value that Student's t exceeds as rarely as a normal variable exceeds `normal`. Source: Wallace 1959.
inline double student_t(double normal, double freedom) {
  const double wallace = normal * (8 * freedom + 3) / (8 * freedom + 1);
  return std::sqrt(freedom * std::expm1(wallace * wallace / freedom));
}

/// Returns: the losses times `loss_sign`, which is -1 for losses that are maximised, else 1.
inline std::vector<double> make_lower_better(std::vector<double> losses, double loss_sign) {
  for (double& loss : losses) loss *= loss_sign;
  return losses;
}

/// The mean of a series that may drift and whose neighbours may be correlated.
struct series_mean {
  double mean = 0;
  double error = 0;    // standard error of the mean
  double freedom = 1;  // degrees of freedom of `error`
};

/// Estimates the mean of `x` and its error. `least_correlation`: the least correlation of neighbours that is assumed,
/// because few values cannot show it. A straight line is subtracted before the variance is computed, so that steady
/// growth does not pass for noise. Requires: 3 values or more.
inline series_mean mean_of_series(std::span<const double> x, double least_correlation = 0) {
  const auto n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n, middle = (n - 1) / 2;
  double slope = 0, squares = 0, neighbours = 0, before = 0, position = -middle;
  for (const double value : x) slope += (value - mean) * position++;
  slope /= n * (n * n - 1) / 12;
  position = -middle;
  for (const double value : x) {
    const double residual = value - mean - slope * position++;
    squares += residual * residual;
    neighbours += residual * before;
    before = residual;
  }
  if (squares <= 0) return {mean, 0, n - 2};
  const double unbiased = std::max((n * neighbours / squares + 2) / std::max(n - 4, 1.0), 0.0);
  const double correlation = std::min(unbiased * (1 + 1 / std::sqrt(n)), 0.95);
  const auto variance_factor = [](double rho) { return (1 + rho) / (1 - rho); };
  const double variance = squares / std::max(n - 2 * variance_factor(correlation), n / 4);
  return {mean, std::sqrt(variance * variance_factor(std::max(correlation, least_correlation)) / n),
          std::max(n / variance_factor(correlation) - 2, 1.0)};
}

/// Returns: the scale that a tolerance is a fraction of: max(|mean|, standard deviation) of the losses; 1 if that is 0.
/// Losses are clipped at 30 median absolute deviations, so that a single explosion does not set the scale.
inline double loss_scale(std::span<const double> fp32) {
  std::vector<double> losses = finite_of(fp32);
  if (losses.empty()) return 1;
  const double usual = median(losses);
  std::vector<double> off = losses;
  for (double& loss : off) loss = std::abs(loss - usual);
  const double most = 30 * median(std::move(off));
  if (most > 0) {
    for (double& loss : losses) loss = std::clamp(loss, usual - most, usual + most);
  }
  const double middle = mean_of(losses);
  double deviation = 0;
  for (const double loss : losses) deviation = std::hypot(deviation, loss - middle);
  const double scale = std::max(std::abs(middle), deviation / std::sqrt(static_cast<double>(losses.size())));
  return scale > 0 ? scale : 1;
}

/// Returns: per batch (losses - fp32) / max(`scale`, |fp32| / 10).
/// A batch counts 10 scales at most, so that an explosion is harm and no noise. A batch that only one of the two lost
/// (its loss is not finite) counts one scale, so that a tolerance of 1% also allows one lost batch in a hundred. A
/// batch that both lost counts 0.
inline std::vector<double> differences(std::span<const double> losses, std::span<const double> fp32, double scale) {
  std::vector<double> result(losses.size());
  std::transform(losses.begin(), losses.end(), fp32.begin(), result.begin(), [scale](double a, double b) {
    if (!std::isfinite(a) || !std::isfinite(b)) return (std::isfinite(b) ? 1.0 : 0.0) - (std::isfinite(a) ? 1.0 : 0.0);
    return std::clamp((a - b) / std::max(scale, std::abs(b) / 10), -10.0, 10.0);
  });
  return result;
}

/// A mean of a path and its standard error.
struct path_mean {
  double mean = 0, error = std::numeric_limits<double>::infinity();
};

/// Returns: the variance of a step of the path if it were a random walk, estimated from the steps between means of
/// `block` batches after a straight line is subtracted. For blocks of two batches or more it is raised by a standard
/// error, because few blocks may look quiet by chance.
inline double walk_variance(std::span<const double> path, std::size_t block) {
  std::vector<double> steps;
  for (std::size_t at = 0; at + 2 * block <= path.size(); at += block) {
    steps.push_back(mean_of(path.subspan(at + block, block)) - mean_of(path.subspan(at, block)));
  }
  const double mean = mean_of(steps), count = static_cast<double>(steps.size()), b = static_cast<double>(block);
  double squares = 0;
  for (const double step : steps) squares += (step - mean) * (step - mean);
  // Means of successive blocks of b steps of a walk differ by (2 b^2 + 1) / (3 b) times the variance of a step.
  const double margin = block > 1 ? 1 + std::sqrt(2 / count) : 1;
  return margin * squares / (count - 1) * 3 * b / (2 * b * b + 1);
}

/// Estimates the end of a path that began at 0: the mean of its last third, and the standard error that wandering alone
/// would give it. Noise of single batches averages out in blocks, while a walk looks the same at every
/// scale; so the least variance over all scales is taken. Returns: an infinite error for fewer than 4 batches.
inline path_mean end_of_path(std::span<const double> path) {
  const std::size_t n = path.size();
  if (n < 4) return {};
  double walk = std::numeric_limits<double>::infinity(), batch = 0;
  for (std::size_t block = 1; block == 1 || 8 * block <= n; block *= 2) {
    walk = std::min(walk, walk_variance(path, block));
    if (block == 1) batch = walk;
  }
  // The mean of a walk's last third has 7/9 of the variance of its end; noise has that of n / 3 batches, twice over.
  const double count = static_cast<double>(n);
  return {mean_of(path.last(n / 3)), std::sqrt(walk * count * 7 / 9 + 1.5 * batch / count)};
}

/// Returns: the losses of the batches that have a finite one in both `a` and `b`.
inline std::pair<std::vector<double>, std::vector<double>> finite_pairs(std::span<const double> a,
                                                                        std::span<const double> b) {
  std::pair<std::vector<double>, std::vector<double>> pairs;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) continue;
    pairs.first.push_back(a[i]);
    pairs.second.push_back(b[i]);
  }
  return pairs;
}

/// Returns: plan - FP32 of each batch that has a finite loss in both; lower is better. Differences are relative to the
/// scale of FP32's losses; or to the batch's own loss, if FP32's losses are all positive and that path is quieter,
/// because harm in a batch is often proportional to its loss.
inline std::vector<double> paired_differences(std::span<const double> plan, std::span<const double> fp32) {
  const auto [plan_losses, fp32_losses] = finite_pairs(plan, fp32);
  if (fp32_losses.empty()) return {};
  std::vector<double> path = differences(plan_losses, fp32_losses, loss_scale(fp32_losses));
  if (*std::min_element(fp32_losses.begin(), fp32_losses.end()) <= 0) return path;
  std::vector<double> relative_path(fp32_losses.size());
  for (std::size_t i = 0; i < fp32_losses.size(); ++i)
    relative_path[i] = std::clamp(plan_losses[i] / fp32_losses[i] - 1, -10.0, 10.0);
  return end_of_path(relative_path).error < end_of_path(path).error ? relative_path : path;
}

/// Returns: the mean difference between two trainings since they parted, and its standard error. The error has two
/// parts: noise, which neighbouring batches may share, and the trainings' random walk apart, by which means of
/// successive blocks differ more than by noise. A steady drift is neither. Both are estimated without margins, because
/// a wrong answer costs a little time or a small gain, and no training. Requires: 8 batches or more.
inline path_mean mean_of_path(std::span<const double> path) {
  const std::size_t n = path.size(), block = std::max<std::size_t>(2, n / 5);
  const auto count = static_cast<double>(n), b = static_cast<double>(block);
  const double mean = mean_of(path), middle = (count - 1) / 2;
  double rise = 0;
  for (std::size_t i = 0; i < n; ++i) rise += (static_cast<double>(i) - middle) * path[i];
  const double slope = rise * 12 / (count * (count * count - 1));
  std::vector<double> rest, block_steps;
  for (std::size_t i = 0; i < n; ++i) rest.push_back(path[i] - mean - slope * (static_cast<double>(i) - middle));
  const std::span all{rest};
  for (std::size_t at = block; at + block <= n; at += block)
    block_steps.push_back(mean_of(all.subspan(at, block)) - mean_of(all.subspan(at - block, block)));
  double squares = 0, products = 0, steps = 0, spread = 0;
  for (std::size_t i = 0; i < n; ++i) {
    squares += rest[i] * rest[i];
    if (i == 0) continue;
    products += rest[i] * rest[i - 1];
    steps += (rest[i] - rest[i - 1]) * (rest[i] - rest[i - 1]) / (count - 1);
  }
  const double usual_step = mean_of(block_steps);
  for (const double step : block_steps)
    spread += (step - usual_step) * (step - usual_step) / static_cast<double>(block_steps.size() - 1);
  const double correlation = std::min(0.95, std::max(0.0, squares > 0 ? products / squares : 0) + 1 / std::sqrt(count));
  const double noise = squares / (count - 2) * (1 + correlation) / (1 - correlation) / count;
  const double wandering = std::max(0.0, (spread - steps / b) / ((2 * b * b + 1) / (3 * b) - 1 / b));
  return {mean, std::sqrt(noise + wandering * count / 3)};
}

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

}  // namespace detail

/// Returns: `candidate` - `fp32` of each batch that both have, as a fraction of the scale of FP32's losses; above 0 is
/// worse. `loss_sign`: -1 for losses that are maximised, else 1.
inline std::vector<double> loss_path(std::span<const double> fp32, std::span<const double> candidate,
                                     double loss_sign) {
  const std::size_t n = std::min(fp32.size(), candidate.size());
  const auto first = [&](std::span<const double> losses) {
    return detail::make_lower_better({losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(n)}, loss_sign);
  };
  const std::vector<double> a = first(candidate), b = first(fp32);
  return detail::differences(a, b, detail::loss_scale(b));
}

/// Returns: true if FP32 with perturbed roundings differs from FP32 by an amount near the tolerance. Means of four
/// batches are compared, because single batches differ too much.
inline bool strays(std::span<const double> path, double tolerance) {
  double squares = 0;
  const std::size_t fours = path.size() / 4;
  for (std::size_t block = 0; block < fours; ++block) {
    const double middle = mean_of(path.subspan(4 * block, 4));
    squares += middle * middle / static_cast<double>(fours);
  }
  return std::sqrt(squares) > 0.4 * tolerance;
}

/// Returns: true if a path is a random walk, like that of two trainings that roundings drive apart: neighbours are
/// alike, and over the path their steps add up to more than the tolerance. The mean of such a path says little.
/// Source: von Neumann 1941 (mean square successive difference).
inline bool wanders(std::span<const double> path, double tolerance) {
  if (path.size() < 8) return false;
  const double middle = mean_of(path), n = static_cast<double>(path.size());
  double steps = 0, squares = 0, before = path.front();
  for (const double d : path) {
    squares += (d - middle) * (d - middle);
    steps += (d - before) * (d - before);
    before = d;
  }
  return steps < squares && std::sqrt(steps / (n - 1) * n / 3) > tolerance;
}

/// Returns: how many batches of a path are as near to FP32 as roundings leave them: within `line`, or three times as
/// far away as FP32 with perturbed roundings (`fp32_paths`) has come by then. These are read one batch further, because
/// they may reach the same distance a batch later; but not for the first batch.
inline std::size_t batches_near_fp32(std::span<const double> path, std::span<const std::vector<double>> fp32_paths,
                                     double line) {
  double far = 0, of_fp32 = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    far = std::max(far, std::abs(path[i]));
    for (const auto& fp32 : fp32_paths) {
      for (const double d : std::span{fp32}.first(std::min(i == 0 ? 1 : i + 2, fp32.size())))
        of_fp32 = std::max(of_fp32, std::abs(d));
    }
    if (far > std::max(line, 3 * of_fp32)) return i;
  }
  return path.size();
}

/// Returns: how far each loss of `batches` batches has to be above FP32's for harm to be beyond
/// doubt: 4 max(|fp32_paths|) + 2 tolerance; without `fp32_paths` 10 tolerance, or 25 tolerance for
/// fewer than 8 batches. In so few batches, roundings do not drive trainings apart.
inline double blatant_difference(std::span<const std::vector<double>> fp32_paths, double tolerance,
                                 std::size_t batches) {
  double farthest = 0;
  for (const auto& path : fp32_paths) {
    for (const double d : path) farthest = std::max(farthest, std::abs(d));
  }
  return fp32_paths.empty() ? (batches < 8 ? 25 : 10) * tolerance : 4 * farthest + 2 * tolerance;
}

/// Returns: true if harm is beyond doubt: each of at least four batches is far above FP32's; or, if
/// FP32's own differences `fp32_paths` are known, the mean of the later half is.
inline bool beyond_doubt(std::span<const double> path, std::span<const std::vector<double>> fp32_paths,
                         double tolerance) {
  if (path.size() < 4) return false;
  const double far = blatant_difference(fp32_paths, tolerance, path.size());
  if (std::all_of(path.begin(), path.end(), [far](double d) { return !(d <= far); })) return true;
  return !fp32_paths.empty() && path.size() >= 8 && !(mean_of(path.last(path.size() / 2)) <= far);
}

}  // namespace comp
