// SPDX-License-Identifier: Apache-2.0
// Predicts the seconds of a batch under any plan from the batches of a few plans that were timed.
// The time of a plan is modelled as a sum over operators, over casts, and over edges. First estimates of operators come
// from profiles, or from their operations and bytes without a profile; those of casts from bytes. A profile times
// operators one by one, so it cannot know what neighbours save when a backend runs them as one, nor what casts between
// two low precisions cost. Timed batches therefore correct the estimates by a Bayesian linear regression: by kind of
// operator, by operator and precision, by the two formats of a cast, and by edge:
//   T(p) = T(anchor) + x(p) w,   w ~ N(w0, S): estimates w0, spreads S; x(p): what `features` counts
//   r_i = T(p_i) / T(q_i): a pair of plans that were timed in turns
//   y_i = (r_i - 1) T(anchor) - x(p_i) w0 + r_i x(q_i) w0: its residual
//   w = w0 + S X' (X S X' + N)^-1 y: the posterior mean; X has a row x(p_i) - r_i x(q_i) for each pair, N its noise
// How far to trust a profile, or any sum over operators, differs from backend to backend. It is no setting: of several
// priors (struct belief) the model takes the one under which the timed batches are most probable
// (docs/benchmarks/search.md has what this gains).
// Source: MacKay 1992 (evidence); Doucet 2010 (drawing from a posterior by conditioning a draw from the prior).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/core/statistics.hpp>
#include <comp/strategy/plan_costs.hpp>
#include <comp/strategy/ridge.hpp>
#include <cstddef>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp {

/// Learns the costs of plans. The anchor is the most conservative plan, usually FP32's: it is timed most often, so the
/// model predicts differences from it. `anchor_seconds_` is the anchor's time [s].
class cost_model {
 public:
  /// `levels` are the precisions that each operator may have, that of the most conservative plan first. An operator
  /// without a choice has one.
  cost_model(const op_graph& graph, std::vector<std::vector<precision>> levels)
      : graph_{graph}, levels_{std::move(levels)}, tensors_{detail::tensors_and_edges(graph)}, anchor_{graph.size()} {
    std::unordered_map<std::string_view, std::size_t> kinds;
    for (const op_info& op : graph) kind_.push_back(kinds.try_emplace(op.kind, kinds.size()).first->second);
    kinds_ = kinds.size();
    for (std::size_t i = 0; i < graph.size(); ++i) anchor_[i] = levels_[i].front();
    std::ranges::copy_if(all_precisions, std::back_inserter(searched_), [this](precision p) {
      return std::ranges::any_of(levels_, [p](const auto& of) { return std::ranges::find(of, p) != of.end(); });
    });
    base_.assign(graph.size(), {});
    estimate();
    fit();
  }

  const std::vector<std::vector<precision>>& levels() const { return levels_; }

