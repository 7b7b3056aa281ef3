// SPDX-License-Identifier: Apache-2.0
// The calls of cuDNN's stand-in that convolve, and that look for algorithms: by measurement, which waits, overwrites
// the result and needs its workspace, or by heuristics, whose first answer is seldom the fastest.
#pragma once

#include <functional>

#include "cudnn_algorithms.hpp"

template <class Algorithm>
struct cudnnAlgorithmPerformance {
  Algorithm algo;
  cudnnStatus_t status;
  float time;
  std::size_t memory;
  cudnnDeterminism_t determinism;
  cudnnMathType_t mathType;
  int reserved[3];
};
using cudnnConvolutionFwdAlgoPerf_t = cudnnAlgorithmPerformance<cudnnConvolutionFwdAlgo_t>;
using cudnnConvolutionBwdDataAlgoPerf_t = cudnnAlgorithmPerformance<cudnnConvolutionBwdDataAlgo_t>;
using cudnnConvolutionBwdFilterAlgoPerf_t = cudnnAlgorithmPerformance<cudnnConvolutionBwdFilterAlgo_t>;

inline cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* to) {
  return simt::dnn_call([=] { return simt::make_dnn_object(to); });
}
inline cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t d) { return simt::destroy_dnn_object(d); }
inline cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                                                cudnnTensorFormat_t format, int k, int c, int h, int w) {
  return simt::dnn_call([=] {
    const simt::sizes4 sizes{k, c, h, w};
    if (!simt::alive(d)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (!simt::known_type(type)) return CUDNN_STATUS_BAD_PARAM;
    COMP_DNN_REQUIRE(simt::countable(sizes));
    d->type = type;
    d->size = sizes;
    d->stride = simt::dnn_layout::strides(sizes, format);
    d->format = format;
    d->set = true;
    return CUDNN_STATUS_SUCCESS;
  });
}
inline cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* to) {
  return simt::dnn_call([=] { return simt::make_dnn_object(to); });
}
inline cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t d) {
  return simt::destroy_dnn_object(d);
}
inline cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w, int stride_h,
                                                     int stride_w, int dilation_h, int dilation_w,
                                                     cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
  return simt::dnn_call([=] {
    if (!simt::alive(d)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (pad_h < 0 || pad_w < 0 || stride_h <= 0 || stride_w <= 0 || dilation_h <= 0 || dilation_w <= 0)
      return CUDNN_STATUS_BAD_PARAM;
    *d = {true, {pad_h, pad_w}, {stride_h, stride_w}, {dilation_h, dilation_w}, d->groups, mode, compute, d->math};
    return CUDNN_STATUS_SUCCESS;
  });
}
inline cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups) {
  return simt::dnn_call([=] {
    if (!simt::alive(d)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (groups <= 0) return CUDNN_STATUS_BAD_PARAM;
    d->groups = groups;
    return CUDNN_STATUS_SUCCESS;
  });
}
inline cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
  return simt::dnn_call([=] {
    if (!simt::alive(d)) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    d->math = math;
    return CUDNN_STATUS_SUCCESS;
  });
}

namespace simt {

/// One pass of a convolution: to = a with b.
template <int Pass>
struct dnn_pass {
  static dnn_convolution of(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t y,
                            cudnnConvolutionDescriptor_t how) {
    return {*x, *w, *y, w->format, *how};
  }
  static const dnn_layout& first(const dnn_convolution& c) { return Pass == 1 ? c.w : c.x; }
  static const dnn_layout& second(const dnn_convolution& c) { return Pass == 0 ? c.w : c.y; }
  static const dnn_layout& result(const dnn_convolution& c) { return Pass == 0 ? c.y : Pass == 1 ? c.x : c.w; }

  template <class Perf>
  static Perf answer(const dnn_convolution& c, int number, cudnnMathType_t math, std::optional<std::size_t> room) {
    const dnn_algorithm& a = algorithms_of(Pass)[static_cast<std::size_t>(number)];
    const auto bytes = workspace_of(c, a);
    const cudnnStatus_t s = !bytes                   ? CUDNN_STATUS_NOT_SUPPORTED
                            : room && *bytes > *room ? CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
                                                     : CUDNN_STATUS_SUCCESS;
    return {static_cast<decltype(Perf::algo)>(number),
            s,
            s == CUDNN_STATUS_SUCCESS && room ? static_cast<float>(a.time * cost_of(c, math)) : -1,
            bytes.value_or(0),
            a.deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC,
            math,
            {}};
  }
  /// Behind those that are equal. (std's stable_sort is deprecated under clang.)
  template <class Perf, class Key>
  static void put_in_order(std::vector<Perf>& all, const Perf& one, Key key) {
    all.insert(std::ranges::upper_bound(all, std::invoke(key, one), {}, key), one);
  }
  template <class Perf>
  static void give_answers(std::vector<Perf> all, int requested, int* count, Perf* results) {
    *count = std::min(requested, static_cast<int>(all.size()));
    std::copy_n(all.begin(), *count, results);
  }
  static int most() { return 2 * static_cast<int>(algorithms_of(Pass).size()); }

