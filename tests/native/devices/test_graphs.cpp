// SPDX-License-Identifier: Apache-2.0
#include <comp_native/host_csr.hpp>

#include "agree.hpp"

namespace comp::native::contract {
namespace {

struct graph_case {
  const char* name;
  host_csr m;
};

/// Each element with the probability given; columns come unsorted, and some rows have none.
host_csr random_csr(std::int64_t rows, std::int64_t columns, double share, unsigned seed) {
  std::mt19937 random{seed};
  host_csr m{.rows = rows, .columns = columns, .begin = {0}};
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto first = std::ssize(m.column);
    for (std::int32_t k = 0; k < columns && r % 7 != 3; ++k) {
      if (random() < share * 0x1p32) m.column.push_back(k);
    }
    std::shuffle(m.column.begin() + first, m.column.end(), random);
    m.begin.push_back(static_cast<std::int32_t>(m.column.size()));
  }
  m.value = numbers(std::ssize(m.column), seed, precision::bf16);
  return m;
}

std::vector<graph_case> graphs() {
  host_csr star{.rows = 70, .columns = 70, .begin = {0}};  // all enter node 0, and one leaves it
  for (std::int32_t v = 0; v < 70; ++v) star.column.push_back(v);
  for (std::int32_t v = 0; v < 70; ++v) star.begin.push_back(70);
  star.column.push_back(0);
  star.begin.back() = 71;
  return {{"one node with an edge to itself", {.rows = 1, .columns = 1, .begin = {0, 1}, .column = {0}, .value = {-2}}},
          {"isolated nodes and edges to themselves",
           {.rows = 4, .columns = 4, .begin = {0, 0, 2, 2, 4}, .column = {3, 1, 0, 3}, .value = {1, 2, 3, 4}}},
          {"a star", star},
          {"a random graph", random_csr(37, 37, 0.15, 1)},
          {"more rows than columns", random_csr(33, 5, 0.4, 2)},
          {"more columns than rows", random_csr(3, 65, 0.3, 3)}};
}

/// Runs `program(graph, precision, device, results)` for each graph and precision.
void on_graphs(auto program) {
  for (const auto& [name, m] : graphs()) {
    for (const precision p : tested::precisions) {
      if (p == precision::fp8_e4m3 || p == precision::fp8_e5m2) continue;  // for linear layers
      CAPTURE(name);
      CAPTURE(comp::name(p));
      agree([&](auto& d, results& r) { program(m, p, d, r); });
    }
  }
}
double terms(const host_csr& m) { return static_cast<double>(std::max(m.rows, m.columns)); }

TEST_CASE("products with a sparse matrix, their bias and gradients agree with FP64") {
  on_graphs([](const host_csr& m, precision p, auto& d, results& r) {
    const auto a = d.make_sparse(m);
    for (const std::int64_t width : {1, 7, 16, 200}) {
      auto b = parameter_of(d, {width}, 1, p);
      const auto x = tensor_of(d, {m.columns, width}, 2, p), dy = tensor_of(d, {m.rows, width}, 3, p);
      r.keep(d, "y", d.spmm(a, x, nullptr), terms(m), 1);
      r.keep(d, "y with bias", d.spmm(a, x, &b), terms(m), 1);
      fresh(d, b);
      r.keep(d, "dx", d.spmm_backward(a, dy, &b, true), terms(m));
      r.keep_gradient(d, "db", b, static_cast<double>(m.rows));
      CHECK_FALSE(d.spmm_backward(a, dy, &b, false));
      r.keep_gradient(d, "db twice", b, 2.0 * static_cast<double>(m.rows));
    }
  });
}

TEST_CASE("a linear layer of sparse values and its gradients agree with FP64") {
  on_graphs([](const host_csr& m, precision p, auto& d, results& r) {
    const auto a = d.make_sparse(m);
    const std::int64_t elements = std::ssize(m.column);
    for (const std::int64_t units : {1, 8, 65}) {
      auto w = parameter_of(d, {m.columns, units}, 1, p);
      const auto x = tensor_of(d, {1, elements}, 2, p), dy = tensor_of(d, {m.rows, units}, 3, p);
      r.keep(d, "y", d.sparse_linear(a, x, w), terms(m));
      fresh(d, w);
      r.keep(d, "dx", d.sparse_linear_backward(a, dy, x, w, true), static_cast<double>(units));
      r.keep_gradient(d, "dw", w, terms(m));
      CHECK_FALSE(d.sparse_linear_backward(a, dy, x, w, false));
      r.keep_gradient(d, "dw twice", w, 2 * terms(m));
      d.set_values(w, numbers(m.columns * units, 9, p));
      r.keep(d, "y of other weights", d.sparse_linear(a, x, w), terms(m));
    }
  });
}

TEST_CASE("shares of neighbours, summed for each head, and their gradients agree with FP64") {
  on_graphs([](const host_csr& m, precision p, auto& d, results& r) {
    const auto a = d.make_sparse(m);
    for (const auto& [heads, width] : {std::array<std::int64_t, 2>{1, 7}, {8, 8}, {3, 5}}) {
      auto b = parameter_of(d, {heads * width}, 1, p);
      const auto share = tensor_of(d, {std::ssize(m.column), heads}, 2, p),
                 x = tensor_of(d, {m.columns, heads * width}, 3, p), dy = tensor_of(d, {m.rows, heads * width}, 4, p);
      r.keep(d, "y", d.weighted_sum(a, share, x, nullptr), terms(m), 1);
      r.keep(d, "y with bias", d.weighted_sum(a, share, x, &b), terms(m), 1);
      fresh(d, b);
      const auto [d_share, dx] = d.weighted_sum_backward(a, dy, share, x, &b);
      r.keep(d, "d share", d_share, static_cast<double>(width));
      r.keep(d, "dx", dx, terms(m));
      r.keep_gradient(d, "db", b, static_cast<double>(m.rows));
    }
  });
}

TEST_CASE("scores of edges, their softmax and all gradients agree with FP64") {
  on_graphs([](const host_csr& m, precision p, auto& d, results& r) {
    const auto a = d.make_sparse(m);
    for (const auto& [heads, width] : {std::array<std::int64_t, 2>{1, 7}, {8, 8}, {20, 3}}) {
      const shape of_edges{std::ssize(m.column), heads};
      const auto dy = tensor_of(d, of_edges, 3, p), scores = tensor_of(d, of_edges, 5, p, -4, 4);
      r.keep(d, "softmax", d.edge_softmax(a, scores), terms(m) + 16);
      const auto shares = tensor_of(d, of_edges, 6, p, 0, 1);
      r.keep(d, "d softmax", d.edge_softmax_backward(a, dy, shares), terms(m) + 4);
      if (m.rows != m.columns) continue;
      auto source = parameter_of(d, {1, heads, width}, 1, p), target = parameter_of(d, {1, heads, width}, 2, p);
      const auto x = tensor_of(d, {m.rows, heads * width}, 4, p);
      const auto forward = d.edge_scores(a, x, source, target, 0.2);
      r.keep(d, "scores", forward.output, 2.0 * static_cast<double>(width));
      fresh(d, source, target);
      r.keep(d, "dx", d.edge_scores_backward(a, dy, x, forward.saved, source, target, 0.2), 4 * terms(m));
      r.keep_gradient(d, "d source", source, 4 * terms(m));
      r.keep_gradient(d, "d target", target, 4 * terms(m));
      const auto zeros = d.upload(std::vector<float>(static_cast<std::size_t>(elements(x.shape()))), x.shape(), p);
      const auto flat = d.edge_scores(a, zeros, source, target, 0.2);
      r.keep(d, "dx at 0", d.edge_scores_backward(a, dy, zeros, flat.saved, source, target, 0.2), 4 * terms(m));
    }
  });
}

TEST_CASE("a sparse matrix without elements gives zeros, or the bias") {
  agree([](auto& d, results& r) {
    const auto a = d.make_sparse({.rows = 5, .columns = 3, .begin = {0, 0, 0, 0, 0, 0}});
    auto b = parameter_of(d, {4}, 1, precision::fp32);
    r.keep(d, "y", d.spmm(a, tensor_of(d, {3, 4}, 2, precision::fp32), &b));
    r.keep(d, "dx", d.spmm_backward(a, tensor_of(d, {5, 4}, 3, precision::fp32), nullptr, true));
  });
}

TEST_CASE("what is no sparse matrix, or does not fit one, is refused with the number that is wrong") {
  device d;
  const auto refused = [&](const host_csr& m, const char* why) {
    CHECK_THROWS_WITH_AS(d.make_sparse(m), doctest::Contains(why), error);
  };
  refused({.rows = 2, .columns = 2, .begin = {0, 1, 2}, .column = {0, 2}}, "has column 2 in row 1");
  refused({.rows = 2, .columns = 2, .begin = {0, 1, 2}, .column = {0, -1}}, "has column -1 in row 1");
  refused({.rows = 1, .columns = 2, .begin = {0, 2}, .column = {1, 1}}, "has column 1 twice in row 0");
  refused({.rows = 2, .columns = 2, .begin = {0, 2, 1}, .column = {0}}, "has a row 1 from 2 to 1");
  refused({.rows = 2, .columns = 2, .begin = {0, 1}, .column = {0}}, "2 places where rows begin");
  const auto a = d.make_sparse({.rows = 2, .columns = 3, .begin = {0, 1, 2}, .column = {0, 2}});
  const auto x = tensor_of(d, {2, 4}, 1, precision::fp32);
  CHECK_THROWS_WITH_AS(d.spmm(a, x, nullptr), doctest::Contains("(2,4)"), error);
  CHECK_THROWS_WITH_AS(d.edge_softmax(a, tensor_of(d, {3, 1}, 1, precision::fp32)),
                       "edge_softmax of (3,1) on a graph of 2 edges (there is a row for each edge): make it (2,H)",
                       error);
}

}  // namespace
}  // namespace comp::native::contract
