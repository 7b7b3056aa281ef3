// SPDX-License-Identifier: Apache-2.0
// Fused attention: one call of cuDNN's graph API computes attention, and one its gradients. Neither scores nor
// probabilities are written to memory. It exists for BF16 and FP16, if cuDNN has an execution plan for the case whose
// sums have a fixed order; settings::attention_in_any_order drops this condition. The plan's workspace may take
// settings::workspace_limit and the bytes that the probabilities would have taken.
// Without such a plan attention() returns nothing, the caller goes on operator by operator, and why() has cuDNN's
// reason. With dropout, cuDNN's masks differ from those of the separate operators.
#pragma once

#include <cudnn.h>

#include <array>
#include <comp_native/op/attention.hpp>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dnn.hpp"
#include "draw_counter.hpp"
#include "layout.hpp"
#include "transfer.hpp"

namespace comp::cuda {

using saved_tensor = native::with_saved<tensor>;

/// What one graph of cuDNN is made for. q is (batch,queries,heads*width); k and v are (batch,keys,heads*width).
struct attention_case {
  std::int64_t batch, heads, queries, keys, width;
  bool fp16;  // else BF16
  bool causal;
  double scale, dropout;
  bool any_order = false;  // of the sums of the backward: settings::attention_in_any_order
  auto operator<=>(const attention_case&) const = default;
};
/// The addresses of a call. dy, dq, dk and dv are for the backward alone.
struct attention_places {
  const void *q, *k, *v;
  void *y, *log_sums;                            // (batch,queries,heads*width); (batch,heads,queries) in FP32
  const std::int32_t *queries_seen, *keys_seen;  // (batch): how many queries and keys of each example are no padding
  const void* dy = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  const std::uint64_t* seed = nullptr;  // two numbers, cuDNN's seed and offset; null without dropout
};
/// A graph that cuDNN has planned, forward or backward.
class attention_graph {
 public:
  virtual ~attention_graph() = default;
  virtual std::int64_t workspace_bytes() const = 0;
  /// Launches the graph on the handle's stream. Returns: cuDNN's reason if it cannot; empty if it did.
  virtual std::string run(cudnnHandle_t, const attention_places&, void* workspace) const = 0;
};
/// What is known of one case.
struct attention_graphs {
  std::unique_ptr<attention_graph> forward = {}, backward = {};
  std::string why_not = {};                   // cuDNN's reason if a graph is missing; empty if both are there
  indices queries_seen = {}, keys_seen = {};  // for calls without padding: every query and key counts
};
/// most: the largest workspace [bytes] that a graph may need.
attention_graphs make_attention_graphs(cudnnHandle_t, const attention_case&, std::int64_t most);

/// The part of a context that keeps the graphs of attention by case, or the reason why there are none.
class fused_attention {
 public:
  explicit fused_attention(context&) {}

  /// Returns: the forward graph of the case, made at the first call; null if cuDNN has none. A CUDA capture makes none:
  /// planning uploads tensors, which a capture forbids.
  const attention_graph* forward(context& c, const attention_case& of) {
    auto found = known_.find(of);
    if (found == known_.end()) {
      if (c.capturing()) return nullptr;
      const std::int64_t keys = (of.keys + 127) / 128 * 128, queries = (of.queries + 127) / 128 * 128;
      const std::int64_t probabilities = 2 * of.batch * of.heads * queries * keys;
      attention_graphs graphs = make_attention_graphs(c.part<dnn>().handle(), of, c.workspace_limit() + probabilities);
      const auto all = [&](std::int64_t tokens) {
        const std::vector<std::int32_t> each(static_cast<std::size_t>(of.batch), static_cast<std::int32_t>(tokens));
        return upload(c, each, {of.batch});
      };
      graphs.queries_seen = all(of.queries);
      graphs.keys_seen = all(of.keys);
      found = known_.emplace(of, std::move(graphs)).first;
    }
    return found->second.why_not.empty() ? found->second.forward.get() : nullptr;
  }
  /// Returns: the backward graph of a case whose forward has run, even if the case was refused since.
  const attention_graph* backward(const attention_case& of) const {
    const auto found = known_.find(of);
    return found == known_.end() ? nullptr : found->second.backward.get();
  }
  /// Remembers that the case runs operator by operator from now on.
  void refuse(const attention_case& of, std::string why) { known_[of].why_not = std::move(why); }
  const attention_graphs& known(const attention_case& of) const { return known_.at(of); }
  /// Returns: a sentence for each case that runs operator by operator.
  std::vector<std::string> why() const {
    std::vector<std::string> all;
    for (const auto& [of, graphs] : known_) {
      if (graphs.why_not.empty()) continue;
      all.push_back(fmt::format("attention of ({},{},{},{}) to {} keys in {}{}{} runs operator by operator ({})",
                                of.batch, of.heads, of.queries, of.width, of.keys, of.fp16 ? "fp16" : "bf16",
                                of.causal ? ", causal" : "", of.dropout > 0 ? ", with dropout" : "", graphs.why_not));
    }
    return all;
  }
  /// Returns: the device address of cuDNN's seed and offset for the next call; null without dropout. Forward and
  /// backward of one dropout have the same key, so they draw the same mask.
  const std::uint64_t* seed(context& c, const attention_case& of, const native::dropout_key& key) {
    if (of.dropout == 0) return nullptr;
    const auto [counted, draws] = c.part<draw_counter>()(key);
    if (!seed_) seed_ = c.allocate(2 * sizeof(std::uint64_t));
    auto* at = static_cast<std::uint64_t*>(seed_->materialize());
    attention_seed(c.stream().get(), native::math::dropout_mask{of.dropout, counted}, draws, at);
    return at;
  }