  /// Learns from a profile under plan `p`.
  /// Returns: false if it cannot be used, because it has a wrong length, or times that are negative, not finite or all
  /// zero; nothing changes then.
  bool learn_profile(const plan& p, std::span<const op_time> times) {
    if (times.size() != graph_.size()) return false;
    double sum = 0;
    for (const op_time& t : times) {
      if (!(t.forward >= 0) || !(t.backward >= 0) || !std::isfinite(t.forward + t.backward)) return false;
      sum += t.forward + t.backward;
    }
    if (!(sum > 0)) return false;
    // The first profile replaces estimates that have no unit. They are scaled to seconds first, and then operator by
    // operator, so that the precisions that were not profiled yet keep their estimated ratio to the one that was.
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

  /// Learns that a batch under `p` took `seconds`; a time that is not finite or not above 0 is ignored. `spread` is the
  /// time's standard deviation relative to the time.
  void learn_batch(const plan& p, double seconds, double spread = 0.005) {
    if (!std::isfinite(seconds) || seconds <= 0) return;
    if (p == anchor_ || anchor_seconds_ == 0) {
      anchor_seconds_ = p == anchor_ ? seconds : seconds * operators_seconds(anchor_) / operators_seconds(p);
      fit_to_batch();
      fit();
    }
    if (p != anchor_) learn_pair(p, anchor_, seconds / anchor_seconds_, spread);
  }
  /// Learns that a batch under `p` took `ratio` times as long as one under `beside`, when both ran in turns. A ratio
  /// says more than two times, because the machine's load cancels.
  void learn_pair(const plan& p, const plan& beside, double ratio, double spread) {
    if (!std::isfinite(ratio) || ratio <= 0 || !(anchor_seconds_ > 0)) return;
    // A smaller spread than 0.2% would mean that a single pair of batches decides everything.
    const std::size_t one = index_of_plan(p), other = index_of_plan(beside);
    observations_.push_back({one, other, ratio, std::max(spread, 0.002)});
    fit();
  }

  /// Returns the most probable costs, by all that was learned so far.
  const plan_costs& costs() const { return posterior_; }
  /// Draws costs from the posterior. Plans that are cheapest under such draws are worth asking about (Thompson
  /// sampling). A draw from the prior is made first, and then corrected by the batches as the estimates are.
  plan_costs drawn(std::mt19937_64& random) const {
    std::normal_distribution<double> normal;
    plan_costs draw = prior();
    std::vector<double> of_kind(kinds_ * precision_count);
    for (std::size_t kind = 0; kind < kinds_; ++kind) {
      for (const precision p : searched_) of_kind[kind * precision_count + index_of(p)] = kind_spread * normal(random);
    }
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const double apart = spread_of(i) * std::sqrt(0.5), alike = apart * normal(random);
      for (const precision p : levels_[i]) {
        if (p == anchor_[i]) continue;
        draw.seconds[i][index_of(p)] +=
            of_kind[kind_[i] * precision_count + index_of(p)] * saved(i, p) + alike + apart * normal(random);
      }
    }
    const double all = cast_spread * normal(random);
    for (const precision from : searched_) {
      for (const precision to : searched_) {
        draw.cast_factor[index_of(from)][index_of(to)] += all + pair_spread * normal(random);
      }
    }
    for (shared_tensor& t : draw.tensors) t.apart_seconds += edge_spread() * normal(random);
    const double beside_anchor = anchor_spread * anchor_seconds_ * normal(random);
    std::vector<double> moved, off;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      const double now = linear(draw, plans_[i].plan) - linear(draw, anchor_);
      const bool other = plans_[i].plan != anchor_;
      moved.push_back(now - prior_differences_[i] + (other ? beside_anchor : 0) + misfit(plans_[i]) * normal(random));
    }
    for (const observation& o : observations_) {
      const double there = moved[o.plan] - o.ratio * moved[o.beside];
      off.push_back(residual(o) - there - noise(o) * normal(random));
    }
    correct(draw, weights_of_plans(ridge_.weights(off)));
    return draw;
  }

  /// True if batches can tell single operators apart. In a very large graph one operator is lost in the noise; then
  /// only kinds and casts are corrected, which also keeps the model fast.
  bool resolves() const { return graph_.size() <= resolved; }
  /// Returns the bytes of the result of operator `i` in precision `p`; 0 if shapes are unknown.
  double bytes(std::size_t i, precision p) const { return bytes_of(i) / 4 * traits(p).bytes; }

  /// Predicts the seconds of a batch under `p`. For a plan that was timed this includes its own misfit, which is the
  /// part of its time that no sum over operators explains.
  double batch_seconds(const plan& p) const {
    const double sum = linear(posterior_, p);
    if (!(anchor_seconds_ > 0)) return sum;
    double misfits = 0;
    for (std::size_t i = 0; p != anchor_ && i < plans_.size(); ++i) {
      if (plans_[i].plan == anchor_) continue;
      misfits += plan_weights_[i] * anchor_spread * anchor_spread * anchor_seconds_ * anchor_seconds_;
      if (plans_[i].plan == p) misfits += plan_weights_[i] * misfit(plans_[i]) * misfit(plans_[i]);
    }
    return std::max(anchor_seconds_ + sum - linear(posterior_, anchor_) + misfits, 0.01 * anchor_seconds_);
  }
  /// Returns the standard deviation of the predicted difference between two plans [s].
  double spread(const plan& p, const plan& q) const {
    const features a = features_of(p), b = features_of(q);
    std::vector<double> with;
    for (const observation& o : observations_) {
      const features &x = plans_[o.plan], &y = plans_[o.beside];
      with.push_back(covariance(a, x) - covariance(b, x) - o.ratio * (covariance(a, y) - covariance(b, y)));
    }
    const double before = covariance(a, a) + covariance(b, b) - 2 * covariance(a, b);
    return std::sqrt(std::max(before - ridge_.explained(with), 0.0));
  }

 private:
  // A plan as the regression sees it: the coefficients of all parameters but the operators' own, which follow from the
  // plan itself.
  struct features {
    comp::plan plan;
    std::vector<double> kinds = {};         // by kind and precision: seconds that its operators are thought to save
    per_cast casts = {};                    // by the two formats: estimated seconds of its casts
    std::vector<unsigned char> apart = {};  // by tensor: to how many other precisions it has to be cast
  };
  // A timed pair: plan `plan` took `ratio` times as long as plan `beside`. Both are indices into plans_.
  struct observation {
    std::size_t plan, beside;
    double ratio, spread;
  };
  // Standard deviations of the prior. `operators`: of an operator's time around its profile, relative to the operator.
  // `edges`: of what neighbours save when they agree, relative to a usual operator. `plans`: of a plan's time around
  // the sum of its operators, relative to a batch.
  struct belief {
    double operators, edges, plans;
  };
  // The same for what all operators of a kind, all casts, and the casts between two formats have in common.
  static constexpr double kind_spread = 0.15, cast_spread = 2, pair_spread = 1;
  static constexpr double anchor_spread = 0.02;  // for the anchor's batches, which ran at another time than all others
  static constexpr std::size_t resolved = 2000;

  // ---- estimates before any batch was timed ----
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
  // Scales the estimates to the anchor's batch. Estimates without a profile are scaled so that operators together take
  // a batch. Profiled times are only scaled down: a batch also takes time outside of operators, but operators cannot
  // take more than the batch.
  void fit_to_batch() {
    const double factor = anchor_seconds_ / operators_seconds(anchor_);
    if (anchor_seconds_ > 0 && (!profiled_ || factor < 1)) scale(factor);
    std::vector<double> sizes;
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (graph_[i].choosable) sizes.push_back(base_[i][index_of(anchor_[i])]);
    }
    median_operator_ = sizes.empty() ? 0 : median(sizes);
    for (features& f : plans_) f = features_of(f.plan);
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      for (std::size_t j = 0; j <= i; ++j) products_[i][j] = products(plans_[i], plans_[j]);
    }
  }

  // Estimates operators by work_of(): FP64 takes twice FP32's time, and a low precision a little more than half of it,
  // as tensors of twice and half the bytes do. If no operator has a size, all count the same. A cast is estimated by
  // its bytes.
  void estimate() {
    double most = 0;
    for (const op_info& op : graph_) most = std::max(most, work_of(op));
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const double work = most > 0 ? work_of(graph_[i]) / most : 1;
      for (const precision p : all_precisions) {
        const double part = p == precision::fp64 ? 2 : p == precision::fp32 ? 1 : p == precision::tf32 ? 0.6 : 0.55;
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
  // Estimates casts from a profile: a cast reads and writes bytes as fast as those operators of the profile that are
  // bound by memory. Without shapes a cast is taken to cost a tenth of a usual operator.
  void estimate_casts(const plan& p, std::span<const op_time> times) {
    double bytes = 0, seconds = 0;
    std::vector<double> all;
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const op_info& op = graph_[i];
      const double took = speed_ * (times[i].forward + times[i].backward);
      if (op.choosable) all.push_back(took);
      if (op.choosable && p[i] == op.as_written && op.bytes > 0 && op.flops <= 4 * op.bytes) {
        bytes += static_cast<double>(op.bytes), seconds += took;
      }
    }
    if (!(bytes > 0) && p.count_lowered(graph_) > 0) return;
    const double usual = median(all);
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const double size = bytes_of(i);
      tensors_[i].cast_seconds = size > 0 && bytes > 0 ? 1.5 * size * seconds / bytes : 0.1 * usual;
    }
  }
  // Returns the costs before any batch was timed.
  plan_costs prior() const {
    plan_costs result{std::vector<per_precision>(graph_.size()), tensors_};
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      result.seconds[i].fill(std::numeric_limits<double>::infinity());
      for (const precision p : levels_[i]) result.seconds[i][index_of(p)] = base_[i][index_of(p)];
    }
    return result;
  }

  // ---- corrections by timed batches ----
  double saved(std::size_t i, precision p) const { return base_[i][index_of(p)] - base_[i][index_of(anchor_[i])]; }
  // Standard deviation of an operator's time [s]. Half of the usual operator is added to its size, because a profile's
  // error on a tiny operator is not tiny (a launch, a call).
  double spread_of(std::size_t i) const {
    return resolves() ? belief_.operators * (base_[i][index_of(anchor_[i])] + median_operator_) / 2 : 0;
  }
  double edge_spread() const { return resolves() ? belief_.edges * median_operator_ : 0; }
  double misfit(const features& f) const { return f.plan == anchor_ ? 0 : belief_.plans * anchor_seconds_; }
  double noise(const observation& o) const { return o.ratio * o.spread * anchor_seconds_; }
  // Returns the sum over operators and casts. Unlike plan_costs::operator() it lets a cast be below 0, since the
  // regression is linear.
  static double linear(const plan_costs& costs, const plan& p) {
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i) sum += costs.seconds[i][index_of(p[i])];
    each_cast(costs.tensors, p, [&](const shared_tensor& t, precision to) {
      sum += t.cast_seconds * costs.cast_factor[index_of(p[t.producer])][index_of(to)] + t.apart_seconds;
    });
    return sum;
  }

  features features_of(const plan& p) const {
    features f{.plan = p, .kinds = std::vector<double>(kinds_ * precision_count)};
    for (std::size_t i = 0; i < p.size(); ++i) f.kinds[kind_[i] * precision_count + index_of(p[i])] += saved(i, p[i]);
    if (resolves()) f.apart.assign(tensors_.size(), 0);
    each_cast(tensors_, p, [&](const shared_tensor& t, precision to) {
      f.casts[index_of(p[t.producer])][index_of(to)] += t.cast_seconds;
      if (resolves()) ++f.apart[static_cast<std::size_t>(&t - tensors_.data())];
    });
    return f;
  }
  // Returns the index of a plan among those that were timed; adds a new one, with its products with all others.
  std::size_t index_of_plan(const plan& p) {
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      if (plans_[i].plan == p) return i;
    }
    plans_.push_back(features_of(p));
    products_.emplace_back();
    for (const features& other : plans_) products_.back().push_back(products(plans_.back(), other));
    return plans_.size() - 1;
  }

  // The covariance of two plans' times, in the parts that each belief scales: they are computed once and weighed anew
  // for each belief that is tried.
  struct product {
    double shared = 0, operators = 0, edges = 0;
  };
  product products(const features& a, const features& b) const {
    product sums;
    double all_a = 0, all_b = 0;
    for (std::size_t k = 0; k < a.kinds.size(); ++k) sums.shared += kind_spread * kind_spread * a.kinds[k] * b.kinds[k];
    for (std::size_t i = 0; i < precision_count; ++i) {
      for (std::size_t j = 0; j < precision_count; ++j) {
        sums.shared += pair_spread * pair_spread * a.casts[i][j] * b.casts[i][j];
        all_a += a.casts[i][j], all_b += b.casts[i][j];
      }
    }
    sums.shared += cast_spread * cast_spread * all_a * all_b;
    if (a.plan != anchor_ && b.plan != anchor_)
      sums.shared += anchor_spread * anchor_spread * anchor_seconds_ * anchor_seconds_;
    if (!resolves()) return sums;
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (a.plan[i] == anchor_[i] || b.plan[i] == anchor_[i]) continue;
      const double size = (base_[i][index_of(anchor_[i])] + median_operator_) / 2;
      sums.operators += (a.plan[i] == b.plan[i] ? 1 : 0.5) * size * size;
    }
    for (std::size_t t = 0; t < a.apart.size(); ++t)
      sums.edges += median_operator_ * median_operator_ * a.apart[t] * b.apart[t];
    return sums;
  }
  // Returns the covariance under the current belief. A plan's own misfit is shared with no other plan.
  double weighed(const product& of, bool same, const features& f) const {
    return of.shared + belief_.operators * belief_.operators * of.operators + belief_.edges * belief_.edges * of.edges +
           (same ? misfit(f) * misfit(f) : 0);
  }
  double covariance(const features& a, const features& b) const { return weighed(products(a, b), a.plan == b.plan, a); }
  double covariance(std::size_t i, std::size_t j) const {
    return weighed(products_[std::max(i, j)][std::min(i, j)], i == j, plans_[i]);
  }
  // Returns by how many seconds an observation differs from the estimates. With times T, T(plan) = ratio * T(beside),
  // and prior_differences_ holds the estimated T - T(anchor), of which the anchor's anchor_seconds_ is known.
  double residual(const observation& o) const {
    return (o.ratio - 1) * anchor_seconds_ - prior_differences_[o.plan] + o.ratio * prior_differences_[o.beside];
  }

  // Corrects the estimates by all observations, under the belief that makes them most probable. Few beliefs are tried:
  // the data are tens of batches, and factors of three are all that they can tell apart.
  void fit() {
    posterior_ = prior();
    prior_differences_.clear();
    for (const features& f : plans_)
      prior_differences_.push_back(linear(posterior_, f.plan) - linear(posterior_, anchor_));
    if (observations_.empty()) return;
    std::vector<double> off;
    for (const observation& o : observations_) off.push_back(residual(o));
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
    plan_weights_ = weights_of_plans(ridge_.weights());
    correct(posterior_, plan_weights_);
  }
  // Regresses the observations' differences under the current belief; the rows are the observations' covariances.
  ridge regression(const std::vector<double>& off) const {
    std::vector<std::vector<double>> rows;
    for (std::size_t i = 0; i < observations_.size(); ++i) {
      std::vector<double>& row = rows.emplace_back();
      const observation& a = observations_[i];
      for (std::size_t j = 0; j <= i; ++j) {
        const observation& b = observations_[j];
        row.push_back(covariance(a.plan, b.plan) - b.ratio * covariance(a.plan, b.beside) -
                      a.ratio * covariance(a.beside, b.plan) + a.ratio * b.ratio * covariance(a.beside, b.beside));
      }
      row[i] += noise(a) * noise(a);
    }
    return {std::move(rows), off};
  }
  // Adds to each parameter its covariance with the timed plans, times the plans' weights: the regression's posterior
  // mean. An operator's deviation is half its own in each precision and half common to all its low precisions, since an
  // operator that gains nothing in BF16 seldom gains in FP16.
  void correct(plan_costs& costs, const std::vector<double>& plan_weights) const {
    std::vector<double> kinds(kinds_ * precision_count);
    double all = 0;
    per_cast casts{};
    for (std::size_t j = 0; j < plans_.size(); ++j) {
      for (std::size_t k = 0; k < kinds.size(); ++k) kinds[k] += plan_weights[j] * plans_[j].kinds[k];
      for (std::size_t from = 0; from < precision_count; ++from) {
        for (std::size_t to = 0; to < precision_count; ++to) {
          casts[from][to] += plan_weights[j] * plans_[j].casts[from][to];
          all += plan_weights[j] * plans_[j].casts[from][to];
        }
      }
    }
    for (std::size_t from = 0; from < precision_count; ++from) {
      for (std::size_t to = 0; to < precision_count; ++to)
        costs.cast_factor[from][to] += pair_spread * pair_spread * casts[from][to] + cast_spread * cast_spread * all;
    }
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      per_precision apart{};
      double low = 0;
      for (std::size_t j = 0; resolves() && j < plans_.size(); ++j) {
        if (plans_[j].plan[i] == anchor_[i]) continue;
        apart[index_of(plans_[j].plan[i])] += plan_weights[j] / 2;
        low += plan_weights[j] / 2;
      }
      const double variance = spread_of(i) * spread_of(i);
      for (const precision p : levels_[i]) {
        if (p == anchor_[i]) continue;
        const double by_kind = kind_spread * kind_spread * kinds[kind_[i] * precision_count + index_of(p)];
        costs.seconds[i][index_of(p)] += by_kind * saved(i, p) + variance * (apart[index_of(p)] + low);
      }
    }
    if (edge_spread() > 0) {
      for (std::size_t j = 0; j < plans_.size(); ++j) {
        for (std::size_t t = 0; t < costs.tensors.size(); ++t)
          costs.tensors[t].apart_seconds += edge_spread() * edge_spread() * plan_weights[j] * plans_[j].apart[t];
      }
    }
  }
  // Turns weights of observations into weights of plans: each observation is a difference of two plans' times.
  std::vector<double> weights_of_plans(const std::vector<double>& weights) const {
    std::vector<double> sums(plans_.size());
    for (std::size_t i = 0; i < observations_.size(); ++i) {
      sums[observations_[i].plan] += weights[i];
      sums[observations_[i].beside] -= observations_[i].ratio * weights[i];
    }
    return sums;
  }

  const op_graph& graph_;
  std::vector<std::vector<precision>> levels_;
  std::vector<precision> searched_ = {};  // the precisions that any operator may have; no others are drawn
  std::vector<shared_tensor> tensors_;    // tensors with their casts, and edges (plan_costs.hpp)
  plan anchor_;
  std::vector<std::size_t> kind_;  // by operator: the number of its kind
  std::size_t kinds_ = 0;
  std::vector<per_precision> base_;                  // estimated seconds of each operator in each precision
  std::vector<observation> observations_ = {};       // the regression's observations
  std::vector<features> plans_ = {};                 // the plans that were timed
  std::vector<std::vector<product>> products_ = {};  // lower triangle: of each two timed plans
  std::vector<double> prior_differences_ = {},
                      plan_weights_ = {};  // by timed plan: prior T - T(anchor); its weight in the posterior
  belief belief_ = {0.05, 0, 0.002};       // the prior's standard deviations
  ridge ridge_ = {};                       // the regression, solved
  plan_costs posterior_ = {};              // the posterior mean of the costs
  // The anchor's batch [s], the factor from profiled to used seconds, and the median operator [s].
  double anchor_seconds_ = 0, speed_ = 1, median_operator_ = 0;
  bool profiled_ = false;
};

}  // namespace comp
