// SPDX-License-Identifier: Apache-2.0
// The three passes of a convolution under the names that cuDNN gives them.
#pragma once

#include "cudnn_convolution.hpp"

// Forward: y from x and w.

inline cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t handle, int* count) {
  return simt::dnn_call([=] {
    if (!simt::alive(handle) || !count) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *count = simt::dnn_pass<0>::most();
    return CUDNN_STATUS_SUCCESS;
  });
}
inline cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc, const void* x, cudnnFilterDescriptor_t w_desc, const void* w,
    cudnnConvolutionDescriptor_t how, cudnnTensorDescriptor_t y_desc, void* y, const int requested, int* count,
    cudnnConvolutionFwdAlgoPerf_t* results, void* workspace, std::size_t bytes) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, w_desc, y_desc, how));
    using pass = simt::dnn_pass<0>;
    return pass::measure(pass::of(x_desc, w_desc, y_desc, how), x, w, y, requested, count, results, workspace, bytes);
  });
}
inline cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc,
                                                            cudnnFilterDescriptor_t w_desc,
                                                            cudnnConvolutionDescriptor_t how,
                                                            cudnnTensorDescriptor_t y_desc, const int requested,
                                                            int* count, cudnnConvolutionFwdAlgoPerf_t* results) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, w_desc, y_desc, how));
    return simt::dnn_pass<0>::guess(simt::dnn_pass<0>::of(x_desc, w_desc, y_desc, how), requested, count, results);
  });
}
inline cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc,
                                                             cudnnFilterDescriptor_t w_desc,
                                                             cudnnConvolutionDescriptor_t how,
                                                             cudnnTensorDescriptor_t y_desc,
                                                             cudnnConvolutionFwdAlgo_t algorithm, std::size_t* bytes) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, w_desc, y_desc, how));
    return simt::dnn_pass<0>::need(simt::dnn_pass<0>::of(x_desc, w_desc, y_desc, how), algorithm, bytes);
  });
}
inline cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x_desc,
                                             const void* x, cudnnFilterDescriptor_t w_desc, const void* w,
                                             cudnnConvolutionDescriptor_t how, cudnnConvolutionFwdAlgo_t algorithm,
                                             void* workspace, std::size_t bytes, const void* beta,
                                             cudnnTensorDescriptor_t y_desc, void* y) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, w_desc, y_desc, how));
    using pass = simt::dnn_pass<0>;
    return pass::run(handle, pass::of(x_desc, w_desc, y_desc, how), alpha, x, w, algorithm, workspace, bytes, beta, y);
  });
}

// Backward: dx from w and dy.

inline cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t handle, int* count) {
  return simt::dnn_call([=] {
    if (!simt::alive(handle) || !count) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *count = simt::dnn_pass<1>::most();
    return CUDNN_STATUS_SUCCESS;
  });
}
inline cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w_desc, const void* w, cudnnTensorDescriptor_t dy_desc,
    const void* dy, cudnnConvolutionDescriptor_t how, cudnnTensorDescriptor_t dx_desc, void* dx, const int requested,
    int* count, cudnnConvolutionBwdDataAlgoPerf_t* results, void* workspace, std::size_t bytes) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, w_desc, dy_desc, dx_desc, how));
    using pass = simt::dnn_pass<1>;
    return pass::measure(pass::of(dx_desc, w_desc, dy_desc, how), w, dy, dx, requested, count, results, workspace,
                         bytes);
  });
}
inline cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t handle, cudnnFilterDescriptor_t w_desc,
                                                                 cudnnTensorDescriptor_t dy_desc,
                                                                 cudnnConvolutionDescriptor_t how,
                                                                 cudnnTensorDescriptor_t dx_desc, const int requested,
                                                                 int* count,
                                                                 cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, w_desc, dy_desc, dx_desc, how));
    return simt::dnn_pass<1>::guess(simt::dnn_pass<1>::of(dx_desc, w_desc, dy_desc, how), requested, count, results);
  });
}
inline cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t handle, cudnnFilterDescriptor_t w_desc,
                                                                  cudnnTensorDescriptor_t dy_desc,
                                                                  cudnnConvolutionDescriptor_t how,
                                                                  cudnnTensorDescriptor_t dx_desc,
                                                                  cudnnConvolutionBwdDataAlgo_t algorithm,
                                                                  std::size_t* bytes) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, w_desc, dy_desc, dx_desc, how));
    return simt::dnn_pass<1>::need(simt::dnn_pass<1>::of(dx_desc, w_desc, dy_desc, how), algorithm, bytes);
  });
}
inline cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                                  cudnnFilterDescriptor_t w_desc, const void* w,
                                                  cudnnTensorDescriptor_t dy_desc, const void* dy,
                                                  cudnnConvolutionDescriptor_t how,
                                                  cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace,
                                                  std::size_t bytes, const void* beta, cudnnTensorDescriptor_t dx_desc,
                                                  void* dx) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, w_desc, dy_desc, dx_desc, how));
    using pass = simt::dnn_pass<1>;
    return pass::run(handle, pass::of(dx_desc, w_desc, dy_desc, how), alpha, w, dy, algorithm, workspace, bytes, beta,
                     dx);
  });
}

