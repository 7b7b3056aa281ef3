// SPDX-License-Identifier: Apache-2.0
// Paddle's white and black lists for automatic mixed precision, and Paddle's names of ATen's operators.
// Version v3: Paddle 3.3.1, python/paddle/amp/amp_lists.py (commit 76884955). Version guide: Paddle 2.4, whose lists
// Paddle's guide to automatic mixed precision links to: python/paddle/fluid/dygraph/amp/auto_cast.py (commit 02c53c2d).
// The aliases are comp's. They name the operators that Paddle's own layers run, so all matrix products are matmul_v2.
#pragma once

#include <comp/systems/kind_lists.hpp>
#include <string_view>

namespace comp::policy::paddle_lists {

// clang-format off
/// White in O1, OD and O2, with FP16 and BF16.
inline constexpr std::string_view white[] = {
    "conv2d", "einsum", "matmul", "matmul_v2", "linear_v2", "max_pool2d_with_index", "mul", "fused_gemm_epilogue",
    "fused_rotary_position_embedding", "flash_attn"};

/// White with FP16 only.
inline constexpr std::string_view white_fp16[] = {
    "fake_quantize_dequantize_abs_max", "fake_quantize_dequantize_moving_average_abs_max", "fused_attention",
    "fused_feedforward"};

/// Black in O1, with FP16 and BF16.
inline constexpr std::string_view black[] = {
    "tan", "acos", "asin", "sinh", "cosh", "atanh", "tanh_shrink", "erfinv", "exp", "expm1", "log", "log10", "log2",
    "reciprocal", "rsqrt", "pow", "square", "reduce_sum", "mean", "reduce_mean", "reduce_prod", "cumprod", "cumsum",
    "dist", "pnorm", "frobenius_norm", "renorm", "group_norm", "layer_norm", "softmax", "softmin", "softplus",
    "log_softmax", "softmax_with_cross_entropy", "sigmoid_cross_entropy_with_logits", "c_softmax_with_cross_entropy",
    "c_softmax_with_multi_label_cross_entropy", "cross_entropy", "cross_entropy2", "nll_loss", "huber_loss",
    "triplet_margin_loss", "log_loss", "hsigmoid_loss", "margin_cross_entropy"};

/// Black in O1 and O2, because their gradients are slow or unsafe in low precision.
inline constexpr std::string_view black_grad[] = {
    "linear_interp_v2", "nearest_interp_v2", "bilinear_interp_v2", "bicubic_interp_v2", "trilinear_interp_v2",
    "lookup_table", "lookup_table_v2", "scatter"};

/// White in the version of the guide.
inline constexpr std::string_view guide_white_fp16[] = {
    "conv2d", "matmul", "matmul_v2", "mul", "fake_quantize_dequantize_abs_max",
    "fake_quantize_dequantize_moving_average_abs_max"};
inline constexpr std::string_view guide_white_bf16[] = {
    "conv2d", "matmul_v2"};

/// Black in O1 with FP16. With BF16 the black list was empty.
inline constexpr std::string_view guide_black_fp16[] = {
    "exp", "square", "log", "mean", "sum", "cos_sim", "softmax", "softmax_with_cross_entropy",
    "sigmoid_cross_entropy_with_logits", "c_softmax_with_cross_entropy", "cross_entropy", "cross_entropy2",
    "reduce_sum"};

/// Black in O1 and O2 with FP16, because their gradients are slow.
inline constexpr std::string_view guide_black_interp[] = {
    "linear_interp_v2", "nearest_interp_v2", "bilinear_interp_v2", "bicubic_interp_v2", "trilinear_interp_v2"};

/// Black in O2 with FP16.
inline constexpr std::string_view guide_black_o2[] = {
    "lookup_table", "lookup_table_v2", "scatter", "scatter_grad"};

/// Paddle's mul multiplies matrices; ATen's mul is Paddle's elementwise_mul.
inline constexpr std::string_view own_names[] = {"mul"};

/// A layer that Paddle builds from several operators has the alias of the one that decides its precision: mse_loss
/// consists of square and reduce_mean, and square decides.
inline constexpr kind_alias aliases[] = {
    {"_log_softmax", "log_softmax"}, {"_softmax", "softmax"}, {"adaptive_avg_pool2d", "pool2d"},
    {"add", "elementwise_add"}, {"addmm", "matmul_v2"}, {"avg_pool2d", "pool2d"}, {"avg_pool3d", "pool3d"},
    {"baddbmm", "matmul_v2"}, {"binary_cross_entropy_with_logits", "sigmoid_cross_entropy_with_logits"},
    {"bmm", "matmul_v2"}, {"cat", "concat"}, {"chunk", "split"}, {"conv1d", "conv2d"},
    {"conv_transpose2d", "conv2d_transpose"}, {"convolution", "conv2d"}, {"cosine_similarity", "cos_sim"},
    {"cross_entropy_loss", "softmax_with_cross_entropy"}, {"div", "elementwise_div"}, {"embedding", "lookup_table_v2"},
    {"expand", "expand_v2"}, {"flatten", "reshape2"}, {"linalg_vector_norm", "pnorm"}, {"masked_fill", "where"},
    {"max", "reduce_max"}, {"max_pool2d", "pool2d"}, {"max_pool2d_with_indices", "max_pool2d_with_index"},
    {"max_pool3d", "pool3d"}, {"maximum", "elementwise_max"}, {"mean", "reduce_mean"}, {"min", "reduce_min"},
    {"minimum", "elementwise_min"}, {"mm", "matmul_v2"}, {"mse_loss", "square"}, {"mul", "elementwise_mul"},
    {"mv", "matmul_v2"}, {"native_batch_norm", "batch_norm"}, {"native_group_norm", "group_norm"},
    {"native_layer_norm", "layer_norm"}, {"nll_loss_nd", "nll_loss"}, {"norm", "pnorm"}, {"permute", "transpose2"},
    {"prod", "reduce_prod"}, {"reshape", "reshape2"}, {"smooth_l1_loss", "huber_loss"}, {"squeeze", "squeeze2"},
    {"sub", "elementwise_sub"}, {"sum", "reduce_sum"}, {"t", "transpose2"}, {"topk", "top_k_v2"},
    {"transpose", "transpose2"}, {"unsqueeze", "unsqueeze2"}, {"upsample_bicubic2d", "bicubic_interp_v2"},
    {"upsample_bilinear2d", "bilinear_interp_v2"}, {"upsample_linear1d", "linear_interp_v2"},
    {"upsample_nearest2d", "nearest_interp_v2"}, {"upsample_trilinear3d", "trilinear_interp_v2"}, {"view", "reshape2"}};

/// Paddle 3 has linear and attention as one operator each. In Paddle 2.4 linear was matmul and add, and attention was
/// two matmuls around a softmax.
inline constexpr kind_alias v3_aliases[] = {
    {"linear", "linear_v2"}, {"matmul", "matmul"}, {"scaled_dot_product_attention", "flash_attn"}};
inline constexpr kind_alias guide_aliases[] = {
    {"linear", "matmul_v2"}, {"matmul", "matmul_v2"}, {"scaled_dot_product_attention", "matmul_v2"}};
// clang-format on

}  // namespace comp::policy::paddle_lists
