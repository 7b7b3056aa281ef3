// SPDX-License-Identifier: Apache-2.0
// A batch in the host's memory, between the data set that writes it and the Device that reads it.
#pragma once

#include <comp_native/data_source.hpp>
#include <cstdint>
#include <memory_resource>

namespace comp::native {

/// The examples of a batch one after the other. Parts that the layout does not have are empty.
struct host_batch {
  std::int64_t size = 0;
  std::pmr::vector<float> values = {};
  std::pmr::vector<std::uint8_t> bytes = {};  // in place of values: example_layout::of_bytes
  std::pmr::vector<std::int32_t> tokens = {};
  std::pmr::vector<std::int32_t> labels = {};
  std::pmr::vector<float> targets = {};
};

/// Returns an empty batch with room for `examples` in `memory`, so that filling it allocates nothing.
inline host_batch batch_with_room(const example_layout& layout, std::int64_t examples,
                                  std::pmr::memory_resource* memory) {
  host_batch batch{0,
                   std::pmr::vector<float>{memory},
                   std::pmr::vector<std::uint8_t>{memory},
                   std::pmr::vector<std::int32_t>{memory},
                   std::pmr::vector<std::int32_t>{memory},
                   std::pmr::vector<float>{memory}};
  const auto inputs = static_cast<std::size_t>(examples * elements(layout.input_shape));
  const auto outputs = static_cast<std::size_t>(examples * elements(layout.target_shape));
  if (layout.input == input_kind::tokens) {
    batch.tokens.reserve(inputs);
  } else if (layout.of_bytes.empty()) {
    batch.values.reserve(inputs);
  } else {
    batch.bytes.reserve(inputs);
  }
  if (layout.target == input_kind::tokens) {
    batch.labels.reserve(outputs);
  } else {
    batch.targets.reserve(outputs);
  }
  return batch;
}

inline void resize(host_batch& batch, const example_layout& layout, std::size_t examples) {
  const bool tokens = layout.input == input_kind::tokens, labels = layout.target == input_kind::tokens;
  const auto inputs = examples * static_cast<std::size_t>(elements(layout.input_shape));
  const auto outputs = examples * static_cast<std::size_t>(elements(layout.target_shape));
  batch.size = static_cast<std::int64_t>(examples);
  batch.tokens.resize(tokens ? inputs : 0);
  batch.values.resize(!tokens && layout.of_bytes.empty() ? inputs : 0);
  batch.bytes.resize(!tokens && !layout.of_bytes.empty() ? inputs : 0);
  batch.labels.resize(labels ? outputs : 0);
  batch.targets.resize(labels ? 0 : outputs);
}

/// Returns the memory of example i.
inline example_spans spans_of(host_batch& batch, std::size_t i) {
  const auto part = [&](auto& all) {
    const std::size_t each = all.size() / static_cast<std::size_t>(batch.size);
    return std::span{all}.subspan(i * each, each);
  };
  return {part(batch.values), part(batch.bytes), part(batch.tokens), part(batch.labels), part(batch.targets)};
}

}  // namespace comp::native
