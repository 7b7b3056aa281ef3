// SPDX-License-Identifier: Apache-2.0
// cuDNN for one device: its handle, descriptors that free themselves, its status as exceptions, and which cases it was
// found not to support.
// The functions are those of cudnn_ops.h and cudnn_cnn.h. cuDNN 9 calls them deprecated, and warns if
// CUDNN_WARN_DEPRECATED is defined, but keeps them. They do what single operators need, and they say of each algorithm
// whether it is deterministic and how much workspace it needs.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <limits>
#include <map>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "context.hpp"
#include "layout.hpp"
#include "parameter.hpp"

namespace comp::cuda {

constexpr bool is_unsupported(cudnnStatus_t s) {
  return s >= CUDNN_STATUS_NOT_SUPPORTED && s < CUDNN_STATUS_INTERNAL_ERROR;
}

/// Whether cuDNN may do the same work in another way. It refuses cases of which its documentation says that it does not
/// support them with either status. A parameter that is wrong fails in every way, the last of which is then an error.
constexpr bool is_refusal(cudnnStatus_t s) { return is_unsupported(s) || s == CUDNN_STATUS_BAD_PARAM; }

/// Returns: the status in cuDNN's words and, if cuDNN says so, the condition that was not met.
inline std::string words_of(cudnnStatus_t s) {
  char words[512] = "";
  cudnnGetLastErrorString(words, sizeof words);
  const std::string_view all{words}, condition = all.substr(0, all.find('\n'));
  return condition.empty() ? cudnnGetErrorString(s) : fmt::format("{} for {}", cudnnGetErrorString(s), condition);
}

/// Does nothing for success. Throws: the exception of the status.
inline void check(cudnnStatus_t s, std::string_view doing, std::source_location at = std::source_location::current()) {
  if (s == CUDNN_STATUS_SUCCESS) return;
  const bool memory = s == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                      s == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  const verdict means = is_unsupported(s) ? verdict::unsupported : memory ? verdict::no_memory : verdict::failed;
  check(library_status{"cuDNN", words_of(s).c_str(), static_cast<int>(s), means}, doing, at);
}

/// Owns a handle or a descriptor of cuDNN.
template <class Handle, auto Make, auto Destroy>
class dnn_object {
 public:
  dnn_object() { check(Make(&object_), "making a descriptor of cuDNN"); }
  dnn_object(dnn_object&& other) noexcept : object_{std::exchange(other.object_, nullptr)} {}
  dnn_object& operator=(dnn_object&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~dnn_object() {
    if (object_) (void)Destroy(object_);
  }
  Handle get() const { return object_; }

 private:
  Handle object_ = nullptr;
};
using dnn_handle = dnn_object<cudnnHandle_t, cudnnCreate, cudnnDestroy>;
using tensor_descriptor =
    dnn_object<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using filter_descriptor =
    dnn_object<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using convolution_descriptor =
    dnn_object<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;
using pooling_descriptor =
    dnn_object<cudnnPoolingDescriptor_t, cudnnCreatePoolingDescriptor, cudnnDestroyPoolingDescriptor>;

constexpr cudnnDataType_t dnn_type(storage s) {
  return s == storage::fp32 ? CUDNN_DATA_FLOAT : s == storage::fp16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}
constexpr cudnnTensorFormat_t dnn_format(order places) {
  return places == order::channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
}
/// Throws: unsupported for a size that cuDNN cannot count.
inline int dnn_size(std::int64_t n) {
  require<unsupported>(n >= 0 && n <= std::numeric_limits<int>::max(),
                       "a size of {} (cuDNN counts in 31 bits): use a smaller batch or image", n);
  return static_cast<int>(n);
}

/// Returns: cuDNN's descriptor of a (B,C,H,W), or of a (B,C) as (B,C,1,1).
inline tensor_descriptor describe(const shape& s, storage as, order places) {
  tensor_descriptor d;
  const bool images = s.size() == 4;
  check(cudnnSetTensor4dDescriptor(d.get(), dnn_format(places), dnn_type(as), dnn_size(s[0]), dnn_size(s[1]),
                                   images ? dnn_size(s[2]) : 1, images ? dnn_size(s[3]) : 1),
        "describing a tensor to cuDNN");
  return d;
}
inline tensor_descriptor describe(const tensor& t) { return describe(t.shape(), storage_of(t.precision()), t.order()); }

/// How an operator runs: on the tensors as they are, on FP32 copies, or (plain) on row-major FP32 copies. The later
/// ones are for cases in which cuDNN does not support the earlier ones.
enum class route : std::uint8_t { as_given, in_fp32, plain };
inline tensor routed(context& c, const tensor& t, route by) {
  if (by == route::as_given) return t;
  const tensor wide = cast(c, t, precision::fp32);
  return by == route::plain ? row_major(c, wide) : wide;
}

/// What tells one case of an operator from another: its kind, storage, order, sizes and options.
using dnn_case = std::vector<std::int64_t>;
inline dnn_case case_of(std::int64_t what, const tensor& t, std::initializer_list<std::int64_t> more = {}) {
  dnn_case all{what, static_cast<std::int64_t>(storage_of(t.precision())), static_cast<std::int64_t>(t.order())};
  all.insert(all.end(), t.shape().begin(), t.shape().end());
  all.insert(all.end(), more);
  return all;
}

/// The part of a context that holds cuDNN's handle and what cuDNN does not support.
class dnn {
 public:
  explicit dnn(context& c) : measures{c.measures_algorithms()} {
    check(cudnnSetStream(handle_.get(), c.stream().get()), "giving cuDNN a stream");
  }
  cudnnHandle_t handle() const { return handle_.get(); }

