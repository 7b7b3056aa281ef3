// SPDX-License-Identifier: Apache-2.0
// The plan of TensorFlow's graph rewrite: which operators it paints for the low precision, pass by pass, in its order.
// Use with policy/tensorflow.hpp, or with any policy whose categories mean what TensorFlow's mean.
// Not here: what op_graph cannot say: loops (NextIteration), tensor lists, and casts that the model already has.
// Inert without an allow-operator: everything stays in FP32, as TensorFlow leaves the graph alone.
// Source: tensorflow/core/grappler/optimizers/auto_mixed_precision.cc; compared with what TensorFlow 2.21.0 does with
// 200 random graphs, on CUDA and through oneDNN with BF16 (tests/autocast/tensorflow_painted.txt).
#pragma once

#include <algorithm>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/kind_name.hpp>
#include <comp/policy/tensorflow.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace comp::autocast {

struct tensorflow_pass_settings {
  precision low = precision::fp16;
  std::vector<std::string> without_kernel = {};  // kinds that this device cannot run in `low`
  bool infer_follows_allow = false;              // pass 4, which TensorFlow had for oneDNN first, and then for all
};

namespace detail {

/// One operator as the rewrite sees it.
enum class paint : unsigned char { none, allow, deny };

class tensorflow_painter {
 public:
  template <OperatorPolicy P>
  tensorflow_painter(const P& policy, const op_graph& graph, const tensorflow_pass_settings& settings)
      : graph_{graph}, painted_(graph.size(), paint::none) {
    for (const op_info& op : graph) {
      category_.push_back(policy.classify(op).category);
      convertible_.push_back(is_convertible(op, settings));
    }
  }

  /// Pass 1. An allow-operator of the list is painted before anyone asks whether it has a kernel (see pass 6).
  void allow_listed() {
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (is_allow(i)) painted_[i] = paint::allow;
    }
  }
  /// Pass 2. deny spreads forward through infer and clear, up to the last infer on the way.
  void spread_deny() {
    const std::vector<bool> reaches = clear_before_infer_or_deny();
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const bool listed = category_[i] == category::deny;
      if (listed || (reaches[i] && reads_painted(i, paint::deny))) painted_[i] = paint::deny;
    }
  }
  /// Pass 3. infer and clear with an allow before and an allow behind become allow.
  void allow_between_allows() {
    std::vector<bool> below(graph_.size()), above(graph_.size());
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const auto& reads = graph_[i].producers;
      below[i] = may_turn(i) && std::any_of(reads.begin(), reads.end(),
                                            [&](std::size_t from) { return is_allow(from) || below[from]; });
    }
    for (std::size_t i = graph_.size(); i-- > 0;) {
      const auto readers = graph_.consumers(i);
      above[i] = below[i] &&
                 std::any_of(readers.begin(), readers.end(), [&](std::size_t to) { return is_allow(to) || above[to]; });
      if (above[i]) painted_[i] = paint::allow;
    }
  }
  /// Pass 4. An infer that reads an allow and no deny becomes allow.
  void allow_infer_after_allow() {
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (painted_[i] != paint::none || !may_turn(i) || category_[i] != category::infer) continue;
      if (reads_painted(i, paint::allow) && !reads_painted(i, paint::deny)) painted_[i] = paint::allow;
    }
  }
  /// Pass 5. clear connected to an allow, either way, through clear becomes allow.
  void allow_clear_beside_allow() {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (painted_[i] == paint::allow) open.push_back(i);
    }
    while (!open.empty()) {
      const std::size_t from = open.back();
      open.pop_back();
      const auto visit = [&](std::size_t i) {
        if (painted_[i] != paint::none || !may_turn(i) || category_[i] != category::clear) return;
        painted_[i] = paint::allow;
        open.push_back(i);
      };
      for (const std::size_t i : graph_[from].producers) visit(i);
      for (const std::size_t i : graph_.consumers(from)) visit(i);
    }
  }
  /// Pass 6. allow-operators of the list that have no kernel in the low precision lose their paint; what was painted
  /// because of them keeps it.
  void drop_without_kernel() {
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (is_allow(i) && !convertible_[i]) painted_[i] = paint::none;
    }
  }

  plan made(precision low) const {
    plan p{graph_.size()};
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (painted_[i] == paint::allow && graph_[i].choosable) p[i] = low;
    }
    return p;
  }

 private:
  static bool is_convertible(const op_info& op, const tensorflow_pass_settings& settings) {
    const auto floats = [](const tensor_info& t) { return t.floating && t.dtype == precision::fp32; };
    if (!op.outputs.empty() && std::none_of(op.outputs.begin(), op.outputs.end(), floats)) return false;
    return std::none_of(settings.without_kernel.begin(), settings.without_kernel.end(),
                        [&](const std::string& kind) { return policy::same_operator(op.kind, kind); });
  }
  bool is_allow(std::size_t i) const { return category_[i] == category::allow && graph_[i].choosable; }
  bool may_turn(std::size_t i) const {
    const bool open = category_[i] == category::infer || category_[i] == category::clear;
    return open && convertible_[i] && painted_[i] != paint::deny;
  }
  bool reads_painted(std::size_t i, paint wanted) const {
    const auto& reads = graph_[i].producers;
    return std::any_of(reads.begin(), reads.end(),
                       [&](std::size_t from) { return painted_[from] == wanted && gives_floats(graph_[from]); });
  }
  /// infer, deny, and the clear from which only clear leads to one of them: what pass 2 may spread to.
  std::vector<bool> clear_before_infer_or_deny() const {
    std::vector<bool> reaches(graph_.size());
    for (std::size_t i = graph_.size(); i-- > 0;) {
      const auto readers = graph_.consumers(i);
      reaches[i] = category_[i] == category::infer || category_[i] == category::deny ||
                   (category_[i] == category::clear && gives_floats(graph_[i]) &&
                    std::any_of(readers.begin(), readers.end(), [&](std::size_t to) { return reaches[to]; }));
    }
    return reaches;
  }

  const op_graph& graph_;
  std::vector<category> category_;
  std::vector<bool> convertible_;
  std::vector<paint> painted_;
};

}  // namespace detail

/// Returns: a plan of `settings.low` and FP32 that fits `graph`. An operator that is not choosable hands its paint on
/// (a Reshape between two allows joins them) and has FP32 in the plan.
/// Throws: what the policy throws.
template <OperatorPolicy P>
plan tensorflow_pass(const P& policy, const op_graph& graph, const tensorflow_pass_settings& settings = {}) {
  detail::tensorflow_painter painter{policy, graph, settings};
  painter.allow_listed();
  painter.spread_deny();
  painter.allow_between_allows();
  if (settings.infer_follows_allow) painter.allow_infer_after_allow();
  painter.allow_clear_beside_allow();
  painter.drop_without_kernel();
  return painter.made(settings.low);
}

/// TensorFlow's own lists and precision, with pass 4 as TensorFlow 2.21 has it.
/// Throws: `settings_error` as tensorflow::check.
inline plan tensorflow_pass(const policy::tensorflow& amp, const op_graph& graph,
                            std::vector<std::string> without_kernel = {}) {
  amp.check();
  return tensorflow_pass<policy::tensorflow>(
      amp, graph,
      {.low = amp.low, .without_kernel = std::move(without_kernel), .infer_follows_allow = amp.infer_follows_allow});
}

}  // namespace comp::autocast
