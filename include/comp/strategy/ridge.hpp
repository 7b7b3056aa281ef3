// SPDX-License-Identifier: Apache-2.0
// Bayesian linear regression in its dual form: as many unknowns as there are observations, however many parameters the
// model has. Gives the weights of the observations, how probable these are under what was believed before (by which
// beliefs are compared), and how much of a variance they explain. Not here: the features (strategy/cost_model.hpp).
// Source: Rasmussen and Williams 2006, section 2.1 and algorithm 2.1.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace comp {

class ridge {
 public:
  ridge() = default;
  /// `covariance`: of the observations, their noise included: (N, N), symmetric, positive definite; of it the lower
  /// triangle is read. `off`: by how much each observation is off what was believed.
  ridge(std::vector<std::vector<double>> covariance, const std::vector<double>& off) : lower_{std::move(covariance)} {
    for (std::size_t i = 0; i < lower_.size(); ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        double sum = lower_[i][j];
        for (std::size_t k = 0; k < j; ++k) sum -= lower_[i][k] * lower_[j][k];
        lower_[i][j] = i == j ? std::sqrt(std::max(sum, 1e-12 * lower_[i][i])) : sum / lower_[j][j];
      }
    }
    const std::vector<double> half = solved(off);
    for (std::size_t i = 0; i < half.size(); ++i) evidence_ -= half[i] * half[i] / 2 + std::log(lower_[i][i]);
    weights_ = weights(off);
  }

  /// Of the observations: what was believed of anything changes by its covariances with them times these.
  const std::vector<double>& weights() const { return weights_; }
  /// The same for other observations with these covariances.
  std::vector<double> weights(const std::vector<double>& off) const {
    std::vector<double> w = solved(off);
    for (std::size_t i = w.size(); i-- > 0;) {
      for (std::size_t k = i + 1; k < w.size(); ++k) w[i] -= lower_[k][i] * w[k];
      w[i] /= lower_[i][i];
    }
    return w;
  }
  /// The logarithm of the observations' likelihood, up to a constant.
  double evidence() const { return evidence_; }
  /// So much of the variance of what has these covariances with the observations.
  double explained(const std::vector<double>& covariances) const {
    double sum = 0;
    for (const double s : solved(covariances)) sum += s * s;
    return sum;
  }

 private:
  std::vector<double> solved(const std::vector<double>& right) const {
    std::vector<double> x = right;
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) x[i] -= lower_[i][k] * x[k];
      x[i] /= lower_[i][i];
    }
    return x;
  }

  std::vector<std::vector<double>> lower_ = {};
  std::vector<double> weights_ = {};
  double evidence_ = 0;
};

}  // namespace comp
