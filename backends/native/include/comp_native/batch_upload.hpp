// SPDX-License-Identifier: Apache-2.0
// Uploads a loader's batch to a Device, after checking it against the model that reads it. Data sets come from outside,
// and a label or a token out of range would be an access out of bounds on a GPU.
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

/// Throws: `error` if the shapes of examples are not those that the model and its loss read.
inline void require_fit(const model& m, const example_layout& layout) {
  require<error>(m.input == layout.input && with_batch(m.batch(), layout.input_shape) == m.input_shape,
                 "model \"{}\" reads {}{} and the data has {}{} in an example (they must agree): change one of them",
                 m.name, m.input == input_kind::tokens ? "tokens " : "", text(m.input_shape),
                 layout.input == input_kind::tokens ? "tokens " : "", text(layout.input_shape));
  const shape& output = m.shape_of(m.output());
  const bool values = m.predicts_values();
  if (!values && !m.reads_labels()) return;
  const std::int64_t judged = elements(output) / (values ? 1 : output.back());
  require<error>(
      values == (layout.target == input_kind::values) && judged == m.batch() * elements(layout.target_shape),
      "model \"{}\" gives {} and the data has {} {} for an example (the loss compares them): change one of them",
      m.name, text(output), layout.target == input_kind::values ? "target values" : "labels",
      text(layout.target_shape));
}

/// The parts of a batch of tokens that a model reads. Examples are tokens (T), or tokens with their segments (2,T).
struct token_batch {
  std::vector<std::int32_t> tokens = {}, positions = {};
  std::vector<std::int32_t> segments = {}, lengths = {};  // lengths: how many tokens of each example are no padding
  std::vector<float> hidden = {};                         // what op::masked_columns adds, which hides padding
};

/// Returns the place of each of `count` tokens in its row.
inline std::vector<std::int32_t> positions_of(std::size_t count, std::size_t length) {
  std::vector<std::int32_t> positions(count);
  for (std::size_t i = 0; i < count; ++i) positions[i] = static_cast<std::int32_t>(i % length);
  return positions;
}

/// Takes a batch apart. A negative segment marks padding.
/// Throws: `error` if a token follows padding.
inline token_batch tokens_of(const model& m, const host_batch& batch) {
  const auto length = static_cast<std::size_t>(m.input_shape.back());
  const std::size_t rows = batch.tokens.size() / length, each = m.reads_segments() ? 2 : 1;
  token_batch result;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = std::span{batch.tokens}.subspan(r * length, length);
    if (r % each == 0) {
      result.tokens.insert(result.tokens.end(), row.begin(), row.end());
      continue;
    }
    const auto end = std::ranges::find_if(row, [](auto segment) { return segment < 0; });
    require<error>(std::all_of(end, row.end(), [](auto segment) { return segment < 0; }),
                   "tokens behind padding in example {} of a batch (padding ends a row): check the reader", r / 2);
    result.lengths.push_back(static_cast<std::int32_t>(end - row.begin()));
    result.segments.insert(result.segments.end(), row.begin(), end);
    result.segments.resize(result.lengths.size() * length);
  }
  result.positions = positions_of(result.tokens.size(), length);
  for (const node& n : m.nodes) {
    if (!std::holds_alternative<op::masked_columns>(n.what)) continue;
    for (const std::int32_t visible : result.lengths) {
      for (std::int64_t c = 0; c < n.output[1]; ++c) {
        result.hidden.resize(result.hidden.size() + static_cast<std::size_t>(visible));
        result.hidden.resize(result.hidden.size() + length - static_cast<std::size_t>(visible),
                             op::masked_columns::low);
      }
    }
    break;
  }
  return result;
}

/// Throws: `error` for a label, token or segment that the model does not have. `of` holds the batch's tokens if the
/// model reads tokens.
inline void require_known(const model& m, const host_batch& batch, const token_batch& of) {
  const std::int64_t classes = m.reads_labels() ? m.shape_of(m.output()).back() : 0;
  const auto below = [&m](std::span<const std::int32_t> all, std::int64_t bound, const char* what) {
    const auto largest = all.empty() ? bound - 1 : std::int64_t{std::ranges::max(all)};
    require<error>(largest < bound, "{} {} in the data (model \"{}\" has {}, from 0): check the reader or the model",
                   what, largest, m.name, bound);
  };
  if (m.reads_labels()) below(batch.labels, classes, "label");
  if (of.tokens.empty()) return;
  require<error>(std::ranges::min(of.tokens) >= 0, "token {} in the data (tokens are not negative): check the reader",
                 std::ranges::min(of.tokens));
  for (const node& n : m.nodes) {
    const auto* e = std::get_if<op::embedding>(&n.what);
    if (e && e->of == op::looked_up::tokens) below(of.tokens, e->rows, "token");
    if (e && e->of == op::looked_up::segments) below(of.segments, e->rows, "segment");
  }
}

/// A Device that turns bytes into values itself, so that images cross the bus as bytes:
///   T upload(span<const uint8>, shape, const T& of_bytes)    FP32 values by the table of_bytes (C,256), bit for bit as
///                                                            example_layout::of_bytes says
template <class D>
concept ReadsBytes = Device<D> && requires(D& d, std::span<const std::uint8_t> bytes, const typename D::tensor& t) {
  { d.upload(bytes, shape{}, t) } -> std::same_as<typename D::tensor>;
};

/// Returns the values of bytes (N,C,...), for a Device that does not turn them into values itself.
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

/// Returns device_batch::judged of a batch.
inline std::int64_t judged_of(const host_batch& batch) {
  return batch.labels.empty() ? batch.size
                              : std::ranges::count_if(batch.labels, [](std::int32_t label) { return label >= 0; });
}

template <class D>
void upload_tokens(D& device, const model& m, const token_batch& of, device_batch<D>& to) {
  const shape each{to.size, m.input_shape.back()};
  to.tokens = device.upload(std::span<const std::int32_t>{of.tokens}, each);
  to.positions = device.upload(std::span<const std::int32_t>{of.positions}, each);
  if (!m.reads_segments()) return;
  to.segments = device.upload(std::span<const std::int32_t>{of.segments}, each);
  to.lengths = device.upload(std::span<const std::int32_t>{of.lengths}, {to.size});
  if (of.hidden.empty()) return;
  const shape hidden{to.size, std::ssize(of.hidden) / elements(each), each[1]};
  to.hidden = device.upload(std::span<const float>{of.hidden}, hidden, precision::fp32);
}

/// Returns a batch in the Device's memory. `of_bytes` is example_layout::of_bytes.
template <class D>
device_batch<D> uploaded(D& device, const model& m, const host_batch& batch, std::span<const float> of_bytes = {}) {
  const token_batch tokens = tokens_of(m, batch);
  require_known(m, batch, tokens);
  device_batch<D> to{.size = batch.size, .judged = judged_of(batch)};
  shape input = m.input_shape, output = m.shape_of(m.output());
  input[0] = output[0] = batch.size;
  if (m.input == input_kind::tokens) {
    upload_tokens(device, m, tokens, to);
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
  } else if (m.reads_labels()) {
    to.labels = device.upload(std::span<const std::int32_t>{batch.labels}, {std::ssize(batch.labels)});
  }
  return to;
}

}  // namespace comp::native
