// SPDX-License-Identifier: Apache-2.0
// Computes the cheapest plan of a whole graph, with each operator free, in milliseconds. A plan's cost is a sum over
// operators and over casts between them, and such a sum over two precisions is minimised by a minimum cut. The paper
// enumerates plans instead.
// For two precisions the result is exact. For more, expansion moves are made until none helps: one move decides for all
// operators at once which of them change to one given precision.
// Source: Kolmogorov and Zabih 2004 (which sums a cut can minimise); Boykov, Veksler and Zabih 2001 (expansion moves);
// Boykov and Kolmogorov 2004 (maximum flow), by Boost.Graph.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // a false alarm about Boost's iterator over all edges
#endif
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/boykov_kolmogorov_max_flow.hpp>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/strategy/plan_costs.hpp>
#include <cstddef>
#include <utility>
#include <vector>

namespace comp::strategy {

namespace detail {

/// A network with a source (node 0) and a sink (node 1), of which a cut of least capacity is found. Capacities between
/// a node and one of these are summed up and added as a single edge, because Boost's algorithm only looks at the first
/// of several parallel edges, and its cut would not be the least.
class flow_network {
  using traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  struct edge {
    double capacity = 0, residual = 0;
    traits::edge_descriptor reverse = {};
  };
  using graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property, edge>;

 public:
  explicit flow_network(std::size_t nodes) : graph_(nodes + 2), source_(nodes + 2), sink_(nodes + 2) {}

  std::size_t add_node() {
    source_.push_back(0), sink_.push_back(0);
    return boost::add_vertex(graph_);
  }
  /// Adds a capacity. Requires: two nodes other than source and sink are joined at most once.
  void add(std::size_t from, std::size_t to, double capacity) {
    if (!(capacity > 0)) return;
    if (from == 0)
      source_[to] += capacity;
    else if (to == 1)
      sink_[from] += capacity;
    else
      join(from, to, capacity);
  }
  /// Returns: for each node, whether it is on the sink's side of the cut.
  /// Requires: it is called once, since it adds the edges to source and sink.
  std::vector<bool> cut() {
    const std::size_t n = boost::num_vertices(graph_);
    for (std::size_t i = 2; i < n; ++i) {
      if (source_[i] > 0) join(0, i, source_[i]);
      if (sink_[i] > 0) join(i, 1, sink_[i]);
    }
    std::vector<boost::default_color_type> color(n);
    std::vector<long> distance(n);
    std::vector<traits::edge_descriptor> predecessor(n);
    boost::boykov_kolmogorov_max_flow(graph_, boost::get(&edge::capacity, graph_), boost::get(&edge::residual, graph_),
                                      boost::get(&edge::reverse, graph_), predecessor.data(), color.data(),
                                      distance.data(), boost::get(boost::vertex_index, graph_), 0, 1);
    std::vector<bool> sink(n);
    for (std::size_t i = 0; i < n; ++i) sink[i] = color[i] != boost::black_color;
    return sink;
  }

 private:
  void join(std::size_t from, std::size_t to, double capacity) {
    const auto there = boost::add_edge(from, to, graph_).first, back = boost::add_edge(to, from, graph_).first;
    graph_[there] = {capacity, 0, back};
    graph_[back] = {0, 0, there};
  }

  graph graph_;
  std::vector<double> source_, sink_;  // the capacity from the source to each node, and from each node to the sink
};

/// An expansion move: the cheapest plan in which each operator keeps its precision or changes to `to`. An operator is a
/// node; on the sink's side of the cut it changes, on the source's side it stays. The capacity of the cut is the cost
/// of the plan.
class expansion {
 public:
  expansion(const plan_costs& costs, const plan& now, precision to)
      : costs_{costs}, now_{now}, to_{to}, network_{costs.size()} {
    for (std::size_t i = 0; i < costs.size(); ++i) {
      for (const double s : costs.seconds[i]) largest_ += std::isfinite(s) ? std::abs(s) : 0;
    }
    for (const shared_tensor& t : costs.tensors) largest_ += dearest(t) * precision_count;
    for (std::size_t i = 0; i < costs.size(); ++i) add_operator(i);
    for (const shared_tensor& t : costs.tensors) add_tensor(t);
  }

  plan solve() {
    const std::vector<bool> changes = network_.cut();
    plan next = now_;
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (changes[node(i)]) next[i] = to_;
    }
    return next;
  }

 private:
  static std::size_t node(std::size_t i) { return i + 2; }
  // A capacity larger than any cut that is possible without it stands for a precision that is not allowed. Infinity
  // would leave the algorithm with differences of infinities.
  double bounded(double seconds) const { return std::isfinite(seconds) ? seconds : 4 * largest_ + 1; }

