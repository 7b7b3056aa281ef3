// SPDX-License-Identifier: Apache-2.0
// Models how long an operator takes on a GPU that is not here: matrix products by tiles and their waves over the
// multiprocessors, everything else by the bytes it moves, and the launches of both. A scaled format adds the kernels
// that quantize what a product reads.
// What a host takes to launch kernels is not modelled; a model of small operators would need it.
// Source: the form of the product's time is that of NeuSight (Lee et al., ASPLOS 2025), with a formula in the place of
// its neural network.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/autocast/typed_plan.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/error.hpp>
#include <comp/core/op_info.hpp>
#include <comp/policy/kind_name.hpp>
#include <comp_simulated/fitted.hpp>
#include <comp_simulated/gpu.hpp>
#include <cstddef>
#include <limits>
#include <string_view>

namespace comp::simulated {

/// `batch` products C(m,n) = A(m,k) B(k,n).
struct contraction {
  double batch = 1, m = 0, n = 0, k = 0;
  double flops() const { return 2 * batch * m * n * k; }
  double read() const { return batch * (m * k + k * n); }  // elements
};

/// The bytes that an operator's result takes per element: formats below 16 bits are those of products alone.
constexpr double stored_bytes(precision p) { return std::max(traits(p).bytes, 2.0); }

namespace detail {

/// Returns whether `kind` has one of `parts` in its name.
template <std::size_t N>
bool has_part(std::string_view kind, const std::array<std::string_view, N>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](auto part) { return kind.find(part) != std::string_view::npos; });
}

constexpr bool is_convolution(std::string_view kind) {
  return kind.find("conv") != std::string_view::npos && kind.find("convert") == std::string_view::npos;
}
constexpr bool is_product(std::string_view kind) {
  constexpr std::array<std::string_view, 7> kinds{"addbmm", "addmm", "baddbmm", "bmm", "linear", "matmul", "mm"};
  return is_convolution(kind) || std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

inline double elements(const tensor_info& t) {
  double all = 1;
  for (const std::int64_t extent : t.shape) all *= static_cast<double>(extent);
  return t.shape.empty() ? 0 : all;
}

/// Returns the bytes of one forward in FP32.
inline double bytes_of(const op_info& op) {
  if (op.bytes > 0) return static_cast<double>(op.bytes);
  double all = 0;
  for (const auto* tensors : {&op.inputs, &op.outputs}) {
    for (const tensor_info& t : *tensors) all += 4 * elements(t);
  }
  return all;
}
inline double result_bytes(const op_info& op) {
  double all = 0;
  for (const tensor_info& t : op.outputs) all += 4 * elements(t);
  return all;
}

/// What quantizing an element of an operand moves.
struct quantization {
  double maximum = 0;  // bytes of the pass that finds the tensor's largest value
  double bytes = 0;    // bytes read in BF16 and written with scales
  double rate = fitted::quantize_8;
};
constexpr quantization quantization_of(precision p) {
  switch (p) {
    case precision::fp8_e4m3:
    case precision::fp8_e5m2:
      return {2, 3};
    case precision::fp8_block128:
      return {0, 3 + 4 / 128.0};
    case precision::mxfp8:
      return {0, 3 + 1 / 32.0};
    case precision::mxfp4:
      return {0, 2.5 + 1 / 32.0, fitted::quantize_4};
    case precision::nvfp4:
      return {2, 2.5 + 1 / 16.0, fitted::quantize_4};
    default:
      return {};
  }
}

}  // namespace detail

/// The model of one GPU.
class operator_model {
 public:
  explicit operator_model(const gpu& target)
      : gpu_{target}, capability_{policy::device_named(target.name).compute_capability} {}

  /// Returns the seconds of an operator's forward and backward in `p`, without casts. In a format below 16 bits only
  /// products are quantized; other operators are then in BF16.
  /// Throws: `graph_error`, naming the operator, if it has no sizes; `settings_error` if the GPU lacks the format.
  op_time operator()(const op_info& op, precision p) const {
    require<settings_error>(computes_in(p, gpu_),
                            "{} on the {} (it has no unit for it): leave it out of the precisions", name(p), gpu_.name);
    const std::string_view kind = policy::without_overload(op.kind);
    if (!op.choosable && (autocast::moves_only(kind) || detail::bytes_of(op) == 0)) return {};
    const bool attends = detail::has_part(kind, std::array<std::string_view, 1>{"attention"});
    const bool multiplies = !attends && detail::is_product(kind);
    require<graph_error>(detail::bytes_of(op) > 0 && (op.flops > 0 || !(attends || multiplies)),
                         "operator \"{}\" ({}) has no sizes (its time is modelled from them): give op_info its bytes, "
                         "flops, m, n and k",
                         op.name, op.kind);
    if (attends) return attention(op, is_scaled(p) ? precision::bf16 : p);
    if (multiplies || (op.m > 0 && op.n > 0 && op.k > 0)) return products_of(op, p);
    return streamed(op, kind, p);
  }

