// SPDX-License-Identifier: Apache-2.0
// Linear layers in FP8: each operand is divided by its largest magnitude, rounded, and the product multiplied back; the
// factors stay on the device. Which format holds what, after Transformer Engine's hybrid recipe:
//   forward     x as the plan says (E4M3 or E5M2), w in E4M3
//   backward    dy in E5M2, w and x in E4M3
// Two operands of E5M2 have no product in cuBLASLt: a plan of fp8_e5m2 changes how x is rounded in the forward only.
// Results are BF16, gradients of weights FP32. The forward accumulates fast, with fewer bits, and the backward does
// not. Quantised weights are kept until the values change; what is made of x goes with its memory, so that other layers
// which read it (query, key and value) and the backward find it, in both orientations. Not here: other operators.
#pragma once

#include <memory>
#include <optional>

#include "layout.hpp"
#include "matmul.hpp"
#include "parameter.hpp"
#include "pending_product.hpp"

namespace comp::cuda {

/// A matrix in FP8 with its factor, as rows and as columns (empty where that was not asked for), sizes filled up.
class fp8_operand {
 public:
  enum class side : std::uint8_t { rows, columns, both };

  fp8_operand(context& c, index rows, index columns, side wanted)
      : rows_{rows},
        columns_{columns},
        wanted_{wanted},
        held_{c.allocate(front + bytes() * (wanted == side::both ? 2 : 1))} {}

  /// Whether it is of that many rows and columns, and has what is wanted.
  bool has(index rows, index columns, side wanted) const {
    return rows_ == rows && columns_ == columns && (wanted_ == side::both || wanted_ == wanted);
  }
  /// x: (rows, columns) of float or bf16. F: e4m3 or e5m2.
  template <class F, class T>
  void fill(context& c, const T* x) {
    type_ = std::is_same_v<F, native::math::e4m3> ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
    float* partial = c.scratch_of<float>(most_partials);
    const index partials = largest_magnitudes(c.stream().get(), x, rows_ * columns_, partial);
    quantize(c.stream().get(), x, rows_, columns_, partial, partials, static_cast<float*>(held_->materialize()),
             reinterpret_cast<F*>(by_rows()), reinterpret_cast<F*>(by_columns()));
  }
  /// (first, padded columns): as many of the rows.
  matrix as_rows(bool transposed = false) const {
    return {by_rows(), type_, transposed ? fp8_padded(rows_) : rows_, fp8_padded(columns_), transposed, factor()};
  }
  /// (columns, padded rows): the transposed matrix.
  matrix as_columns(bool transposed = false) const {
    return {by_columns(), type_, transposed ? fp8_padded(columns_) : columns_, fp8_padded(rows_), transposed, factor()};
  }

 private:
  static constexpr std::int64_t front = 256;  // [bytes] before the codes: the factor
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

struct fp8_weights {
  fp8_operand codes;
  std::optional<std::uint64_t> version = {};  // of the values that they are; none: they are not made yet
};
/// Of an activation: what memory::derived points to.
struct fp8_copies {
  std::optional<fp8_operand> e4m3, e5m2;
};

namespace detail {

/// The values as the forward and the backward take them. In work that is recorded to run again the forward makes them
/// anew: the values will have changed when it runs.
inline const fp8_operand& weights_in_fp8(context& c, parameter& w, bool forward) {
  const bool kept = w.in_fp8 && w.in_fp8->version == w.version && !(forward && c.capturing());
  if (kept) return w.in_fp8->codes;
  if (!w.in_fp8) {
    w.in_fp8 = std::make_shared<fp8_weights>(fp8_weights{{c, w.extents[0], w.extents[1], fp8_operand::side::both}});
  }
  c.finish_reads();
  w.in_fp8->codes.fill<native::math::e4m3>(c, w.value.materialize_as<float>());
  w.in_fp8->version = w.version;
  return w.in_fp8->codes;
}
template <class F>
fp8_operand in_fp8(context& c, const tensor& t, index rows, index columns, fp8_operand::side wanted) {
  fp8_operand made{c, rows, columns, wanted};
  made.fill<F>(c, t.materialize_as<bf16>());
  return made;
}

/// The same, found or kept with the memory of t. Captured work keeps it with what is allocated in that capture alone:
/// other memory has other values when it runs.
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

struct fp8_epilogue {
  tensor bias = {};  // BF16; FP32 where the width is filled up
  bool relu = false, adds = false;
  bool fast = false;  // sums of fewer bits
};
/// to (rows, width) (+)= relu(a b + bias). Where `width` was filled up the product goes elsewhere first, in FP32.
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

/// x (rows,K), w (N,K). Returns: what writes (rows,N), BF16, of x and the values as they are now.
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
/// dx may be empty. The gradient of w is added where w has one.
inline void fp8_linear_backward(context& c, const tensor& dy, const tensor& x, parameter& w, const tensor& dx) {
  using side = fp8_operand::side;
  const index outputs = w.extents[0], inputs = w.extents[1], rows = x.size() / inputs;
  if (!w.trainable && !dx) return;
  const side wanted = !w.trainable ? side::rows : dx ? side::both : side::columns;
  const fp8_operand g = in_fp8<native::math::e5m2>(c, dy, rows, outputs, wanted);
  if (w.trainable) {
    const fp8_operand in = kept_in_fp8<native::math::e4m3>(c, x, rows, inputs, side::columns);
    const auto to = gradient_of(c, w);
    fp8_product(c, g.as_columns(), in.as_columns(true), to.at, inputs, {.adds = to.adds});
  }
  if (dx) fp8_product(c, g.as_rows(), weights_in_fp8(c, w, false).as_columns(true), dx.materialize_as<bf16>(), inputs);
}

}  // namespace detail

}  // namespace comp::cuda
