// SPDX-License-Identifier: Apache-2.0
// Sparse matrices in host memory, as a model holds them and Devices take them, and the checks of one. A graph is a
// sparse matrix: row v has the edges that enter node v, the column of each is the node that it comes from, and its
// value is the weight of the edge.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <vector>

namespace comp::native {

/// A matrix in compressed rows: row r has the elements begin[r] to begin[r + 1], in any order of columns.
struct host_csr {
  std::int64_t rows = 0, columns = 0;
  std::vector<std::int32_t> begin = {}, column = {};
  std::vector<float> value = {};  // empty: each is 1
};

/// Throws: error, with the row, if `m` is not a valid matrix.
inline void require_csr(const host_csr& m) {
  constexpr const char* wrong = "a sparse matrix of {} x {}";
  const auto name = fmt::format(fmt::runtime(wrong), m.rows, m.columns);
  const auto elements = std::ssize(m.column);
  require<error>(m.rows > 0 && m.columns > 0 && m.rows < INT32_MAX && m.columns < INT32_MAX && elements < INT32_MAX,
                 "{} with {} elements (each number has to fit 32 bits and the sizes to be positive): divide it", name,
                 elements);
  require<error>(std::ssize(m.begin) == m.rows + 1 && m.begin.front() == 0 && m.begin.back() == elements,
                 "{} with {} elements has {} places where rows begin, from {} to {} (one more than rows are needed, "
                 "from 0 to the number of elements): count them again",
                 name, elements, m.begin.size(), m.begin.empty() ? 0 : m.begin.front(),
                 m.begin.empty() ? 0 : m.begin.back());
  require<error>(m.value.empty() || m.value.size() == m.column.size(),
                 "{} with {} elements has {} values (there is one for each, or none for all 1): give as many", name,
                 elements, m.value.size());
  for (std::size_t r = 0; r + 1 < m.begin.size(); ++r) {
    require<error>(m.begin[r] <= m.begin[r + 1],
                   "{} has a row {} from {} to {} (rows may not end before they begin): "
                   "sort the elements by row",
                   name, r, m.begin[r], m.begin[r + 1]);
  }
  // The last row in which each column occurred: finds columns that occur twice in a row without sorting.
  std::vector<std::int64_t> last(static_cast<std::size_t>(m.columns), -1);
  for (std::size_t r = 0; r + 1 < m.begin.size(); ++r) {
    for (auto e = static_cast<std::size_t>(m.begin[r]); e < static_cast<std::size_t>(m.begin[r + 1]); ++e) {
      require<error>(m.column[e] >= 0 && m.column[e] < m.columns,
                     "{} has column {} in row {} (they are counted from 0 to {}): leave it out", name, m.column[e], r,
                     m.columns - 1);
      auto& row = last[static_cast<std::size_t>(m.column[e])];
      require<error>(row != static_cast<std::int64_t>(r),
                     "{} has column {} twice in row {} (sparse products need each once): add the two up", name,
                     m.column[e], r);
      row = static_cast<std::int64_t>(r);
    }
  }
}

/// Returns the row of each element.
inline std::vector<std::int32_t> rows_of(const host_csr& m) {
  std::vector<std::int32_t> to(m.column.size());
  for (std::size_t r = 0; r + 1 < m.begin.size(); ++r)
    std::fill(to.begin() + m.begin[r], to.begin() + m.begin[r + 1], static_cast<std::int32_t>(r));
  return to;
}
/// The elements sorted by column, those of one column in the order of rows.
struct by_column {
  std::vector<std::int32_t> begin, element;
};
inline by_column sorted_by_column(const host_csr& m) {
  by_column to{std::vector<std::int32_t>(static_cast<std::size_t>(m.columns) + 1),
               std::vector<std::int32_t>(m.column.size())};
  for (const std::int32_t c : m.column) ++to.begin[static_cast<std::size_t>(c) + 1];
  std::partial_sum(to.begin.begin(), to.begin.end(), to.begin.begin());
  std::vector<std::int32_t> next = to.begin;
  for (std::size_t e = 0; e < m.column.size(); ++e)
    to.element[static_cast<std::size_t>(next[static_cast<std::size_t>(m.column[e])]++)] = static_cast<std::int32_t>(e);
  return to;
}

}  // namespace comp::native