 private:
  std::map<attention_case, attention_graphs> known_;
  std::shared_ptr<memory> seed_;
};

namespace detail {

inline attention_case case_of(const context& c, const tensor& q, const tensor& k, const native::attention_options& o) {
  const std::int64_t channels = q.shape()[2];
  return {q.shape()[0],
          o.heads,
          q.shape()[1],
          k.shape()[1],
          channels / o.heads,
          storage_of(q.precision()) == storage::fp16,
          o.mask == native::op::softmax_mask::causal,
          o.scale(channels),
          o.dropout,
          c.chosen().attention_in_any_order};
}
/// Returns: the addresses that forward and backward share. lengths: how many keys count in each example; null without
/// padding.
inline attention_places places_of(context& c, const attention_case& of, const tensor& q, const tensor& k,
                                  const tensor& v, const tensor& y, const tensor& log_sums, const indices* lengths,
                                  const native::dropout_key& key) {
  auto& all = c.part<fused_attention>();
  const attention_graphs& graphs = all.known(of);
  return {.q = q.materialize(),
          .k = k.materialize(),
          .v = v.materialize(),
          .y = y.materialize(),
          .log_sums = log_sums.materialize(),
          .queries_seen = graphs.queries_seen.data(),
          .keys_seen = (lengths ? *lengths : graphs.keys_seen).data(),
          .seed = all.seed(c, of, key)};
}

}  // namespace detail

/// Returns: y (B,Tq,C), and what the backward needs beside q, k and v. Nothing if cuDNN has no plan for the case, if
/// settings::fuse_attention is off, if q is neither BF16 nor FP16, and for an example of padding alone.
inline std::optional<saved_tensor> attention(context& c, const tensor& q, const tensor& k, const tensor& v,
                                             const indices& lengths, const native::attention_options& o,
                                             const native::dropout_key& key) {
  native::require_attention(q.shape(), k.shape(), v.shape(), o);
  const bool padded = o.mask == native::op::softmax_mask::padding;
  if (padded) {
    native::require_lengths({k.shape()[0], q.shape()[1], k.shape()[1]}, lengths.size(), lengths.range().least,
                            lengths.range().most);
    if (lengths.range().least == 0) return {};  // cuDNN before 9.25 returns NaN (NVIDIA/cudnn-frontend, issue 943)
  }
  const precision p = q.precision();
  const bool low = p == precision::bf16 || p == precision::fp16;
  if (!c.chosen().fuse_attention || !low || (o.dropout > 0 && key.everywhere)) return {};
  const attention_case of = detail::case_of(c, q, k, o);
  auto& all = c.part<fused_attention>();
  const attention_graph* graph = all.forward(c, of);
  if (!graph) return {};
  const tensor keys = cast(c, k, p), values = cast(c, v, p), y = c.make(q.shape(), p);
  tensor log_sums = c.make({of.batch, of.heads, of.queries}, precision::fp32);
  const attention_places at = detail::places_of(c, of, q, keys, values, y, log_sums, padded ? &lengths : nullptr, key);
  std::string why = graph->run(c.part<dnn>().handle(), at, c.scratch(graph->workspace_bytes()));
  if (!why.empty()) return all.refuse(of, std::move(why)), std::nullopt;
  return saved_tensor{y, {y, std::move(log_sums)}};
}

/// saved: what attention() returned for the same options and key. Returns: the gradients of q, k and v.
/// Throws: library_error. There is no way back to separate operators: their probabilities were never computed.
inline std::array<tensor, 3> attention_backward(context& c, const tensor& dy, const tensor& q, const tensor& k,
                                                const tensor& v, std::span<const tensor> saved, const indices& lengths,
                                                const native::attention_options& o, const native::dropout_key& key) {
  require_same("attention_backward", dy.shape(), q.shape());
  const attention_case of = detail::case_of(c, q, k, o);
  auto& all = c.part<fused_attention>();
  const attention_graph* graph = all.backward(of);
  require<error>(graph && saved.size() == 2,
                 "backward of attention over {} (its forward was not cuDNN's): give what attention() gave",
                 text(q.shape()));
  const bool padded = o.mask == native::op::softmax_mask::padding;
  const precision p = q.precision();
  const tensor keys = cast(c, k, p), values = cast(c, v, p), g = cast(c, dy, p);
  std::array<tensor, 3> dx{c.make_like(q), c.make_like(keys), c.make_like(values)};
  attention_places at = detail::places_of(c, of, q, keys, values, saved[0], saved[1], padded ? &lengths : nullptr, key);
  at.dy = g.materialize();
  at.dq = dx[0].materialize();
  at.dk = dx[1].materialize();
  at.dv = dx[2].materialize();
  const std::string why = graph->run(c.part<dnn>().handle(), at, c.scratch(graph->workspace_bytes()));
  if (!why.empty()) check(library_status{"cuDNN", why.c_str(), -1, verdict::failed}, "the backward of attention");
  return dx;
}

}  // namespace comp::cuda
