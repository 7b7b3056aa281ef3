// SPDX-License-Identifier: Apache-2.0
// Sparse products and what graph attention does along edges, against FP64; what a stand-in of cuSPARSE refuses.
#include "graph_test.hpp"

namespace comp::cuda::test {
namespace {

using enum precision;

/// m x, or its transpose times x, and the sums of the sizes of the terms.
std::pair<matrix, matrix> times(const host_csr& m, bool by_row, const matrix& x, precision p) {
  const std::int64_t rows = by_row ? m.rows : m.columns;
  matrix y{rows, x.columns}, size{rows, x.columns};
  for_elements_of(m, [&](std::int64_t r, std::int64_t k, std::int64_t e) {
    for (std::int64_t i = 0; i < x.columns; ++i) {
      const double term = rounded_to(p, value_of(m, e)) * x(by_row ? k : r, i);
      y(by_row ? r : k, i) += term;
      size(by_row ? r : k, i) += std::abs(term);
    }
  });
  return {y, size};
}

/// Graph attention in FP64, for gradients by differences: y from the terms of the nodes and their features.
struct attention {
  const host_csr& m;
  std::int64_t heads;
  double slope = 0.2;
  matrix shares(const matrix& target, const matrix& source) const {
    matrix y{std::ssize(m.column), heads}, most{m.rows, heads}, total{m.rows, heads};
    std::ranges::fill(most.v, -1e300);
    const auto each = [&](auto f) {
      for_elements_of(m, [&](std::int64_t r, std::int64_t k, std::int64_t e) {
        for (std::int64_t h = 0; h < heads; ++h) f(r, k, e, h);
      });
    };
    each([&](auto r, auto k, auto e, auto h) {
      const double sum = target(r, h) + source(k, h);
      y(e, h) = sum > 0 ? sum : slope * sum;
      most(r, h) = std::max(most(r, h), y(e, h));
    });
    each([&](auto r, auto, auto e, auto h) { total(r, h) += y(e, h) = std::exp(y(e, h) - most(r, h)); });
    each([&](auto r, auto, auto e, auto h) { y(e, h) /= total(r, h); });
    return y;
  }
  matrix sums(const matrix& share, const matrix& x) const {
    matrix y{m.rows, x.columns};
    const std::int64_t width = x.columns / heads;
    for_elements_of(m, [&](std::int64_t r, std::int64_t k, std::int64_t e) {
      for (std::int64_t i = 0; i < x.columns; ++i) y(r, i) += share(e, i / width) * x(k, i);
    });
    return y;
  }
};
/// Sizes for check_near where a chain of roundings has been: a multiple of the largest value.
matrix all_of(const matrix& like, double size) {
  matrix m = like;
  std::ranges::fill(m.v, size);
  return m;
}

/// The product and its gradient are those of FP64, each time that they are made of the same operands.
void check_products(context& c, const csr& on, const host_csr& m, std::int64_t width, precision p, int times_made) {
  CAPTURE(width);
  CAPTURE(comp::name(p));
  const matrix x = normal_matrix(m.columns, width, p, 5), dy = normal_matrix(m.rows, width, p, 6);
  const auto [y, size] = times(m, true, x, p);
  const auto [dx, d_size] = times(m, false, dy, p);
  for (int made = 0; made < times_made; ++made) {
    const tensor got = spmm(c, on, on_device(c, x, p));
    CHECK(got.precision() == p);
    check_near(c, got, y, size);
    check_near(c, spmm_backward(c, on, on_device(c, dy, p)), dx, d_size);
  }
}

}  // namespace

TEST_CASE("a sparse product and its gradient are those of FP64 within one rounding, for every graph and width") {
  graph_device device;
  for (const auto& [name, m] : graph_cases()) {
    for (const precision p : {fp32, tf32, bf16, fp16}) {
      if (!device.has(p)) continue;
      const csr on{device.c(), m};
      for (const std::int64_t width : {1, 3, 8, 33}) {
        CAPTURE(name);
        check_products(device.c(), on, m, width, p, 1);
      }
    }
  }
}

TEST_CASE(
    "a sparse product that was prepared once serves again, in every precision by turns, and gives the same bits") {
  graph_device device;
  const host_csr m = random_csr(50, 50, 0.2, 7);
  const csr on{device.c(), m};
  std::vector<std::vector<float>> first;
  for (int round = 0; round < 3; ++round) {
    std::size_t at = 0;
    for (const precision p : {fp32, bf16, fp16}) {
      if (!device.has(p)) continue;
      for (const std::int64_t width : {16, 24}) {
        const tensor x = on_device(device.c(), normal_matrix(50, width, p, 8), p);
        const auto y = download(device.c(), spmm(device.c(), on, x));
        if (round == 0) first.push_back(y);
        CHECK(y == first[at++]);
      }
    }
  }
}

TEST_CASE("what is no sparse matrix is refused with what is wrong") {
  graph_device device;
  host_csr m{.rows = 2, .columns = 3, .begin = {0, 1, 3}, .column = {2, 0, 1}, .value = {1, 2, 3}};
  CHECK_NOTHROW(csr(device.c(), m));
  SUBCASE("a column that there is not") {
    m.column[1] = 3;
    CHECK_THROWS_WITH_AS(csr(device.c(), m),
                         "a sparse matrix of 2 x 3 has column 3 in row 1 (they are counted from 0 to 2): leave it out",
                         error);
    m.column[1] = -1;
    CHECK_THROWS_AS(csr(device.c(), m), error);
  }
  SUBCASE("a column twice") {
    m.column[1] = 1;
    CHECK_THROWS_WITH_AS(
        csr(device.c(), m),
        "a sparse matrix of 2 x 3 has column 1 twice in row 1 (sparse products need each once): add the two up", error);
  }
  SUBCASE("rows that fall") {
    m.rows = 3;
    m.begin = {0, 2, 1, 3};
    CHECK_THROWS_WITH_AS(csr(device.c(), m),
                         "a sparse matrix of 3 x 3 has a row 1 from 2 to 1 (rows may not end before they begin): sort "
                         "the elements by row",
                         error);
    m.begin = {0, 9, -9, 3};  // a wrong end in between, though first and last are right
    CHECK_THROWS_AS(csr(device.c(), m), error);
  }
  SUBCASE("rows that end elsewhere") {
    m.begin = {0, 1, 2};
    CHECK_THROWS_WITH_AS(csr(device.c(), m),
                         "a sparse matrix of 2 x 3 with 3 elements has 3 places where rows begin, from 0 to 2 (one "
                         "more than rows are needed, from 0 to the number of elements): count them again",
                         error);
    m.begin = {0, 3};
    CHECK_THROWS_AS(csr(device.c(), m), error);
    m.begin = {};
    CHECK_THROWS_AS(csr(device.c(), m), error);
  }
  SUBCASE("too few values") {
    m.value.pop_back();
    CHECK_THROWS_WITH_AS(csr(device.c(), m),
                         "a sparse matrix of 2 x 3 with 3 elements has 2 values (there is one for each, or none for "
                         "all 1): give as many",
                         error);
  }
  SUBCASE("sizes that are none") {
    m.columns = 0;
    CHECK_THROWS_AS(csr(device.c(), m), error);
    m.columns = std::int64_t{1} << 31;
    CHECK_THROWS_AS(csr(device.c(), m), error);
  }
}

TEST_CASE("sparse operators refuse tensors that do not fit the graph, naming both") {
  graph_device device;
  context& c = device.c();
  const csr m{c, {.rows = 2, .columns = 3, .begin = {0, 1, 3}, .column = {2, 0, 1}}};
  const tensor two = on_device(c, matrix{2, 4}, fp32), three = on_device(c, matrix{3, 4}, fp32);
  const tensor odd = on_device(c, matrix{3, 3}, fp32);
  CHECK_THROWS_WITH_AS(spmm(c, m, two),
                       "spmm of a 2 x 3 matrix with x (2,4) (x has a row for each column): make x (3,K)", error);
  CHECK_THROWS_WITH_AS(spmm_backward(c, m, three),
                       "spmm_backward of a 2 x 3 matrix with dy (3,4) (dy has a row for each row): make dy (2,K)",
                       error);
  CHECK_THROWS_WITH_AS(edge_softmax(c, m, two),
                       "edge_softmax of (2,4) on a graph of 3 edges (there is a row for each edge): make it (3,H)",
                       error);
  CHECK_THROWS_WITH_AS(
      edge_scores(c, m, three, three),
      "edge_scores of a target of (3,4) on a graph of 2 nodes (there is a row for each): make it (2,K)", error);
  CHECK_THROWS_WITH_AS(edge_scores(c, m, two, odd),
                       "edge_scores of (2,4) and (3,3) (they must have as many heads): make the second sizes equal",
                       error);
  CHECK_THROWS_WITH_AS(weighted_sum(c, m, three, odd),
                       "weighted_sum of x (3,3) by shares (3,4) (the features are divided among the heads): use a "
                       "multiple of 4",
                       error);
  CHECK_THROWS_AS(edge_scores_backward(c, m, two, two, three), error);
  CHECK_THROWS_AS(weighted_sum_backward(c, m, three, three, three), error);
  CHECK_THROWS_AS(edge_softmax_backward(c, m, two, three), error);
}

TEST_CASE("graph attention is that of FP64, and its gradients those of differences, for every graph and heads") {
  graph_device device;
  context& c = device.c();
  for (const auto& [name, m] : graph_cases()) {
    const csr on{c, m};
    for (const auto& [heads, width] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 5}, {4, 8}, {1, 36}}) {
      CAPTURE(name);
      CAPTURE(heads);
      const attention exact{m, heads};
      const matrix target = normal_matrix(m.rows, heads, fp32, 1), source = normal_matrix(m.columns, heads, fp32, 2);
      const matrix x = normal_matrix(m.columns, heads * width, fp32, 3);
      const matrix dy = normal_matrix(m.rows, heads * width, fp32, 4);
      const tensor t = on_device(c, target, fp32), s = on_device(c, source, fp32), f = on_device(c, x, fp32);
      const tensor g = on_device(c, dy, fp32);

      const tensor scores = edge_scores(c, on, t, s), share = edge_softmax(c, on, scores);
      const matrix want_share = exact.shares(target, source), want = exact.sums(want_share, x);
      check_near(c, share, want_share, all_of(want_share, 1));
      check_near(c, weighted_sum(c, on, share, f), want, all_of(want, 4));

      const auto [d_share, d_x] = weighted_sum_backward(c, on, g, share, f);
      const auto [d_target, d_source] = edge_scores_backward(c, on, edge_softmax_backward(c, on, d_share, share), t, s);
      if (m.columns * heads * width > 200) continue;  // differences take their square
      const auto against = [&](const tensor& got, const matrix& at, const std::function<matrix(const matrix&)>& y) {
        const matrix d = by_differences(at, dy, y, 1e-5);
        check_near(c, got, d, all_of(d, 40));
      };
      against(d_x, x, [&](const matrix& v) { return exact.sums(want_share, v); });
      against(d_share, want_share, [&](const matrix& v) { return exact.sums(v, x); });
      against(d_target, target, [&](const matrix& v) { return exact.sums(exact.shares(v, source), x); });
      against(d_source, source, [&](const matrix& v) { return exact.sums(exact.shares(target, v), x); });
    }
  }
}

