// SPDX-License-Identifier: Apache-2.0
// For tests of sparse products: graphs with every peculiarity, and the comparison with matrices in FP64. On the SIMT
// shim and on a GPU.
#pragma once

#include <comp_cuda/graph_attention.hpp>
#include <comp_cuda/sparse.hpp>

#include "kernel_test.hpp"

namespace comp::cuda::test {

/// A row-major matrix in FP64.
struct matrix {
  std::int64_t rows, columns;
  std::vector<double> v;
  matrix(std::int64_t r, std::int64_t k) : rows{r}, columns{k}, v(static_cast<std::size_t>(r * k)) {}
  double& operator()(std::int64_t r, std::int64_t k) { return v[static_cast<std::size_t>(r * columns + k)]; }
  double operator()(std::int64_t r, std::int64_t k) const { return v[static_cast<std::size_t>(r * columns + k)]; }
};
/// f(row, column, element) for each element, row by row.
void for_elements_of(const host_csr& m, auto f) {
  for (std::int64_t r = 0; r < m.rows; ++r) {
    for (std::int32_t e = m.begin[static_cast<std::size_t>(r)]; e < m.begin[static_cast<std::size_t>(r) + 1]; ++e)
      f(r, std::int64_t{m.column[static_cast<std::size_t>(e)]}, std::int64_t{e});
  }
}

struct graph_case {
  const char* name;
  host_csr m;
};
/// Each element with the probability given, and with a value around 0; columns come unsorted.
inline host_csr random_csr(std::int64_t rows, std::int64_t columns, double share, unsigned seed) {
  std::mt19937 random{seed};
  std::uniform_real_distribution<double> unit;
  std::normal_distribution<float> normal;
  host_csr m{.rows = rows, .columns = columns, .begin = {0}};
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto first = m.column.size();
    for (std::int32_t k = 0; k < columns; ++k) {
      if (unit(random) < share) m.column.push_back(k);
    }
    std::shuffle(m.column.begin() + static_cast<std::ptrdiff_t>(first), m.column.end(), random);
    m.begin.push_back(static_cast<std::int32_t>(m.column.size()));
  }
  for (std::size_t e = 0; e < m.column.size(); ++e) m.value.push_back(normal(random));
  return m;
}
inline std::vector<graph_case> graph_cases() {
  host_csr star{.rows = 70, .columns = 70, .begin = {0}};  // all enter node 0, and one leaves it: more edges than lanes
  for (std::int32_t v = 0; v < 70; ++v) star.column.push_back(v);
  for (std::int32_t v = 0; v < 70; ++v) star.begin.push_back(70);
  star.column.push_back(0);
  star.begin.back() = 71;
  return {{"one node", {.rows = 1, .columns = 1, .begin = {0, 0}}},
          {"one node with an edge to itself", {.rows = 1, .columns = 1, .begin = {0, 1}, .column = {0}, .value = {-2}}},
          {"no edges", {.rows = 5, .columns = 3, .begin = {0, 0, 0, 0, 0, 0}}},
          {"isolated nodes and edges to themselves",
           {.rows = 4, .columns = 4, .begin = {0, 0, 2, 2, 4}, .column = {3, 1, 0, 3}, .value = {1, 2, 3, 4}}},
          {"a star", star},
          {"a random graph", random_csr(37, 37, 0.1, 1)},
          {"more rows than columns", random_csr(33, 5, 0.4, 2)},
          {"more columns than rows", random_csr(3, 65, 0.3, 3)}};
}

inline double value_of(const host_csr& m, std::int64_t e) {
  return m.value.empty() ? 1.0 : static_cast<double>(m.value[static_cast<std::size_t>(e)]);
}
inline double half_ulp_of(precision p) {
  const storage s = storage_of(p);
  return s == storage::fp32 ? 0x1p-24 : s == storage::bf16 ? 0x1p-8 : 0x1p-11;
}
/// v as a tensor of this precision would give it back.
inline double rounded_to(precision p, double v) {
  return with_storage(p, [&]<class T>(std::type_identity<T>) {
    T to;
    native::math::store(to, static_cast<float>(v));
    return static_cast<double>(native::math::load(to));
  });
}

/// A context. On the stand-in its device is new, and has to be left empty.
struct graph_device {
#ifdef COMP_SIMT
  graph_device() { simt::device = {}; }
  ~graph_device() {
    made.reset();
    CHECK_NOTHROW(simt::device.reset());
    CHECK(simt::sparse::live.empty());
  }
#endif
  bool has(precision p) { return c().card().has(p); }
  context& c() {
    if (!made) made = std::make_unique<context>(probe(), std::int64_t{1} << 20);
    return *made;
  }
  std::unique_ptr<context> made;
};
/// Random values, rounded: what the device gets and the reference computes with.
inline matrix normal_matrix(std::int64_t rows, std::int64_t columns, precision p, unsigned seed, float scale = 1) {
  matrix m{rows, columns};
  const auto drawn = normal(m.v.size(), seed, scale);
  std::transform(drawn.begin(), drawn.end(), m.v.begin(),
                 [p](float v) { return rounded_to(p, static_cast<double>(v)); });
  return m;
}
inline tensor on_device(context& c, const matrix& m, precision p) {
  if (m.v.empty()) return c.make({m.rows, m.columns}, p);
  return upload(c, std::vector<float>(m.v.begin(), m.v.end()), {m.rows, m.columns}, p);
}
/// Within one rounding of the precision, and what FP32 sums of terms of `size` lose.
inline void check_near(context& c, const tensor& got, const matrix& want, const matrix& size, double roundings = 1) {
  REQUIRE(got.shape() == shape{want.rows, want.columns});
  const auto values = download(c, got);
  double worst = 0;
  for (std::size_t i = 0; i < want.v.size(); ++i) {
    const double allowed =
        roundings * 1.01 * half_ulp_of(got.precision()) * std::abs(want.v[i]) + 0x1p-20 * size.v[i] + 0x1p-25;
    const double off = std::abs(static_cast<double>(values[i]) - want.v[i]) / allowed;
    worst = std::isnan(off) ? 1e30 : std::max(worst, off);
  }
  CHECK(worst <= 1);
}

}  // namespace comp::cuda::test
