// SPDX-License-Identifier: Apache-2.0
// A convolution as a graph of cuDNN's C++ front end. It is a header of its own, so that a test can plan the graphs for
// GPUs that the machine does not have.
#pragma once

#include <array>
#include <comp_cuda/convolution_graphs.hpp>
#include <memory>
#include <vector>

#include "planning.hpp"

namespace comp::cuda::graphs {

/// The numbers by which execute() is told the addresses of tensors: those of convolution_places.
enum convolution_uid : std::int64_t { of_first = 1, of_second, of_result, of_bias };

/// Returns: the graph of the case, which the front end has not yet validated. ReLU is asked to let NaN through, by the
/// front end.
inline std::shared_ptr<fe::graph::Graph> described(const convolution_case& a) {
  using attributes = fe::graph::Tensor_attributes;
  const auto type = a.in == storage::fp16   ? fe::DataType_t::HALF
                    : a.in == storage::bf16 ? fe::DataType_t::BFLOAT16
                                            : fe::DataType_t::FLOAT;
  auto g = std::make_shared<fe::graph::Graph>();
  g->set_io_data_type(type)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto laid = [](attributes& t, convolution_uid number, const std::array<std::int64_t, 4>& s) -> attributes& {
    return t.set_uid(number)
        .set_dim({s.begin(), s.end()})
        .set_stride({s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]});  // channels_last
  };
  const auto input = [&](convolution_uid number, const std::array<std::int64_t, 4>& s) {
    attributes t;
    return g->tensor(laid(t, number, s));
  };
  const auto set = [&](auto options) {
    const auto listed = [](const auto& pair) { return std::vector<std::int64_t>{pair.begin(), pair.end()}; };
    return options.set_padding(listed(a.padding)).set_stride(listed(a.stride)).set_dilation(listed(a.dilation));
  };
  const auto give = [&](auto result, const std::array<std::int64_t, 4>& s) {
    laid(result->set_output(true).set_data_type(type), of_result, s);
    return g;
  };
  if (a.pass == conv_pass::data) {
    return give(g->conv_dgrad(input(of_second, a.y), input(of_first, a.w), set(fe::graph::Conv_dgrad_attributes{})),
                a.x);
  }
  if (a.pass == conv_pass::weights) {
    return give(g->conv_wgrad(input(of_second, a.y), input(of_first, a.x), set(fe::graph::Conv_wgrad_attributes{})),
                a.w);
  }
  auto y = g->conv_fprop(input(of_first, a.x), input(of_second, a.w), set(fe::graph::Conv_fprop_attributes{}));
  const auto then = [](fe::PointwiseMode_t mode) { return fe::graph::Pointwise_attributes{}.set_mode(mode); };
  if (a.bias) {
    attributes t;
    laid(t, of_bias, {1, a.y[1], 1, 1}).set_data_type(fe::DataType_t::FLOAT);
    y = g->pointwise(y, g->tensor(t), then(fe::PointwiseMode_t::ADD));
  }
  if (a.relu) y = g->pointwise(y, then(fe::PointwiseMode_t::RELU_FWD));
  return give(y, a.y);
}

}  // namespace comp::cuda::graphs