TEST_CASE("in low precision each step of graph attention rounds once, from FP32") {
  graph_device device;
  context& c = device.c();
  const host_csr m = random_csr(20, 30, 0.3, 9);
  const csr on{c, m};
  for (const precision p : {bf16, fp16}) {
    if (!device.has(p)) continue;
    for (const std::int64_t width : {3, 16}) {
      CAPTURE(name(p));
      CAPTURE(width);
      const std::int64_t heads = width == 3 ? 2 : 8, edges = std::ssize(m.column);
      const attention exact{m, heads};
      const matrix target = normal_matrix(20, heads, p, 1), source = normal_matrix(30, heads, p, 2);
      const matrix x = normal_matrix(30, heads * width, p, 3), share = normal_matrix(edges, heads, p, 4);
      const matrix dy = normal_matrix(20, heads * width, p, 5);
      const tensor t = on_device(c, target, p), s = on_device(c, source, p), f = on_device(c, x, p);
      const tensor v = on_device(c, share, p), g = on_device(c, dy, p);
      const matrix want = exact.sums(share, x);
      const tensor y = weighted_sum(c, on, v, f);
      CHECK(y.precision() == p);
      check_near(c, y, want, all_of(want, 30));

      matrix scores{edges, heads}, d_share{edges, heads}, d_x{30, heads * width}, d_target{20, heads},
          d_source{30, heads};
      for_elements_of(m, [&](std::int64_t r, std::int64_t k, std::int64_t e) {
        for (std::int64_t h = 0; h < heads; ++h) {
          const double sum = target(r, h) + source(k, h);
          scores(e, h) = sum > 0 ? sum : 0.2 * sum;
          const double d = share(e, h) * (sum > 0 ? 1.0 : 0.2);
          d_target(r, h) += d;
          d_source(k, h) += d;
          for (std::int64_t i = h * width; i < (h + 1) * width; ++i) {
            d_share(e, h) += dy(r, i) * x(k, i);
            d_x(k, i) += share(e, h) * dy(r, i);
          }
        }
      });
      check_near(c, edge_scores(c, on, t, s), scores, all_of(scores, 4));
      const auto [got_share, got_x] = weighted_sum_backward(c, on, g, v, f);
      check_near(c, got_share, d_share, all_of(d_share, 30));
      check_near(c, got_x, d_x, all_of(d_x, 30));
      const auto [got_target, got_source] = edge_scores_backward(c, on, v, t, s);
      check_near(c, got_target, d_target, all_of(d_target, 30));
      check_near(c, got_source, d_source, all_of(d_source, 30));
    }
  }
}

