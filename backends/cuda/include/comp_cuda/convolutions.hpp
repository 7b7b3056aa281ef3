// SPDX-License-Identifier: Apache-2.0
// What a device knows of each convolution that it has met: cuDNN's descriptors, the order of its tensors, and the
// algorithm of each of its three passes once that was chosen (convolution_passes.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "dnn.hpp"

namespace comp::cuda {

using native::conv2d_options;

enum class conv_pass : std::uint8_t { forward, data, weights };

/// What one graph of cuDNN is made for. Its tensors and weights are channels_last.
struct convolution_case {
  conv_pass pass;
  storage in;  // of all tensors; FP32 is computed as TF32
  std::array<std::int64_t, 4> x, w, y;
  std::array<std::int64_t, 2> stride, padding, dilation;
  bool bias = false, relu = false;  // of a forward
  auto operator<=>(const convolution_case&) const = default;
};

/// The algorithm of one pass.
struct conv_choice {
  int algorithm;           // cuDNN's number
  std::int64_t workspace;  // [bytes]
  cudnnMathType_t math;    // with or without tensor cores
  bool measured;           // False: chosen by heuristics
};

/// A convolution of one shape in one precision.
class convolution {
 public:
  convolution(shape x, shape w, shape y, const conv2d_options& o, precision p)
      : x_sizes_{std::move(x)},
        w_sizes_{std::move(w)},
        y_sizes_{std::move(y)},
        in_{storage_of(p)},
        exact_{p == precision::fp32},
        case_{conv_pass::forward, in_,      sizes(x_sizes_), sizes(w_sizes_),
              sizes(y_sizes_),    o.stride, o.padding,       o.dilation} {
    check(cudnnSetConvolution2dDescriptor(how.get(), dnn_size(o.padding[0]), dnn_size(o.padding[1]),
                                          dnn_size(o.stride[0]), dnn_size(o.stride[1]), dnn_size(o.dilation[0]),
                                          dnn_size(o.dilation[1]), CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
          "describing a convolution to cuDNN");
    check(cudnnSetConvolutionGroupCount(how.get(), dnn_size(o.groups)), "describing groups to cuDNN");
    lay(exact_ ? order::row_major : order::channels_last);
  }

  /// Returns: the order of its tensors and weights.
  order places() const { return places_; }
  /// True for FP32, whose operands may not be rounded.
  bool exact() const { return exact_; }
  /// Returns: what a graph of the pass is made for. bias: of a forward, whether it adds one.
  convolution_case case_of(conv_pass pass, bool bias = false) const {
    convolution_case one = case_;
    one.pass = pass;
    one.bias = bias;
    return one;
  }
  std::optional<conv_choice>& choice(conv_pass pass) { return choices_[static_cast<std::size_t>(pass)]; }
  void use(cudnnMathType_t math) const {
    check(cudnnSetConvolutionMathType(how.get(), math), "choosing a convolution's arithmetic");
  }
  /// Calls f, which gives cuDNN the work and returns its status. If cuDNN has no channels_last algorithm, the
  /// convolution becomes row-major for good and f is called again.
  /// Throws: what check() throws.
  void run(std::string_view doing, std::int64_t limit, auto f) {
    cudnnStatus_t s = f();
    if (is_refusal(s) && places_ == order::channels_last) {
      lay(order::row_major);
      s = f();
    }
    if (s == CUDNN_STATUS_SUCCESS) return;
    check(s, fmt::format("{} of x {} with weights {}, by a deterministic algorithm in {} bytes of workspace,", doing,
                         text(x_sizes_), text(w_sizes_), limit));
  }

  tensor_descriptor x, y, bias;
  filter_descriptor w;
  convolution_descriptor how;

 private:
  static std::array<std::int64_t, 4> sizes(const shape& s) { return {s[0], s[1], s[2], s[3]}; }
  /// Describes the tensors to cuDNN in the order `places`. Algorithms that were chosen for another order are forgotten.
  void lay(order places) {
    places_ = places;
    choices_ = {};
    x = describe(x_sizes_, in_, places);
    y = describe(y_sizes_, in_, places);
    bias = describe({1, y_sizes_[1]}, in_, places);
    check(cudnnSetFilter4dDescriptor(w.get(), dnn_type(in_), dnn_format(places), dnn_size(w_sizes_[0]),
                                     dnn_size(w_sizes_[1]), dnn_size(w_sizes_[2]), dnn_size(w_sizes_[3])),
          "describing weights to cuDNN");
  }
  shape x_sizes_, w_sizes_, y_sizes_;
  storage in_;
  bool exact_;
  convolution_case case_;
  order places_ = order::row_major;
  std::array<std::optional<conv_choice>, 3> choices_;
};

/// The part of a context that keeps its convolutions.
class convolutions {
 public:
  explicit convolutions(context&) {}
  convolution& of(const shape& x, const shape& w, const shape& y, const conv2d_options& o, precision p) {
    dnn_case sizes{static_cast<std::int64_t>(storage_of(p)), p == precision::fp32, o.groups};
    for (const auto* all : {&x, &w}) sizes.insert(sizes.end(), all->begin(), all->end());
    for (const auto* pair : {&o.stride, &o.padding, &o.dilation}) sizes.insert(sizes.end(), pair->begin(), pair->end());
    const auto found = known_.find(sizes);
    if (found != known_.end()) return found->second;
    return known_.emplace(std::move(sizes), convolution{x, w, y, o, p}).first->second;
  }

 private:
  std::map<dnn_case, convolution> known_;
};

}  // namespace comp::cuda
