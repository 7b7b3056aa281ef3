// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <comp_native/op/bmm.hpp>
#include <comp_native/op/softmax.hpp>
#include <optional>
#include <type_traits>

namespace comp::native {

struct attention_options {
  std::int64_t heads = 1;
  op::softmax_mask mask = {};  // `padding` masks keys
  double dropout = 0;          // on the probabilities
  /// Returns the factor on the scores. `channels` is the number of channels of all heads.
  double scale(std::int64_t channels) const {
    return 1 / std::sqrt(static_cast<double>(channels) / static_cast<double>(heads));
  }
};

/// Checks q (B,Tq,C), k (B,Tk,C) and v (B,Tk,C). Throws: error.
inline void require_attention(const shape& q, const shape& k, const shape& v, const attention_options& o) {
  require_same("attention's keys and values", k, v);
  (void)split(q, o.heads);
  const bool causal = o.mask == op::softmax_mask::causal;
  require<error>(k.size() == 3 && k[0] == q[0] && k[2] == q[2] && k[1] > 0 && (!causal || k[1] == q[1]),
                 "attention of {} to {}{} (batches and channels must be equal, and causal as many tokens): change one",
                 text(q), text(k), causal ? ", causal," : "");
  require<error>(o.dropout >= 0 && o.dropout < 1, "attention with dropout {} (it must be in [0, 1)): change it",
                 o.dropout);
}

/// A Device that computes attention as one operator in some cases:
///   optional<with_saved> attention(q (B,Tq,C), k (B,Tk,C), v (B,Tk,C), I lengths, attention_options, dropout_key)
///                                   returns nothing, and has done nothing, in the other cases; lengths (B) are read
///                                   with mask padding
///   array<T, 3> attention_backward(dy, q, k, v, span<const T> saved, lengths, attention_options, dropout_key)
///                                   returns the gradients of q, k and v
template <class D>
concept Attends = requires(D& d, const typename D::tensor& t, const typename D::indices& lengths,
                           const attention_options& o, const dropout_key& key) {
  { d.attention(t, t, t, lengths, o, key) } -> std::same_as<std::optional<with_saved<typename D::tensor>>>;
};

namespace op {

/// Attention: softmax(q k' / sqrt(width of a head)) v for each head, with dropout on the softmax. If the Device
/// computes it as one operator, only what its products read is rounded. Otherwise it is the Device's products and
/// softmax one by one, each rounded to the operator's precision.
struct attention {  // queries (B,Tq,C), keys (B,Tk,C), values (B,Tk,C) -> (B,Tq,C)
  attention_options options = {};

  constexpr bool draws() const { return options.dropout > 0; }
  constexpr bool reads_lengths() const { return options.mask == softmax_mask::padding; }
  constexpr std::string_view kind() const { return "scaled_dot_product_attention"; }
  constexpr auto settings() const { return std::tuple{options.heads, options.mask, options.dropout}; }
  shape output(std::span<const shape> x) const { return require_attention(x[0], x[1], x[2], options), x[0]; }
  /// The contraction sizes are those of the first product. Masked scores are counted as work, too.
  void cost(const cost_call& c) const {
    const shape& q = c.inputs[0];
    const std::int64_t all = q[0] * options.heads * q[1] * c.inputs[1][1];
    c.matrix(q[0] * options.heads, q[1], c.inputs[1][1], q[2] / options.heads);
    c.info.flops += c.info.flops + 5 * all;
  }
  auto forward(const auto& c) const {
    auto& d = c.device;
    const attention_options now = at(c.training);
    if constexpr (Attends<std::remove_cvref_t<decltype(d)>>) {
      if (auto result = d.attention(c.x[0], c.x[1], c.x[2], c.batch.lengths, now, c.left.key)) {
        auto y = c.keep(std::move(*result));
        c.left.kept.insert(c.left.kept.begin(), c.x.begin(), c.x.end());
        return y;
      }
    }
    const auto q = d.split_heads(c.x[0], options.heads), k = d.split_heads(c.x[1], options.heads),
               v = d.split_heads(c.x[2], options.heads);
    const double scale = options.scale(c.x[0].shape()[2]);
    const auto weights = softmax{options.mask}.of(c, d.bmm(q, k, false, true, scale));
    c.left.kept = {q, k, v, weights};
    return d.merge_heads(d.bmm(dropped(d, weights, now, c.left.key), v, false, false, 1));
  }
  auto backward(const auto& c) const {
    auto& d = c.device;
    const auto &q = c.kept(0), &k = c.kept(1), &v = c.kept(2);
    if constexpr (Attends<std::remove_cvref_t<decltype(d)>>) {
      if (c.left.kept.size() > in_parts) {
        auto [dq, dk, dv] = d.attention_backward(c.dy, q, k, v, std::span{c.left.kept}.subspan(3), c.batch.lengths,
                                                 options, c.left.key);
        return c.gradients(std::move(dq), std::move(dk), std::move(dv));
      }
    }
    const auto& weights = c.kept(3);
    const auto g = d.split_heads(c.dy, options.heads);
    auto dv = d.bmm(dropped(d, weights, options, c.left.key), g, true, false, 1);
    auto dw = d.bmm(g, v, false, true, 1);
    if (options.dropout > 0) dw = d.dropout_backward(dw, options.dropout, c.left.key);
    const auto ds = d.softmax_backward(dw, weights, options.mask == softmax_mask::causal);
    const double scale = options.scale(c.dy.shape()[2]);
    return c.gradients(d.merge_heads(d.bmm(ds, k, false, false, scale)),
                       d.merge_heads(d.bmm(ds, q, true, false, scale)), d.merge_heads(dv));
  }

 private:
  static constexpr std::size_t in_parts = 4;  // how many tensors are kept if attention ran operator by operator
  attention_options at(bool training) const {
    attention_options now = options;
    if (!training) now.dropout = 0;
    return now;
  }
  static auto dropped(auto& d, const auto& weights, const attention_options& o, const dropout_key& key) {
    return o.dropout > 0 ? d.dropout(weights, o.dropout, key) : weights;
  }
};

}  // namespace op
}  // namespace comp::native