#ifdef COMP_SIMT  // faults, and what the stand-in refuses

TEST_CASE("a failing library, memory that ends and a lost device are told apart, and the next product works") {
  graph_device device;
  context& c = device.c();
  const csr m{c, random_csr(8, 8, 0.5, 1)};
  const tensor x = on_device(c, normal_matrix(8, 4, bf16, 1), bf16);
  int calls = 0;
  for (bool failed = true; failed; ++calls) {  // each call in turn, until the product gets through
    simt::device.fail_library = calls + 1;
    failed = false;
    try {
      spmm(c, m, x);
    } catch (const library_error& e) {
      CHECK(e.status == CUSPARSE_STATUS_INTERNAL_ERROR);
      CHECK(std::string{e.what()}.find("(cuSPARSE says CUSPARSE_STATUS_INTERNAL_ERROR)") != std::string::npos);
      failed = true;
    }
  }
  CHECK(calls >= 8);  // handle, stream, three descriptions, buffer size, preparation, two addresses, product
  simt::device.fail_library = 0;
  CHECK_NOTHROW(spmm(c, m, x));
  c.synchronize();
  simt::device.fail_allocation = 1;
  CHECK_NOTHROW(spmm_backward(c, m, x));  // given again after the pool was trimmed
  c.synchronize();
  const tensor lost = spmm(c, m, x);  // kept: a lost device frees nothing that waits for its stream
  simt::device.lose_device = 1;
  CHECK_THROWS_AS(c.synchronize(), device_lost);
  CHECK_THROWS_AS(spmm(c, m, x), error);
}