  /// With the arithmetic that is set and with the default one, sorted by time, what failed last. On a stream of its
  /// own: nothing says that what the handle's stream has still to do is waited for.
  template <class Perf>
  static cudnnStatus_t measure(const dnn_convolution& c, const void* a, const void* b, void* to, int requested,
                               int* count, Perf* results, void* workspace, std::size_t bytes) {
    COMP_DNN_REQUIRE(convolvable(c, Pass));
    COMP_DNN_REQUIRE(addressed(a, b, to));
    if (requested <= 0 || !count || !results || (bytes > 0 && !workspace)) return CUDNN_STATUS_BAD_PARAM;
    if (unsafe_call() != cudaSuccess) return CUDNN_STATUS_EXECUTION_FAILED;
    ++dnn.measured;
    dnn.measured_in = std::max(dnn.measured_in, bytes);
    std::vector<Perf> all;
    for (int i = 0; i < static_cast<int>(algorithms_of(Pass).size()); ++i) {
      const auto by_time = [](const Perf& p) { return p.time < 0 ? 1e30F : p.time; };
      put_in_order(all, answer<Perf>(c, i, c.how.math, bytes), by_time);
      if (c.how.math != CUDNN_DEFAULT_MATH) put_in_order(all, answer<Perf>(c, i, CUDNN_DEFAULT_MATH, bytes), by_time);
    }
    give_answers(std::move(all), requested, count, results);
    (void)gather(first(c), a);
    (void)gather(second(c), b);
    (void)library_writes<unsigned char>(workspace, bytes);
    scatter(result(c), to, std::vector<float>(result(c).count(), 12345), 1, 0);
    return CUDNN_STATUS_SUCCESS;
  }
  /// The least workspace first, after what wants more than memory has. The arithmetic that is named is the default one,
  /// whatever is set.
  template <class Perf>
  static cudnnStatus_t guess(const dnn_convolution& c, int requested, int* count, Perf* results) {
    COMP_DNN_REQUIRE(convolvable(c, Pass));
    if (requested <= 0 || !count || !results) return CUDNN_STATUS_BAD_PARAM;
    ++dnn.guessed;
    std::vector<Perf> all;
    for (int i = 0; i < static_cast<int>(algorithms_of(Pass).size()); ++i) {
      const auto by_memory = [](const Perf& one) { return static_cast<std::int64_t>(one.memory); };
      const Perf p = answer<Perf>(c, i, CUDNN_DEFAULT_MATH, std::nullopt);
      if (p.status == CUDNN_STATUS_SUCCESS) put_in_order(all, p, by_memory);
    }
    give_answers(std::move(all), requested, count, results);
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t need(const dnn_convolution& c, int number, std::size_t* bytes) {
    COMP_DNN_REQUIRE(convolvable(c, Pass));
    if (!bytes || number < 0 || number >= static_cast<int>(algorithms_of(Pass).size())) return CUDNN_STATUS_BAD_PARAM;
    if (unimplemented(Pass, number)) return CUDNN_STATUS_BAD_PARAM;
    const auto needed = workspace_of(c, algorithms_of(Pass)[static_cast<std::size_t>(number)]);
    if (!needed) return CUDNN_STATUS_NOT_SUPPORTED;
    *bytes = *needed;
    return CUDNN_STATUS_SUCCESS;
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const dnn_convolution& c, const void* alpha, const void* a,
                           const void* b, int number, void* workspace, std::size_t bytes, const void* beta, void* to) {
    std::size_t needed = 0;
    COMP_DNN_REQUIRE(need(c, number, &needed));
    COMP_DNN_REQUIRE(addressed(a, b, to));
    if (bytes < needed) return CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT;
    if (needed > 0) COMP_DNN_REQUIRE(addressed(workspace));
    if (number == dnn.refused[Pass]) return dnn.refusal;
    dnn.runs.push_back({Pass, number, c.how.math, bytes, !c.rows()});
    return give_dnn(handle, [=, from = c, by = factor(alpha), keep = factor(beta)] {
      (void)library_writes<unsigned char>(workspace, needed);
      const bool rounds = from.rounds();
      scatter(result(from), to,
              convolved(from, Pass, tf32(gather(first(from), a), rounds), tf32(gather(second(from), b), rounds)), by,
              keep);
    });
  }
};

}  // namespace simt
