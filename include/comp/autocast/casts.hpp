// SPDX-License-Identifier: Apache-2.0
// The casts that a training step under a plan needs at least. A tensor is cast once per precision and its readers share
// the cast, which stands before or behind the tensor's views, whichever moves fewer bytes. The costs of a plan are
// estimated from this list; trainers place their own casts while they run.
// A cast always reads the tensor that the kernel wrote and never the result of another cast: if an operator sums in
// FP32 and hands on FP16, a reader that wants FP32 gets the sum, not FP16 cast back.
// TVM places a cast for each argument of each reader, TensorFlow one for each output; this list is never longer than
// theirs.
#pragma once

#include <algorithm>
#include <array>
#include <comp/autocast/typed_plan.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/kind_name.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace comp::autocast {

/// One cast of a tensor.
struct cast {
  std::size_t op = 0;  // the operator whose result is cast right after it; with `input`, the one whose input is cast
  std::optional<std::size_t> input = {};  // of a cast of a parameter or of data: which input of `op` it is
  precision from = precision::fp32;
  precision to = precision::fp32;
  std::int64_t bytes = 0;                   // bytes read and written; 0: the shapes are not known
  std::vector<std::uint32_t> readers = {};  // the operators that read it, in order; empty: it is the model's result
  bool differentiable = true;               // false: a cast of the model's data, which needs no gradient
};

/// All casts of one training step.
struct cast_list {
  std::vector<cast> forward = {};   // in execution order
  std::vector<cast> backward = {};  // casts of the gradients on their way back through `forward`, in their order
  std::int64_t bytes() const {
    const auto sum = [](const std::vector<cast>& casts) {
      return std::accumulate(casts.begin(), casts.end(), std::int64_t{0},
                             [](std::int64_t all, const cast& c) { return all + c.bytes; });
    };
    return sum(forward) + sum(backward);
  }
};

/// Operators whose parameters stay in FP32 whatever they compute in, because the kernels of norms take FP32 parameters
/// beside a low input.
constexpr bool keeps_parameters(std::string_view kind) {
  kind = policy::without_overload(kind);
  constexpr std::array<std::string_view, 10> norms{
      "batch_norm", "native_batch_norm", "cudnn_batch_norm", "layer_norm", "native_layer_norm",
      "group_norm", "native_group_norm", "instance_norm",    "rms_norm",   "sync_batch_norm"};
  return std::find(norms.begin(), norms.end(), kind) != norms.end();
}

namespace detail {

/// The price of casts: bytes first, then their number. If shapes are unknown all bytes are 0, and the number decides.
struct cast_price {
  std::int64_t bytes = 0, casts = 0;
  friend cast_price operator+(cast_price a, cast_price b) { return {a.bytes + b.bytes, a.casts + b.casts}; }
  friend auto operator<=>(const cast_price&, const cast_price&) = default;
};

inline std::int64_t elements(const tensor_info& t) {
  return std::accumulate(t.shape.begin(), t.shape.end(), std::int64_t{1}, std::multiplies<>{});
}
inline std::int64_t floats_of(const op_info& op) {
  return std::accumulate(op.outputs.begin(), op.outputs.end(), std::int64_t{0},
                         [](std::int64_t all, const tensor_info& t) { return all + (t.floating ? elements(t) : 0); });
}
/// Returns the bytes that a cast of `values` values reads and writes.
inline std::int64_t moved(std::int64_t values, precision from, precision to) {
  return static_cast<std::int64_t>(static_cast<double>(values) * (traits(from).bytes + traits(to).bytes));
}

/// Places the casts to one precision. A tensor and its views form a tree; a cast at a node serves all readers below it.
/// The cheapest set of casts that serves every reader is found from the leaves up.
class cast_placer {
 public:
  cast_placer(const op_graph& graph, const typed_plan& types)
      : graph_{graph}, types_{types}, viewed_(graph.size(), none), root_(graph.size()) {
    for (std::size_t i = 0; i < graph.size(); ++i) {
      if (!computes(graph[i]) && moves_only(graph[i].kind)) look_through(i);
      root_[i] = is_view(i) ? root_[viewed_[i]] : i;
    }
  }

  /// Appends the casts to precision `to`.
  void place(precision to, std::vector<cast>& casts) {
    find_wanted(to);
    price(to);
    std::vector<bool> covered(graph_.size());
    for (std::size_t i = 0; i < graph_.size(); ++i) {
      if (is_view(i) && covered[viewed_[i]]) covered[i] = true;
      if (covered[i] || !here_[i]) continue;
      covered[i] = true;
      casts.push_back({.op = i, .from = source(i), .to = to, .bytes = bytes(i, to)});
      slot_[i] = casts.size() - 1;
    }
    for (std::size_t reader = 0; reader < graph_.size(); ++reader) note_reader(reader, to, casts);
  }

  /// Returns: the format in which operator `reader` needs the result of `from`; nothing if it takes any format.
  std::optional<precision> read_format(std::size_t reader, std::size_t from) const {
    if (!gives_floats(graph_[from])) return std::nullopt;
    if (chooses(reader)) return read_in(types_.plan[reader]);
    return is_view(reader) ? std::nullopt : std::optional{types_.handed_on[from]};
  }

