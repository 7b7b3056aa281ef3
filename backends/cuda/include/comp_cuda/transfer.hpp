// SPDX-License-Identifier: Apache-2.0
// Moves tensors, indices and parameters between host and device. An upload goes through pinned memory and a stream of
// its own: the call returns when the caller's values have been read, and the copy to the device runs beside earlier
// work. A download waits for the work before it.
#pragma once

#include <algorithm>
#include <comp_native/device_capabilities.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "layout.hpp"
#include "parameter.hpp"

namespace comp::cuda {

namespace detail {

/// The queue of uploads. It has eight slots, so that the four or five parts of a batch need not wait for the copies of
/// the batch before.
struct uploads {
  static constexpr std::size_t slots = 8;
  prefetcher way;
  explicit uploads(context& c) : way{c.pool(), slots} {}
};

/// Returns: memory of the device with these bytes. Bytes that are too many for pinned memory are copied directly, and
/// the host waits: it depends on the system whether the driver has read such memory when its call returns.
inline std::shared_ptr<memory> brought(context& c, std::span<const std::byte> from) {
  if (std::ssize(from) <= c.chosen().pinned_limit) {
    auto& way = c.part<uploads>().way;
    way.put(from);
    return c.adopt(way.take(c.stream()));
  }
  auto to = c.allocate(std::ssize(from));
  check(cudaMemcpyAsync(to->materialize(), from.data(), from.size(), cudaMemcpyHostToDevice, c.stream().get()),
        "copying values to the device");
  c.stream().synchronize();
  return to;
}
inline index_range range_of(std::span<const std::int32_t> from) {
  const auto [least, most] = std::ranges::minmax(from);
  return {least, most, std::ranges::count_if(from, [](std::int32_t i) { return i >= 0; })};
}

}  // namespace detail

inline void require_supported(const context& c, precision p) {
  if (c.card().has(p)) return;
  require<error>(false, "precision {} asked of the cuda device ({} has {}): use one of these", name(p), c.card().name,
                 names_of(c.card().supported()));
}

/// Returns: the values in precision p, which the device rounds to the nearest, ties to even.
inline tensor upload(context& c, std::span<const float> from, const shape& extents, precision p) {
  require_supported(c, p);
  require_some("upload", extents);
  require<error>(std::ssize(from) == elements(extents),
                 "upload of {} values as {} (it has {} elements): give as many values", from.size(), text(extents),
                 elements(extents));
  const tensor whole{extents, precision::fp32, order::row_major, detail::brought(c, std::as_bytes(from))};
  return cast(c, whole, p);
}
inline indices upload(context& c, std::span<const std::int32_t> from, shape extents) {
  require_some("upload", extents);
  require<error>(std::ssize(from) == elements(extents),
                 "upload of {} indices as {} (it has {} elements): give as many values", from.size(), text(extents),
                 elements(extents));
  return {std::move(extents), detail::brought(c, std::as_bytes(from)), detail::range_of(from)};
}
/// Returns: the values in row-major order, whatever the order on the device.
inline std::vector<float> download(context& c, const tensor& t) {
  if (!t) return {};
  const tensor whole = cast(c, row_major(c, t), precision::fp32);
  std::vector<float> to(static_cast<std::size_t>(t.size()));
  c.read(whole.materialize_as<const float>(), std::span{to});
  return to;
}

inline parameter make_parameter(context& c, std::span<const float> from, const shape& extents, bool trainable) {
  return {extents, upload(c, from, extents, precision::fp32), trainable};
}
inline std::vector<float> values(context& c, const parameter& p) { return download(c, p.value); }
/// Returns: the gradient in row-major order; zeros if there was no backward since the last zero_gradient.
inline std::vector<float> gradient(context& c, const parameter& p) {
  if (p.fresh) return std::vector<float>(static_cast<std::size_t>(elements(p.extents)));
  return download(c, p.gradient);
}
inline void set_values(context& c, parameter& p, std::span<const float> from) {
  p.value = in_order(c, upload(c, from, p.extents, precision::fp32), p.value.order());
  p.changed();
}

inline native::parameter_slots slots(context& c, const parameter& p) {
  return {download(c, p.first), download(c, p.second)};
}
inline void set_slots(context& c, parameter& p, const native::parameter_slots& from) {
  const auto slot = [&](const std::vector<float>& values) {
    return values.empty() ? tensor{} : in_order(c, upload(c, values, p.extents, precision::fp32), p.value.order());
  };
  p.first = slot(from.first);
  p.second = slot(from.second);
}

inline parameter_state snapshot(context& c, const parameter& p) {
  return {duplicate(c, p.value), duplicate(c, p.first), duplicate(c, p.second)};
}
/// Throws: error, with both sizes, for the state of another parameter.
inline void restore(context& c, parameter& p, const parameter_state& s) {
  require<error>(
      s.value && s.value.size() == elements(p.extents),
      "a state of shape {} restored into a parameter of {} (they must agree): restore what this parameter saved",
      text(s.value.shape()), text(p.extents));
  parameter_state again{duplicate(c, s.value), duplicate(c, s.first), duplicate(c, s.second)};
  if (p.value.order() != again.value.order()) {
    p.gradient = p.low = {};
    p.fresh = true;
  }
  p.value = std::move(again.value);
  p.first = std::move(again.first);
  p.second = std::move(again.second);
  p.changed();
}

}  // namespace comp::cuda
