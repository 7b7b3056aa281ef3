// SPDX-License-Identifier: Apache-2.0
// Linear layers in FP8. Each operand is scaled so that its largest magnitude is FP8's largest, and rounded; the product
// is scaled back. The factors stay on the device. The formats follow Transformer Engine's hybrid recipe, since
// gradients need range more than bits:
//   forward     x as the plan says (E4M3 or E5M2), w in E4M3
//   backward    dy in E5M2, w and x in E4M3
// cuBLASLt has no product of two E5M2 operands, so fp8_e5m2 in a plan only changes how x is rounded in the forward.
// Results are BF16, gradients of weights FP32. The forward accumulates fast, with fewer bits; the backward does not.
// The FP8 form of weights is kept until their values change. That of x is kept with the memory of x, as rows and as
// columns, so that other layers that read x (query, key and value) and the backward find it.
#pragma once

#include <memory>
#include <optional>

#include "layout.hpp"
#include "matmul.hpp"
#include "parameter.hpp"
#include "pending_product.hpp"

namespace comp::cuda {

/// A matrix in FP8 with its factor: as it is, or transposed, or both, since cuBLASLt multiplies FP8 matrices in one
/// orientation alone. Sizes are padded with zeros to fp8_padded().
class fp8_operand {
 public:
  enum class side : std::uint8_t { rows, columns, both };

  fp8_operand(context& c, index rows, index columns, side wanted)
      : rows_{rows},
        columns_{columns},
        wanted_{wanted},
        held_{c.allocate(front + bytes() * (wanted == side::both ? 2 : 1))} {}

  /// True if the matrix has this size and the wanted orientation.
  bool has(index rows, index columns, side wanted) const {
    return rows_ == rows && columns_ == columns && (wanted_ == side::both || wanted_ == wanted);
  }
  /// Quantises x, which is (rows, columns) of float or bf16, to F, which is e4m3 or e5m2. Pending products that read
  /// the old codes are launched first, since scratch memory is taken.
  template <class F, class T>
  void fill(context& c, const T* x) {
    type_ = std::is_same_v<F, native::math::e4m3> ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
    float* partial = c.scratch_of<float>(most_partials);
    const index partials = largest_magnitudes(c.stream().get(), x, rows_ * columns_, partial);
    quantize(c.stream().get(), x, rows_, columns_, partial, partials, static_cast<float*>(held_->materialize()),
             reinterpret_cast<F*>(by_rows()), reinterpret_cast<F*>(by_columns()));
  }
  /// Returns: the matrix (rows, padded columns); transposed, a product reads it as (padded columns, padded rows).
  matrix as_rows(bool transposed = false) const {
    return {by_rows(), type_, transposed ? fp8_padded(rows_) : rows_, fp8_padded(columns_), transposed, factor()};
  }
  /// Returns: the transposed matrix (columns, padded rows); transposed, a product reads it as (padded rows, padded
  /// columns).
  matrix as_columns(bool transposed = false) const {
    return {by_columns(), type_, transposed ? fp8_padded(columns_) : columns_, fp8_padded(rows_), transposed, factor()};
  }