  /// True: measurements choose the algorithms of convolutions. False: cuDNN's heuristics, which are the same in each
  /// run.
  bool measures;

  /// Runs the first route that cuDNN does not refuse, beginning with the one that was found for the case earlier.
  /// f(route) gives cuDNN the work and returns its status. Throws: what check() throws; unsupported if there is no
  /// route.
  void by_route(const dnn_case& of, std::string_view doing, auto f,
                std::source_location at = std::source_location::current()) {
    route& by = routes_[of];
    cudnnStatus_t s = f(by);
    while (is_refusal(s) && by != route::plain) {
      by = by == route::as_given ? route::in_fp32 : route::plain;
      s = f(by);
    }
    check(s, doing, at);
  }

 private:
  dnn_handle handle_;
  std::map<dnn_case, route> routes_;
};

inline constexpr float dnn_one = 1, dnn_zero = 0;

/// Writes the sums over all axes but the channels to `to`, or adds them. Requires: t is channels_last or (B,C).
inline void channel_sums(context& c, const tensor& t, const gradient_place& to) {
  const index width = t.shape()[1], rows = t.size() / width, most = index{1} << 23;  // rows in one call
  float* scratch = c.scratch_of<float>(column_scratch(rows < most ? rows : most, width, 1));
  with_storage(t.precision(), [&]<class T>(std::type_identity<T>) {
    for (index first = 0; first < rows; first += most) {
      const index some = rows - first < most ? rows - first : most;
      column_sums(c.stream().get(), t.materialize_as<T>() + first * width, to.at, some, width, to.adds || first > 0,
                  scratch);
    }
  });
}
/// Writes `from` to the gradient, or adds it. Requires: both have the same order.
inline void add_to(context& c, const gradient_place& to, const tensor& from) {
  const cudaStream_t on = c.stream().get();
  if (to.adds) {
    const tensor wide = cast(c, from, precision::fp32);
    const chain_step<float> add{.kind = step_kind::add, .other = wide.materialize_as<float>()};
    return run_chain<float>(on, to.at, to.at, from.size(), {&add, 1});
  }
  with_storage(from.precision(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, float>) {
      check(cudaMemcpyAsync(to.at, from.materialize(), static_cast<std::size_t>(from.size()) * sizeof(float),
                            cudaMemcpyDeviceToDevice, on),
            "copying a gradient");
    } else {
      const cast_job<T, float> job{from.materialize_as<T>(), to.at, from.size()};
      cast(on, std::span<const cast_job<T, float>>{&job, 1});
    }
  });
}

}  // namespace comp::cuda
