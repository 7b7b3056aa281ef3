// SPDX-License-Identifier: Apache-2.0
// The true best plan of a world: the fastest that does no harm. By a minimum cut if two precisions are searched, for
// any number of operators; by brute force, which the cut is checked against, if there are few.
// Source: Kolmogorov and Zabih 2004 (which energies are cuts); Boykov and Kolmogorov 2004 (the maximum flow, of Boost).
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12, in Boost's iterators over edges
#endif
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/boykov_kolmogorov_max_flow.hpp>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "trainer.hpp"

namespace truth {

inline double true_seconds(const world& w, const plan& p) { return w.costs(w.graph, p); }

inline bool does_harm(const world& w, const plan& p) { return effect_of(w.losses, p).harmful(); }

/// The operators that harm when they alone are low.
inline std::vector<bool> harmful_operators(const world& w) {
  std::vector<bool> harmful(w.graph.size());
  for (std::size_t i = 0; i < harmful.size(); ++i) {
    harmful[i] = (i < w.losses.immediate.size() && w.losses.immediate[i] > 0) ||
                 (i < w.losses.cumulative.size() && w.losses.cumulative[i] > 0);
  }
  for (const auto* harms : {&w.losses.slow, &w.losses.lost_low}) {
    for (std::size_t i = 0; i < harms->size(); ++i) harmful[i] = harmful[i] || (*harms)[i] > 0;
  }
  for (const std::size_t i : w.losses.diverging) harmful[i] = true;
  for (const std::size_t i : w.losses.sticking) harmful[i] = true;
  return harmful;
}

namespace detail {

using traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
using flow_graph = boost::adjacency_list<
    boost::vecS, boost::vecS, boost::directedS,
    boost::property<boost::vertex_color_t, boost::default_color_type,
                    boost::property<boost::vertex_distance_t, long,
                                    boost::property<boost::vertex_predecessor_t, traits::edge_descriptor>>>,
    boost::property<boost::edge_capacity_t, double,
                    boost::property<boost::edge_residual_capacity_t, double,
                                    boost::property<boost::edge_reverse_t, traits::edge_descriptor>>>>;

// Vertex 0 stands for FP32, vertex 1 for low, vertex 2 + i for operator i; others say whether a tensor is cast.
class cut {
 public:
  explicit cut(std::size_t operators) : graph_{operators + 2} {}

  std::size_t vertex() { return boost::add_vertex(graph_); }
  void join(std::size_t a, std::size_t b, double there, double back) {
    const auto one = boost::add_edge(a, b, graph_).first, other = boost::add_edge(b, a, graph_).first;
    boost::put(boost::edge_capacity, graph_, one, there);
    boost::put(boost::edge_capacity, graph_, other, back);
    boost::put(boost::edge_reverse, graph_, one, other);
    boost::put(boost::edge_reverse, graph_, other, one);
  }
  plan solve(std::size_t operators, precision low) {
    boost::boykov_kolmogorov_max_flow(graph_, 0, 1);
    plan solution{operators};
    for (std::size_t i = 0; i < operators; ++i) {
      if (boost::get(boost::vertex_color, graph_, i + 2) != boost::black_color)
        solution[i] = low;  // not on FP32's side
    }
    return solution;
  }

 private:
  flow_graph graph_;
};

// A tensor that is cast once: costs if its operator is on one side and any reader on the other.
inline void join_casts(cut& net, const world& w, std::size_t i) {
  const double seconds = w.costs.cast[i], never = 1e9;
  const auto readers = w.graph.consumers(i);
  if (w.costs.rule == cast_rule::per_edge) {
    for (const std::uint32_t reader : readers) net.join(i + 2, reader + 2, seconds, seconds);
    return;
  }
  if (readers.empty()) return;
  const std::size_t to_low = net.vertex(), to_fp32 = net.vertex();
  net.join(i + 2, to_low, seconds, 0);   // operator FP32, some reader low
  net.join(to_fp32, i + 2, seconds, 0);  // operator low, some reader FP32
  for (const std::uint32_t reader : readers) {
    net.join(to_low, reader + 2, never, 0);
    net.join(reader + 2, to_fp32, never, 0);
  }
}

/// The fastest plan of FP32 and `low` in which `pinned` operators are FP32.
inline plan fastest(const world& w, const std::vector<bool>& pinned, precision low) {
  const std::size_t n = w.graph.size();
  cut net{n};
  for (std::size_t i = 0; i < n; ++i) {
    const auto& seconds = w.costs.op[i];
    net.join(0, i + 2, pinned[i] ? 1e9 : seconds[static_cast<std::size_t>(low)], 0);  // cut if the operator is low
    net.join(i + 2, 1, seconds[static_cast<std::size_t>(precision::fp32)], 0);
    join_casts(net, w, i);
  }
  for (const fusion& f : w.costs.fused) net.join(f.producer + 2, f.reader + 2, f.saved, f.saved);
  return net.solve(n, low);
}

}  // namespace detail

/// Exact. Pairs that harm are tried with either of them in FP32: give few.
/// Throws: std::invalid_argument unless exactly two precisions are searched.
inline plan best_plan(const world& w) {
  if (w.precisions.size() != 2) throw std::invalid_argument{"a minimum cut knows two precisions"};
  const std::vector<bool> harmful = harmful_operators(w);
  plan best{w.graph.size()};
  const std::size_t pairs = w.losses.pairs.size();
  for (std::uint64_t sides = 0; sides < (std::uint64_t{1} << pairs); ++sides) {
    std::vector<bool> pinned = harmful;
    for (std::size_t k = 0; k < pairs; ++k) {
      const pair_harm& pair = w.losses.pairs[k];
      pinned[(sides >> k & 1U) != 0 ? pair.first : pair.second] = true;
    }
    const plan found = detail::fastest(w, pinned, w.precisions[1]);
    if (true_seconds(w, found) < true_seconds(w, best)) best = found;
  }
  return best;
}

/// Exact, any number of precisions; only for few operators.
inline plan brute_force(const world& w) {
  plan now{w.graph.size()}, best = now;
  const auto advance = [&] {
    for (std::size_t i = 0; i < now.size(); ++i) {
      const auto at = std::find(w.precisions.begin(), w.precisions.end(), now[i]);
      if (at + 1 != w.precisions.end()) {
        now[i] = *(at + 1);
        return true;
      }
      now[i] = w.precisions.front();
    }
    return false;
  };
  while (advance()) {
    if (true_seconds(w, now) < true_seconds(w, best) && !does_harm(w, now)) best = now;
  }
  return best;
}

/// `p` with FP32 for what harms.
inline plan without_harm(const world& w, plan p) {
  const std::vector<bool> harmful = harmful_operators(w);
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (harmful[i]) p[i] = precision::fp32;
  }
  for (const pair_harm& pair : w.losses.pairs) {
    if (comp::is_low(p[pair.first]) && comp::is_low(p[pair.second])) p[pair.first] = precision::fp32;
  }
  for (const pair_harm& pair : w.losses.apart) {
    if (comp::is_low(p[pair.first]) && !comp::is_low(p[pair.second])) p[pair.first] = precision::fp32;
  }
  return p;
}

/// The part of the best plan's saving that `p` has; what harmful operators save is not counted.
inline double part_of_saving(const world& w, const plan& p, const plan& best) {
  const double fp32 = true_seconds(w, plan{w.graph.size()});
  return (fp32 - true_seconds(w, without_harm(w, p))) / (fp32 - true_seconds(w, best));
}

}  // namespace truth