  /// Returns the seconds of a product, without what quantizes its operands.
  double product(const contraction& c, precision p, double faster = 1) const {
    const fitted::tiling& fit = p == precision::fp32 ? fitted::cores : fitted::tensor_cores;
    const double per_processor = gpu_.peak(p) * rate(p) * faster / gpu_.multiprocessors;
    const double moved = bytes_read(p) * c.read() + stored_bytes(p) * c.batch * c.m * c.n;
    double best = std::numeric_limits<double>::infinity();
    for (const auto& [rows, columns] : tiles) {
      for (const double splits : {1., 2., 4., 8., 16.}) {  // the depth may be split, when partial sums are added up
        const double depth = std::max(c.k / splits, 1.);
        if (splits > 1 && depth < 128) break;
        const double filled =
            c.batch * std::ceil(c.m / rows) * std::ceil(c.n / columns) * splits / gpu_.multiprocessors;
        const double waves = std::max(1., (1 - fit.tail) * filled + fit.tail * std::ceil(filled));
        const double side = std::sqrt(rows * columns);
        const double computes =
            waves * 2 * rows * columns * (depth + fit.prologue) / (per_processor * side / (side + fit.tile_loss));
        const double sums = splits > 1 ? 8 * splits * c.batch * c.m * c.n : 0;
        best = std::min(best, std::max(computes, (moved + sums) / (gpu_.memory * fit.memory)));
      }
    }
    return fitted::launch + best;
  }

  /// Returns the seconds of quantizing both operands of a product; 0 for formats of 16 bits and more.
  double quantizing(const contraction& c, precision p) const {
    if (!is_scaled(p)) return 0;
    const detail::quantization q = detail::quantization_of(p);
    const double per_element = q.maximum / fitted::elementwise + q.bytes / q.rate;
    return 2 * fitted::launch * (q.maximum > 0 ? 2 : 1) + c.read() * per_element / gpu_.memory;
  }

  /// Returns the seconds of an elementwise kernel that moves so many bytes, such as a cast or the optimizer's.
  double moving(double bytes, double reached = fitted::elementwise) const {
    return fitted::launch + bytes / (gpu_.memory * reached);
  }

 private:
  static constexpr std::array<std::array<double, 2>, 9> tiles{
      {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64}, {64, 32}, {32, 64}, {32, 32}}};

  static double bytes_read(precision p) {
    return p == precision::nvfp4                            ? .5625
           : p == precision::mxfp4 || p == precision::mxfp8 ? traits(p).bytes + 1 / 32.0
                                                            : traits(p).bytes;
  }
  double rate(precision p) const {
    if (p == precision::fp32) return gpu_.lanes > 64 ? fitted::fp32_of_128_lanes : fitted::fp32_of_64_lanes;
    const fitted::rates& of = capability_ >= 100  ? fitted::blackwell
                              : capability_ >= 90 ? fitted::hopper
                              : capability_ >= 89 ? fitted::ada
                                                  : fitted::ampere;
    return traits(p).bytes < 1 ? of.fp4 : is_scaled(p) ? of.fp8 : of.half;
  }

  op_time products_of(const op_info& op, precision p) const {
    const double flops = static_cast<double>(op.flops);
    contraction c{1, static_cast<double>(op.m), static_cast<double>(op.n), static_cast<double>(op.k)};
    double faster = 1;
    if (detail::is_convolution(policy::without_overload(op.kind))) {
      const double results = detail::result_bytes(op) / 4, channels = static_cast<double>(op.channels_out);
      require<graph_error>(results > 0 && channels > 0,
                           "operator \"{}\" ({}) has no sizes (its time is modelled from them): "
                           "give op_info its outputs, channels_in and channels_out",
                           op.name, op.kind);
      c = {1, results / channels, channels, std::max(flops / (2 * results), 1.)};
      if (p == precision::fp32 && std::lround(c.k) == 9 * op.channels_in) faster = fitted::winograd;
    } else if (c.flops() > 0) {
      c.batch = std::max(1., std::round(flops / c.flops()));
    }
    const auto one = [&](const contraction& of) { return product(of, p, faster) + quantizing(of, p); };
    if (op.product == product::forward) return {.forward = one(c)};
    if (op.product != product::all) return {.backward = one(c)};
    return {.forward = one(c), .backward = one({c.batch, c.m, c.k, c.n}) + one({c.batch, c.k, c.n, c.m})};
  }

  // One kernel for scores, softmax and values, which keeps the scores on the chip. The backward computes the scores
  // again: five products for the forward's two.
  op_time attention(const op_info& op, precision p) const {
    const double computes = static_cast<double>(op.flops) / (gpu_.peak(p) * rate(p) * fitted::attention);
    const double moves = detail::bytes_of(op) / 4 * stored_bytes(p) / (gpu_.memory * fitted::elementwise);
    return {.forward = fitted::launch + std::max(computes, moves),
            .backward = 2 * fitted::launch + std::max(2.5 * computes, 2 * moves)};
  }

  // The backward reads the result's gradient, too.
  op_time streamed(const op_info& op, std::string_view kind, precision p) const {
    constexpr std::array<std::string_view, 1> norms{"norm"};
    constexpr std::array<std::string_view, 6> reductions{"softmax", "loss", "entropy", "sum", "mean", "pool"};
    const double reached = detail::has_part(kind, norms)        ? fitted::norm
                           : detail::has_part(kind, reductions) ? fitted::softmax
                                                                : fitted::elementwise;
    const double slower = kind.find("softmax") != std::string_view::npos ? fitted::softmax_backward : 1;
    const double scale = stored_bytes(p) / 4, bytes = scale * detail::bytes_of(op);
    return {.forward = moving(bytes, reached),
            .backward = moving(bytes + scale * detail::result_bytes(op), reached / slower)};
  }

  gpu gpu_;
  int capability_;
};

}  // namespace comp::simulated
