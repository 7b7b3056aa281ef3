// SPDX-License-Identifier: Apache-2.0
// Tensor descriptors of cuDNN's stand-in, and the addition of a tensor that is repeated.
#pragma once

#include "cudnn_types.hpp"

inline cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* to) {
  return simt::dnn_call([=] { return simt::make_dnn_object(to); });
}
inline cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t d) { return simt::destroy_dnn_object(d); }

namespace simt {
/// Sizes that cuDNN takes: positive, and no more elements than 31 bits count.
inline cudnnStatus_t countable(const sizes4& s) {
  std::int64_t all = 1;
  for (const std::int64_t n : s) {
    if (n <= 0) return CUDNN_STATUS_BAD_PARAM;
    all *= n;
    if (all > std::numeric_limits<std::int32_t>::max()) return CUDNN_STATUS_NOT_SUPPORTED;
  }
  return CUDNN_STATUS_SUCCESS;
}
inline bool known_type(cudnnDataType_t t) {
  return t == CUDNN_DATA_FLOAT || t == CUDNN_DATA_HALF || t == CUDNN_DATA_BFLOAT16;
}
}  // namespace simt

inline cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                                                cudnnDataType_t type, int n, int c, int h, int w) {
  return simt::dnn_call([=] {
    const simt::sizes4 sizes{n, c, h, w};
    if (!simt::alive(d)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (!simt::known_type(type)) return CUDNN_STATUS_BAD_PARAM;
    COMP_DNN_REQUIRE(simt::countable(sizes));
    d->type = type;
    d->size = sizes;
    d->stride = simt::dnn_layout::strides(sizes, format);
    d->set = true;
    return CUDNN_STATUS_SUCCESS;
  });
}

/// C = alpha * A + beta * C: each size of A is that of C, or 1. The types have to be the same.
inline cudnnStatus_t cudnnAddTensor(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t a_desc,
                                    const void* a, const void* beta, cudnnTensorDescriptor_t c_desc, void* c) {
  return simt::dnn_call([=] {
    COMP_DNN_REQUIRE(simt::usable(handle, a_desc, c_desc));
    COMP_DNN_REQUIRE(simt::addressed(a, c));
    if (a_desc->type != c_desc->type) return CUDNN_STATUS_BAD_PARAM;
    for (std::size_t i = 0; i < 4; ++i) {
      if (a_desc->size[i] != 1 && a_desc->size[i] != c_desc->size[i]) return CUDNN_STATUS_BAD_PARAM;
    }
    COMP_DNN_REQUIRE(simt::typed(*c_desc));
    const simt::dnn_layout in = *a_desc, out = *c_desc;
    return simt::give_dnn(handle, [=, by = simt::factor(alpha), keep = simt::factor(beta)] {
      const std::vector<float> values = simt::gather(in, a);
      std::vector<float> all(out.count());
      for (std::size_t i = 0; i < all.size(); ++i) {
        std::size_t rest = i, at = 0, step = 1;
        for (std::size_t axis = 4; axis-- > 0;) {
          const auto size = static_cast<std::size_t>(out.size[axis]);
          if (in.size[axis] > 1) at += rest % size * step;
          step *= static_cast<std::size_t>(in.size[axis]);
          rest /= size;
        }
        all[i] = values[at];
      }
      simt::scatter(out, c, std::move(all), by, keep);
    });
  });
}
