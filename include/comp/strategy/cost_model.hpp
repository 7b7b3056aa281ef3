// SPDX-License-Identifier: Apache-2.0
// What a batch costs under any plan, from what a few plans were seen to cost: a sum over operators and over the casts
// between them. Operators come from profiles, or from their operations and bytes; casts from bytes; both are corrected
// by whole batches that were timed (ridge regression: what was not seen keeps its first estimate).
// A view has its producer's precision, so a tensor reaches its readers through views. A tensor is cast once for all its
// readers in one precision. Not here: the cheapest plan (strategy/min_cut.hpp).
// Source: design.md, section 5; Hoerl and Kennard 1970 (ridge regression).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp {

inline constexpr std::size_t precision_count = all_precisions.size();
using per_precision = std::array<double, precision_count>;
constexpr std::size_t index_of(precision p) { return static_cast<std::size_t>(p); }

/// A tensor that may have to be cast: who makes it, who reads it, what a cast to another precision takes.
struct shared_tensor {
  std::uint32_t producer = 0;
  std::vector<std::uint32_t> readers = {};
  double cast_seconds = 0;
};

/// Unary and pairwise terms of a plan's cost. Shapes: `seconds` is (N, precisions), infinity where an operator must not
/// run in a precision; operators without a choice have one finite entry. Unit: [s].
struct plan_costs {
  std::vector<per_precision> seconds = {};
  std::vector<shared_tensor> tensors = {};

  std::size_t size() const { return seconds.size(); }

  /// Calls `cast` with each tensor and each precision that it must be cast to.
  template <class F>
  void each_cast(const plan& p, F cast) const {
    for (const shared_tensor& t : tensors) {
      std::array<bool, precision_count> wanted{};
      for (const auto reader : t.readers) wanted[index_of(p[reader])] = true;
      wanted[index_of(p[t.producer])] = false;
      for (std::size_t to = 0; to < precision_count; ++to) {
        if (wanted[to]) cast(t, all_precisions[to]);
      }
    }
  }

  double casts(const plan& p) const {
    double sum = 0;
    each_cast(p, [&](const shared_tensor& t, precision) { sum += t.cast_seconds; });
    return sum;
  }
  double operator()(const plan& p) const {
    double sum = casts(p);
    for (std::size_t i = 0; i < size(); ++i) sum += seconds[i][index_of(p[i])];
    return sum;
  }
};

namespace detail {

inline double elements_of(const tensor_info& t) {
  double elements = t.shape.empty() ? 0 : 1;
  for (const auto extent : t.shape) elements *= static_cast<double>(std::max<std::int64_t>(extent, 0));
  return t.floating ? elements : 0;
}

/// The tensors of a graph with their readers, views looked through.
inline std::vector<shared_tensor> shared_tensors(const op_graph& graph) {
  std::vector<std::vector<std::uint32_t>> roots(graph.size());  // whose tensors operator i hands on
  std::vector<shared_tensor> tensors(graph.size());
  std::vector<std::uint32_t> seen;
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    tensors[i].producer = i;
    seen.clear();
    for (const auto producer : graph[i].producers)
      seen.insert(seen.end(), roots[producer].begin(), roots[producer].end());
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    if (graph[i].choosable) {
      for (const auto root : seen) tensors[root].readers.push_back(i);
      roots[i] = {i};
    } else if (seen.size() <= 8) {
      roots[i] = seen;  // of what joins more, no cast is foreseen
    }
  }
  return tensors;
}

}  // namespace detail

/// Learns what plans cost.
class cost_model {
 public:
  /// `levels`: the precisions that each operator may have, at least one; those of an operator without a choice are one.
  cost_model(const op_graph& graph, std::vector<std::vector<precision>> levels)
      : graph_{graph}, levels_{std::move(levels)}, tensors_{detail::shared_tensors(graph)} {
    std::unordered_map<std::string_view, std::size_t> kinds;
    for (const op_info& op : graph) kind_.push_back(kinds.try_emplace(op.kind, kinds.size()).first->second);
    kinds_ = kinds.size();
    base_.assign(graph.size(), {});
    estimate();
  }

  const std::vector<std::vector<precision>>& levels() const { return levels_; }

  /// Seconds per operator of a profile under `p`. Returns: false where it cannot be used (a wrong length, negative,
  /// not finite, all zero); what was known before then stays.
  bool learn_profile(const plan& p, std::span<const op_time> times) {
    if (times.size() != graph_.size()) return false;
    double sum = 0;
    for (const op_time& t : times) {
      if (!(t.forward >= 0) || !(t.backward >= 0) || !std::isfinite(t.forward + t.backward)) return false;
      sum += t.forward + t.backward;
    }
    if (!(sum > 0)) return false;
    // What an operator was estimated at says how a missing precision relates to FP32.
    if (!profiled_) {
      const double factor = sum / estimated_seconds(p);
      for (auto& each : base_)
        std::transform(each.begin(), each.end(), each.begin(), [&](double s) { return s * factor; });
    }
    for (std::size_t i = 0; i < times.size(); ++i) {
      const double seconds = times[i].forward + times[i].backward, before = base_[i][index_of(p[i])];
      if (!profiled_ && before > 0) {
        for (double& s : base_[i]) s *= seconds / before;
      }
      base_[i][index_of(p[i])] = seconds;
    }
    profiled_ = true;
    estimate_casts(p, times);
    return true;
  }

  /// A batch under `p` took so many seconds; a time that is none teaches nothing.
  void learn_batch(const plan& p, double seconds) {
    if (!std::isfinite(seconds) || seconds <= 0) return;
    seen_.push_back({p, seconds});
    fit();
  }

