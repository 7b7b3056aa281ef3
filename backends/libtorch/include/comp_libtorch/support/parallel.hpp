// SPDX-License-Identifier: Apache-2.0
// Loops on LibTorch's threads. at::parallel_for is a template, and uses threads only if the file that includes it is
// compiled with OpenMP. That may be another OpenMP than LibTorch's, with threads of its own. ATen's iterators split
// their work inside the library, so one is asked here, of which only the positions are used.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <cstdint>

namespace comp::libtorch::detail {

/// Calls f(first, last) for ranges that make up 0 to `count`, each of `grain` or more if threads share the work.
void in_parallel(std::int64_t count, std::int64_t grain, const auto& f) {
  if (count <= 0) return;
  if (count <= grain || at::get_num_threads() == 1) return f(std::int64_t{0}, count);
  at::TensorBase positions = at::detail::empty_cpu({count}, at::kByte);
  const auto* begin = static_cast<const char*>(positions.const_data_ptr());
  at::TensorIterator iterator = at::TensorIterator::nullary_op(positions);
  iterator.for_each(
      [&](char** data, const std::int64_t* /*strides*/, std::int64_t size, std::int64_t /*1*/) {
        const std::int64_t first = data[0] - begin;
        f(first, first + size);
      },
      grain);
}

}  // namespace comp::libtorch::detail
