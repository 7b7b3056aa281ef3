// SPDX-License-Identifier: Apache-2.0
// TVM's default categories for mixed precision, and TVM's names of ATen's operators.
// Source: for Relay, python/tvm/relay/transform/mixed_precision.py in apache/tvm at 21095b98 (2025-02-15), the last
// commit before Relay was removed; for Relax, TMixedPrecisionPolicy in src/relax/op at 5d4dc872.
// The aliases are comp's. They follow TVM's importers of PyTorch models.
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

inline constexpr kind_alias aliases[] = {
    {"_log_softmax", "nn.log_softmax"}, {"_softmax", "nn.softmax"},
    {"adaptive_avg_pool1d", "nn.adaptive_avg_pool1d"}, {"adaptive_avg_pool2d", "nn.adaptive_avg_pool2d"},
    {"adaptive_avg_pool3d", "nn.adaptive_avg_pool3d"}, {"avg_pool1d", "nn.avg_pool1d"},
    {"avg_pool2d", "nn.avg_pool2d"}, {"avg_pool3d", "nn.avg_pool3d"}, {"batch_norm", "nn.batch_norm"},
    {"chunk", "split"}, {"clamp", "clip"}, {"conv1d", "nn.conv1d"}, {"conv2d", "nn.conv2d"},
    {"conv3d", "nn.conv3d"}, {"conv_transpose1d", "nn.conv1d_transpose"},
    {"conv_transpose2d", "nn.conv2d_transpose"}, {"conv_transpose3d", "nn.conv3d_transpose"},
    {"convolution", "nn.conv2d"}, {"cross_entropy_loss", "nn.cross_entropy_with_logits"}, {"div", "divide"},
    {"dropout", "nn.dropout"}, {"embedding", "take"}, {"ge", "greater_equal"}, {"group_norm", "nn.group_norm"},
    {"gt", "greater"}, {"instance_norm", "nn.instance_norm"}, {"layer_norm", "nn.layer_norm"}, {"le", "less_equal"},
    {"log_softmax", "nn.log_softmax"}, {"lt", "less"}, {"max_pool1d", "nn.max_pool1d"},
    {"max_pool2d", "nn.max_pool2d"}, {"max_pool3d", "nn.max_pool3d"}, {"mse_loss", "mean"}, {"mul", "multiply"},
    {"native_batch_norm", "nn.batch_norm"}, {"native_layer_norm", "nn.layer_norm"}, {"nll_loss", "nn.nll_loss"},
    {"nll_loss_nd", "nn.nll_loss"}, {"pow", "power"}, {"relu", "nn.relu"}, {"select", "strided_slice"},
    {"slice", "strided_slice"}, {"softmax", "nn.softmax"}, {"sub", "subtract"}, {"unsqueeze", "expand_dims"},
    {"upsample_bilinear2d", "image.resize2d"}, {"upsample_nearest2d", "image.resize2d"}, {"view", "reshape"}};

/// The importer builds GELU from erf, the mean squared error from a mean, and attention from two products around a
/// softmax; the alias is the part that decides the precision.
inline constexpr kind_alias relay_aliases[] = {
    {"adaptive_max_pool2d", "nn.adaptive_max_pool2d"}, {"addmm", "nn.dense"}, {"baddbmm", "nn.batch_matmul"},
    {"bmm", "nn.batch_matmul"}, {"cat", "concatenate"}, {"clone", "copy"}, {"flatten", "reshape"}, {"gelu", "erf"},
    {"index_select", "take"}, {"leaky_relu", "nn.leaky_relu"}, {"linear", "nn.dense"}, {"masked_fill", "where"},
    {"matmul", "nn.batch_matmul"}, {"mm", "nn.dense"}, {"mv", "nn.dense"}, {"pad", "nn.pad"},
    {"permute", "transpose"}, {"prelu", "nn.prelu"}, {"scaled_dot_product_attention", "nn.batch_matmul"},
    {"silu", "sigmoid"}, {"t", "transpose"}, {"var", "variance"}};

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
    {"addmm", "matmul"}, {"baddbmm", "matmul"}, {"bmm", "matmul"}, {"cat", "concat"}, {"eq", "equal"},
    {"expand", "broadcast_to"}, {"gelu", "nn.gelu"}, {"linear", "matmul"}, {"mm", "matmul"}, {"mv", "matmul"},
    {"ne", "not_equal"}, {"neg", "negative"}, {"permute", "permute_dims"}, {"remainder", "floor_mod"},
    {"rms_norm", "nn.rms_norm"}, {"scaled_dot_product_attention", "nn.attention"}, {"selu", "nn.selu"},
    {"silu", "nn.silu"}, {"t", "permute_dims"}, {"to", "astype"}, {"transpose", "permute_dims"}};
// clang-format on

}  // namespace comp::policy::tvm_lists
