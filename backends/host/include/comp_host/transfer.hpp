// SPDX-License-Identifier: Apache-2.0
// Moves tensors into the device and out of it, and from one precision or layout to another.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "context.hpp"
#include "convert.hpp"

namespace comp::host {

/// The operations that have cached primitives; the first part of a primitive's key.
enum class operation : std::uint8_t {
  reorder,
  linear,
  linear_data,
  linear_weights,
  conv2d,
  conv2d_data,
  conv2d_weights,
  batch_norm,
  batch_norm_backward,
  layer_norm,
  layer_norm_backward,
  activate,
  activate_backward,
  max_pool,
  max_pool_backward,
  avg_pool,
  avg_pool_backward,
  bmm,
  attention
};

using native::require_same;
using native::require_some;

inline void require_supported(precision p) {
  require<error>(p != precision::tf32,
                 "precision tf32 asked of the host device (it is a format of NVIDIA's GPUs): use another one");
}

/// Copies values to another layout by oneDNN's reorder. Requires: both layouts have a type that oneDNN computes in.
inline void reorder_into(context& c, const tensor& from, const tensor& to) {
  auto& run = c.cached(key{operation::reorder, from.layout()->id, to.layout()->id}, [&] {
    const dnnl::reorder::primitive_desc description{c.engine, from.layout()->desc, c.engine, to.layout()->desc,
                                                    c.user_scratch};
    return c.make_primitive(description, {{DNNL_ARG_FROM, from.layout()->desc}, {DNNL_ARG_TO, to.layout()->desc}});
  });
  c.run_reorder(run, {{DNNL_ARG_FROM, from.data()}, {DNNL_ARG_TO, to.data()}});
}

namespace detail {

/// Copies images out of blocks of 16 channels with padding to channels last. oneDNN's own reorder takes 10 times as
/// long if the last block is not full. T is any type of the values' size.
template <class T>
void unblock(context& c, const T* from, T* to, const shape& s) {
  constexpr std::size_t block = 16;
  const auto channels = static_cast<std::size_t>(s[1]), area = static_cast<std::size_t>(s[2] * s[3]);
  c.run_kernel([&] {
    launch_rows(static_cast<std::size_t>(s[0]) * area, channels,
                [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
                  // Copying a whole block writes beyond a pixel with fewer channels. The pixels behind it, which are
                  // written later, repair that; the last pixels of a range have none behind them and are copied
                  // exactly.
                  const std::size_t repaired = channels < block ? (block - 1) / channels : 0;
                  const std::size_t whole = end - begin > repaired ? end - repaired : begin;
                  for (std::size_t i = begin; i < end; ++i) {
                    const T* pixel = from + (i / area * ((channels + block - 1) / block) * area + i % area) * block;
                    T* row = to + i * channels;
                    if (channels <= block && i < whole) {
                      std::memcpy(row, pixel, block * sizeof(T));
                      continue;
                    }
                    for (std::size_t first = 0; first < channels; first += block, pixel += area * block) {
                      for (std::size_t k = first; k < std::min(first + block, channels); ++k) row[k] = pixel[k - first];
                    }
                  }
                });
  });
}
/// True if `from` is in blocks of 16 channels and `to` has channels last, so that unblock() can copy.
inline bool unblocks(const layout* from, const layout* to) {
  using tag = dnnl::memory::format_tag;
  if (from->extents.size() != 4 || !from->padded || from->precision != to->precision) return false;
  const auto type = onednn::type_of(from->desc);
  return from->desc == dnnl::memory::desc{from->extents, type, tag::aBcd16b} &&
         to->desc == dnnl::memory::desc{from->extents, type, tag::acdb};
}

}  // namespace detail

inline tensor placed(context& c, const tensor& t, const layout* places);

/// Returns the values rounded to precision `p`. The layout stays the same unless it has gaps.
inline tensor cast(context& c, const tensor& t, precision p) {
  require_supported(p);
  if (t.precision() == p) return t;
  if (storage_of(t.precision()) == storage_of(p)) return t.viewed(t.shape(), c.layouts.with(t.layout(), p));
  const layout* places = t.layout()->dense ? c.layouts.with(t.layout(), p) : nullptr;
  if (!places) return cast(c, placed(c, t, c.layouts.plain(t.layout()->extents, t.precision())), p);
  tensor out = c.make(t.shape(), places);
  c.run_kernel([&] { convert_all(t.data(), t.precision(), out.data(), p, t.layout()->stored); });
  return out;
}

/// Returns `t` in a precision in which oneDNN computes: `t` itself, or widened to FP32.
inline tensor computable(context& c, const tensor& t) {
  return c.computes(t.precision()) ? t : cast(c, t, precision::fp32);
}

/// Returns `t` in the layout `places`. Requires: `places` has the extents and the precision of t's layout.
inline tensor placed(context& c, const tensor& t, const layout* places) {
  if (t.layout() == places) return t;
  if (!c.computes(t.precision())) {
    return cast(c, placed(c, cast(c, t, precision::fp32), c.layouts.with(places, precision::fp32)), t.precision());
  }
  if (c.layouts.same_places(t.layout(), places)) return t.viewed(t.shape(), places);
  tensor out = c.make(t.shape(), places);
  if (!detail::unblocks(t.layout(), places)) {
    reorder_into(c, t, out);
  } else if (t.precision() == precision::fp32) {
    detail::unblock(c, t.as<std::uint32_t>(), out.as<std::uint32_t>(), t.shape());
  } else {
    detail::unblock(c, t.as<std::uint16_t>(), out.as<std::uint16_t>(), t.shape());
  }
  return out;
}

/// Returns `t` row-major with other extents.
inline tensor reshape(context& c, const tensor& t, const shape& extents) {
  require<error>(elements(extents) == elements(t.shape()),
                 "reshape of {} to {} (it has {} elements, not {}): keep the number of elements", text(t.shape()),
                 text(extents), elements(t.shape()), elements(extents));
  if (t.layout()->extents == extents) return t.viewed(extents, t.layout());
  const tensor row_major = t.layout()->plain ? t : placed(c, t, c.layouts.plain(t.layout()->extents, t.precision()));
  return row_major.viewed(extents, c.layouts.plain(extents, t.precision()));
}
/// Returns `t` row-major without gaps.
inline tensor row_major(context& c, const tensor& t) {
  return t.layout()->plain ? t : placed(c, t, c.layouts.plain(t.layout()->extents, t.precision()));
}
/// Returns `t` as a matrix whose rows are its last axis.
inline tensor as_matrix(context& c, const tensor& t) {
  const std::int64_t width = t.shape().back();
  return reshape(c, t, {elements(t.shape()) / width, width});
}

inline tensor upload(context& c, std::span<const float> from, const shape& extents, precision p) {
  require_supported(p);
  require_some("upload", extents);
  require<error>(std::ssize(from) == elements(extents),
                 "upload of {} values as {} (it has {} elements): give as many values", from.size(), text(extents),
                 elements(extents));
  tensor out = c.make_plain(extents, p);
  convert_all(from.data(), precision::fp32, out.data(), p, from.size());
  return out;
}
/// Uploads bytes as FP32: byte b in channel c (the second axis) becomes of_bytes[c][b], so that images can stay bytes
/// until they are read.
inline tensor upload(context& c, std::span<const std::uint8_t> from, const shape& extents, const tensor& of_bytes) {
  require_some("upload", extents);
  const std::int64_t channels = of_bytes.shape().front(), rows = extents.size() > 1 ? extents[0] * channels : 0;
  require<error>(std::ssize(from) == elements(extents) && rows > 0 && extents[1] == channels,
                 "upload of {} bytes as {}, with values for {} channels (they must agree): give as many bytes",
                 from.size(), text(extents), channels);
  tensor out = c.make_plain(extents, precision::fp32);
  const auto width = static_cast<std::size_t>(elements(extents) / rows), all = static_cast<std::size_t>(channels);
  const float* values = of_bytes.as<float>();
  const std::uint8_t* bytes = from.data();
  float* to = out.as<float>();
  launch_rows(static_cast<std::size_t>(rows), width, [=](std::size_t first, std::size_t last) COMP_HOST_KERNEL {
    for (std::size_t row = first; row < last; ++row) {
      const float* of = values + row % all * 256;
      for (std::size_t i = row * width; i < (row + 1) * width; ++i) to[i] = of[bytes[i]];
    }
  });
  return out;
}
inline indices upload(std::span<const std::int32_t> from, shape extents) {
  require_some("upload", extents);
  require<error>(std::ssize(from) == elements(extents),
                 "upload of {} indices as {} (it has {} elements): give as many values", from.size(), text(extents),
                 elements(extents));
  return {std::move(extents), {from.begin(), from.end()}};
}
inline std::vector<float> download(context& c, const tensor& t) {
  std::vector<float> out(static_cast<std::size_t>(elements(t.shape())));
  if (!t) return {};
  convert_all(row_major(c, t).data(), t.precision(), out.data(), precision::fp32, out.size());
  return out;
}

}  // namespace comp::host
