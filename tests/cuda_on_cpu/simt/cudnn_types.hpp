// SPDX-License-Identifier: Apache-2.0
// Types of cuDNN's stand-in: enumerations with the real values, descriptors, and what tests switch and count.
// A descriptor that was destroyed, or never made, is a fault: the real library would read freed memory.
#pragma once

#include <array>
#include <comp_native/math/formats.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "library_memory.hpp"

enum cudnnStatus_t {
  CUDNN_STATUS_SUCCESS = 0,
  CUDNN_STATUS_BAD_PARAM = 2000,
  CUDNN_STATUS_BAD_PARAM_NULL_POINTER = 2002,
  CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER = 2003,
  CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED = 2004,
  CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT = 2006,
  CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH = 2008,
  CUDNN_STATUS_NOT_SUPPORTED = 3000,
  CUDNN_STATUS_NOT_SUPPORTED_SHAPE = 3002,
  CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE = 3003,
  CUDNN_STATUS_NOT_SUPPORTED_LAYOUT = 3004,
  CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH = 3007,
  CUDNN_STATUS_INTERNAL_ERROR = 4000,
  CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 4003,
  CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 4004,
  CUDNN_STATUS_EXECUTION_FAILED = 5000,
};
enum cudnnDataType_t { CUDNN_DATA_FLOAT = 0, CUDNN_DATA_HALF = 2, CUDNN_DATA_BFLOAT16 = 9 };
enum cudnnMathType_t { CUDNN_DEFAULT_MATH = 0, CUDNN_TENSOR_OP_MATH = 1, CUDNN_FMA_MATH = 3 };
enum cudnnNanPropagation_t { CUDNN_NOT_PROPAGATE_NAN = 0, CUDNN_PROPAGATE_NAN = 1 };
enum cudnnTensorFormat_t { CUDNN_TENSOR_NCHW = 0, CUDNN_TENSOR_NHWC = 1 };
enum cudnnDeterminism_t { CUDNN_NON_DETERMINISTIC = 0, CUDNN_DETERMINISTIC = 1 };
enum cudnnConvolutionMode_t { CUDNN_CONVOLUTION = 0, CUDNN_CROSS_CORRELATION = 1 };
enum cudnnPoolingMode_t {
  CUDNN_POOLING_MAX = 0,
  CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING = 1,
  CUDNN_POOLING_MAX_DETERMINISTIC = 3,
};
enum cudnnBatchNormMode_t {
  CUDNN_BATCHNORM_PER_ACTIVATION = 0,
  CUDNN_BATCHNORM_SPATIAL = 1,
  CUDNN_BATCHNORM_SPATIAL_PERSISTENT = 2,
};
enum cudnnBatchNormOps_t { CUDNN_BATCHNORM_OPS_BN = 0 };

namespace simt {

using sizes4 = std::array<std::int64_t, 4>;  // of (N,C,H,W), in this order whatever the layout

/// A packed tensor or filter.
struct dnn_layout {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  sizes4 size{}, stride{};