 private:
  bool chooses(std::size_t reader) const { return computes(graph_[reader]) && !cast_target(graph_[reader]); }
  /// True for a view of another operator's tensor. An in-place write hands on its input's format too, but is no view: a
  /// cast in front of it would change the format in which it computes.
  bool is_view(std::size_t i) const { return viewed_[i] != none; }
  void look_through(std::size_t i) {
    const std::vector<std::size_t> sources = float_sources(graph_, i);
    if (sources.size() == 1 && is_carrier(graph_, i)) viewed_[i] = sources.front();
  }
  precision source(std::size_t i) const { return types_.written[root_[i]]; }
  std::int64_t bytes(std::size_t i, precision to) const { return moved(floats_of(graph_[i]), source(i), to); }

  void find_wanted(precision to) {
    asked_.assign(graph_.size(), false);
    for (std::size_t reader = 0; reader < graph_.size(); ++reader) {
      for (const std::size_t from : graph_[reader].producers) {
        if (read_format(reader, from) == to && source(from) != to) asked_[from] = true;
      }
    }
    for (std::size_t i = 0; i < graph_.size(); ++i) {  // the model's results have the format that the plan gives them
      const bool out = graph_.consumers(i).empty() && gives_floats(graph_[i]);
      if (out && types_.handed_on[root_[i]] == to && source(i) != to) asked_[i] = true;
    }
  }
  /// Chooses the nodes to cast at: those whose own readers ask for the precision, and those at which a single cast
  /// costs no more than the casts that their views would need.
  void price(precision to) {
    below_.assign(graph_.size(), {});
    here_.assign(graph_.size(), false);
    slot_.assign(graph_.size(), none);
    for (std::size_t i = graph_.size(); i-- > 0;) {
      const cast_price own{bytes(i, to), 1};
      here_[i] = asked_[i] || (below_[i].casts > 0 && own <= below_[i]);
      const cast_price best = here_[i] ? own : below_[i];
      if (is_view(i)) below_[viewed_[i]] = below_[viewed_[i]] + best;
    }
  }
  void note_reader(std::size_t reader, precision to, std::vector<cast>& casts) const {
    for (const std::size_t from : graph_[reader].producers) {
      if (read_format(reader, from) != to || source(from) == to) continue;
      std::size_t at = from;
      while (slot_[at] == none) at = viewed_[at];
      auto& readers = casts[slot_[at]].readers;
      if (readers.empty() || readers.back() != reader) readers.push_back(static_cast<std::uint32_t>(reader));
    }
  }

  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  const op_graph& graph_;
  const typed_plan& types_;
  // All vectors have an entry for each operator.
  std::vector<std::size_t> viewed_, root_;  // whose tensor it views; who made that tensor
  std::vector<bool> asked_ = {},
                    here_ = {};         // whether a reader asks for a cast of its result; whether a cast stands there
  std::vector<cast_price> below_ = {};  // the price of the casts at its views
  std::vector<std::size_t> slot_ = {};  // the index of its result's cast in the list
};

/// Appends the casts of parameters and data that an operator reads in another format than they are stored in. If the
/// graph says that several operators read the same tensor, it is cast once per precision, before the first of them.
inline void cast_leaves(const op_graph& graph, const typed_plan& types, std::vector<cast>& casts) {
  std::map<std::tuple<std::int32_t, precision, precision>, std::size_t> known;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (!computes(graph[i]) || cast_target(graph[i]) || keeps_parameters(graph[i].kind)) continue;
    const precision to = read_in(types.plan[i]);
    for (const std::size_t k : leaf_inputs(graph, i)) {
      const bool data = is_data(graph, i, k);
      const precision from = data ? graph[i].inputs[k].dtype : types.parameters[i];
      if (from == to) continue;
      const std::int32_t leaf = graph[i].inputs[k].leaf;
      const auto reader = static_cast<std::uint32_t>(i);
      const auto [same, fresh] = known.try_emplace({leaf, from, to}, casts.size());
      if (leaf >= 0 && !fresh) {
        auto& readers = casts[same->second].readers;
        if (readers.back() != reader) readers.push_back(reader);
        continue;
      }
      const std::int64_t bytes = moved(elements(graph[i].inputs[k]), from, to);
      casts.push_back(
          {.op = i, .input = k, .from = from, .to = to, .bytes = bytes, .readers = {reader}, .differentiable = !data});
    }
  }
}

}  // namespace detail

/// Returns the casts of one training step in execution order: those of inputs before their operator, those of results
/// behind it.
inline cast_list casts(const op_graph& graph, const typed_plan& types) {
  cast_list list;
  detail::cast_leaves(graph, types, list.forward);
  detail::cast_placer placer{graph, types};
  for (const precision to : all_precisions) placer.place(to, list.forward);
  const auto earlier = [](const cast& a, const cast& b) {
    return std::pair{a.op, !a.input.has_value()} < std::pair{b.op, !b.input.has_value()};
  };
  std::sort(list.forward.begin(), list.forward.end(), [&](const cast& a, const cast& b) {
    return earlier(a, b) || (!earlier(b, a) && std::pair{a.input, a.to} < std::pair{b.input, b.to});
  });
  for (auto c = list.forward.rbegin(); c != list.forward.rend(); ++c) {
    if (!c->differentiable) continue;
    list.backward.push_back(*c);
    std::swap(list.backward.back().from, list.backward.back().to);
  }
  return list;
}

/// Returns the casts of one training step under a plan whose operators write the precision that they compute in.
/// Throws: `plan_error` when `p` does not fit `graph`.
inline cast_list casts(const op_graph& graph, const plan& p) { return casts(graph, typed(graph, p)); }

}  // namespace comp::autocast
