// SPDX-License-Identifier: Apache-2.0
// The three passes of a convolution under the names that cuDNN gives them.
#pragma once

#include "cudnn_convolution.hpp"

namespace simt {

/// The calls of a pass, which take the descriptors of two operands and of the result: forward x, w and y, backward w,
/// dy and dx, or x, dy and dw.
template <int Pass, class A, class B, class To, class Algorithm>
struct dnn_calls {
  using how_t = cudnnConvolutionDescriptor_t;
  using pass = dnn_pass<Pass>;
  using perf = cudnnAlgorithmPerformance<Algorithm>;

  static dnn_convolution of(A a, B b, To to, how_t how) {
    if constexpr (Pass == 0) return pass::of(a, b, to, how);
    if constexpr (Pass == 1) return pass::of(to, a, b, how);
    if constexpr (Pass == 2) return pass::of(a, to, b, how);
  }
  static cudnnStatus_t most(cudnnHandle_t handle, int* count) {
    return dnn_call([=] {
      if (!alive(handle) || !count) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
      *count = pass::most();
      return CUDNN_STATUS_SUCCESS;
    });
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, A a_desc, const void* a, B b_desc, const void* b, how_t how,
                               To to_desc, void* to, int requested, int* count, perf* results, void* workspace,
                               std::size_t bytes) {
    return dnn_call([=] {
      COMP_DNN_REQUIRE(usable(handle, a_desc, b_desc, to_desc, how));
      return pass::measure(of(a_desc, b_desc, to_desc, how), a, b, to, requested, count, results, workspace, bytes);
    });
  }
  static cudnnStatus_t guess(cudnnHandle_t handle, A a, B b, how_t how, To to, int requested, int* count,
                             perf* results) {
    return dnn_call([=] {
      COMP_DNN_REQUIRE(usable(handle, a, b, to, how));
      return pass::guess(of(a, b, to, how), requested, count, results);
    });
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, A a, B b, how_t how, To to, Algorithm algorithm,
                                 std::size_t* bytes) {
    return dnn_call([=] {
      COMP_DNN_REQUIRE(usable(handle, a, b, to, how));
      return pass::need(of(a, b, to, how), algorithm, bytes);
    });
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const void* alpha, A a_desc, const void* a, B b_desc, const void* b,
                           how_t how, Algorithm algorithm, void* workspace, std::size_t bytes, const void* beta,
                           To to_desc, void* to) {
    return dnn_call([=] {
      COMP_DNN_REQUIRE(usable(handle, a_desc, b_desc, to_desc, how));
      const dnn_convolution c = of(a_desc, b_desc, to_desc, how);
      return pass::run(handle, c, alpha, a, b, algorithm, workspace, bytes, beta, to);
    });
  }
};
using dnn_forward =
    dnn_calls<0, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnConvolutionFwdAlgo_t>;
using dnn_backward_data = dnn_calls<1, cudnnFilterDescriptor_t, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t,
                                    cudnnConvolutionBwdDataAlgo_t>;
using dnn_backward_filter = dnn_calls<2, cudnnTensorDescriptor_t, cudnnTensorDescriptor_t, cudnnFilterDescriptor_t,
                                      cudnnConvolutionBwdFilterAlgo_t>;

}  // namespace simt

inline constexpr auto cudnnGetConvolutionForwardAlgorithmMaxCount = simt::dnn_forward::most;
inline constexpr auto cudnnFindConvolutionForwardAlgorithmEx = simt::dnn_forward::measure;
inline constexpr auto cudnnGetConvolutionForwardAlgorithm_v7 = simt::dnn_forward::guess;
inline constexpr auto cudnnGetConvolutionForwardWorkspaceSize = simt::dnn_forward::workspace;
inline constexpr auto cudnnConvolutionForward = simt::dnn_forward::run;

inline constexpr auto cudnnGetConvolutionBackwardDataAlgorithmMaxCount = simt::dnn_backward_data::most;
inline constexpr auto cudnnFindConvolutionBackwardDataAlgorithmEx = simt::dnn_backward_data::measure;
inline constexpr auto cudnnGetConvolutionBackwardDataAlgorithm_v7 = simt::dnn_backward_data::guess;
inline constexpr auto cudnnGetConvolutionBackwardDataWorkspaceSize = simt::dnn_backward_data::workspace;
inline constexpr auto cudnnConvolutionBackwardData = simt::dnn_backward_data::run;

inline constexpr auto cudnnGetConvolutionBackwardFilterAlgorithmMaxCount = simt::dnn_backward_filter::most;
inline constexpr auto cudnnFindConvolutionBackwardFilterAlgorithmEx = simt::dnn_backward_filter::measure;
inline constexpr auto cudnnGetConvolutionBackwardFilterAlgorithm_v7 = simt::dnn_backward_filter::guess;
inline constexpr auto cudnnGetConvolutionBackwardFilterWorkspaceSize = simt::dnn_backward_filter::workspace;
inline constexpr auto cudnnConvolutionBackwardFilter = simt::dnn_backward_filter::run;

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
