// SPDX-License-Identifier: Apache-2.0
// The plan of TensorFlow's graph rewrite. The rewrite paints operators for the low precision in several passes over the
// graph, which are repeated here in TensorFlow's order.
// Use with systems/tensorflow.hpp, or with any policy whose categories mean the same as TensorFlow's.
// Operators that a cast of the model's own has put into a low precision stay in it. A choosable cast to FP32 whose
// readers are all painted gives the low precision at once.
// The rewrite's rules for loops (NextIteration) and tensor lists are left out: op_graph cannot represent either.
// Without an operator on the allow list everything stays in FP32, as in TensorFlow.
// Source: tensorflow/core/grappler/optimizers/auto_mixed_precision.cc; compared with what TensorFlow 2.21.0 does with
// 178 random graphs, on CUDA and through oneDNN with BF16 (tests/systems/tensorflow_painted.inc).
#pragma once

#include <algorithm>
#include <comp/autocast/own_casts.hpp>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/custom.hpp>
#include <comp/policy/kind_name.hpp>
#include <comp/systems/tensorflow.hpp>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace comp::autocast {

namespace detail {

/// What the rewrite has decided about an operator so far.
enum class paint : unsigned char { none, allow, deny };

/// Returns the format that each operator has in the model as written, before any plan: that of its result or, if the
/// result is integers, that of its inputs.
inline std::vector<precision> own_precisions(const op_graph& graph) {
  std::vector<precision> own(graph.size(), precision::fp32);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    std::optional<precision> recorded = cast_target(graph[i]);
    for (const auto* tensors : {&graph[i].outputs, &graph[i].inputs}) {
      const auto is_float = std::find_if(tensors->begin(), tensors->end(), [](auto& t) { return t.floating; });
      if (!recorded && is_float != tensors->end()) recorded = is_float->dtype;
    }
    for (const std::size_t from : graph[i].producers) {
      if (!recorded && gives_floats(graph[from])) recorded = own[from];
    }
    own[i] = recorded.value_or(precision::fp32);
  }
  return own;
}

class tensorflow_painter {
 public:
  template <OperatorPolicy P>
  tensorflow_painter(const P& policy, const op_graph& graph, const std::vector<std::string>& without_kernel)
      : graph_{graph}, own_{own_precisions(graph)}, painted_(graph.size(), paint::none) {
    for (std::size_t i = 0; i < graph.size(); ++i) {
      const op_info& op = graph[i];
      decisions_.push_back(op.author == author_choice::none ? policy.classify(op)
                                                            : decision{.category = category::deny});
      const bool floats = gives_floats(op) || std::ranges::any_of(op.inputs, &tensor_info::floating) ||
                          reads(i, [](std::size_t) { return true; });
      const bool kernel = std::none_of(without_kernel.begin(), without_kernel.end(),
                                       [&](const auto& kind) { return policy::same_operator(op.kind, kind); });
      convertible_.push_back(own_[i] == precision::fp32 && floats && kernel);
    }
  }