TEST_CASE("where cuSPARSE has no product of 16-bit matrices, a kernel makes it and its gradient") {
  graph_device device;
  context& c = device.c();
  SUBCASE("because its release has none") { simt::sparse::without_16_bits = true; }
  SUBCASE("because the device has no BF16") { simt::device.properties.major = 7; }
  for (const auto& [name, m] : graph_cases()) {
    const csr on{c, m};
    for (const precision p : {fp32, bf16, fp16}) {
      for (const std::int64_t width : {1, 16}) {
        CAPTURE(name);
        check_products(c, on, m, width, p, 2);  // asked of cuSPARSE, and known
      }
    }
  }
  simt::sparse::without_16_bits = false;
}

TEST_CASE("a sparse product whose workspace is beyond the limit is made without one") {
  graph_device device;  // looks after what is left
  context little{probe(), 4};
  const host_csr m = random_csr(8, 8, 0.5, 1);
  const csr same{little, m};
  check_products(little, same, m, 4, fp32, 2);
}

/// A product given to the stand-in by hand, so that each argument can be wrong.
struct by_hand {
  context c{probe(), 1 << 20};
  csr m{c, {.rows = 2, .columns = 3, .begin = {0, 1, 3}, .column = {2, 0, 1}}};
  tensor x = on_device(c, normal_matrix(3, 4, fp32, 1), fp32), y = c.make({2, 4}, fp32);
  std::shared_ptr<memory> buffer = c.allocate(512);
  cusparseHandle_t handle = nullptr;
  cusparseSpMatDescr_t a = nullptr;
  cusparseDnMatDescr_t b = nullptr, to = nullptr;
  std::int32_t* begin = const_cast<std::int32_t*>(m.by_row().begin.data());
  std::int32_t* column = const_cast<std::int32_t*>(m.by_row().other.data());
  float alpha = 1, beta = 0;

