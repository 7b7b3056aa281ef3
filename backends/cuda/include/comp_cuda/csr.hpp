// SPDX-License-Identifier: Apache-2.0
// Sparse matrices on the device, by compressed rows and also by compressed columns. The columns serve products with the
// transpose: each sum then has a fixed order without atomics. A matrix is made once, from a host_csr that is
// checked, and does not change. Copies share its memory.
#pragma once

#include <comp_native/host_csr.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transfer.hpp"

namespace comp::cuda {

using native::host_csr;

namespace detail {

/// Returns: the elements of `from` at the positions `at`.
template <class T>
std::vector<T> taken(std::span<const T> from, const std::vector<std::int32_t>& at) {
  std::vector<T> to;
  for (const std::int32_t i : at) to.push_back(from[static_cast<std::size_t>(i)]);
  return to;
}

}  // namespace detail

/// The elements of a matrix in one order, by row or by column. A line is a row or a column accordingly.
struct csr_side {
  indices begin;  // (lines + 1): where each line begins, and where the last one ends
  indices other;  // (elements): the column of each element of a row, or the row of each element of a column
  indices edge;   // (elements): the number of the element by row; empty for the order by row, which is its position
  tensor value;   // (elements), FP32
};

class csr {
 public:
  /// Returns: the matrix's only T, made at the first call. Products keep what they derive from the matrix in it, such
  /// as cuSPARSE's descriptors; it dies with the matrix.
  template <class T>
  T& part() const {
    auto& found = (*parts_)[typeid(T)];
    if (!found) found = std::make_shared<T>();
    return *static_cast<T*>(found.get());
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t elements() const { return elements_; }
  const csr_side& by_row() const { return by_row_; }
  const csr_side& by_column() const { return by_column_; }
  /// Returns: (elements): the row of each element.
  const indices& row() const { return row_; }
  /// Returns: (elements): the column of each element.
  const indices& column() const { return by_row_.other; }

  /// Throws: error if a row ends before it begins, a column is out of range or twice in a row, or sizes do not agree or
  /// do not fit 32 bits. Its text says which.
  csr(context& c, const host_csr& m) : rows_{m.rows}, columns_{m.columns}, elements_{std::ssize(m.column)} {
    native::require_csr(m);
    const std::vector<float> ones(m.value.empty() ? m.column.size() : 0, 1.0F);
    const std::span<const float> value{m.value.empty() ? ones : m.value};
    const auto rows = native::rows_of(m);
    const auto [begin, element] = native::sorted_by_column(m);
    const auto numbers = [&](const std::vector<std::int32_t>& v) {
      return v.empty() ? indices{} : upload(c, v, {std::ssize(v)});
    };
    const auto weights = [&](std::span<const float> v) {
      return v.empty() ? tensor{} : upload(c, v, {std::ssize(v)}, precision::fp32);
    };
    row_ = numbers(rows);
    by_row_ = {numbers(m.begin), numbers(m.column), {}, weights(value)};
    by_column_ = {numbers(begin), numbers(detail::taken<std::int32_t>(rows, element)), numbers(element),
                  weights(detail::taken(value, element))};
  }

 private:
  std::int64_t rows_, columns_, elements_;
  indices row_;
  csr_side by_row_, by_column_;
  std::shared_ptr<std::unordered_map<std::type_index, std::shared_ptr<void>>> parts_ =
      std::make_shared<std::unordered_map<std::type_index, std::shared_ptr<void>>>();
};

}  // namespace comp::cuda
