// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native {

/// Checks a pooling. Returns: (B,C,H',W'). Throws: error.
inline shape pooled(const char* operation, const shape& x, const pool2d_options& o) {
  require_some(operation, x);
  require<error>(x.size() == 4, "{} of x {} (it takes (B,C,H,W)): reshape it", operation, text(x));
  shape y{x[0], x[1], 0, 0};
  for (std::size_t i = 0; i < 2; ++i) {
    require<error>(
        o.kernel[i] > 0 && o.stride[i] > 0 && o.padding[i] >= 0 && 2 * o.padding[i] <= o.kernel[i],
        "{} with kernel {}, stride {} and padding {} (a window may not lie in the padding alone): pad by at most half the kernel",
        operation, o.kernel[i], o.stride[i], o.padding[i]);
    const std::int64_t room = x[i + 2] + 2 * o.padding[i] - o.kernel[i];
    require<error>(room >= 0,
                   "{} of x {} with a kernel of {} (it is larger than the padded image): use a smaller kernel",
                   operation, text(x), o.kernel[i]);
    y[i + 2] = room / o.stride[i] + 1;
  }
  return y;
}

/// Throws: error.
inline void require_bins(const shape& x, const std::array<std::int64_t, 2>& size) {
  require_some("adaptive_avg_pool2d", x);
  require<error>(x.size() == 4 && size[0] > 0 && size[1] > 0,
                 "adaptive_avg_pool2d of x {} to {}x{} (it takes (B,C,H,W) and a positive size): fix the sizes",
                 text(x), size[0], size[1]);
}
/// True if all bins have the same size and do not overlap, so that they are the windows of bin_windows().
inline bool even_bins(const shape& x, const std::array<std::int64_t, 2>& size) {
  return x[2] % size[0] == 0 && x[3] % size[1] == 0;
}
inline pool2d_options bin_windows(const shape& x, const std::array<std::int64_t, 2>& size) {
  const std::array<std::int64_t, 2> window{x[2] / size[0], x[3] / size[1]};
  return {.kernel = window, .stride = window};
}

namespace op {

struct max_pool2d {
  pool2d_options options = {};

  constexpr std::string_view kind() const { return "max_pool2d"; }
  constexpr auto settings() const { return std::tuple{options.kernel, options.stride, options.padding}; }
  shape output(std::span<const shape> x) const { return pooled("max_pool2d", x[0], options); }
  void cost(const cost_call& c) const { c.per_element(options.kernel[0] * options.kernel[1]); }
  auto forward(const auto& c) const { return c.keep_with_input(c.device.max_pool2d(c.x[0], options)); }
  auto backward(const auto& c) const {
    const auto x = c.take_input();
    return c.gradients(c.device.max_pool2d_backward(c.dy, x, c.left.kept, options));
  }
};

struct avg_pool2d {
  pool2d_options options = {};

  constexpr std::string_view kind() const { return "avg_pool2d"; }
  constexpr auto settings() const { return std::tuple{options.kernel, options.stride, options.padding}; }
  shape output(std::span<const shape> x) const { return pooled("avg_pool2d", x[0], options); }
  void cost(const cost_call& c) const { c.per_element(options.kernel[0] * options.kernel[1]); }
  /// The backward only needs the input's shape, but a Device with many layouts wants to give the gradient the input's
  /// layout. Such a Device has T places_of(x), which returns x without its memory, and its backward takes that in place
  /// of the shape.
  auto forward(const auto& c) const {
    if constexpr (requires { c.device.places_of(c.x[0]); }) c.left.kept = {c.device.places_of(c.x[0])};
    return c.device.avg_pool2d(c.x[0], options);
  }
  auto backward(const auto& c) const {
    if constexpr (requires { c.device.places_of(c.dy); }) {
      return c.gradients(c.device.avg_pool2d_backward(c.dy, c.kept(0), options));
    } else {
      return c.gradients(c.device.avg_pool2d_backward(c.dy, c.left.input_shape, options));
    }
  }
};

struct adaptive_avg_pool2d {
  std::array<std::int64_t, 2> size = {1, 1};

  constexpr std::string_view kind() const { return "adaptive_avg_pool2d"; }
  shape output(std::span<const shape> x) const {
    require_bins(x[0], size);
    return {x[0][0], x[0][1], size[0], size[1]};
  }
  void cost(const cost_call& c) const { c.info.flops = elements(c.inputs[0]); }
  auto forward(const auto& c) const { return c.device.adaptive_avg_pool2d(c.x[0], size); }
  auto backward(const auto& c) const {
    return c.gradients(c.device.adaptive_avg_pool2d_backward(c.dy, c.left.input_shape));
  }
};

}  // namespace op
}  // namespace comp::native
