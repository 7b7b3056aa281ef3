// SPDX-License-Identifier: Apache-2.0
// Sparse matrices, stored by compressed rows (CSR) and by compressed columns, and loops over the lines of either. The
// backward sums along columns; without a second order it would need additions from several threads to one place. One
// thread sums a line in the order of its elements, so results have the same bits each time. Work is divided by elements
// and not by lines, because a few nodes of a graph can have most of its edges.
#pragma once

#include <algorithm>
#include <comp_native/host_csr.hpp>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernel.hpp"

namespace comp::host {

/// The elements of a matrix in one order: line by line. The lines are its rows or its columns.
struct sparse_side {
  std::vector<std::int32_t> begin = {};  // (lines + 1): where each line begins
  std::vector<std::int32_t> other = {};  // (elements): the column of each element, or its row
  std::vector<std::int32_t> edge = {};   // (elements): its number in the order of rows; empty if that is this order
  std::vector<float> value = {};         // (elements)
  std::size_t longest = 0;               // the most elements of a line

  std::size_t lines() const { return begin.size() - 1; }
};

struct sparse_matrix {
  std::int64_t rows = 0, columns = 0;
  sparse_side by_row = {}, by_column = {};

  std::int64_t elements() const { return std::ssize(by_row.other); }
};

namespace detail {

inline void find_longest(sparse_side& of) {
  for (std::size_t i = 0; i < of.lines(); ++i)
    of.longest = std::max(of.longest, static_cast<std::size_t>(of.begin[i + 1] - of.begin[i]));
}

}  // namespace detail

/// Makes both orders of a matrix.
/// Throws: error, saying what is wrong with `from` (comp_native/host_csr.hpp).
inline sparse_matrix make_sparse(const native::host_csr& from) {
  native::require_csr(from);
  sparse_matrix to{.rows = from.rows, .columns = from.columns};
  to.by_row = {.begin = from.begin, .other = from.column, .value = from.value};
  to.by_row.value.resize(from.column.size(), 1.0F);
  const auto rows = native::rows_of(from);
  auto [begin, element] = native::sorted_by_column(from);
  to.by_column = {.begin = std::move(begin)};
  for (const std::int32_t e : element) {
    to.by_column.other.push_back(rows[static_cast<std::size_t>(e)]);
    to.by_column.value.push_back(to.by_row.value[static_cast<std::size_t>(e)]);
  }
  to.by_column.edge = std::move(element);
  detail::find_longest(to.by_row);
  detail::find_longest(to.by_column);
  return to;
}

/// Runs `kernel(first line, last line)` on all threads. `width` is about how many numbers an element costs.
void launch_lines(const sparse_side& over, std::size_t width, const auto& kernel) {
  constexpr std::size_t least = 8192;  // fewer numbers are not worth another thread
  const std::size_t lines = over.lines(), work = lines + over.other.size();
  const std::size_t pieces = std::clamp<std::size_t>(work * width / least, 1, threads_of_loops());
  const auto line_at = [&](std::size_t piece) {  // the line at which this part of the work begins
    std::size_t from = 0, to = lines;
    while (from < to) {
      const std::size_t middle = (from + to) / 2;
      const bool before = (static_cast<std::size_t>(over.begin[middle]) + middle) * pieces < piece * work;
      before ? from = middle + 1 : to = middle;
    }
    return from;
  };
  launch(
      pieces,
      [&](std::size_t from, std::size_t to) COMP_HOST_KERNEL {
        for (std::size_t i = from; i < to; ++i) kernel(line_at(i), i + 1 == pieces ? lines : line_at(i + 1));
      },
      2, 1);
}

}  // namespace comp::host
