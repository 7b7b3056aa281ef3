// SPDX-License-Identifier: Apache-2.0
// Max and average pooling by oneDNN, in whatever layout the input has.
#pragma once

#include <algorithm>
#include <array>
#include <comp_native/device.hpp>
#include <comp_native/op/pool.hpp>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "context.hpp"
#include "convert.hpp"
#include "normalization.hpp"
#include "transfer.hpp"

namespace comp::host {

using native::pool2d_options;

namespace detail {

/// The sizes of a pooling and the descriptors of its arguments.
struct pool_plan {
  context& c;
  const layout* x;
  shape y_sizes;
  pool2d_options options;
  dnnl::algorithm algorithm;
  dnnl::memory::dims dense = {0, 0};  // no dilation

  static dnnl::memory::dims dims(const std::array<std::int64_t, 2>& of) { return {of.begin(), of.end()}; }
  dnnl::memory::desc y() const { return {y_sizes, onednn::type_of(x->desc), dnnl::memory::format_tag::any}; }
  key keyed(operation o) const { return key{o, x->id, options.kernel, options.stride, options.padding}; }
  dnnl::pooling_forward::primitive_desc forward() const {
    return c.described<dnnl::pooling_forward>(dnnl::prop_kind::forward_training, algorithm, x->desc, y(),
                                              dims(options.stride), dims(options.kernel), dense, dims(options.padding),
                                              dims(options.padding));
  }
  dnnl::pooling_backward::primitive_desc backward() const {
    const auto hint = forward();
    return c.described_backward<dnnl::pooling_backward>(hint, algorithm, x->desc, hint.dst_desc(), dims(options.stride),
                                                        dims(options.kernel), dense, dims(options.padding),
                                                        dims(options.padding));
  }
};

inline pool_plan plan_pool(context& c, const char* operation, const shape& s, const layout* x, const pool2d_options& o,
                           dnnl::algorithm a) {
  return {c, x, native::pooled(operation, s, o), o, a};
}
inline tensor without_memory(const tensor& t) { return {t.shape(), t.layout(), nullptr}; }

}  // namespace detail

namespace detail {

template <class Bits>
bool any_nan(const Bits* words, std::size_t n, Bits infinity) {
  return launch_sum(n, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
           const Bits *word = words, largest = infinity;
           Bits found = 0;
#pragma omp simd reduction(| : found)
           for (std::size_t i = begin; i < end; ++i) {
             found |= static_cast<Bits>((word[i] & std::numeric_limits<Bits>::max()) > largest ? 1 : 0);
           }
           return static_cast<double>(found);
         }) > 0;
}
/// True if x may hold a NaN. Requires: x is FP32 or BF16.
inline bool holds_nan(const tensor& x) {
  if (!x.layout()->dense) return true;  // rare, so not worth a loop of its own: true is slower and always right
  if (x.precision() == precision::fp32) return any_nan(x.as<std::int32_t>(), x.layout()->stored, 0x7f800000);
  return any_nan(x.as<std::int16_t>(), x.layout()->stored, std::int16_t{0x7f80});
}
/// Returns y with NaN for each window of x that holds one.
inline tensor with_nan(context& c, const tensor& x, const tensor& y, const pool2d_options& o) {
  const tensor in = row_major(c, cast(c, x, precision::fp32)),
               out = duplicate(c, row_major(c, cast(c, y, precision::fp32)));
  const shape &s = x.shape(), &t = y.shape();
  launch_rows(static_cast<std::size_t>(s[0] * s[1]), static_cast<std::size_t>(s[2] * s[3]),
              [&](std::size_t begin, std::size_t end) {
                for (auto plane = static_cast<std::int64_t>(begin); plane < static_cast<std::int64_t>(end); ++plane) {
                  for (std::int64_t at = 0; at < t[2] * t[3]; ++at) {
                    const std::int64_t top = at / t[3] * o.stride[0] - o.padding[0],
                                       left = at % t[3] * o.stride[1] - o.padding[1];
                    for (auto r = std::max<std::int64_t>(top, 0); r < std::min(top + o.kernel[0], s[2]); ++r) {
                      for (auto v = std::max<std::int64_t>(left, 0); v < std::min(left + o.kernel[1], s[3]); ++v) {
                        const float value = in.as<float>()[(plane * s[2] + r) * s[3] + v];
                        if (value != value) out.as<float>()[plane * t[2] * t[3] + at] = value;
                      }
                    }
                  }
                }
              });
  return cast(c, out, y.precision());
}

}  // namespace detail

