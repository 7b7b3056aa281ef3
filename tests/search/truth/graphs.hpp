// SPDX-License-Identifier: Apache-2.0
// Drawn operator graphs: chains, random DAGs and transformers, whose kinds say which list of the policy `lists` they
// stand on, with shapes, bytes and flops for cost models to read.
// Not here: how long an operator takes (costs.hpp), and what lowering it does to the loss (losses.hpp).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <comp/core/decision.hpp>
#include <comp/core/op_graph.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "draw.hpp"

namespace truth {

/// A policy of three lists, by how a kind begins: "allow", "deny", and all others.
struct lists {
  comp::decision classify(const comp::op_info& op) const {
    if (op.kind.starts_with("allow")) {
      return {.category = comp::category::allow, .compute = comp::precision::bf16, .output = comp::precision::bf16};
    }
    if (op.kind.starts_with("deny")) return {.category = comp::category::deny};
    return {};
  }
};

inline bool is_allow(const comp::op_info& op) { return op.kind.starts_with("allow"); }
inline bool is_deny(const comp::op_info& op) { return op.kind.starts_with("deny"); }

/// The operators of `graph` that `which` holds for.
template <class Predicate>
std::vector<std::size_t> operators_of(const comp::op_graph& graph, Predicate which) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (which(graph[i])) found.push_back(i);
  }
  return found;
}

enum class shape : std::uint8_t { chain, dag, transformer };

struct graph_settings {
  truth::shape shape = shape::dag;
  std::size_t operators = 12;
  double allow = 0.35, deny = 0.3;                               // parts of the operators; a transformer has its own
  std::size_t allow_kinds = 2, deny_kinds = 3, other_kinds = 3;  // at most
  double allow_least = 2, allow_most = 8;                        // work of an allow operator, cheap ones are 0.6 to 1.6
  double odd = 0;                       // part of the allow operators whose sizes do not suit matrix units
  std::vector<std::string> kinds = {};  // not empty: one per operator, instead of drawn ones
};

namespace detail {

inline constexpr std::array<std::string_view, 10> block_kinds{
    "deny.layer_norm", "allow.linear", "allow.linear", "allow.linear", "allow.bmm",
    "deny.softmax",    "allow.bmm",    "allow.linear", "add",          "gelu"};
inline constexpr std::array<std::array<std::size_t, 2>, 10> block_reads{
    {{1, 0}, {1, 0}, {2, 0}, {3, 0}, {3, 2}, {1, 0}, {1, 3}, {1, 0}, {1, 9}, {1, 0}}};  // how far back; 0: nothing

inline std::string drawn_kind(draw& random, const graph_settings& chosen) {
  const double at = random.uniform();
  if (at < chosen.allow) return fmt::format("allow.{}", random.below(chosen.allow_kinds));
  if (at < chosen.allow + chosen.deny) return fmt::format("deny.{}", random.below(chosen.deny_kinds));
  return fmt::format("other.{}", random.below(chosen.other_kinds));
}

inline std::vector<std::size_t> drawn_producers(draw& random, truth::shape shape, std::size_t i) {
  if (i == 0) return {};
  if (shape == shape::chain) return {i - 1};
  std::vector<std::size_t> producers;
  if (shape == shape::transformer) {
    for (const std::size_t back : block_reads[i % 10]) {
      if (back > 0 && back <= i) producers.push_back(i - back);
    }
    return producers;
  }
  const std::size_t reach = std::min<std::size_t>(i, 6);
  producers.push_back(random.chance(0.6) ? i - 1 : i - 1 - random.below(reach));
  if (const std::size_t second = i - 1 - random.below(reach); random.chance(0.35) && second != producers.front()) {
    producers.push_back(second);
  }
  return producers;
}

/// Sizes such that a machine of 10^12 operations and 10^11 bytes per second takes about `units` of 10^-4 s.
inline void give_sizes(comp::op_info& op, double units, bool suits) {
  const auto elements = static_cast<std::int64_t>(units * 4e5);
  op.bytes = 24 * elements;
  op.flops = elements;
  for (comp::tensor_info& in : op.inputs) in.shape = {elements};
  op.outputs = {{.shape = {elements}}};
  if (!is_allow(op)) return;
  op.m = 512, op.k = 64 * std::max<std::int64_t>(1, static_cast<std::int64_t>(units * 1e8 / (2 * 512 * 512 * 64)));
  op.n = suits ? 512 : 509;
  op.flops = 2 * op.m * op.n * op.k;
  op.bytes = 4 * (op.m * op.k + op.k * op.n + op.m * op.n);
  op.outputs = {{.shape = {op.m, op.n}}};
  op.inputs.push_back({.shape = {op.k, op.n}, .parameter = true});
}

}  // namespace detail

/// How much work an operator is: 1 for a cheap one, which takes about 10^-4 s in FP32.
inline double units_of(const comp::op_info& op) {
  return std::max(static_cast<double>(op.flops) / 1e8, static_cast<double>(op.bytes) / 1e7);
}

inline comp::op_graph drawn_graph(draw& random, const graph_settings& chosen) {
  std::vector<comp::op_info> ops(chosen.kinds.empty() ? chosen.operators : chosen.kinds.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    comp::op_info& op = ops[i];
    op.name = fmt::format("block{}.{}", i / 10, i % 10);
    op.scopes = {fmt::format("block{}", i / 10)};
    op.kind = !chosen.kinds.empty()                ? chosen.kinds[i]
              : chosen.shape == shape::transformer ? std::string{detail::block_kinds[i % 10]}
                                                   : detail::drawn_kind(random, chosen);
    op.producers = detail::drawn_producers(random, chosen.shape, i);
    for (const std::size_t p : op.producers) op.inputs.push_back({.source = static_cast<std::int32_t>(p)});
    if (op.producers.empty()) op.inputs.push_back({});
    const double units =
        is_allow(op) ? random.between(chosen.allow_least, chosen.allow_most) : random.between(0.6, 1.6);
    detail::give_sizes(op, units, !random.chance(chosen.odd));
  }
  return {std::move(ops)};
}

}  // namespace truth