  static sizes4 strides(const sizes4& s, cudnnTensorFormat_t format) {
    if (format == CUDNN_TENSOR_NHWC) return {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
    return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
  }
  bool is(cudnnTensorFormat_t format) const {
    const sizes4 of = strides(size, format);
    for (std::size_t i = 0; i < 4; ++i) {
      if (size[i] > 1 && stride[i] != of[i]) return false;
    }
    return true;
  }
  std::size_t count() const { return static_cast<std::size_t>(size[0] * size[1] * size[2] * size[3]); }
  std::size_t bytes_each() const { return type == CUDNN_DATA_FLOAT ? 4 : 2; }
  std::size_t bytes() const { return count() * bytes_each(); }
  bool operator==(const dnn_layout&) const = default;
};

/// What tests switch, order and count.
struct dnn_rules {
  bool nhwc_norm = true, nhwc_pooling = true, bf16_norm = true, bf16_pooling = true;
  std::array<bool, 3> nhwc_convolution{true, true, true};  // of each pass
  std::array<int, 3> refused{-1, -1, -1};                  // of each pass the algorithm that is listed and does not run
  cudnnStatus_t refusal = CUDNN_STATUS_NOT_SUPPORTED;      // what all of these are refused with
  struct run {
    int pass, algorithm;  // 0: forward, 1: data, 2: filter
    cudnnMathType_t math;
    std::size_t workspace;
    bool nhwc;
  };
  int measured = 0, guessed = 0;                 // algorithms looked for
  std::size_t measured_in = 0;                   // the largest workspace for that
  std::vector<run> runs;                         // convolutions since the start
  std::vector<int> norms, pools;                 // the modes of batch norms and pools since the start
  std::array<bool, 3> graphs{true, true, true};  // of each pass: whether there are graphs (convolutions_on_cpu.cpp)
  bool relu_graphs = true;                       // with a ReLU
  std::vector<std::int64_t> plans_unmade, plans_failing;  // what says so when it is made or run
  struct graph_run {
    int pass;
    std::int64_t plan;
    bool bias, relu;
  };
  std::vector<graph_run> graph_runs;   // since the start
  int plans_made = 0, bias_takes = 0;  // how many hours more a graph with a bias pretends to take
  std::string said;                    // what cuDNN tells of the last error, once
};
inline dnn_rules dnn;

/// All handles and descriptors that live.
inline std::unordered_map<const void*, std::shared_ptr<void>> dnn_objects;
template <class T>
cudnnStatus_t make_dnn_object(T** to) {
  if (!to) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  const auto object = std::make_shared<T>();
  *to = object.get();
  dnn_objects[object.get()] = object;
  return CUDNN_STATUS_SUCCESS;
}
inline cudnnStatus_t destroy_dnn_object(const void* p) {
  if (p && !dnn_objects.erase(p)) throw fault{"an object of cuDNN is destroyed that does not live"};
  return CUDNN_STATUS_SUCCESS;
}
/// Throws: fault for an object that does not live. A null pointer is for the caller to refuse.
template <class T>
const T* alive(const T* p) {
  if (p && !dnn_objects.contains(p)) throw fault{"cuDNN is given a descriptor that does not live"};
  return p;
}

cudnnStatus_t dnn_call(auto call) { return library_call(CUDNN_STATUS_INTERNAL_ERROR, call); }

/// The values of a tensor as FP32, in the order (N,C,H,W). Throws: fault if they are not there.
template <class T>
std::vector<float> gather_as(const dnn_layout& of, const void* from) {
  const T* at = library_reads<T>(from, of.count());
  std::vector<float> all(of.count());
  std::size_t i = 0;
  for (std::int64_t n = 0; n < of.size[0]; ++n)
    for (std::int64_t c = 0; c < of.size[1]; ++c)
      for (std::int64_t h = 0; h < of.size[2]; ++h)
        for (std::int64_t w = 0; w < of.size[3]; ++w)
          all[i++] =
              comp::native::math::load(at[n * of.stride[0] + c * of.stride[1] + h * of.stride[2] + w * of.stride[3]]);
  return all;
}
inline std::vector<float> gather(const dnn_layout& of, const void* from) {
  if (of.type == CUDNN_DATA_HALF) return gather_as<comp::native::math::fp16>(of, from);
  if (of.type == CUDNN_DATA_BFLOAT16) return gather_as<comp::native::math::bf16>(of, from);
  return gather_as<float>(of, from);
}
template <class T>
void scatter_as(const dnn_layout& of, void* to, const std::vector<float>& all) {
  T* at = library_writes<T>(to, of.count());
  std::size_t i = 0;
  for (std::int64_t n = 0; n < of.size[0]; ++n)
    for (std::int64_t c = 0; c < of.size[1]; ++c)
      for (std::int64_t h = 0; h < of.size[2]; ++h)
        for (std::int64_t w = 0; w < of.size[3]; ++w)
          comp::native::math::store(at[n * of.stride[0] + c * of.stride[1] + h * of.stride[2] + w * of.stride[3]],
                                    all[i++]);
}
/// to = alpha * all + beta * to; with beta = 0 `to` is not read.
inline void scatter(const dnn_layout& of, void* to, std::vector<float> all, float alpha, float beta) {
  for (float& v : all) v *= alpha;
  if (beta != 0) {
    const std::vector<float> before = gather(of, to);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] += beta * before[i];
  }
  if (of.type == CUDNN_DATA_HALF) return scatter_as<comp::native::math::fp16>(of, to, all);
  if (of.type == CUDNN_DATA_BFLOAT16) return scatter_as<comp::native::math::bf16>(of, to, all);
  scatter_as<float>(of, to, all);
}
/// A factor as the call finds it, in FP32.
inline float factor(const void* p) { return *static_cast<const float*>(p); }

}  // namespace simt

