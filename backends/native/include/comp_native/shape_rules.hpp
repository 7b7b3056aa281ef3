// SPDX-License-Identifier: Apache-2.0
// The shape of an operator's output from the shapes of its inputs, or a sentence that says why there is none.
#pragma once

#include <fmt/format.h>

#include <comp/core/error.hpp>
#include <comp_native/arguments.hpp>
#include <comp_native/operation.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace comp::native {

/// A model whose operators do not fit together.
struct model_error : error {
  using error::error;
};

/// The inputs of the operator `name`, with the checks that several operators share.
struct shape_rule {
  std::string_view name;
  std::span<const shape> inputs;

  const shape& x() const { return inputs[0]; }
  const shape& with_rank(std::size_t rank, std::string_view axes) const {
    require<model_error>(x().size() == rank, "\"{}\" gets {} (it reads {}): change the operator before it", name,
                         text(x()), axes);
    return x();
  }
  void positive(std::int64_t value, std::string_view what) const {
    require<model_error>(value > 0, "\"{}\" has {} = {} (it must be positive): change it", name, what, value);
  }
  shape same() const {
    require<model_error>(inputs[0] == inputs[1], "\"{}\" gets {} and {} (they must agree): change one of them", name,
                         text(inputs[0]), text(inputs[1]));
    return x();
  }
  std::int64_t window(std::size_t axis, std::int64_t extent, std::int64_t padding, std::int64_t stride) const {
    positive(extent, "kernel extent");
    positive(stride, "stride");
    const std::int64_t room = x()[axis] + 2 * padding - extent;
    require<model_error>(
        padding >= 0 && room >= 0,
        "\"{}\" has a window of {} over {} with padding {} (it does not fit): make the input larger or "
        "the window smaller",
        name, extent, x()[axis], padding);
    return room / stride + 1;
  }
  shape pooled(const pool2d_options& o) const {
    with_rank(4, "(B,C,H,W)");
    for (const std::size_t i : {0, 1}) {
      require<model_error>(2 * o.padding[i] <= o.kernel[i],
                           "\"{}\" has padding {} for a window of {} (at most half of it): make the padding smaller",
                           name, o.padding[i], o.kernel[i]);
    }
    return {x()[0], x()[1], window(2, o.kernel[0], o.padding[0], o.stride[0]),
            window(3, o.kernel[1], o.padding[1], o.stride[1])};
  }
  shape split(const shape& s, std::int64_t heads) const {
    if (heads == 0) return s;
    require<model_error>(s.size() == 3 && heads > 0 && s[2] % heads == 0,
                         "\"{}\" splits {} into {} heads (it reads (B,T,C) with C a multiple of the heads): change the "
                         "width or the heads",
                         name, text(s), heads);
    return {s[0], heads, s[1], s[2] / heads};
  }

  shape operator()(const op::linear& o) const {
    positive(o.units, "units");
    require<model_error>(x().size() >= 2, "\"{}\" gets {} (it reads (B,...,K)): change the operator before it", name,
                         text(x()));
    shape y = x();
    y.back() = o.units;
    return y;
  }
  shape operator()(const op::conv2d& o) const {
    with_rank(4, "(B,C,H,W)");
    positive(o.channels, "channels");
    positive(o.options.groups, "groups");
    require<model_error>(
        x()[1] % o.options.groups == 0 && o.channels % o.options.groups == 0,
        "\"{}\" has {} groups for {} channels in and {} out (both must be multiples of it): change one", name,
        o.options.groups, x()[1], o.channels);
    const auto extent = [&](std::size_t i) {
      positive(o.options.dilation[i], "dilation");
      return window(i + 2, o.options.dilation[i] * (o.kernel[i] - 1) + 1, o.options.padding[i], o.options.stride[i]);
    };
    return {x()[0], o.channels, extent(0), extent(1)};
  }
  shape operator()(const op::batch_norm&) const {
    if (x().size() == 2) return x();
    return with_rank(4, "(B,C,H,W) or (B,C)");
  }
  shape operator()(const op::dropout& o) const {
    require<model_error>(o.p >= 0 && o.p < 1, "\"{}\" has p = {} (it must be in [0, 1)): change it", name, o.p);
    return x();
  }
  shape operator()(const op::layer_norm&) const { return x(); }
  shape operator()(const op::activate&) const { return x(); }
  shape operator()(const op::max_pool2d& o) const { return pooled(o.options); }
  shape operator()(const op::avg_pool2d& o) const { return pooled(o.options); }
  shape operator()(const op::adaptive_avg_pool2d& o) const {
    with_rank(4, "(B,C,H,W)");
    positive(o.size[0], "rows");
    positive(o.size[1], "columns");
    return {x()[0], x()[1], o.size[0], o.size[1]};
  }
  shape operator()(const op::flatten&) const { return {x()[0], elements(x()) / x()[0]}; }
  shape operator()(const op::add&) const { return same(); }
  shape operator()(const op::mul&) const { return same(); }
  shape operator()(const op::embedding& o) const {
    with_rank(2, "tokens (B,T)");
    positive(o.rows, "rows");
    positive(o.width, "width");
    require<model_error>(!o.of_positions || x()[1] <= o.rows,
                         "\"{}\" has {} positions for {} tokens (one for each): make the context longer", name, o.rows,
                         x()[1]);
    return {x()[0], x()[1], o.width};
  }
  shape operator()(const op::bmm& o) const {
    const shape a = split(inputs[0], o.heads_a), b = split(inputs[1], o.heads_b);
    const bool fits = a.size() == b.size() && a.size() >= 3 && std::equal(a.begin(), a.end() - 2, b.begin()) &&
                      a.back() == b[b.size() - (o.transpose_b ? 1 : 2)] && (!o.merge || a.size() == 4);
    require<model_error>(fits,
                         "\"{}\" multiplies {} by {}{} (inner extents and all before the last two must agree): "
                         "change one of them",
                         name, text(a), text(b), o.transpose_b ? " transposed" : "");
    shape y = a;
    y.back() = b[b.size() - (o.transpose_b ? 2 : 1)];
    return o.merge ? shape{y[0], y[2], y[1] * y[3]} : y;
  }
  shape operator()(const op::softmax& o) const {
    require<model_error>(!o.causal || (x().size() >= 2 && x().back() == x()[x().size() - 2]),
                         "\"{}\" gets {} (causal softmax reads (...,T,T)): change the operator before it", name,
                         text(x()));
    return x();
  }
  shape operator()(const op::log_softmax&) const { return x(); }
  shape operator()(const op::cross_entropy_loss&) const { return classes(); }
  shape operator()(const op::nll_loss&) const { return classes(); }
  shape operator()(const op::mse_loss&) const { return {}; }

 private:
  shape classes() const {
    require<model_error>(x().size() >= 2, "\"{}\" gets {} (it reads (B,...,classes)): change the operator before it",
                         name, text(x()));
    return {};
  }
};

/// Throws: `model_error`, naming the operator and the shapes.
inline shape output_shape(std::string_view name, const operation& what, std::span<const shape> inputs) {
  return std::visit(shape_rule{name, inputs}, what);
}

}  // namespace comp::native
