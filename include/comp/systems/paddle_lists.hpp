// SPDX-License-Identifier: Apache-2.0
// Paddle's white and black lists for automatic mixed precision, and Paddle's names of ATen's operators.
// Version v3: Paddle 3.3.1, python/paddle/amp/amp_lists.py (commit 76884955). Version guide: Paddle 2.4, whose lists
// Paddle's guide to automatic mixed precision links to: python/paddle/fluid/dygraph/amp/auto_cast.py (commit 02c53c2d).
// The aliases are comp's. They name the operators that Paddle's own layers run, so all matrix products are matmul_v2.
#pragma once

#include <string_view>

namespace comp::policy::paddle_lists {

/// White in O1, OD and O2, with FP16 and BF16.
inline constexpr std::string_view white = R"(conv2d einsum matmul matmul_v2 linear_v2 max_pool2d_with_index mul
fused_gemm_epilogue fused_rotary_position_embedding flash_attn)";

/// White with FP16 only.
inline constexpr std::string_view white_fp16 = R"(fake_quantize_dequantize_abs_max
fake_quantize_dequantize_moving_average_abs_max fused_attention fused_feedforward)";

/// Black in O1, with FP16 and BF16.
inline constexpr std::string_view black = R"(tan acos asin sinh cosh atanh tanh_shrink erfinv exp expm1 log log10
log2 reciprocal rsqrt pow square reduce_sum mean reduce_mean reduce_prod cumprod cumsum dist pnorm frobenius_norm
renorm group_norm layer_norm softmax softmin softplus log_softmax softmax_with_cross_entropy
sigmoid_cross_entropy_with_logits c_softmax_with_cross_entropy c_softmax_with_multi_label_cross_entropy cross_entropy
cross_entropy2 nll_loss huber_loss triplet_margin_loss log_loss hsigmoid_loss margin_cross_entropy)";

/// Black in O1 and O2, because their gradients are slow or unsafe in low precision.
inline constexpr std::string_view black_grad = R"(linear_interp_v2 nearest_interp_v2 bilinear_interp_v2
bicubic_interp_v2 trilinear_interp_v2 lookup_table lookup_table_v2 scatter)";

/// White in the version of the guide.
inline constexpr std::string_view guide_white_fp16 = R"(conv2d matmul matmul_v2 mul fake_quantize_dequantize_abs_max
fake_quantize_dequantize_moving_average_abs_max)";
inline constexpr std::string_view guide_white_bf16 = R"(conv2d matmul_v2)";

/// Black in O1 with FP16. With BF16 the black list was empty.
inline constexpr std::string_view guide_black_fp16 = R"(exp square log mean sum cos_sim softmax
softmax_with_cross_entropy sigmoid_cross_entropy_with_logits c_softmax_with_cross_entropy cross_entropy
cross_entropy2 reduce_sum)";

/// Black in O1 and O2 with FP16, because their gradients are slow.
inline constexpr std::string_view guide_black_interp = R"(linear_interp_v2 nearest_interp_v2 bilinear_interp_v2
bicubic_interp_v2 trilinear_interp_v2)";

/// Black in O2 with FP16.
inline constexpr std::string_view guide_black_o2 = R"(lookup_table lookup_table_v2 scatter scatter_grad)";

/// A layer that Paddle builds from several operators has the alias of the one that decides its precision: mse_loss
/// consists of square and reduce_mean, and square decides. Paddle's mul multiplies matrices; ATen's mul is Paddle's
/// elementwise_mul.
inline constexpr std::string_view aliases = R"(mul log_softmax=_log_softmax softmax=_softmax
pool2d=adaptive_avg_pool2d,avg_pool2d,max_pool2d elementwise_add=add matmul_v2=addmm,baddbmm,bmm,mm,mv
pool3d=avg_pool3d,max_pool3d sigmoid_cross_entropy_with_logits=binary_cross_entropy_with_logits concat=cat
split=chunk conv2d=conv1d,convolution conv2d_transpose=conv_transpose2d cos_sim=cosine_similarity
softmax_with_cross_entropy=cross_entropy_loss elementwise_div=div lookup_table_v2=embedding expand_v2=expand
reshape2=flatten,reshape,view pnorm=linalg_vector_norm,norm where=masked_fill reduce_max=max
max_pool2d_with_index=max_pool2d_with_indices elementwise_max=maximum reduce_mean=mean reduce_min=min
elementwise_min=minimum square=mse_loss elementwise_mul=mul batch_norm=native_batch_norm group_norm=native_group_norm
layer_norm=native_layer_norm nll_loss=nll_loss_nd transpose2=permute,t,transpose reduce_prod=prod
huber_loss=smooth_l1_loss squeeze2=squeeze elementwise_sub=sub reduce_sum=sum top_k_v2=topk unsqueeze2=unsqueeze
bicubic_interp_v2=upsample_bicubic2d bilinear_interp_v2=upsample_bilinear2d linear_interp_v2=upsample_linear1d
nearest_interp_v2=upsample_nearest2d trilinear_interp_v2=upsample_trilinear3d)";

/// Paddle 3 has linear and attention as one operator each. In Paddle 2.4 linear was matmul and add, and attention was
/// two matmuls around a softmax.
inline constexpr std::string_view v3_aliases = R"(linear_v2=linear matmul=matmul
flash_attn=scaled_dot_product_attention)";
inline constexpr std::string_view guide_aliases = R"(matmul_v2=linear,matmul,scaled_dot_product_attention)";

}  // namespace comp::policy::paddle_lists
