// SPDX-License-Identifier: Apache-2.0
// Batch norm's extended calls: the same with a workspace, and with a reserve, in which the backward has to find what
// its forward left. Activations and sums of tensors are not in use, and refused.
#pragma once

#include "cudnn_norm.hpp"

inline cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t, cudnnTensorDescriptor_t x,
    cudnnTensorDescriptor_t, cudnnTensorDescriptor_t y, cudnnTensorDescriptor_t vectors, cudnnActivationDescriptor_t,
    std::size_t* bytes) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x, y, vectors));
    COMP_DNN_REQUIRE(simt::normable(*x, *y, *vectors, mode, 0, true, true));
    *bytes = simt::norm_workspace(*x, mode);
    return CUDNN_STATUS_SUCCESS;
  });
}
inline cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t, cudnnTensorDescriptor_t x,
    cudnnTensorDescriptor_t, cudnnTensorDescriptor_t dy, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t dx,
    cudnnTensorDescriptor_t vectors, cudnnActivationDescriptor_t, std::size_t* bytes) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x, dy, dx, vectors));
    COMP_DNN_REQUIRE(simt::normable(*x, *dy, *vectors, mode, 0, true, true));
    *bytes = simt::norm_workspace(*x, mode);
    return CUDNN_STATUS_SUCCESS;
  });
}
inline cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t, cudnnActivationDescriptor_t,
    cudnnTensorDescriptor_t x, std::size_t* bytes) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x));
    *bytes = simt::reserve_bytes(*x, mode);
    return CUDNN_STATUS_SUCCESS;
  });
}
namespace simt {
/// What is wrong with the two memories of an extended call.
inline cudnnStatus_t roomy(const dnn_layout& x, cudnnBatchNormMode_t mode, const void* workspace, std::size_t bytes,
                           const void* reserve, std::size_t kept) {
  if (bytes < norm_workspace(x, mode) || kept < reserve_bytes(x, mode)) return CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT;
  return needs_reserve(x, mode) ? addressed(workspace, reserve) : CUDNN_STATUS_SUCCESS;
}
}  // namespace simt
inline cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t, const void* alpha, const void* beta,
    cudnnTensorDescriptor_t x_desc, const void* x, cudnnTensorDescriptor_t z_desc, const void* z,
    cudnnTensorDescriptor_t y_desc, void* y, cudnnTensorDescriptor_t vectors, const void* scale, const void* shift,
    double momentum, void* running_mean, void* running_variance, double epsilon, void* mean, void* inverse,
    cudnnActivationDescriptor_t activation, void* workspace, std::size_t bytes, void* reserve, std::size_t kept) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, y_desc, vectors));
    COMP_DNN_REQUIRE(simt::normable(*x_desc, *y_desc, *vectors, mode, epsilon, true, true));
    COMP_DNN_REQUIRE(simt::addressed(x, y, scale, shift));
    COMP_DNN_REQUIRE(simt::roomy(*x_desc, mode, workspace, bytes, reserve, kept));
    if (!simt::both_or_none(running_mean, running_variance) || !simt::both_or_none(mean, inverse) || z_desc || z ||
        activation)
      return CUDNN_STATUS_BAD_PARAM;
    simt::dnn.norms.push_back(mode);
    const bool keeps = simt::needs_reserve(*x_desc, mode);
    return simt::give_dnn(
        handle, [=, train = simt::norm_training{*x_desc, *vectors, x, scale, shift, y, running_mean, running_variance,
                                                mean, inverse, keeps ? reserve : nullptr, simt::factor(alpha),
                                                simt::factor(beta), static_cast<float>(momentum), epsilon}] {
          (void)simt::library_writes<unsigned char>(workspace, bytes);
          train();
        });
  });
}
inline cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t, const void* alpha, const void* beta,
    const void* parameter_alpha, const void* parameter_beta, cudnnTensorDescriptor_t x_desc, const void* x,
    cudnnTensorDescriptor_t y_desc, const void* y, cudnnTensorDescriptor_t dy_desc, const void* dy,
    cudnnTensorDescriptor_t dz_desc, void* dz, cudnnTensorDescriptor_t dx_desc, void* dx,
    cudnnTensorDescriptor_t vectors, const void* scale, const void* shift, void* d_scale, void* d_shift, double epsilon,
    const void* mean, const void* inverse, cudnnActivationDescriptor_t activation, void* workspace, std::size_t bytes,
    void* reserve, std::size_t kept) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, dy_desc, dx_desc, vectors));
    COMP_DNN_REQUIRE(simt::normable(*x_desc, *dy_desc, *vectors, mode, epsilon, true, true));
    COMP_DNN_REQUIRE(simt::normable(*x_desc, *dx_desc, *vectors, mode, epsilon, true, true));
    COMP_DNN_REQUIRE(simt::addressed(x, dy, dx, scale, d_scale, d_shift, mean, inverse));
    COMP_DNN_REQUIRE(simt::roomy(*x_desc, mode, workspace, bytes, reserve, kept));
    if (y_desc || y || dz_desc || dz || shift || activation) return CUDNN_STATUS_BAD_PARAM;
    const bool keeps = simt::needs_reserve(*x_desc, mode);
    return simt::give_dnn(
        handle, [=, back = simt::norm_backward{*x_desc, *vectors, x, dy, scale, dx, d_scale, d_shift, mean, inverse,
                                               keeps ? reserve : nullptr, simt::factor(alpha), simt::factor(beta),
                                               simt::factor(parameter_alpha), simt::factor(parameter_beta)}] {
          (void)simt::library_writes<unsigned char>(workspace, bytes);
          back();
        });
  });
}