  by_hand() {
    CHECK(cusparseCreate(&handle) == CUSPARSE_STATUS_SUCCESS);
    CHECK(cusparseSetStream(handle, c.stream().get()) == CUSPARSE_STATUS_SUCCESS);
    CHECK(sparse(3) == CUSPARSE_STATUS_SUCCESS);
    CHECK(dense(b, 3, 4, 4, x.materialize()) == CUSPARSE_STATUS_SUCCESS);
    CHECK(dense(to, 2, 4, 4, y.materialize()) == CUSPARSE_STATUS_SUCCESS);
  }
  ~by_hand() {
    for (auto* d : {b, to}) {
      if (simt::sparse::live.contains(d)) cusparseDestroyDnMat(d);
    }
    cusparseDestroySpMat(a);
    cusparseDestroy(handle);
  }
  cusparseStatus_t sparse(std::int64_t elements) {
    if (a) cusparseDestroySpMat(std::exchange(a, nullptr));
    return cusparseCreateCsr(&a, 2, 3, elements, begin, column, m.by_row().value.materialize(), CUSPARSE_INDEX_32I,
                             CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F);
  }
  static cusparseStatus_t dense(cusparseDnMatDescr_t& d, std::int64_t rows, std::int64_t columns, std::int64_t leading,
                                void* at, cudaDataType type = CUDA_R_32F) {
    if (d) cusparseDestroyDnMat(std::exchange(d, nullptr));
    return cusparseCreateDnMat(&d, rows, columns, leading, at, type, CUSPARSE_ORDER_ROW);
  }
  cusparseStatus_t multiply(cusparseOperation_t op = CUSPARSE_OPERATION_NON_TRANSPOSE,
                            cusparseSpMMAlg_t algorithm = CUSPARSE_SPMM_CSR_ALG3) {
    return cusparseSpMM(handle, op, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, a, b, &beta, to, CUDA_R_32F, algorithm,
                        buffer ? buffer->materialize() : nullptr);
  }
  cusparseStatus_t prepare() {
    return cusparseSpMM_preprocess(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha,
                                   a, b, &beta, to, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG3, buffer->materialize());
  }
};

