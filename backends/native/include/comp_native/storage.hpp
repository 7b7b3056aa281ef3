// SPDX-License-Identifier: Apache-2.0
// How the tensors of a precision are stored: those of FP32 and TF32 as FP32, those of FP16 as FP16, those of BF16 and
// of all formats below 16 bits as BF16. An operator in such a format rounds its operands itself, with scales, and its
// result is BF16.
#pragma once

#include <comp/core/precision.hpp>
#include <comp_native/math/formats.hpp>
#include <comp_native/math/fp8.hpp>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace comp::native {

enum class storage : std::uint8_t { fp32, bf16, fp16 };

constexpr storage storage_of(precision p) {
  switch (p) {
    case precision::fp64:  // no device has it
    case precision::fp32:
    case precision::tf32:
      return storage::fp32;
    case precision::bf16:
    case precision::fp8_e4m3:
    case precision::fp8_e5m2:
    case precision::fp8_block128:
    case precision::mxfp8:
    case precision::mxfp4:
    case precision::nvfp4:
    case precision::bf16_fp32:  // of what it reads
      return storage::bf16;
    case precision::fp16:
      return storage::fp16;
  }
  return storage::fp32;
}

/// Returns the bytes of an element in memory.
constexpr std::int64_t bytes_of(storage s) { return s == storage::fp32 ? 4 : 2; }

/// Calls f(std::type_identity<T>{}) with the type T of storage `s`. Returns: what f returns.
template <class F>
decltype(auto) with_storage(storage s, F&& f) {
  if (s == storage::bf16) return f(std::type_identity<math::bf16>{});
  if (s == storage::fp16) return f(std::type_identity<math::fp16>{});
  return f(std::type_identity<float>{});
}
template <class F>
decltype(auto) with_storage(precision p, F&& f) {
  return with_storage(storage_of(p), std::forward<F>(f));
}

static_assert(sizeof(math::bf16) == traits(precision::bf16).bytes &&
              sizeof(math::fp16) == traits(precision::fp16).bytes);
static_assert(sizeof(math::e4m3) == traits(precision::fp8_e4m3).bytes &&
              sizeof(math::e5m2) == traits(precision::fp8_e5m2).bytes);
static_assert(math::fp16_value(math::fp16_bits(static_cast<float>(traits(precision::fp16).largest))) ==
              traits(precision::fp16).largest);

}  // namespace comp::native
