// SPDX-License-Identifier: Apache-2.0
// LibTorch's scaled_dot_product_attention in BF16 and FP32 on a CPU, in less time, above all in its backward.
// ATen's backward calls MKL's products, which lay out both sides anew in each call, for blocks too small to pay for it;
// and in BF16 it rounds the gradients after each of them. Here the products are oneDNN's kernels on blocks laid out for
// them, what is between two products is one pass of vectors, and all sums are FP32. With dropout, ATen computes the
// attention operator by operator in FP32; here it goes the same way as without, with the same random numbers. Kept for
// the backward, beside what the caller has: the result in FP32, two FP32 numbers of each query, a boolean mask as
// ATen's additive one, and with dropout one byte for each score (ATen: at least eight). Scores are never in memory.
// ATen computes attention on other devices, in other formats, on CPUs without AVX2 (BF16: AVX-512-BF16), and in the
// cases that `attend` lists.
// Source: Dao 2023, "FlashAttention-2" (arXiv 2307.08691).
#pragma once

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <comp_libtorch/hook/bernoulli.hpp>
#include <comp_libtorch/hook/listener.hpp>
#include <comp_libtorch/kernels/attention_avx2.hpp>
#include <comp_libtorch/kernels/attention_avx512.hpp>
#include <comp_libtorch/kernels/attention_backward.hpp>
#include <comp_libtorch/kernels/kernel.hpp>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