// Backward: dw from x and dy.

inline cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t handle, int* count) {
  return simt::dnn_call([=] {
    if (!simt::alive(handle) || !count) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *count = simt::dnn_pass<2>::most();
    return CUDNN_STATUS_SUCCESS;
  });
}
inline cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc, const void* x, cudnnTensorDescriptor_t dy_desc,
    const void* dy, cudnnConvolutionDescriptor_t how, cudnnFilterDescriptor_t dw_desc, void* dw, const int requested,
    int* count, cudnnConvolutionBwdFilterAlgoPerf_t* results, void* workspace, std::size_t bytes) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, dy_desc, dw_desc, how));
    using pass = simt::dnn_pass<2>;
    return pass::measure(pass::of(x_desc, dw_desc, dy_desc, how), x, dy, dw, requested, count, results, workspace,
                         bytes);
  });
}
inline cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc,
                                                                   cudnnTensorDescriptor_t dy_desc,
                                                                   cudnnConvolutionDescriptor_t how,
                                                                   cudnnFilterDescriptor_t dw_desc, const int requested,
                                                                   int* count,
                                                                   cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, dy_desc, dw_desc, how));
    return simt::dnn_pass<2>::guess(simt::dnn_pass<2>::of(x_desc, dw_desc, dy_desc, how), requested, count, results);
  });
}
inline cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_desc, cudnnTensorDescriptor_t dy_desc,
    cudnnConvolutionDescriptor_t how, cudnnFilterDescriptor_t dw_desc, cudnnConvolutionBwdFilterAlgo_t algorithm,
    std::size_t* bytes) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, dy_desc, dw_desc, how));
    return simt::dnn_pass<2>::need(simt::dnn_pass<2>::of(x_desc, dw_desc, dy_desc, how), algorithm, bytes);
  });
}
inline cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                                    cudnnTensorDescriptor_t x_desc, const void* x,
                                                    cudnnTensorDescriptor_t dy_desc, const void* dy,
                                                    cudnnConvolutionDescriptor_t how,
                                                    cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                                                    std::size_t bytes, const void* beta,
                                                    cudnnFilterDescriptor_t dw_desc, void* dw) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, x_desc, dy_desc, dw_desc, how));
    using pass = simt::dnn_pass<2>;
    return pass::run(handle, pass::of(x_desc, dw_desc, dy_desc, how), alpha, x, dy, algorithm, workspace, bytes, beta,
                     dw);
  });
}

/// db = alpha * the sums of dy over all but the channels + beta * db: (1,C,1,1), of the same type, which is not BF16.
inline cudnnStatus_t cudnnConvolutionBackwardBias(cudnnHandle_t handle, const void* alpha,
                                                  cudnnTensorDescriptor_t dy_desc, const void* dy, const void* beta,
                                                  cudnnTensorDescriptor_t db_desc, void* db) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, dy_desc, db_desc));
    COMP_DNN_REQUIRE(simt::addressed(dy, db));
    if (dy_desc->type != db_desc->type || db_desc->size != simt::sizes4{1, dy_desc->size[1], 1, 1})
      return CUDNN_STATUS_BAD_PARAM;
    if (dy_desc->type == CUDNN_DATA_BFLOAT16) return CUDNN_STATUS_NOT_SUPPORTED;
    const simt::dnn_layout from = *dy_desc, to = *db_desc;
    return simt::give_dnn(handle, [=, by = simt::factor(alpha), keep = simt::factor(beta)] {
      const std::vector<float> g = simt::gather(from, dy);
      const auto plane = static_cast<std::size_t>(from.size[2] * from.size[3]), channels = to.count();
      std::vector<float> sums(channels);
      for (std::size_t i = 0; i < g.size(); ++i) sums[i / plane % channels] += g[i];
      simt::scatter(to, db, std::move(sums), by, keep);
    });
  });
}
