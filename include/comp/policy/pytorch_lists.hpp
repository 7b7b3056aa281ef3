// SPDX-License-Identifier: Apache-2.0
// PyTorch's autocast lists as its sources register them: one list for each way in which autocast treats an operator.
// An entry is "operator.overload"; a bare name is the default overload. In-place and out= variants are on no list, so
// they run in the precision of their inputs.
// Version: PyTorch 2.11.0 and 2.15.0 together. 2.15.0 has no overloads with Dimname, no cholesky and no qr. CUDA's
// rms_norm is in FP32 since 2.12 (disputed upstream) and ran in its inputs' precision before.
// Source: aten/src/ATen/autocast_mode.h (CUDA), aten/src/ATen/autocast_mode.cpp (CPU, and more of CUDA),
// aten/src/ATen/cudnn/AutocastRNN.cpp; for composites, autocast itself was asked (tests/policy/pytorch_kinds.py).
#pragma once

#include <string_view>

namespace comp::policy::pytorch_lists {

/// Run in the low precision.
inline constexpr std::string_view cuda_lower_precision_fp = R"(_convolution.deprecated _convolution conv1d conv2d
conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr
matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
scaled_dot_product_attention cudnn_convolution cudnn_convolution_transpose _cudnn_rnn)";

/// Inputs cast to FP32.
inline constexpr std::string_view cuda_fp32 = R"(acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal
rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm
group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss
nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist
pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa linalg_matrix_sqrth)";

/// Run with dtype=float32 set, unless the caller set a dtype.
inline constexpr std::string_view cuda_fp32_set_opt_dtype = R"(prod prod.dim_int prod.dim_Dimname softmax.int
softmax.Dimname log_softmax.int log_softmax.Dimname cumprod cumprod.dimname cumsum cumsum.dimname linalg_vector_norm
linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList sum.dim_DimnameList)";

/// Run with dtype=float32 appended to the call.
inline constexpr std::string_view cuda_fp32_append_dtype = R"(norm.Scalar norm.ScalarOpt_dim norm.names_ScalarOpt_dim)";

/// Inputs cast to the widest of them.
inline constexpr std::string_view cuda_promote = R"(addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler
index_put tensordot scatter_add)";

/// Raise an error under autocast, because their gradients overflow in FP16; PyTorch asks for the variant with logits.
inline constexpr std::string_view cuda_banned = R"(binary_cross_entropy)";

/// A composite operator is on no list. LibTorch expands it into operators that are, and autocast sees only those: the
/// listed one before "=" decides the precision of the result. That of cross_entropy_loss is behind log_softmax, which
/// autocast leaves in the logits' format.
inline constexpr std::string_view cuda_composites = R"(convolution=_convolution_mode
_upsample_bicubic2d_aa=_upsample_bicubic2d_aa.vec _upsample_bilinear2d_aa=_upsample_bilinear2d_aa.vec
_upsample_nearest_exact1d=_upsample_nearest_exact1d.vec _upsample_nearest_exact2d=_upsample_nearest_exact2d.vec
_upsample_nearest_exact3d=_upsample_nearest_exact3d.vec acos=arccos asin=arcsin atan2=arctan2 conv1d=conv1d.padding
conv2d=conv2d.padding conv3d=conv3d.padding nll_loss=cross_entropy_loss,nll_loss_nd
cumsum=cumulative_trapezoid.dx,cumulative_trapezoid.x _cudnn_rnn=gru.input,lstm.input,rnn_relu.input,rnn_tanh.input
matmul=linalg_matmul,linalg_matrix_power,matrix_power linalg_vector_norm=linalg_norm
linalg_matrix_norm=linalg_norm.ord_str norm=pairwise_distance erfinv=special_erfinv expm1=special_expm1
log1p=special_log1p log_softmax=special_log_softmax logsumexp=special_logsumexp softmax=special_softmax pow=square
sum=sum_to_size,trapezoid.dx,trapezoid.x,trapz.dx,trapz.x upsample_bicubic2d=upsample_bicubic2d.vec
upsample_bilinear2d=upsample_bilinear2d.vec upsample_linear1d=upsample_linear1d.vec
upsample_nearest1d=upsample_nearest1d.vec upsample_nearest2d=upsample_nearest2d.vec
upsample_nearest3d=upsample_nearest3d.vec upsample_trilinear3d=upsample_trilinear3d.vec)";

/// On the CPU softmax, log_softmax and layer_norm are on no list: they run in the precision of their inputs.
inline constexpr std::string_view cpu_lower_precision_fp = R"(_addmm_activation _convolution.deprecated
_native_multi_head_attention addbmm addmm baddbmm bmm conv1d conv1d.padding conv2d conv2d.padding conv3d
conv3d.padding conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input linalg_vecdot linear matmul
mkldnn_rnn_layer mm prelu scaled_dot_product_attention)";

inline constexpr std::string_view cpu_fp32 = R"(_grid_sampler_2d_cpu_fallback _lu_with_info adaptive_avg_pool3d
adaptive_max_pool3d avg_pool3d binary_cross_entropy binary_cross_entropy_with_logits cdist cholesky cholesky_inverse
cholesky_solve cosine_embedding_loss cross_entropy_loss ctc_loss.IntList ctc_loss.Tensor
fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft
fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn fractional_max_pool2d fractional_max_pool3d geqrf grid_sampler
grid_sampler_2d grid_sampler_3d hinge_embedding_loss huber_loss inverse kl_div l1_loss linalg_cholesky
linalg_cholesky_ex linalg_cond linalg_cond.p_str linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank
linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.tol_tensor
linalg_matrix_sqrth linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve lu_solve
margin_ranking_loss max_pool3d max_unpool2d max_unpool3d mse_loss multi_margin_loss multilabel_margin_loss
multilabel_margin_loss_forward nanquantile nanquantile.scalar nll_loss nll_loss2d orgqr ormqr pinverse
poisson_nll_loss polar prod prod.dim_Dimname prod.dim_int qr quantile quantile.scalar reflection_pad1d
reflection_pad2d replication_pad1d replication_pad2d replication_pad3d smooth_l1_loss soft_margin_loss stft
stft.center svd trace triangular_solve triplet_margin_loss view_as_complex)";

inline constexpr std::string_view cpu_promote = R"(cat index_copy index_copy.dimname stack)";

inline constexpr std::string_view cpu_composites = R"(_addmm_activation=_transformer_encoder_layer_fwd
bmm=affine_grid_generator,einsum mm=chain_matmul,corrcoef,cov,linalg_multi_dot,tensordot
matmul=inner,linalg_matmul,linalg_matrix_power,matrix_power
linear=lstm.input,rnn_relu.input,rnn_relu_cell,rnn_tanh.input,rnn_tanh_cell nll_loss=nll_loss_nd)";

}  // namespace comp::policy::pytorch_lists
