// SPDX-License-Identifier: Apache-2.0
// Fits losses of successive batches, some of which a plan may have harmed, by a polynomial, which is how the training
// goes on, and by harm. For a trainer that cannot restore its state, so that no batch can be trained twice.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
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

}  // namespace comp::detail