 private:
  static constexpr std::int64_t front = 256;  // [bytes] before the codes, which begin aligned: the factor is there
  std::int64_t bytes() const { return (fp8_padded(rows_) * fp8_padded(columns_) + 255) / 256 * 256; }
  const float* factor() const { return static_cast<const float*>(held_->materialize()); }
  std::byte* codes(std::int64_t at) const { return static_cast<std::byte*>(held_->materialize()) + front + at; }
  std::byte* by_rows() const { return wanted_ == side::columns ? nullptr : codes(0); }
  std::byte* by_columns() const { return wanted_ == side::rows ? nullptr : codes(wanted_ == side::both ? bytes() : 0); }
  index rows_, columns_;
  side wanted_;
  cudaDataType_t type_ = CUDA_R_8F_E4M3;
  std::shared_ptr<memory> held_;
};

/// The FP8 form of a parameter.
struct fp8_weights {
  fp8_operand codes;
  std::optional<std::uint64_t> version = {};  // parameter::version of the values; nothing before codes were filled
};
/// The FP8 forms of an activation, which memory::derived points to.
struct fp8_copies {
  std::optional<fp8_operand> e4m3, e5m2;
};

namespace detail {

/// Returns: the FP8 form of the parameter, kept until the values change. A captured forward always quantises again,
/// since the values will have changed when the graph runs.
inline const fp8_operand& weights_in_fp8(context& c, parameter& w, bool forward) {
  const bool kept = w.in_fp8 && w.in_fp8->version == w.version && !(forward && c.capturing());
  if (kept) return w.in_fp8->codes;
  if (!w.in_fp8) {
    w.in_fp8 = std::make_shared<fp8_weights>(fp8_weights{{c, w.extents[0], w.extents[1], fp8_operand::side::both}});
  }
  w.in_fp8->codes.fill<native::math::e4m3>(c, w.value.materialize_as<float>());
  w.in_fp8->version = w.version;
  return w.in_fp8->codes;
}
/// Returns: t, which is (rows, columns), in FP8.
template <class F>
fp8_operand in_fp8(context& c, const tensor& t, index rows, index columns, fp8_operand::side wanted) {
  fp8_operand operand{c, rows, columns, wanted};
  operand.fill<F>(c, t.materialize_as<bf16>());
  return operand;
}

/// The same, but kept with the memory of t for the next reader. In a capture only memory of that capture keeps it,
/// because other memory has other values when the graph runs.
template <class F>
fp8_operand kept_in_fp8(context& c, const tensor& t, index rows, index columns, fp8_operand::side wanted) {
  (void)t.materialize();
  if ((t.held()->graph() != 0) != c.capturing()) return in_fp8<F>(c, t, rows, columns, wanted);
  if (!t.held()->derived) t.held()->derived = std::make_shared<fp8_copies>();
  auto& all = *static_cast<fp8_copies*>(t.held()->derived.get());
  std::optional<fp8_operand>& kept = std::is_same_v<F, native::math::e4m3> ? all.e4m3 : all.e5m2;
  if (!kept || !kept->has(rows, columns, wanted)) kept = in_fp8<F>(c, t, rows, columns, wanted);
  return *kept;
}

/// What a product in FP8 does besides multiplying.
struct fp8_epilogue {
  tensor bias = {};                 // BF16, or FP32 if the width is padded; empty: none
  bool relu = false, adds = false;  // applies ReLU; adds to the result's memory
  bool fast = false;                // sums may have fewer bits
};
/// Writes relu(a b + bias) to `to` (rows, width), or adds it. If the width is padded, the product first goes to other
/// memory, in FP32, and a kernel takes the columns that count.
template <class To>
void fp8_product(context& c, const matrix& a, const matrix& b, To* to, index width, const fp8_epilogue& then = {}) {
  const index rows = a.out_rows(), padded = b.out_columns();
  constexpr bool fp32 = std::is_same_v<To, float>;
  if (padded == width) {
    return multiply(c, {.a = a,
                        .b = b,
                        .to = to,
                        .type = fp32 ? CUDA_R_32F : CUDA_R_16BF,
                        .fast = then.fast,
                        .beta = then.adds ? 1.0F : 0.0F,
                        .bias = then.bias.materialize(),
                        .relu = then.relu});
  }
  const tensor whole = c.make({rows, padded}, precision::fp32);
  multiply(c, {.a = a, .b = b, .to = whole.materialize(), .type = CUDA_R_32F, .fast = then.fast});
  take_columns(c.stream().get(), whole.materialize_as<float>(), padded, to, rows, width,
               then.bias.materialize_as<const float>(), then.relu, then.adds);
}

/// x is (rows,K), w is (N,K). Returns: the work that writes (rows,N) in BF16, from x and w as they are now.
inline pending_product::work fp8_linear(context& c, const tensor& x, parameter& w, parameter* b) {
  using side = fp8_operand::side;
  const index outputs = w.extents[0], inputs = w.extents[1], rows = x.size() / inputs;
  const fp8_operand in =
      x.precision() == precision::fp8_e5m2
          ? kept_in_fp8<native::math::e5m2>(c, x, rows, inputs, side::rows)
          : kept_in_fp8<native::math::e4m3>(c, x, rows, inputs, w.trainable ? side::both : side::rows);
  const precision of_bias = fp8_padded(outputs) == outputs ? precision::bf16 : precision::fp32;
  return [=, codes = weights_in_fp8(c, w, true), bias = b ? weight_tensor(c, *b, of_bias) : tensor{}](
             context& on, void* to, bool relu) {
    fp8_product(on, in.as_rows(), codes.as_rows(true), static_cast<bf16*>(to), outputs,
                {.bias = bias, .relu = relu, .fast = true});
  };
}
/// Writes dx, unless that is empty, and adds to the gradient of w if `need_dw`.
inline void fp8_linear_backward(context& c, const tensor& dy, const tensor& x, parameter& w, bool need_dw,
                                const tensor& dx) {
  using side = fp8_operand::side;
  const index outputs = w.extents[0], inputs = w.extents[1], rows = x.size() / inputs;
  if (!need_dw && !dx) return;
  const side wanted = !need_dw ? side::rows : dx ? side::both : side::columns;
  const fp8_operand g = in_fp8<native::math::e5m2>(c, dy, rows, outputs, wanted);
  if (need_dw) {
    const fp8_operand in = kept_in_fp8<native::math::e4m3>(c, x, rows, inputs, side::columns);
    const auto to = gradient_of(c, w);
    fp8_product(c, g.as_columns(), in.as_columns(true), to.at, inputs, {.adds = to.adds});
  }
  if (dx) fp8_product(c, g.as_rows(), weights_in_fp8(c, w, false).as_columns(true), dx.materialize_as<bf16>(), inputs);
}

}  // namespace detail

}  // namespace comp::cuda
