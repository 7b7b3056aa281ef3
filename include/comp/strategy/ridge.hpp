// SPDX-License-Identifier: Apache-2.0
// Bayesian linear regression in its dual form, which has as many unknowns as there are observations. The cost model has
// a parameter for each operator and edge, thousands of them, but only tens of timed batches, so this is a small system.
// It gives the weights of the observations, the evidence (how probable the observations are under the prior, by which
// priors are compared), and how much of a variance the observations explain.
// Source: Rasmussen and Williams 2006, section 2.1 and algorithm 2.1.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace comp {

/// A regression of N observations.
class ridge {
 public:
  ridge() = default;
  /// Factorises the covariance (Cholesky). `off` says by how much each observation differs from its prior mean.
  /// Requires: `covariance` is that of the observations with their noise, (N, N), symmetric and positive definite; only
  /// its lower triangle is read.
  ridge(std::vector<std::vector<double>> covariance, const std::vector<double>& off) : lower_{std::move(covariance)} {
    for (std::size_t i = 0; i < lower_.size(); ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        double sum = lower_[i][j];
        for (std::size_t k = 0; k < j; ++k) sum -= lower_[i][k] * lower_[j][k];
        // Rounding can make a pivot of nearly equal observations negative; it is kept a little above 0.
        lower_[i][j] = i == j ? std::sqrt(std::max(sum, 1e-12 * lower_[i][i])) : sum / lower_[j][j];
      }
    }
    const std::vector<double> half = solved(off);
    for (std::size_t i = 0; i < half.size(); ++i) evidence_ -= half[i] * half[i] / 2 + std::log(lower_[i][i]);
    weights_ = weights(off);
  }

  /// Returns the weights of the observations. The posterior mean of any quantity is its prior mean plus its covariances
  /// with the observations, each times the observation's weight.
  const std::vector<double>& weights() const { return weights_; }
  /// Returns the weights for other differences with the same covariance.
  std::vector<double> weights(const std::vector<double>& off) const {
    std::vector<double> w = solved(off);
    for (std::size_t i = w.size(); i-- > 0;) {
      for (std::size_t k = i + 1; k < w.size(); ++k) w[i] -= lower_[k][i] * w[k];
      w[i] /= lower_[i][i];
    }
    return w;
  }
  /// Returns the logarithm of the observations' marginal likelihood, up to a constant.
  double evidence() const { return evidence_; }
  /// Returns by how much the observations reduce the variance of a quantity that has these covariances with them.
  double explained(const std::vector<double>& covariances) const {
    double sum = 0;
    for (const double s : solved(covariances)) sum += s * s;
    return sum;
  }

 private:
  // Solves the lower triangular system.
  std::vector<double> solved(const std::vector<double>& right) const {
    std::vector<double> x = right;
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) x[i] -= lower_[i][k] * x[k];
      x[i] /= lower_[i][i];
    }
    return x;
  }

  std::vector<std::vector<double>> lower_ = {};  // the Cholesky factor
  std::vector<double> weights_ = {};
  double evidence_ = 0;
};

}  // namespace comp