  /// Pass 1: paints the operators of the allow list. Whether they have a kernel in the low precision is asked only in
  /// pass 6, so until then they influence their neighbours.
  void allow_listed() {
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (is_allow(i)) painted_[i] = paint::allow;
    }
  }
  /// Pass 2: deny spreads forward through operators of the infer and clear lists, up to the last infer on the way: to
  /// operators of the infer and deny lists, and to those of the clear list from which a path of clear operators leads
  /// to one of these.
  void spread_deny() {
    std::vector<bool> may_spread(graph_.size());
    for (std::size_t i = graph_.size(); i-- > 0;) {
      may_spread[i] = on(category::infer, i) || on(category::deny, i) ||
                      (on(category::clear, i) && is_read_by(i, [&](std::size_t by) { return may_spread[by]; }));
    }
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (on(category::deny, i) || (may_spread[i] && reads_painted(i, paint::deny))) painted_[i] = paint::deny;
    }
  }
  /// Pass 3: operators of the infer and clear lists become allow if they are on a path from an allow to another allow.
  void allow_between_allows() {
    std::vector<bool> below(graph_.size()), above(graph_.size());
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      below[i] = may_turn(i) && reads(i, [&](std::size_t from) { return is_allow(from) || below[from]; });
    }
    for (std::size_t i = graph_.size(); i-- > 0;) {
      above[i] = below[i] && is_read_by(i, [&](std::size_t by) { return is_allow(by) || above[by]; });
      if (above[i]) painted_[i] = paint::allow;
    }
  }
  /// Pass 4: an operator of the infer list that reads an allow and no deny becomes allow.
  void allow_infer_after_allow() {
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (painted_[i] != paint::none || !may_turn(i) || !on(category::infer, i)) continue;
      if (reads_painted(i, paint::allow) && !reads_painted(i, paint::deny)) painted_[i] = paint::allow;
    }
  }
  /// Pass 5: an operator of the clear list becomes allow if operators of the clear list connect it with an allow,
  /// before it or behind it. One whose result is integers becomes allow too, but nothing behind it does.
  void allow_clear_next_to_allow() {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (painted_[i] == paint::allow) open.push_back(i);
    }
    while (!open.empty()) {
      const std::size_t from = open.back();
      open.pop_back();
      const auto visit = [&](std::size_t i) {
        if (painted_[i] != paint::none || !may_turn(i) || !on(category::clear, i)) return;
        painted_[i] = paint::allow;
        open.push_back(i);
      };
      for (const std::size_t i : graph_[from].producers) {
        if (gives_floats(graph_[i])) visit(i);
      }
      if (!gives_floats(graph_[from])) continue;
      for (const std::size_t i : graph_.consumers(from)) visit(i);
    }
  }
  /// Pass 6: operators of the allow list without a kernel in the low precision lose their paint. Operators that were
  /// painted because of them keep theirs, as in TensorFlow.
  void drop_without_kernel() {
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (is_allow(i) && !convertible_[i]) painted_[i] = paint::none;
    }
  }
  /// Pass 7: a cast to FP32 whose readers are all painted allow is painted, too.
  void allow_casts_before_allow() {
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      const auto readers = graph_.consumers(i);
      if (cast_target(graph_[i]) != precision::fp32 || readers.empty()) continue;
      if (std::all_of(readers.begin(), readers.end(), [&](std::size_t by) { return painted_[by] == paint::allow; }))
        painted_[i] = paint::allow;
    }
  }

  /// Returns the plan in which painted operators run in `low` and all others in the format that the model gives them.
  plan plan_in(precision low) const {
    plan p{graph_.size()};
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (!graph_[i].choosable) continue;
      p[i] = decisions_[i].fixed           ? decisions_[i].compute
             : painted_[i] != paint::allow ? own_[i]
             : is_allow(i)                 ? lowered(decisions_[i], low)
                                           : low;
    }
    return p;
  }

 private:
  bool on(category list, std::size_t i) const { return decisions_[i].category == list; }
  bool is_allow(std::size_t i) const { return on(category::allow, i) && graph_[i].choosable; }
  bool may_turn(std::size_t i) const {
    return (on(category::infer, i) || on(category::clear, i)) && convertible_[i] && painted_[i] != paint::deny;
  }
  bool reads_painted(std::size_t i, paint color) const {
    return reads(i, [&](std::size_t from) { return painted_[from] == color; });
  }
  /// True if `i` reads floating-point tensors of an operator for which `holds` is true.
  bool reads(std::size_t i, auto&& holds) const {
    return std::ranges::any_of(graph_[i].producers,
                               [&](std::size_t from) { return gives_floats(graph_[from]) && holds(from); });
  }
  /// True if an operator for which `holds` is true reads floating-point tensors of `i`.
  bool is_read_by(std::size_t i, auto&& holds) const {
    const auto readers = graph_.consumers(i);
    return gives_floats(graph_[i]) && std::any_of(readers.begin(), readers.end(), holds);
  }

  // All vectors have an entry for each operator.
  const op_graph& graph_;
  std::vector<precision> own_;            // its format in the model as written
  std::vector<decision> decisions_ = {};  // the policy's decision
  std::vector<bool> convertible_ = {};    // whether TensorFlow could convert it: FP32 so far, and a kernel
  std::vector<paint> painted_;
};

/// Returns the policy beneath a user's rules.
template <class P>
const P& base_policy(const P& policy) {
  return policy;
}
template <class Over>
const auto& base_policy(const policy::custom<Over>& listed) {
  return base_policy(listed.over);
}

}  // namespace detail

/// Runs the passes. For policy::tensorflow, alone or under a user's rules (custom<tensorflow>), the policy says which
/// precision is the low one and whether pass 4 runs; for any other policy it is FP16 with pass 4. `without_kernel`
/// names the kinds that this device cannot run in the low precision.
/// Returns: a plan that fits `graph`, of the low precision and FP32; an operator whose precision the policy fixes, or
/// that the model itself runs in another one, keeps it. An operator that is not choosable has FP32 in the plan, but its
/// paint counts for its neighbours: a Reshape between two allows connects them.
/// Throws: `settings_error` as tensorflow::check does; what the policy throws.
plan tensorflow_pass(const OperatorPolicy auto& policy, const op_graph& graph,
                     const std::vector<std::string>& without_kernel = {}) {
  precision low = precision::fp16;
  bool infer_follows_allow = true;
  const auto& amp = detail::base_policy(policy);
  if constexpr (std::same_as<std::remove_cvref_t<decltype(amp)>, policy::tensorflow>) {
    amp.check();
    low = amp.low;
    infer_follows_allow = amp.infer_follows_allow;
  }
  detail::tensorflow_painter painter{policy, graph, without_kernel};
  painter.allow_listed();
  painter.spread_deny();
  painter.allow_between_allows();
  if (infer_follows_allow) painter.allow_infer_after_allow();
  painter.allow_clear_next_to_allow();
  painter.drop_without_kernel();
  painter.allow_casts_before_allow();
  return painter.plan_in(low);
}

}  // namespace comp::autocast
