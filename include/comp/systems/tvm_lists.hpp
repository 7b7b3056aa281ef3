// SPDX-License-Identifier: Apache-2.0
// TVM's default categories for mixed precision, and TVM's names of ATen's operators.
// Source: for Relay, python/tvm/relay/transform/mixed_precision.py in apache/tvm at 21095b98 (2025-02-15), the last
// commit before Relay was removed; for Relax, TMixedPrecisionPolicy in src/relax/op at 5d4dc872.
// The aliases are comp's. They follow TVM's importers of PyTorch models.
#pragma once

#include <string_view>

namespace comp::policy::tvm_lists {

inline constexpr std::string_view relay_always = R"(nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose
nn.conv2d_transpose nn.conv3d_transpose nn.dense nn.batch_matmul)";

inline constexpr std::string_view relay_follow = R"(nn.pad nn.batch_flatten concatenate zeros split squeeze transpose
expand_dims reshape dyn.reshape broadcast_to_like dyn.broadcast_to strided_slice dyn.strided_slice take argwhere
where tile dyn.tile scatter scatter_elements scatter_nd full dyn.full nn.depth_to_space less greater less_equal
greater_equal copy cast cast_like add subtract multiply divide nn.bias_add nn.batch_norm sqrt shape_of max min
maximum minimum argmax argmin nn.relu nn.leaky_relu nn.prelu nn.dropout sigmoid tanh fast_tanh fast_exp fast_erf clip
nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.global_max_pool2d
nn.adaptive_max_pool1d nn.adaptive_max_pool2d nn.adaptive_max_pool3d image.resize2d)";

inline constexpr std::string_view relay_never = R"(exp power nn.cross_entropy nn.cross_entropy_with_logits nn.softmax
nn.l2_normalize erf arange nn.global_avg_pool2d nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d
sum mean variance nn.layer_norm)";

inline constexpr std::string_view aliases = R"(nn.log_softmax=_log_softmax,log_softmax nn.softmax=_softmax,softmax
nn.adaptive_avg_pool1d=adaptive_avg_pool1d nn.adaptive_avg_pool2d=adaptive_avg_pool2d
nn.adaptive_avg_pool3d=adaptive_avg_pool3d nn.avg_pool1d=avg_pool1d nn.avg_pool2d=avg_pool2d nn.avg_pool3d=avg_pool3d
nn.batch_norm=batch_norm,native_batch_norm split=chunk clip=clamp nn.conv1d=conv1d nn.conv2d=conv2d,convolution
nn.conv3d=conv3d nn.conv1d_transpose=conv_transpose1d nn.conv2d_transpose=conv_transpose2d
nn.conv3d_transpose=conv_transpose3d nn.cross_entropy_with_logits=cross_entropy_loss divide=div nn.dropout=dropout
take=embedding greater_equal=ge nn.group_norm=group_norm greater=gt nn.instance_norm=instance_norm
nn.layer_norm=layer_norm,native_layer_norm less_equal=le less=lt nn.max_pool1d=max_pool1d nn.max_pool2d=max_pool2d
nn.max_pool3d=max_pool3d mean=mse_loss multiply=mul nn.nll_loss=nll_loss,nll_loss_nd power=pow nn.relu=relu
strided_slice=select,slice subtract=sub expand_dims=unsqueeze image.resize2d=upsample_bilinear2d,upsample_nearest2d
reshape=view)";

/// The importer builds GELU from erf, the mean squared error from a mean, and attention from two products around a
/// softmax; the alias is the part that decides the precision.
inline constexpr std::string_view relay_aliases = R"(nn.adaptive_max_pool2d=adaptive_max_pool2d
nn.dense=addmm,linear,mm,mv nn.batch_matmul=baddbmm,bmm,matmul,scaled_dot_product_attention concatenate=cat
copy=clone reshape=flatten erf=gelu take=index_select nn.leaky_relu=leaky_relu where=masked_fill nn.pad=pad
transpose=permute,t nn.prelu=prelu sigmoid=silu variance=var)";

inline constexpr std::string_view relax_always = R"(nn.attention nn.attention_bias nn.attention_var_len nn.conv1d
nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose matmul outer)";

inline constexpr std::string_view relax_follow = R"(image.resize2d image.resize3d image.grid_sample image.affine_grid
nn.layer_norm nn.group_norm nn.instance_norm nn.rms_norm nn.dropout nn.batch_flatten nn.max_pool1d nn.max_pool2d
nn.max_pool3d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d
nn.adaptive_avg_pool3d full full_like ones zeros eye arange hamming_window astype strided_slice dynamic_strided_slice
broadcast_to concat expand_dims flatten layout_transform permute_dims reshape split squeeze stack meshgrid ewise_fma
vision.roi_align vision.roi_pool nn.relu nn.gelu nn.gelu_tanh nn.selu nn.silu equal greater greater_equal less
less_equal not_equal add divide floor_divide log_add_exp multiply power atan2 subtract mod floor_mod minimum maximum
logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor left_shift right_shift abs acos acosh asin
asinh atan atanh bitwise_not ceil cos cosh exp floor log logical_not negative round rsqrt sigmoid sign sin sinh
square sqrt tan tanh trunc erf isfinite isinf isnan)";

inline constexpr std::string_view relax_aliases = R"(matmul=addmm,baddbmm,bmm,linear,mm,mv concat=cat equal=eq
broadcast_to=expand nn.gelu=gelu not_equal=ne negative=neg permute_dims=permute,t,transpose floor_mod=remainder
nn.rms_norm=rms_norm nn.attention=scaled_dot_product_attention nn.selu=selu nn.silu=silu astype=to)";

}  // namespace comp::policy::tvm_lists