namespace comp::libtorch::detail {

#if COMP_LIBTORCH_ATTENTION
namespace attention {

constexpr double infinite = std::numeric_limits<double>::infinity();

template <class T>
bool multiplies_in() {
  const std::vector<T> a(32 * 32, T{1.0F});
  std::vector<std::uint32_t> b(32 / rows_in_word<T> * 32, 0x40003f80);  // BF16: 1 in even rows, 2 in odd ones
  for (std::size_t i = 0; i < b.size() && rows_in_word<T> == 1; ++i) b[i] = i / 32 % 2 == 0 ? 0x3f800000 : 0x40000000;
  std::vector<float> product(32 * 32);
  try {
    const tile_registers none_before_and_after;
    multiply(32, 32, 32, a.data(), 32, b.data(), 32, product.data(), 32, false);
  } catch (const std::exception&) {  // this build of LibTorch, or the CPU, has none
    return false;
  }
  return std::all_of(product.begin(), product.end(), [](float x) { return x == 48; });
}
/// Returns: whether LibTorch's products of blocks work in that format on this CPU, which is tried once.
inline bool multiplies(at::ScalarType format) {
  if (!at::globalContext().userEnabledMkldnn()) return false;
  static const bool in_fp32 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && multiplies_in<float>();
  static const bool in_bf16 = has_avx512() && __builtin_cpu_supports("avx512bf16") && multiplies_in<bf16>();
  return (format == at::kFloat && in_fp32) || (format == at::kBFloat16 && in_bf16);
}

/// (B,H,L,D) in the memory of (B,L,H,D), as ATen's flash kernel returns it.
inline at::Tensor empty_heads(const at::Tensor& like) {
  const std::int64_t heads = like.size(1), rows = like.size(2), width = like.size(3);
  return at::empty_strided(like.sizes(), {heads * rows * width, width, heads * width, 1}, like.options());
}

/// Calls f<vectors, format>() with those of a case.
void in_vectors(const attention_case& c, const auto& f) {
  if (c.q.scalar_type() == at::kBFloat16) return f.template operator()<avx512, bf16>();
  c.narrow ? f.template operator()<avx2, float>() : f.template operator()<avx512, float>();
}

struct attention_function : torch::autograd::Function<attention_function> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const attention_case& c) {
    const at::Tensor y = c.keep.defined() ? at::empty(q.sizes(), q.options()) : empty_heads(q);
    const at::Tensor sums = at::empty({2, q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    // The backward's products dy y are of y before it was rounded: if a query's largest probabilities are 1, the
    // gradients of its scores nearly vanish, and the rounding, which all of them share, would be larger (arXiv
    // 2510.04212).
    at::Tensor unrounded;
    if (y.scalar_type() != at::kFloat && (q.requires_grad() || k.requires_grad() || v.requires_grad()))
      unrounded = at::empty(q.sizes(), q.options().dtype(at::kFloat));
    in_vectors(c, [&]<class Vectors, class T>() { attend_forward<Vectors, T>(c, y, unrounded, sums_in(sums)); });
    ctx->save_for_backward({q, k, v, y, sums, c.bias, c.keep, unrounded});
    ctx->saved_data["dropout"] = c.dropout;
    ctx->saved_data["causal"] = c.causal;
    ctx->saved_data["scale"] = c.scale;
    ctx->saved_data["narrow"] = c.narrow;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& of_y) {
    const torch::autograd::variable_list saved = ctx->get_saved_variables();
    const attention_case c{saved[0],
                           saved[1],
                           saved[2],
                           saved[5],
                           saved[6],
                           ctx->saved_data["dropout"].toDouble(),
                           ctx->saved_data["causal"].toBool(),
                           ctx->saved_data["scale"].toDouble(),
                           ctx->saved_data["narrow"].toBool()};
    if (at::GradMode::is_enabled() || !only_autograd_sees(*of_y[0].unsafeGetTensorImpl())) return by_aten(c, of_y[0]);
    const attention_gradients g{of_y[0].stride(3) == 1 ? of_y[0] : of_y[0].contiguous(),
                                saved[7].defined() ? saved[7] : saved[3], empty_heads(c.q), empty_heads(c.k),
                                empty_heads(c.v)};
    in_vectors(c, [&]<class Vectors, class T>() { attend_backward<Vectors, T>(c, g, sums_in(saved[4])); });
    return {g.dq, g.dk, g.dv, {}};
  }

 private:
  static query_sums sums_in(const at::Tensor& sums) {
    return {sums.mutable_data_ptr<float>(), sums.mutable_data_ptr<float>() + sums.numel() / 2};
  }
  /// The gradients by ATen's operators in FP32, which can be differentiated again.
  static torch::autograd::variable_list by_aten(const attention_case& c, const at::Tensor& of_y) {
    const bool again = at::GradMode::is_enabled();
    const at::AutoGradMode recorded{true};
    torch::autograd::variable_list inputs, wanted, gradients;
    for (const at::Tensor& t : {c.q, c.k, c.v}) {  // views, since the three may be one tensor
      inputs.push_back(t.requires_grad() ? t.view_as(t) : t);
      if (t.requires_grad()) wanted.push_back(inputs.back());
    }
    const auto wide = [&](std::size_t i) { return inputs[i].to(at::kFloat); };
    at::Tensor scores = at::matmul(wide(0), wide(1).transpose(-2, -1)) * c.scale;
    if (c.bias.defined()) scores = scores + c.bias;
    if (c.causal) scores = scores.masked_fill(at::ones_like(scores, at::kBool).triu(1), -infinite);
    at::Tensor shares = at::_safe_softmax(scores, -1);
    if (c.keep.defined()) shares = shares * c.keep / (1 - c.dropout);
    const at::Tensor y = at::matmul(shares, wide(2)).to(of_y.scalar_type());
    const torch::autograd::variable_list found = torch::autograd::grad({y}, wanted, {of_y}, std::nullopt, again);
    for (auto next = found.begin(); const at::Tensor& t : inputs)
      gradients.push_back(t.requires_grad() ? *next++ : at::Tensor{});
    gradients.emplace_back();
    return gradients;
  }
};

/// Returns: the mask as an addend of the scores (B,H,Lq,Lk), rows without gaps. A boolean mask is copied, as by ATen.
inline at::Tensor bias_of(const at::Tensor& mask, const at::Tensor& q, const at::Tensor& k) {
  at::Tensor added = mask;
  if (mask.scalar_type() == at::kBool) {
    added = at::zeros(mask.sizes(), q.options());
    added.masked_fill_(mask.logical_not(), -infinite);
  }
  const std::int64_t keys = k.size(2);
  if (added.size(-1) != keys) {
    std::vector<std::int64_t> rows = added.sizes().vec();
    rows.back() = keys;
    added = added.expand(rows);
  }
  if (added.stride(-1) != 1) added = added.contiguous();
  return added.expand({q.size(0), q.size(1), q.size(2), keys});
}

}  // namespace attention
#endif

/// Computes at::scaled_dot_product_attention of the same arguments.
/// Returns: nothing if ATen has to compute it: if ATen would not take its flash kernel without dropout (other shapes or
/// strides, a user's choice of kernel), for grouped queries, formats other than BF16 and FP32 (masks: also bool, and
/// FP32 beside BF16), a mask of one axis or with gradients, few queries without a backward, forward-mode gradients,
/// nested tensors, subclasses and transforms, or a CPU without the instructions. `narrow`: whether FP32 is computed in
/// AVX2 though the CPU may have AVX-512.
inline std::optional<at::Tensor> attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                        const std::optional<at::Tensor>& mask = {}, double dropout = 0,
                                        bool causal = false, std::optional<double> scale = {}, bool narrow = false) {
#if COMP_LIBTORCH_ATTENTION
  using namespace attention;
  const auto plain = [](const at::Tensor& t) { return is_plain(t) && t.numel() > 0; };
  const at::ScalarType format = q.scalar_type();
  const auto heads = [&](const at::Tensor& t) { return plain(t) && t.scalar_type() == format && t.dim() == 4; };
  const auto addable = [&](const at::Tensor& t) {
    const auto added = t.scalar_type();
    return plain(t) && t.dim() > 1 && !t.requires_grad() &&
           (added == at::kBool || added == format || added == at::kFloat);
  };
  constexpr std::int64_t few_queries = 16;  // too few to pay for laying out keys, unless a backward follows
  const bool masked = mask && mask->defined();
  const bool trains = at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  if (!heads(q) || !heads(k) || !heads(v) || (masked && (causal || !addable(*mask))) || dropout < 0 || dropout >= 1)
    return std::nullopt;
  if (q.size(1) != k.size(1) || (!trains && q.size(2) < few_queries) || !multiplies(format)) return std::nullopt;
  constexpr auto flash = static_cast<std::int64_t>(at::SDPBackend::flash_attention);
  if (at::_fused_sdp_choice(q, k, v, mask, 0, causal, scale) != flash) return std::nullopt;
  attention_case c{.q = q, .k = k, .v = v, .bias = {}, .keep = {}, .dropout = dropout, .causal = causal};
  c.narrow = narrow || !has_avx512();
  c.scale = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
  if (masked) c.bias = bias_of(*mask, q, k);
  if (dropout > 0) {
    c.keep = at::empty({q.size(0), q.size(1), q.size(2), k.size(2)}, q.options().dtype(at::kBool));
    c.keep.bernoulli_(1 - dropout);
  }
  return attention_function::apply(q, k, v, c);
#else
  static_cast<void>(std::tie(q, k, v, mask, dropout, causal, scale, narrow));
  return std::nullopt;
#endif
}