struct cudnnContext {
  cudaStream_t stream = nullptr;
};
struct cudnnTensorStruct : simt::dnn_layout {
  bool set = false;
};
struct cudnnFilterStruct : simt::dnn_layout {
  bool set = false;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
};
struct cudnnConvolutionStruct {
  bool set = false;
  std::array<std::int64_t, 2> padding{}, stride{}, dilation{};
  std::int64_t groups = 1;
  cudnnConvolutionMode_t mode = CUDNN_CONVOLUTION;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};
struct cudnnPoolingStruct {
  bool set = false;
  cudnnPoolingMode_t mode = CUDNN_POOLING_MAX;
  cudnnNanPropagation_t nan = CUDNN_NOT_PROPAGATE_NAN;
  std::array<std::int64_t, 2> window{}, padding{}, stride{};
};
struct cudnnActivationStruct {};
using cudnnHandle_t = cudnnContext*;
using cudnnTensorDescriptor_t = cudnnTensorStruct*;
using cudnnFilterDescriptor_t = cudnnFilterStruct*;
using cudnnConvolutionDescriptor_t = cudnnConvolutionStruct*;
using cudnnPoolingDescriptor_t = cudnnPoolingStruct*;
using cudnnActivationDescriptor_t = cudnnActivationStruct*;

namespace simt {

/// What is wrong with a handle and descriptors that a call is given.
template <class... D>
cudnnStatus_t usable(cudnnHandle_t handle, const D*... all) {
  if (!alive(handle) || !(alive(all) && ...)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  if (!known_stream(handle->stream)) throw fault{"cuDNN works on a stream that was destroyed"};
  if (!(all->set && ...)) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  return CUDNN_STATUS_SUCCESS;
}
/// Gives work to the handle's stream.
inline cudnnStatus_t give_dnn(cudnnHandle_t handle, std::function<void()> work) {
  if (may_give(handle->stream) != cudaSuccess) return CUDNN_STATUS_EXECUTION_FAILED;
  device.give(handle->stream, std::move(work));
  return CUDNN_STATUS_SUCCESS;
}
/// What is wrong with the addresses of tensors: none may be null, and each has to be a multiple of 16 bytes.
template <class... P>
cudnnStatus_t addressed(const P*... all) {
  if (!(all && ...)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  if (((reinterpret_cast<std::uintptr_t>(all) % 16 != 0) || ...)) return CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER;
  return CUDNN_STATUS_SUCCESS;
}
/// BF16 needs compute capability 8.0.
inline cudnnStatus_t typed(const dnn_layout& of) {
  const bool missing = of.type == CUDNN_DATA_BFLOAT16 && device.properties.major < 8;
  return missing ? CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH : CUDNN_STATUS_SUCCESS;
}

}  // namespace simt

/// Ends the call with what a check finds wrong.
#define COMP_DNN_REQUIRE(check) \
  if (const cudnnStatus_t status_ = (check); status_ != CUDNN_STATUS_SUCCESS) return status_
