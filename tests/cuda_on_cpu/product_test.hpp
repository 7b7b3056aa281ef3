// SPDX-License-Identifier: Apache-2.0
// What tests of products share: a device for each test, and how far a sum may be off.
#pragma once

#include <comp_cuda/matmul.hpp>
#include <cstdint>
#include <cstdlib>

#include "fresh.hpp"
#include "kernel_test.hpp"

namespace comp::cuda::test {

#ifdef COMP_SIMT
/// What a test leaves of cuBLASLt's is a failure, too.
struct fresh_for_products : fresh {
  ~fresh_for_products() { CHECK(simt::blas::live() == 0); }
};
/// By how much one term of a sum may be off: sums are FP32, fast ones of FP8 keep 13 bits.
constexpr double one_term(precision, bool fast = false) { return fast ? 0x1p-14 : 0x1p-24; }
#else
using fresh_for_products = fresh;
/// Tensor cores cut the terms of a few products, with fewer bits for FP8, before they are added in FP32.
constexpr double one_term(precision p, bool = false) {
  return is_fp8(p) ? 0x1p-13 : p == precision::fp32 ? 0x1p-24 : 0x1p-22;
}
#endif
struct rig {
  fresh_for_products clean;
  context c{probe(), std::int64_t{1} << 20};
  /// A GPU may be older; the stand-in has every precision.
  bool has(precision p) const { return c.card().has(p); }
};
struct with_rig {
  rig r;
};

inline const bool small = std::getenv("COMP_TEST_SMALL") != nullptr;

}  // namespace comp::cuda::test