/// Serves what attend() does, for any length of the sequence.
inline bool run_attention(torch::jit::Stack& stack, std::size_t arguments, kernel_parts /*all*/,
                          const op_info& /*recorded*/) {
  const auto argument = [&](std::size_t i) -> const at::IValue& { return stack[stack.size() - arguments + i]; };
  if (arguments != 8 || argument(7).toBool()) return false;  // query heads may share keys
  std::optional<at::Tensor> result = attend(argument(0).toTensor(), argument(1).toTensor(), argument(2).toTensor(),
                                            argument(3).toOptional<at::Tensor>(), argument(4).toDouble(),
                                            argument(5).toBool(), argument(6).toOptional<double>());
  return result && replace_arguments(stack, arguments, *std::move(result));
}

inline bool fits_attention([[maybe_unused]] const op_info& recorded, [[maybe_unused]] at::ScalarType format) {
#if COMP_LIBTORCH_ATTENTION
  return !recorded.inputs.empty() && recorded.inputs.front().shape.size() == 4 && attention::multiplies(format);
#else
  return false;
#endif
}

inline constexpr std::array<kernel_part, 1> attention_parts{{{"forward and backward", kernel_phase::both}}};
inline constexpr kernel attention_kernel{
    .name = "tiles",
    .parts = attention_parts,
    .wants_channels_last = false,
    .serves_fp32 = true,
    .serves = [](const op_traits& op) { return op.kind == "aten::scaled_dot_product_attention"; },
    .fits = fits_attention,
    .run = run_attention};

}  // namespace comp::libtorch::detail
