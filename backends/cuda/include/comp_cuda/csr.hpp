// SPDX-License-Identifier: Apache-2.0
// Sparse matrices on the device as compressed rows, and as compressed columns beside them: what multiplies by the
// transpose in the same order each time. Made once from the host, where they are checked; immutable. Copying shares.
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

template <class T>
std::vector<T> taken(std::span<const T> from, const std::vector<std::int32_t>& at) {
  std::vector<T> to;
  for (const std::int32_t i : at) to.push_back(from[static_cast<std::size_t>(i)]);
  return to;
}

}  // namespace detail

/// The elements in one order: by row, or by column.
struct csr_side {
  indices begin;  // (lines + 1)
  indices other;  // (elements): the column of each, or the row
  indices edge;   // (elements): which of the matrix it is; empty where they are counted in this order
  tensor value;   // (elements), FP32
};

class csr {
 public:
  /// What products have made for themselves, by their type: it goes with the matrix.
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
  /// (elements): the row of each.
  const indices& row() const { return row_; }
  const indices& column() const { return by_row_.other; }

  /// Throws: error, saying what is wrong, for rows that do not rise, a column out of range or twice in a row, sizes
  /// that do not agree or do not fit 32 bits.
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