TEST_CASE("the stand-in of cuSPARSE answers wrong arguments with the library's status") {
  graph_device device;
  by_hand h;
  CHECK(h.multiply() == CUSPARSE_STATUS_SUCCESS);
  CHECK_NOTHROW(h.c.synchronize());
  SUBCASE("a leading dimension below the columns") {
    CHECK(h.dense(h.b, 3, 4, 3, h.x.materialize()) == CUSPARSE_STATUS_INVALID_VALUE);
  }
  SUBCASE("sizes that do not agree") {
    CHECK(h.dense(h.b, 2, 4, 4, h.x.materialize()) == CUSPARSE_STATUS_SUCCESS);
    CHECK(h.multiply() == CUSPARSE_STATUS_INVALID_VALUE);
  }
  SUBCASE("no buffer") {
    h.buffer.reset();
    CHECK(h.multiply() == CUSPARSE_STATUS_INVALID_VALUE);
  }
  SUBCASE("types that differ") {
    CHECK(h.dense(h.b, 3, 4, 4, h.x.materialize(), CUDA_R_16F) == CUSPARSE_STATUS_SUCCESS);
    CHECK(h.multiply() == CUSPARSE_STATUS_NOT_SUPPORTED);
  }
  SUBCASE("a transpose, or an algorithm that gives other bits each time") {
    CHECK(h.multiply(CUSPARSE_OPERATION_TRANSPOSE) == CUSPARSE_STATUS_NOT_SUPPORTED);
    CHECK(h.multiply(CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_SPMM_CSR_ALG2) == CUSPARSE_STATUS_NOT_SUPPORTED);
  }
  SUBCASE("more elements than places, or none of its addresses") {
    CHECK(h.sparse(7) == CUSPARSE_STATUS_INVALID_VALUE);
    h.column = nullptr;
    CHECK(h.sparse(3) == CUSPARSE_STATUS_INVALID_VALUE);
    CHECK(h.multiply() == CUSPARSE_STATUS_INVALID_VALUE);  // no matrix
  }
  SUBCASE("no handle") {
    CHECK(cusparseSetStream(nullptr, nullptr) == CUSPARSE_STATUS_NOT_INITIALIZED);
    CHECK(cusparseDestroy(nullptr) == CUSPARSE_STATUS_NOT_INITIALIZED);
  }
}

TEST_CASE("where cuSPARSE would read or write elsewhere, or what was destroyed, the stand-in faults") {
  graph_device device;
  by_hand h;
  const auto faults = [&] {
    REQUIRE(h.multiply() == CUSPARSE_STATUS_SUCCESS);
    CHECK_THROWS_AS(h.c.synchronize(), simt::fault);
  };
  SUBCASE("more rows of x than there is memory") {
    const tensor small = h.c.make({2, 4}, fp32);
    h.dense(h.b, 3, 4, 64, h.x.materialize());
    faults();
  }
  SUBCASE("x that nobody has written") {
    const tensor empty = h.c.make({3, 4}, fp32);
    h.dense(h.b, 3, 4, 4, empty.materialize());
    faults();
  }
  SUBCASE("y is x") {
    h.dense(h.to, 2, 4, 4, h.x.materialize());
    faults();
  }
  SUBCASE("y that is read without having been written") {
    h.beta = 1;
    faults();
  }
  SUBCASE("an address that is not aligned") {
    h.dense(h.b, 3, 4, 4, h.x.materialize_as<float>() + 1);
    faults();
  }
  SUBCASE("columns beyond the matrix") {
    const std::vector<std::int32_t> wrong = {2, 0, 3};
    const indices bad = upload(h.c, wrong, {3});
    h.column = const_cast<std::int32_t*>(bad.data());
    h.sparse(3);
    faults();
  }
  SUBCASE("rows that end before the elements") {
    h.sparse(2);
    faults();
  }
  SUBCASE("a buffer that is too small") {
    h.buffer = h.c.allocate(512);
    auto* end = static_cast<unsigned char*>(h.buffer->materialize()) + 508;
    REQUIRE(cusparseSpMM(h.handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE, &h.alpha, h.a,
                         h.b, &h.beta, h.to, CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG3, end) == CUSPARSE_STATUS_SUCCESS);
    CHECK_THROWS_AS(h.c.synchronize(), simt::fault);
  }
  SUBCASE("a buffer that was changed after it had been prepared") {
    REQUIRE(h.prepare() == CUSPARSE_STATUS_SUCCESS);
    h.c.clear(h.buffer->materialize(), 1);
    faults();
  }
  SUBCASE("another product than the buffer was prepared for") {
    REQUIRE(h.prepare() == CUSPARSE_STATUS_SUCCESS);
    h.dense(h.b, 3, 2, 2, h.x.materialize());
    h.dense(h.to, 2, 2, 2, h.y.materialize());
    CHECK_THROWS_AS(h.multiply(), simt::fault);
    h.c.synchronize();
  }
  SUBCASE("a description that was destroyed") {
    cusparseDestroyDnMat(h.b);
    CHECK_THROWS_AS(h.multiply(), simt::fault);
  }
}

#endif

}  // namespace comp::cuda::test
