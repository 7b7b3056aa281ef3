// SPDX-License-Identifier: Apache-2.0
// TVM's default registry for mixed precision, and what ATen's operators are called there.
// Relay: apache/tvm at 21095b98 (2025-02-15), the last commit before it was removed. Source:
// python/tvm/relay/transform/mixed_precision.py. Relax: at 5d4dc872; TMixedPrecisionPolicy in src/relax/op. The aliases
// are ours, after TVM's importers of PyTorch models.
#pragma once

#include <comp/systems/kind_lists.hpp>
#include <string_view>

namespace comp::policy::tvm_lists {

// clang-format off
inline constexpr std::string_view relay_always[] = {
    "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose",
    "nn.dense", "nn.batch_matmul"};

inline constexpr std::string_view relay_follow[] = {
    "nn.pad", "nn.batch_flatten", "concatenate", "zeros", "split", "squeeze", "transpose", "expand_dims", "reshape",
    "dyn.reshape", "broadcast_to_like", "dyn.broadcast_to", "strided_slice", "dyn.strided_slice", "take", "argwhere",
    "where", "tile", "dyn.tile", "scatter", "scatter_elements", "scatter_nd", "full", "dyn.full", "nn.depth_to_space",
    "less", "greater", "less_equal", "greater_equal", "copy", "cast", "cast_like", "add", "subtract", "multiply",
    "divide", "nn.bias_add", "nn.batch_norm", "sqrt", "shape_of", "max", "min", "maximum", "minimum", "argmax",
    "argmin", "nn.relu", "nn.leaky_relu", "nn.prelu", "nn.dropout", "sigmoid", "tanh", "fast_tanh", "fast_exp",
    "fast_erf", "clip", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "nn.avg_pool1d", "nn.avg_pool2d",
    "nn.avg_pool3d", "nn.global_max_pool2d", "nn.adaptive_max_pool1d", "nn.adaptive_max_pool2d",
    "nn.adaptive_max_pool3d", "image.resize2d"};

inline constexpr std::string_view relay_never[] = {
    "exp", "power", "nn.cross_entropy", "nn.cross_entropy_with_logits", "nn.softmax", "nn.l2_normalize", "erf",
    "arange", "nn.global_avg_pool2d", "nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d",
    "sum", "mean", "variance", "nn.layer_norm"};

/// GELU is computed with erf; the mean squared error ends in a mean; attention is two products around a softmax.
inline constexpr kind_alias aliases[] = {
    {"_log_softmax", "nn.log_softmax"}, {"_softmax", "nn.softmax"}, {"adaptive_avg_pool1d", "nn.adaptive_avg_pool1d"},
    {"adaptive_avg_pool2d", "nn.adaptive_avg_pool2d"}, {"adaptive_avg_pool3d", "nn.adaptive_avg_pool3d"},
    {"adaptive_max_pool2d", "nn.adaptive_max_pool2d"}, {"addmm", "nn.dense"}, {"avg_pool1d", "nn.avg_pool1d"},
    {"avg_pool2d", "nn.avg_pool2d"}, {"avg_pool3d", "nn.avg_pool3d"}, {"baddbmm", "nn.batch_matmul"},
    {"batch_norm", "nn.batch_norm"}, {"bmm", "nn.batch_matmul"}, {"cat", "concatenate"}, {"chunk", "split"},
    {"clamp", "clip"}, {"clone", "copy"}, {"conv1d", "nn.conv1d"}, {"conv2d", "nn.conv2d"}, {"conv3d", "nn.conv3d"},
    {"conv_transpose1d", "nn.conv1d_transpose"}, {"conv_transpose2d", "nn.conv2d_transpose"},
    {"conv_transpose3d", "nn.conv3d_transpose"}, {"convolution", "nn.conv2d"},
    {"cross_entropy_loss", "nn.cross_entropy_with_logits"}, {"div", "divide"}, {"dropout", "nn.dropout"},
    {"embedding", "take"}, {"flatten", "reshape"}, {"ge", "greater_equal"}, {"gelu", "erf"},
    {"group_norm", "nn.group_norm"}, {"gt", "greater"}, {"index_select", "take"}, {"instance_norm", "nn.instance_norm"},
    {"layer_norm", "nn.layer_norm"}, {"le", "less_equal"}, {"leaky_relu", "nn.leaky_relu"}, {"linear", "nn.dense"},
    {"log_softmax", "nn.log_softmax"}, {"lt", "less"}, {"masked_fill", "where"}, {"matmul", "nn.batch_matmul"},
    {"max_pool1d", "nn.max_pool1d"}, {"max_pool2d", "nn.max_pool2d"}, {"max_pool3d", "nn.max_pool3d"},
    {"mm", "nn.dense"}, {"mse_loss", "mean"}, {"mul", "multiply"}, {"mv", "nn.dense"},
    {"native_batch_norm", "nn.batch_norm"}, {"native_layer_norm", "nn.layer_norm"}, {"nll_loss", "nn.nll_loss"},
    {"nll_loss_nd", "nn.nll_loss"}, {"pad", "nn.pad"}, {"permute", "transpose"}, {"pow", "power"},
    {"prelu", "nn.prelu"}, {"relu", "nn.relu"}, {"scaled_dot_product_attention", "nn.batch_matmul"},
    {"select", "strided_slice"}, {"silu", "sigmoid"}, {"slice", "strided_slice"}, {"softmax", "nn.softmax"},
    {"sub", "subtract"}, {"t", "transpose"}, {"unsqueeze", "expand_dims"}, {"upsample_bilinear2d", "image.resize2d"},
    {"upsample_nearest2d", "image.resize2d"}, {"var", "variance"}, {"view", "reshape"}};

inline constexpr std::string_view relax_always[] = {
    "nn.attention", "nn.attention_bias", "nn.attention_var_len", "nn.conv1d", "nn.conv2d", "nn.conv3d",
    "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose", "matmul", "outer"};

inline constexpr std::string_view relax_follow[] = {
    "image.resize2d", "image.resize3d", "image.grid_sample", "image.affine_grid", "nn.layer_norm", "nn.group_norm",
    "nn.instance_norm", "nn.rms_norm", "nn.dropout", "nn.batch_flatten", "nn.max_pool1d", "nn.max_pool2d",
    "nn.max_pool3d", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.adaptive_avg_pool1d",
    "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d", "full", "full_like", "ones", "zeros", "eye", "arange",
    "hamming_window", "astype", "strided_slice", "dynamic_strided_slice", "broadcast_to", "concat", "expand_dims",
    "flatten", "layout_transform", "permute_dims", "reshape", "split", "squeeze", "stack", "meshgrid", "ewise_fma",
    "vision.roi_align", "vision.roi_pool", "nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.selu", "nn.silu", "equal",
    "greater", "greater_equal", "less", "less_equal", "not_equal", "add", "divide", "floor_divide", "log_add_exp",
    "multiply", "power", "atan2", "subtract", "mod", "floor_mod", "minimum", "maximum", "logical_and", "logical_or",
    "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "abs", "acos", "acosh",
    "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "exp", "floor", "log", "logical_not",
    "negative", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "square", "sqrt", "tan", "tanh", "trunc", "erf",
    "isfinite", "isinf", "isnan"};

inline constexpr kind_alias relax_aliases[] = {
    {"_log_softmax", "nn.log_softmax"}, {"_softmax", "nn.softmax"}, {"adaptive_avg_pool1d", "nn.adaptive_avg_pool1d"},
    {"adaptive_avg_pool2d", "nn.adaptive_avg_pool2d"}, {"adaptive_avg_pool3d", "nn.adaptive_avg_pool3d"},
    {"addmm", "matmul"}, {"avg_pool1d", "nn.avg_pool1d"}, {"avg_pool2d", "nn.avg_pool2d"},
    {"avg_pool3d", "nn.avg_pool3d"}, {"baddbmm", "matmul"}, {"batch_norm", "nn.batch_norm"}, {"bmm", "matmul"},
    {"cat", "concat"}, {"chunk", "split"}, {"clamp", "clip"}, {"conv1d", "nn.conv1d"}, {"conv2d", "nn.conv2d"},
    {"conv3d", "nn.conv3d"}, {"conv_transpose1d", "nn.conv1d_transpose"}, {"conv_transpose2d", "nn.conv2d_transpose"},
    {"conv_transpose3d", "nn.conv3d_transpose"}, {"convolution", "nn.conv2d"},
    {"cross_entropy_loss", "nn.cross_entropy_with_logits"}, {"div", "divide"}, {"dropout", "nn.dropout"},
    {"embedding", "take"}, {"eq", "equal"}, {"expand", "broadcast_to"}, {"ge", "greater_equal"}, {"gelu", "nn.gelu"},
    {"group_norm", "nn.group_norm"}, {"gt", "greater"}, {"instance_norm", "nn.instance_norm"},
    {"layer_norm", "nn.layer_norm"}, {"le", "less_equal"}, {"linear", "matmul"}, {"log_softmax", "nn.log_softmax"},
    {"lt", "less"}, {"max_pool1d", "nn.max_pool1d"}, {"max_pool2d", "nn.max_pool2d"}, {"max_pool3d", "nn.max_pool3d"},
    {"mm", "matmul"}, {"mse_loss", "mean"}, {"mul", "multiply"}, {"mv", "matmul"},
    {"native_batch_norm", "nn.batch_norm"}, {"native_layer_norm", "nn.layer_norm"}, {"ne", "not_equal"},
    {"neg", "negative"}, {"nll_loss", "nn.nll_loss"}, {"nll_loss_nd", "nn.nll_loss"}, {"permute", "permute_dims"},
    {"pow", "power"}, {"relu", "nn.relu"}, {"remainder", "floor_mod"}, {"rms_norm", "nn.rms_norm"},
    {"scaled_dot_product_attention", "nn.attention"}, {"select", "strided_slice"}, {"selu", "nn.selu"},
    {"silu", "nn.silu"}, {"slice", "strided_slice"}, {"softmax", "nn.softmax"}, {"sub", "subtract"},
    {"t", "permute_dims"}, {"to", "astype"}, {"transpose", "permute_dims"}, {"unsqueeze", "expand_dims"},
    {"upsample_bilinear2d", "image.resize2d"}, {"upsample_nearest2d", "image.resize2d"}, {"view", "reshape"}};
// clang-format on

}  // namespace comp::policy::tvm_lists
