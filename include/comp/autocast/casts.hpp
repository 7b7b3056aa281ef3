// SPDX-License-Identifier: Apache-2.0
// The casts that a plan needs: each tensor once per precision, shared by its readers, on the side of the views where it
// moves fewer bytes; never back and forth. What a run of the plan costs in casts at least; the
// native trainer and LibTorch place theirs as they run.
// A cast reads the tensor that the kernel wrote, never another cast: FP16 out of an FP32 accumulator is not cast back.
// Not here: casts that the model itself has: they run in every plan. Against TVM's (one per reader's argument and
// precision) and TensorFlow's (one per output port): never more.
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

struct cast {
  std::size_t op = 0;  // whose result is cast, right after it; of an input: who reads it, right before
  std::optional<std::size_t> input = {};  // of `op`'s inputs, when no operator gives it: a parameter, or data
  precision from = precision::fp32;
  precision to = precision::fp32;
  std::int64_t bytes = 0;                   // read and written; 0: shapes are not known
  std::vector<std::uint32_t> readers = {};  // in execution order; empty: the model hands it out
  bool differentiable = true;               // false: the model's data, which gets no gradient
};

struct cast_list {
  std::vector<cast> forward = {};   // in execution order
  std::vector<cast> backward = {};  // the gradients' way back through the same casts, in execution order of a backward
  std::int64_t bytes() const {
    const auto sum = [](const std::vector<cast>& casts) {
      return std::accumulate(casts.begin(), casts.end(), std::int64_t{0},
                             [](std::int64_t all, const cast& c) { return all + c.bytes; });
    };
    return sum(forward) + sum(backward);
  }
};

/// Operators whose parameters stay FP32 whatever they compute in: kernels of norms read both.
constexpr bool keeps_parameters(std::string_view kind) {
  kind = policy::without_overload(kind);
  constexpr std::array<std::string_view, 9> norms{"batch_norm",        "native_batch_norm", "cudnn_batch_norm",
                                                  "layer_norm",        "native_layer_norm", "group_norm",
                                                  "native_group_norm", "instance_norm",     "sync_batch_norm"};
  return std::find(norms.begin(), norms.end(), kind) != norms.end();
}

namespace detail {

/// Bytes first, then how many: unknown sizes are 0 bytes, so there the count decides.
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

/// Places the casts to one precision: over each tensor and the views of it, the cheapest set that covers every reader.
class cast_placer {
 public:
  cast_placer(const op_graph& graph, const typed_plan& types)
      : graph_{graph}, types_{types}, viewed_(graph.size(), none), root_(graph.size()) {
    for (std::size_t i = 0; i < graph.size(); ++i) {
      if (!computes(graph[i]) && moves_only(graph[i].kind)) look_through(i);
      root_[i] = is_view(i) ? root_[viewed_[i]] : i;
    }
  }

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

  /// What operator `reader` needs of `from`: nothing when it takes what it gets.
  std::optional<precision> wanted(std::size_t reader, std::size_t from) const {
    if (!gives_floats(graph_[from])) return std::nullopt;
    if (chooses(reader)) return handed_on(types_.plan[reader]);
    return is_view(reader) ? std::nullopt : std::optional{types_.handed_on[from]};
  }

 private:
  bool chooses(std::size_t reader) const { return computes(graph_[reader]) && !cast_target(graph_[reader]); }
  /// A view: a node of its tensor's tree. Every other carrier is a tensor of its own, and runs in what it gets.
  bool is_view(std::size_t i) const { return viewed_[i] != none; }
  void look_through(std::size_t i) {
    const std::vector<std::size_t> sources = float_sources(graph_, i);
    if (sources.size() == 1 && is_carrier(graph_, i)) viewed_[i] = sources.front();
  }
  precision source(std::size_t i) const { return types_.written[root_[i]]; }
  std::int64_t bytes(std::size_t i, precision to) const {
    return floats_of(graph_[i]) * (traits(source(i)).bytes + traits(to).bytes);
  }

  void find_wanted(precision to) {
    asked_.assign(graph_.size(), false);
    for (std::size_t reader = 0; reader < graph_.size(); ++reader) {
      for (const std::size_t from : graph_[reader].producers) {
        if (wanted(reader, from) == to && source(from) != to) asked_[from] = true;
      }
    }
    for (std::size_t i = 0; i < graph_.size(); ++i) {  // what the model hands out is as the pass says
      const bool out = graph_.consumers(i).empty() && gives_floats(graph_[i]);
      if (out && types_.handed_on[root_[i]] == to && source(i) != to) asked_[i] = true;
    }
  }
  /// A cast stands where readers ask, or where it is no dearer than those that its views would need.
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
      if (wanted(reader, from) != to || source(from) == to) continue;
      std::size_t at = from;
      while (slot_[at] == none) at = viewed_[at];
      auto& readers = casts[slot_[at]].readers;
      if (readers.empty() || readers.back() != reader) readers.push_back(static_cast<std::uint32_t>(reader));
    }
  }

  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  const op_graph& graph_;
  const typed_plan& types_;
  std::vector<std::size_t> viewed_, root_;
  std::vector<bool> asked_ = {}, here_ = {};
  std::vector<cast_price> below_ = {};
  std::vector<std::size_t> slot_ = {};  // of the cast that is placed at an operator's result
};

/// Parameters and data that an operator reads in another precision than they are stored in: once per precision where
/// the graph says that several operators read the same one, before the first of them.
inline void cast_leaves(const op_graph& graph, const typed_plan& types, std::vector<cast>& casts) {
  std::map<std::tuple<std::int32_t, precision, precision>, std::size_t> known;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (!computes(graph[i]) || cast_target(graph[i]) || keeps_parameters(graph[i].kind)) continue;
    const precision to = handed_on(types.plan[i]);
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
      const std::int64_t bytes = elements(graph[i].inputs[k]) * (traits(from).bytes + traits(to).bytes);
      casts.push_back(
          {.op = i, .input = k, .from = from, .to = to, .bytes = bytes, .readers = {reader}, .differentiable = !data});
    }
  }
}

}  // namespace detail

/// The casts of one training step.
/// Returns: casts in execution order: of inputs before their operator, of results after theirs.
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

/// Throws: `plan_error` when `p` does not fit `graph`.
inline cast_list casts(const op_graph& graph, const plan& p) { return casts(graph, typed(graph, p)); }

}  // namespace comp::autocast