  /// As far as is known now.
  plan_costs costs() const {
    plan_costs result{std::vector<per_precision>(graph_.size()), tensors_};
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      result.seconds[i].fill(std::numeric_limits<double>::infinity());
      for (const precision p : levels_[i]) result.seconds[i][index_of(p)] = operator_seconds(i, p);
    }
    for (shared_tensor& t : result.tensors) t.cast_seconds *= cast_factor_;
    return result;
  }
  /// Bytes that operator `i` hands on in `p`; 0 where shapes are not known.
  double bytes(std::size_t i, precision p) const { return bytes_of(i) / 4 * traits(p).bytes; }
  double operator()(const plan& p) const { return constant_ + costs()(p); }

 private:
  struct observation {
    comp::plan plan;
    double seconds;
  };

  double estimated_seconds(const plan& p) const {
    double sum = 0;
    for (std::size_t i = 0; i < graph_.size(); ++i) sum += base_[i][index_of(p[i])];
    return sum > 0 ? sum : 1;
  }

  // FP32 as a base, and what a kind's low precisions were seen to save of it.
  double operator_seconds(std::size_t i, precision p) const {
    const double fp32 = base_[i][0], low = base_[i][index_of(p)];
    return p == precision::fp32 || factors_.empty() ? low : std::max(fp32 + factors_[kind_[i]] * (low - fp32), 0.0);
  }

  // Operations, or bytes at the 16 operations that machines do per byte; contractions at twice the speed in 16 bits.
  // Where nothing is known of any size every operator counts the same.
  void estimate() {
    double most = 0;
    for (const op_info& op : graph_) most = std::max(most, work_of(op));
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const double work = most > 0 ? work_of(graph_[i]) / most : 1;
      for (const precision p : all_precisions) {
        const double part = p == precision::tf32 ? 0.6 : p == precision::fp32 ? 1 : 0.55;
        base_[i][index_of(p)] = work * part;
      }
    }
    for (shared_tensor& t : tensors_) {
      const double bytes = bytes_of(t.producer);
      t.cast_seconds = most > 0 ? 16 * 1.5 * bytes / most : 0.1;
    }
  }
  double bytes_of(std::size_t i) const {
    double elements = 0;
    for (const tensor_info& t : graph_[i].outputs) elements += detail::elements_of(t);
    return 4 * elements;
  }

  // A cast moves what an operator that only moves data would: bytes at the speed that those were seen to have.
  void estimate_casts(const plan& p, std::span<const op_time> times) {
    double bytes = 0, seconds = 0;
    std::vector<double> all;
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const op_info& op = graph_[i];
      const double took = times[i].forward + times[i].backward;
      if (op.choosable) all.push_back(took);
      if (op.choosable && p[i] == precision::fp32 && op.bytes > 0 && op.flops <= 4 * op.bytes) {
        bytes += static_cast<double>(op.bytes), seconds += took;
      }
    }
    if (!(bytes > 0) && p.count_low() > 0) return;
    const double usual = median(all);
    for (shared_tensor& t : tensors_) {
      const double size = bytes_of(t.producer);
      t.cast_seconds = size > 0 && bytes > 0 ? 1.5 * size * seconds / bytes : 0.1 * usual;
    }
  }

  // theta: the constant, the casts' factor, a factor per kind; minimises the squared error of the batches plus what
  // each is away from its prior. Coordinate descent: few parameters, few batches.
  void fit() {
    const std::size_t parameters = 2 + kinds_;
    std::vector<std::vector<double>> features;
    std::vector<double> rest;
    for (const observation& o : seen_) {
      std::vector<double> f(parameters);
      f[0] = 1;
      double fixed = 0;
      for (std::size_t i = 0; i < graph_.size(); ++i) {
        const double fp32 = base_[i][0], now = base_[i][index_of(o.plan[i])];
        const bool low = is_low(o.plan[i]);
        fixed += low ? fp32 : now;
        if (low) f[2 + kind_[i]] += now - fp32;
      }
      f[1] = plan_costs{{}, tensors_}.casts(o.plan);
      features.push_back(std::move(f));
      rest.push_back(o.seconds - fixed);
    }
    const double scale = seen_.front().seconds, noise = 0.005 * scale;
    std::vector<double> theta(parameters, 1.0), prior(parameters, 1.0), spread(parameters, 0.15);
    theta[0] = prior[0] = 0, spread[0] = scale, spread[1] = 4;
    for (int sweep = 0; sweep < 300; ++sweep) {
      for (std::size_t k = 0; k < parameters; ++k) {
        double numerator = prior[k] / (spread[k] * spread[k]), denominator = 1 / (spread[k] * spread[k]);
        for (std::size_t o = 0; o < features.size(); ++o) {
          if (features[o][k] == 0) continue;
          double others = 0;
          for (std::size_t j = 0; j < parameters; ++j) others += j == k ? 0 : theta[j] * features[o][j];
          numerator += features[o][k] * (rest[o] - others) / (noise * noise);
          denominator += features[o][k] * features[o][k] / (noise * noise);
        }
        theta[k] = k == 0 ? numerator / denominator : std::max(numerator / denominator, 0.0);
      }
    }
    constant_ = theta[0], cast_factor_ = theta[1];
    factors_.assign(theta.begin() + 2, theta.end());
  }

  const op_graph& graph_;
  std::vector<std::vector<precision>> levels_;
  std::vector<shared_tensor> tensors_;
  std::vector<std::size_t> kind_;
  std::size_t kinds_ = 0;
  std::vector<per_precision> base_;
  std::vector<observation> seen_;
  std::vector<double> factors_;
  double constant_ = 0, cast_factor_ = 1;
  bool profiled_ = false;
};

}  // namespace comp
