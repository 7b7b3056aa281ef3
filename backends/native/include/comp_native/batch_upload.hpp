// SPDX-License-Identifier: Apache-2.0
// A loader's batch in a Device's memory, checked against the model that is to read it: data sets are not trusted.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_native/host_batch.hpp>
#include <comp_native/model.hpp>
#include <concepts>
#include <cstdint>
#include <span>
#include <vector>

namespace comp::native {

inline shape with_batch(std::int64_t batch, const shape& example) {
  shape all{batch};
  all.insert(all.end(), example.begin(), example.end());
  return all;
}

/// Throws: `error` when the examples' shapes are not what the model reads and is judged by.
inline void require_fit(const model& m, const example_layout& layout) {
  require<error>(m.input == layout.input && with_batch(m.batch(), layout.input_shape) == m.input_shape,
                 "model \"{}\" reads {}{} and the data has {}{} in an example (they must agree): change one of them",
                 m.name, m.input == input_kind::tokens ? "tokens " : "", text(m.input_shape),
                 layout.input == input_kind::tokens ? "tokens " : "", text(layout.input_shape));
  const shape& output = m.shape_of(m.output());
  const bool values = m.predicts_values();
  const std::int64_t judged = elements(output) / (values ? 1 : output.back());
  require<error>(
      values == (layout.target == input_kind::values) && judged == m.batch() * elements(layout.target_shape),
      "model \"{}\" gives {} and the data has {} {} for an example (the loss compares them): change one of them",
      m.name, text(output), layout.target == input_kind::values ? "target values" : "labels",
      text(layout.target_shape));
}

/// Throws: `error` for a label or token that the model does not know.
inline void require_known(const model& m, const host_batch& batch) {
  const std::int64_t classes = m.predicts_values() ? 0 : m.shape_of(m.output()).back();
  const auto below = [&m](std::span<const std::int32_t> all, std::int64_t bound, const char* what) {
    const auto largest = all.empty() ? bound - 1 : std::int64_t{std::ranges::max(all)};
    require<error>(largest < bound, "{} {} in the data (model \"{}\" has {}, from 0): check the reader or the model",
                   what, largest, m.name, bound);
  };
  if (!m.predicts_values()) below(batch.labels, classes, "label");
  if (batch.tokens.empty()) return;
  require<error>(std::ranges::min(batch.tokens) >= 0,
                 "token {} in the data (tokens are not negative): check the reader", std::ranges::min(batch.tokens));
  for (const node& n : m.nodes) {
    const auto* e = std::get_if<op::embedding>(&n.what);
    if (e && !e->of_positions) below(batch.tokens, e->rows, "token");
  }
}

/// What a Device offers that makes values of bytes:
///   T upload(span<const uint8>, shape, const T& of_bytes)    FP32, bit for bit as example_layout::of_bytes says;
///                                                            of_bytes: (C,256)
template <class D>
concept ReadsBytes = Device<D> && requires(D& d, std::span<const std::uint8_t> bytes, const typename D::tensor& t) {
  { d.upload(bytes, shape{}, t) } -> std::same_as<typename D::tensor>;
};

/// The values of bytes (N,C,...), C being the second of `extents`, for a Device that does not make them.
inline std::vector<float> values_of(std::span<const std::uint8_t> bytes, const shape& extents,
                                    std::span<const float> of_bytes) {
  const auto channels = of_bytes.size() / 256,
             plane = static_cast<std::size_t>(elements(extents) / extents[0]) / channels;
  std::vector<float> values(bytes.size());
  for (std::size_t row = 0, at = 0; at < bytes.size(); ++row) {
    const float* of = of_bytes.data() + row % channels * 256;
    for (const std::size_t end = at + plane; at < end; ++at) values[at] = of[bytes[at]];
  }
  return values;
}

/// The place of each token in its row of `context`.
inline std::vector<std::int32_t> positions_of(std::int64_t rows, std::int64_t context) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(rows * context));
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(context));
  }
  return positions;
}
inline bool is_judged(const host_batch& batch) {
  return batch.labels.empty() || std::ranges::any_of(batch.labels, [](std::int32_t label) { return label >= 0; });
}

/// of_bytes: what the layout of the data says.
template <class D>
device_batch<D> uploaded(D& device, const model& m, const host_batch& batch, std::span<const float> of_bytes = {}) {
  require_known(m, batch);
  device_batch<D> to{.size = batch.size, .judged = is_judged(batch)};
  shape input = m.input_shape, output = m.shape_of(m.output());
  input[0] = output[0] = batch.size;
  if (!batch.tokens.empty()) {
    to.tokens = device.upload(std::span<const std::int32_t>{batch.tokens}, input);
    to.positions = device.upload(std::span<const std::int32_t>{positions_of(batch.size, input[1])}, input);
  } else if (batch.bytes.empty()) {
    to.values = device.upload(std::span<const float>{batch.values}, input, precision::fp32);
  } else if constexpr (ReadsBytes<D>) {
    const auto table = device.upload(of_bytes, {std::ssize(of_bytes) / 256, 256}, precision::fp32);
    to.values = device.upload(std::span<const std::uint8_t>{batch.bytes}, input, table);
  } else {
    const std::vector<float> values = values_of(batch.bytes, input, of_bytes);
    to.values = device.upload(std::span<const float>{values}, input, precision::fp32);
  }
  if (m.predicts_values()) {
    to.targets = device.upload(std::span<const float>{batch.targets}, output, precision::fp32);
  } else {
    to.labels = device.upload(std::span<const std::int32_t>{batch.labels}, {std::ssize(batch.labels)});
  }
  return to;
}

}  // namespace comp::native