/// Max pooling. A NaN passes, as in PyTorch; oneDNN's own maximum skips it, which would hide that a training has
/// failed.
/// Saved are which element of each window was the largest, and the layout of x without its memory.
inline saved_tensor max_pool2d(context& c, const tensor& x, const pool2d_options& o) {
  const tensor in = computable(c, x);
  const auto plan = detail::plan_pool(c, "max_pool2d", x.shape(), in.layout(), o, dnnl::algorithm::pooling_max);
  auto& run = c.cached(plan.keyed(operation::max_pool), [&] {
    const auto pd = plan.forward();
    return c.make_primitive(
        pd,
        {{DNNL_ARG_SRC, in.layout()->desc}, {DNNL_ARG_DST, pd.dst_desc()}, {DNNL_ARG_WORKSPACE, pd.workspace_desc()}});
  });
  const tensor y = c.make(run.places(DNNL_ARG_DST));
  tensor won = c.make(x.shape(), run.places(DNNL_ARG_WORKSPACE));
  c.run(run, {{DNNL_ARG_SRC, in.data()}, {DNNL_ARG_DST, y.data()}, {DNNL_ARG_WORKSPACE, won.data()}});
  bool nan = false;
  c.run_kernel([&] { nan = detail::holds_nan(in); });
  const tensor out = nan ? detail::with_nan(c, in, y, o) : y;
  return {cast(c, out, x.precision()), {std::move(won), detail::without_memory(in)}};
}
inline tensor max_pool2d_backward(context& c, const tensor& dy, const std::vector<tensor>& saved,
                                  const pool2d_options& o) {
  const layout* x = c.layouts.with(saved[1].layout(), c.computes(dy.precision()) ? dy.precision() : precision::fp32);
  require<error>(
      x, "max_pool2d_backward in {} of a result in a layout that oneDNN has in {} alone: use the same precision",
      name(dy.precision()), name(saved[1].precision()));
  const auto plan = detail::plan_pool(c, "max_pool2d_backward", saved[1].shape(), x, o, dnnl::algorithm::pooling_max);
  require_same("max_pool2d_backward", dy.shape(), plan.y_sizes);
  auto& run = c.cached(plan.keyed(operation::max_pool_backward), [&] {
    const auto pd = plan.backward();
    return c.make_primitive(pd, {{DNNL_ARG_DIFF_SRC, pd.diff_src_desc()},
                                 {DNNL_ARG_DIFF_DST, pd.diff_dst_desc()},
                                 {DNNL_ARG_WORKSPACE, pd.workspace_desc()}});
  });
  const tensor g = placed(c, computable(c, dy), run.places(DNNL_ARG_DIFF_DST));
  const tensor dx = c.make(run.places(DNNL_ARG_DIFF_SRC));
  c.run(run, {{DNNL_ARG_DIFF_SRC, dx.data()}, {DNNL_ARG_DIFF_DST, g.data()}, {DNNL_ARG_WORKSPACE, saved[0].data()}});
  return cast(c, dx, dy.precision());
}

/// Average pooling. The padding counts as zeros, as by default in PyTorch.
inline tensor avg_pool2d(context& c, const tensor& x, const pool2d_options& o) {
  const tensor in = computable(c, x);
  const auto plan =
      detail::plan_pool(c, "avg_pool2d", x.shape(), in.layout(), o, dnnl::algorithm::pooling_avg_include_padding);
  auto& run = c.cached(plan.keyed(operation::avg_pool), [&] {
    const auto pd = plan.forward();
    return c.make_primitive(pd, {{DNNL_ARG_SRC, in.layout()->desc}, {DNNL_ARG_DST, pd.dst_desc()}});
  });
  const tensor y = c.make(run.places(DNNL_ARG_DST));
  c.run(run, {{DNNL_ARG_SRC, in.data()}, {DNNL_ARG_DST, y.data()}});
  return cast(c, y, x.precision());
}
/// `x` is the input without its memory. The gradient gets the input's layout if windows do not overlap. If they do, it
/// is row-major, because only then oneDNN rounds each sum of BF16 values once.
inline tensor avg_pool2d_backward(context& c, const tensor& dy, const tensor& x, const pool2d_options& o) {
  const tensor g = computable(c, dy);
  const bool apart = o.stride[0] >= o.kernel[0] && o.stride[1] >= o.kernel[1];
  const layout* places = apart && x.layout()->dense ? c.layouts.with(x.layout(), g.precision()) : nullptr;
  if (!places) places = c.layouts.plain(x.shape(), g.precision());
  const auto plan =
      detail::plan_pool(c, "avg_pool2d_backward", x.shape(), places, o, dnnl::algorithm::pooling_avg_include_padding);
  require_same("avg_pool2d_backward", dy.shape(), plan.y_sizes);
  auto& run = c.cached(plan.keyed(operation::avg_pool_backward), [&] {
    const auto pd = plan.backward();
    return c.make_primitive(pd, {{DNNL_ARG_DIFF_SRC, pd.diff_src_desc()}, {DNNL_ARG_DIFF_DST, pd.diff_dst_desc()}});
  });
  const tensor there = placed(c, g, run.places(DNNL_ARG_DIFF_DST));
  const tensor dx = c.make(run.places(DNNL_ARG_DIFF_SRC));
  c.run(run, {{DNNL_ARG_DIFF_SRC, dx.data()}, {DNNL_ARG_DIFF_DST, there.data()}});
  return cast(c, dx, dy.precision());
}
inline tensor avg_pool2d_backward(context& c, const tensor& dy, const shape& of_x, const pool2d_options& o) {
  return avg_pool2d_backward(c, dy, tensor{of_x, c.layouts.plain(of_x, dy.precision()), nullptr}, o);
}

}  // namespace comp::host
