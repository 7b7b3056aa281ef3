// SPDX-License-Identifier: Apache-2.0
// What a batch costs under any plan, from what a few plans were seen to cost. Operators come from profiles, or from
// their operations and bytes; casts from bytes. Batches that were timed correct all of it: each kind, each operator in
// each precision, casts by the two formats, and each edge, whose neighbours may run as one while they agree. How far a
// profile and a sum of operators may be trusted is not set but read from the batches: of several beliefs the one under
// which they are most probable. `drawn` gives costs that may be true as well, for the next question.
// Not here: the regression (strategy/ridge.hpp), the cheapest plan (strategy/min_cut.hpp).
// Source: design.md, section 5; MacKay 1992 (evidence); Doucet 2010 (drawing by conditioning a draw).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/core/statistics.hpp>
#include <comp/strategy/plan_costs.hpp>
#include <comp/strategy/ridge.hpp>
#include <cstddef>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp {

/// Learns what plans cost.
class cost_model {
 public:
  /// `levels`: the precisions that each operator may have, at least one, that of the most conservative plan first;
  /// those of an operator without a choice are one.
  cost_model(const op_graph& graph, std::vector<std::vector<precision>> levels)
      : graph_{graph}, levels_{std::move(levels)}, tensors_{detail::tensors_and_edges(graph)}, anchor_{graph.size()} {
    std::unordered_map<std::string_view, std::size_t> kinds;
    for (const op_info& op : graph) kind_.push_back(kinds.try_emplace(op.kind, kinds.size()).first->second);
    kinds_ = kinds.size();
    for (std::size_t i = 0; i < graph.size(); ++i) anchor_[i] = levels_[i].front();
    base_.assign(graph.size(), {});
    estimate();
    fit();
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
      speed_ = 1;
      scale(sum / operators_seconds(p));
      speed_ = 1;
    }
    for (std::size_t i = 0; i < times.size(); ++i) {
      const double took = speed_ * (times[i].forward + times[i].backward), before = base_[i][index_of(p[i])];
      if (!profiled_ && before > 0) {
        for (double& s : base_[i]) s *= took / before;
      }
      base_[i][index_of(p[i])] = took;
    }
    if (!profiled_ || p == anchor_) estimate_casts(p, times);
    profiled_ = true;
    fit_to_batch();
    fit();
    return true;
  }

  /// A batch under `p` took so many seconds; a time that is none teaches nothing. `spread`: its standard deviation, as
  /// a part. The most conservative plan's is what others are known beside.
  void learn_batch(const plan& p, double seconds, double spread = 0.005) {
    if (!std::isfinite(seconds) || seconds <= 0) return;
    if (p == anchor_ || batch_ == 0) {
      batch_ = p == anchor_ ? seconds : seconds * operators_seconds(anchor_) / operators_seconds(p);
      fit_to_batch();
      fit();
    }
    if (p != anchor_) learn_pair(p, anchor_, seconds / batch_, spread);
  }
  /// A batch under `p` took `ratio` times one under `beside`, which ran in turns with it.
  void learn_pair(const plan& p, const plan& beside, double ratio, double spread) {
    if (!std::isfinite(ratio) || ratio <= 0 || !(batch_ > 0)) return;
    const std::size_t one = index_of_plan(p), other = index_of_plan(beside);
    seen_.push_back({one, other, ratio, std::max(spread, 0.002)});
    fit();
  }

  /// As far as is known now.
  const plan_costs& costs() const { return now_; }
  /// Costs that may as well be true, by what was seen so far.
  plan_costs drawn(std::mt19937_64& random) const {
    std::normal_distribution<double> normal;
    plan_costs made = prior();
    std::vector<double> of_kind(kinds_ * precision_count);
    for (double& each : of_kind) each = kind_spread * normal(random);
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const double apart = spread_of(i) * std::sqrt(0.5), alike = apart * normal(random);
      for (const precision p : levels_[i]) {
        if (p == anchor_[i]) continue;
        made.seconds[i][index_of(p)] +=
            of_kind[kind_[i] * precision_count + index_of(p)] * saved(i, p) + alike + apart * normal(random);
      }
    }
    const double all = cast_spread * normal(random);
    for (per_precision& from : made.cast_factor) {
      for (double& factor : from) factor += all + pair_spread * normal(random);
    }
    for (shared_tensor& t : made.tensors) t.apart_seconds += edge_spread() * normal(random);
    const double beside_anchor = anchor_spread * batch_ * normal(random);
    std::vector<double> moved, off;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      const double now = linear(made, plans_[i].plan) - linear(made, anchor_);
      const bool other = plans_[i].plan != anchor_;
      moved.push_back(now - before_[i] + (other ? beside_anchor : 0) + misfit(plans_[i]) * normal(random));
    }
    for (const observation& o : seen_) {
      const double there = moved[o.plan] - o.ratio * moved[o.beside];
      off.push_back(off_by(o) - there - noise(o) * normal(random));
    }
    correct(made, by_plan(ridge_.weights(off)));
    return made;
  }

  /// Whether a single operator shows in a batch: of very many none does.
  bool resolves() const { return graph_.size() <= resolved; }
  /// Bytes that operator `i` hands on in `p`; 0 where shapes are not known.
  double bytes(std::size_t i, precision p) const { return bytes_of(i) / 4 * traits(p).bytes; }

  /// Seconds of a batch under `p`: of what was timed also what no sum of operators says.
  double batch_seconds(const plan& p) const {
    const double sum = linear(now_, p);
    if (!(batch_ > 0)) return sum;
    double own = 0;
    for (std::size_t i = 0; p != anchor_ && i < plans_.size(); ++i) {
      if (plans_[i].plan == anchor_) continue;
      own += of_plan_[i] * anchor_spread * anchor_spread * batch_ * batch_;
      if (plans_[i].plan == p) own += of_plan_[i] * misfit(plans_[i]) * misfit(plans_[i]);
    }
    return std::max(batch_ + sum - linear(now_, anchor_) + own, 0.01 * batch_);
  }
  /// The standard deviation of what the difference of the two is thought to be.
  double spread(const plan& p, const plan& q) const {
    const features a = features_of(p), b = features_of(q);
    std::vector<double> with;
    for (const observation& o : seen_) {
      const features &x = plans_[o.plan], &y = plans_[o.beside];
      with.push_back(covariance(a, x) - covariance(b, x) - o.ratio * (covariance(a, y) - covariance(b, y)));
    }
    const double before = covariance(a, a) + covariance(b, b) - 2 * covariance(a, b);
    return std::sqrt(std::max(before - ridge_.explained(with), 0.0));
  }

 private:
  // What a plan's seconds depend on beside each operator's own.
  struct features {
    comp::plan plan;
    std::vector<double> kinds = {};         // seconds that a kind saves in a precision
    per_cast casts = {};                    // seconds of casts, by the formats
    std::vector<unsigned char> apart = {};  // per tensor: in how many precisions it is wanted that it has not
  };
  struct observation {
    std::size_t plan, beside;
    double ratio, spread;
  };
  // How far things may be from what was thought: an operator from its profile, the tie of an edge from nothing, a plan
  // from the sum of its operators. As parts of an operator, of a usual operator, of a batch.
  struct belief {
    double operators, edges, plans;
  };
  static constexpr double kind_spread = 0.15, cast_spread = 2, pair_spread = 1;
  static constexpr double anchor_spread = 0.02;  // of its batches, which ran at another time than all others
  static constexpr std::size_t resolved = 2000;

  // ---- what was known before any batch ----
  double operators_seconds(const plan& p) const {
    double sum = 0;
    for (std::size_t i = 0; i < graph_.size(); ++i) sum += base_[i][index_of(p[i])];
    return sum > 0 ? sum : 1;
  }
  void scale(double factor) {
    for (auto& each : base_) {
      for (double& s : each) s *= factor;
    }
    for (shared_tensor& t : tensors_) t.cast_seconds *= factor;
    speed_ *= factor;
  }
  // Operators together take a batch where they were only estimated, and no more than one where they were profiled.
  void fit_to_batch() {
    const double factor = batch_ / operators_seconds(anchor_);
    if (batch_ > 0 && (!profiled_ || factor < 1)) scale(factor);
    std::vector<double> sizes;
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (graph_[i].choosable) sizes.push_back(base_[i][index_of(anchor_[i])]);
    }
    usual_ = sizes.empty() ? 0 : median(sizes);
    for (features& f : plans_) f = features_of(f.plan);
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      for (std::size_t j = 0; j <= i; ++j) products_[i][j] = products(plans_[i], plans_[j]);
    }
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
      tensors_[i].cast_seconds = most > 0 ? 16 * 1.5 * bytes_of(i) / most : 0.1;
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
      const double took = speed_ * (times[i].forward + times[i].backward);
      if (op.choosable) all.push_back(took);
      if (op.choosable && p[i] == precision::fp32 && op.bytes > 0 && op.flops <= 4 * op.bytes) {
        bytes += static_cast<double>(op.bytes), seconds += took;
      }
    }
    if (!(bytes > 0) && p.count_low() > 0) return;
    const double usual = median(all);
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const double size = bytes_of(i);
      tensors_[i].cast_seconds = size > 0 && bytes > 0 ? 1.5 * size * seconds / bytes : 0.1 * usual;
    }
  }
  plan_costs prior() const {
    plan_costs result{std::vector<per_precision>(graph_.size()), tensors_};
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      result.seconds[i].fill(std::numeric_limits<double>::infinity());
      for (const precision p : levels_[i]) result.seconds[i][index_of(p)] = base_[i][index_of(p)];
    }
    return result;
  }

  // ---- what batches say ----
  double saved(std::size_t i, precision p) const { return base_[i][index_of(p)] - base_[i][index_of(anchor_[i])]; }
  double spread_of(std::size_t i) const {
    return resolves() ? belief_.operators * (base_[i][index_of(anchor_[i])] + usual_) / 2 : 0;
  }
  double edge_spread() const { return resolves() ? belief_.edges * usual_ : 0; }
  double misfit(const features& f) const { return f.plan == anchor_ ? 0 : belief_.plans * batch_; }
  double noise(const observation& o) const { return o.ratio * o.spread * batch_; }
  static double linear(const plan_costs& costs, const plan& p) {
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i) sum += costs.seconds[i][index_of(p[i])];
    costs.each_cast(p, [&](const shared_tensor& t, precision to) {
      sum += t.cast_seconds * costs.cast_factor[index_of(p[t.producer])][index_of(to)] + t.apart_seconds;
    });
    return sum;
  }

  features features_of(const plan& p) const {
    features f{.plan = p, .kinds = std::vector<double>(kinds_ * precision_count)};
    for (std::size_t i = 0; i < p.size(); ++i) f.kinds[kind_[i] * precision_count + index_of(p[i])] += saved(i, p[i]);
    if (resolves()) f.apart.assign(tensors_.size(), 0);
    std::size_t at = 0;
    for (const shared_tensor& t : tensors_) {
      std::array<bool, precision_count> wanted{};
      for (const auto reader : t.readers) wanted[index_of(p[reader])] = true;
      const std::size_t from = index_of(p[t.producer]);
      wanted[from] = false;
      for (std::size_t to = 0; to < precision_count; ++to) {
        if (!wanted[to]) continue;
        f.casts[from][to] += t.cast_seconds;
        if (resolves()) ++f.apart[at];
      }
      ++at;
    }
    return f;
  }
  std::size_t index_of_plan(const plan& p) {
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      if (plans_[i].plan == p) return i;
    }
    plans_.push_back(features_of(p));
    products_.emplace_back();
    for (const features& other : plans_) products_.back().push_back(products(plans_.back(), other));
    return plans_.size() - 1;
  }

  // Of two plans, what their covariance is made of: what kinds and casts give, operators, edges.
  struct product {
    double shared = 0, operators = 0, edges = 0;
  };
  product products(const features& a, const features& b) const {
    product made;
    double all_a = 0, all_b = 0;
    for (std::size_t k = 0; k < a.kinds.size(); ++k) made.shared += kind_spread * kind_spread * a.kinds[k] * b.kinds[k];
    for (std::size_t i = 0; i < precision_count; ++i) {
      for (std::size_t j = 0; j < precision_count; ++j) {
        made.shared += pair_spread * pair_spread * a.casts[i][j] * b.casts[i][j];
        all_a += a.casts[i][j], all_b += b.casts[i][j];
      }
    }
    made.shared += cast_spread * cast_spread * all_a * all_b;
    if (a.plan != anchor_ && b.plan != anchor_) made.shared += anchor_spread * anchor_spread * batch_ * batch_;
    if (!resolves()) return made;
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (a.plan[i] == anchor_[i] || b.plan[i] == anchor_[i]) continue;
      const double size = (base_[i][index_of(anchor_[i])] + usual_) / 2;
      made.operators += (a.plan[i] == b.plan[i] ? 1 : 0.5) * size * size;
    }
    for (std::size_t t = 0; t < a.apart.size(); ++t) made.edges += usual_ * usual_ * a.apart[t] * b.apart[t];
    return made;
  }
  double weighed(const product& of, bool same, const features& f) const {
    return of.shared + belief_.operators * belief_.operators * of.operators + belief_.edges * belief_.edges * of.edges +
           (same ? misfit(f) * misfit(f) : 0);
  }
  double covariance(const features& a, const features& b) const { return weighed(products(a, b), a.plan == b.plan, a); }
  double covariance(std::size_t i, std::size_t j) const {
    return weighed(products_[std::max(i, j)][std::min(i, j)], i == j, plans_[i]);
  }
  double off_by(const observation& o) const {
    return (o.ratio - 1) * batch_ - before_[o.plan] + o.ratio * before_[o.beside];
  }

  void fit() {
    now_ = prior();
    before_.clear();
    for (const features& f : plans_) before_.push_back(linear(now_, f.plan) - linear(now_, anchor_));
    if (seen_.empty()) return;
    std::vector<double> off;
    for (const observation& o : seen_) off.push_back(off_by(o));
    belief best{};
    double most = -std::numeric_limits<double>::infinity();
    for (const double operators : {0.05, 0.2, 0.6}) {
      for (const double edges : {0.0, 0.15, 0.5}) {
        for (const double plans : {0.002, 0.02, 0.1}) {
          if (!resolves() && (operators > 0.05 || edges > 0)) continue;
          belief_ = {operators, edges, plans};
          ridge tried = regression(off);
          if (tried.evidence() > most) most = tried.evidence(), best = belief_, ridge_ = std::move(tried);
        }
      }
    }
    belief_ = best;
    of_plan_ = by_plan(ridge_.weights());
    correct(now_, of_plan_);
  }
  ridge regression(const std::vector<double>& off) const {
    std::vector<std::vector<double>> rows;
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      std::vector<double>& row = rows.emplace_back();
      const observation& a = seen_[i];
      for (std::size_t j = 0; j <= i; ++j) {
        const observation& b = seen_[j];
        row.push_back(covariance(a.plan, b.plan) - b.ratio * covariance(a.plan, b.beside) -
                      a.ratio * covariance(a.beside, b.plan) + a.ratio * b.ratio * covariance(a.beside, b.beside));
      }
      row[i] += noise(a) * noise(a);
    }
    return {std::move(rows), off};
  }
  // Adds to each parameter its covariances with the observations, times their weights.
  void correct(plan_costs& costs, const std::vector<double>& of_plan) const {
    std::vector<double> kinds(kinds_ * precision_count);
    double all = 0;
    per_cast casts{};
    for (std::size_t j = 0; j < plans_.size(); ++j) {
      for (std::size_t k = 0; k < kinds.size(); ++k) kinds[k] += of_plan[j] * plans_[j].kinds[k];
      for (std::size_t from = 0; from < precision_count; ++from) {
        for (std::size_t to = 0; to < precision_count; ++to) {
          casts[from][to] += of_plan[j] * plans_[j].casts[from][to];
          all += of_plan[j] * plans_[j].casts[from][to];
        }
      }
    }
    for (std::size_t from = 0; from < precision_count; ++from) {
      for (std::size_t to = 0; to < precision_count; ++to)
        costs.cast_factor[from][to] += pair_spread * pair_spread * casts[from][to] + cast_spread * cast_spread * all;
    }
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      per_precision own{};
      double low = 0;
      for (std::size_t j = 0; resolves() && j < plans_.size(); ++j) {
        if (plans_[j].plan[i] == anchor_[i]) continue;
        own[index_of(plans_[j].plan[i])] += of_plan[j] / 2;
        low += of_plan[j] / 2;
      }
      const double variance = spread_of(i) * spread_of(i);
      for (const precision p : levels_[i]) {
        if (p == anchor_[i]) continue;
        const double by_kind = kind_spread * kind_spread * kinds[kind_[i] * precision_count + index_of(p)];
        costs.seconds[i][index_of(p)] += by_kind * saved(i, p) + variance * (own[index_of(p)] + low);
      }
    }
    if (edge_spread() > 0) {
      for (std::size_t j = 0; j < plans_.size(); ++j) {
        for (std::size_t t = 0; t < costs.tensors.size(); ++t)
          costs.tensors[t].apart_seconds += edge_spread() * edge_spread() * of_plan[j] * plans_[j].apart[t];
      }
    }
  }
  // Of the observations' weights, those of the plans.
  std::vector<double> by_plan(const std::vector<double>& weights) const {
    std::vector<double> sums(plans_.size());
    for (std::size_t i = 0; i < seen_.size(); ++i) {
      sums[seen_[i].plan] += weights[i];
      sums[seen_[i].beside] -= seen_[i].ratio * weights[i];
    }
    return sums;
  }

  const op_graph& graph_;
  std::vector<std::vector<precision>> levels_;
  std::vector<shared_tensor> tensors_;
  plan anchor_;
  std::vector<std::size_t> kind_;
  std::size_t kinds_ = 0;
  std::vector<per_precision> base_;
  std::vector<observation> seen_ = {};
  std::vector<features> plans_ = {};
  std::vector<std::vector<product>> products_ = {};
  std::vector<double> before_ = {}, of_plan_ = {};
  belief belief_ = {0.05, 0, 0.002};
  ridge ridge_ = {};
  plan_costs now_ = {};
  double batch_ = 0, speed_ = 1, usual_ = 0;
  bool profiled_ = false;
};

}  // namespace comp