  // An operator on the sink's side pays the edge from the source, which is its cost once changed; on the source's side
  // it pays the edge to the sink, its cost as it is. If both are equal it stays.
  void add_operator(std::size_t i) {
    if (now_[i] == to_) {
      network_.add(0, node(i), 4 * largest_ + 1);
      return;
    }
    const double changed = costs_.seconds[i][index_of(to_)], stays = costs_.seconds[i][index_of(now_[i])];
    const double less = std::min({changed, stays, 0.0});  // costs corrected by batches may be below 0, capacities not
    network_.add(0, node(i), bounded(changed - less));
    network_.add(node(i), 1, bounded(stays - less));
  }

  double dearest(const shared_tensor& t) const {
    double most = 0;
    for (const precision from : all_precisions) {
      for (const precision to : all_precisions) most = std::max(most, costs_.cast(t, from, to));
    }
    return most;
  }

  void add_tensor(const shared_tensor& t) {
    if (t.readers.empty()) return;
    cast_to_target(t);
    for (const precision q : all_precisions) {
      if (q != to_) cast_to_other(t, q);
    }
  }

  // A cast to `to_` is paid if the producer stays in another precision and a reader changes to `to_` or has it already.
  // However many readers do, the tensor is cast once: an extra node stands for "any reader".
  void cast_to_target(const shared_tensor& t) {
    const double seconds = costs_.cast(t, now_[t.producer], to_);
    if (now_[t.producer] == to_ || !(seconds > 0)) return;
    bool already = false;
    for (const auto r : t.readers) already = already || now_[r] == to_;
    if (already) {
      network_.add(node(t.producer), 1, seconds);
      return;
    }
    const std::size_t any = network_.add_node();  // is on the sink's side as soon as one reader is
    network_.add(node(t.producer), any, seconds);
    for (const auto r : t.readers) network_.add(any, node(r), 4 * largest_ + 1);
  }

  // A cast to another precision `q` is paid if a reader that has `q` stays, and the producer does not have `q` or
  // changes from it.
  void cast_to_other(const shared_tensor& t, precision q) {
    const precision from = now_[t.producer];
    const double stays = from == q ? 0 : costs_.cast(t, from, q), changes = costs_.cast(t, to_, q);
    if (!(stays > 0) && !(changes > 0)) return;
    std::size_t any = 0;  // is on the source's side as soon as one such reader is
    for (const auto r : t.readers) {
      if (now_[r] != q) continue;
      if (any == 0) any = network_.add_node();
      network_.add(node(r), any, 4 * largest_ + 1);
    }
    if (any == 0) return;
    network_.add(any, 1, std::min(stays, changes));
    if (changes > stays) network_.add(any, node(t.producer), changes - stays);
    // A cut cannot express that a cast gets cheaper if both the producer changes and a reader stays. What the
    // producer's change saves is therefore counted whether or not such a reader stays. The true cost of the plan that
    // is found may differ from the cut's; min_cut_plan only takes plans whose true cost is lower.
    if (stays > changes) network_.add(node(t.producer), 1, stays - changes);
  }

  const plan_costs& costs_;
  const plan& now_;
  precision to_;
  flow_network network_;
  double largest_ = 0;
};

}  // namespace detail

/// Returns: the cheapest plan for two precisions; for more, a plan that does not get cheaper when any set of operators
/// changes to one precision. Among equally cheap plans it is the one nearer to `start`.
/// Throws: `settings_error` if `start` has another length than `costs`, or a precision that is not allowed.
inline plan min_cut_plan(const plan_costs& costs, plan start) {
  require<settings_error>(start.size() == costs.size(),
                          "plan of {} operators for the costs of {} (they must agree): "
                          "start from a plan of this model",
                          start.size(), costs.size());
  for (std::size_t i = 0; i < start.size(); ++i) {
    require<settings_error>(std::isfinite(costs.seconds[i][index_of(start[i])]),
                            "operator {} starts in {}, whose time is {} (it must be finite and allowed): start from "
                            "another plan",
                            i, name(start[i]), costs.seconds[i][index_of(start[i])]);
  }
  double best = costs.seconds_of(start);
  for (bool better = true; better;) {
    better = false;
    for (const precision to : all_precisions) {
      const bool possible = std::any_of(costs.seconds.begin(), costs.seconds.end(),
                                        [&](const per_precision& s) { return std::isfinite(s[index_of(to)]); });
      if (!possible) continue;
      plan next = detail::expansion{costs, start, to}.solve();
      const double seconds = costs.seconds_of(next);
      if (seconds < best - 1e-9 * std::abs(best)) best = seconds, start = std::move(next), better = true;
    }
  }
  return start;
}

}  // namespace comp::strategy
