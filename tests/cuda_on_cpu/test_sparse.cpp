// SPDX-License-Identifier: Apache-2.0
// How sparse products are made, and what is refused; what a stand-in of cuSPARSE refuses. That products and what graph
// attention does along edges are those of FP64 is asked of each Device: ../native/devices/test_graphs.cpp.
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
  const auto refused = [&](auto change) -> std::string {
    host_csr m{.rows = 2, .columns = 3, .begin = {0, 1, 3}, .column = {2, 0, 1}, .value = {1, 2, 3}};
    change(m);
    try {
      (void)csr(device.c(), m);
    } catch (const error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refused([](auto&) {}) == "");
  CHECK(refused([](auto& m) { m.column[1] = 3; }) ==
        "a sparse matrix of 2 x 3 has column 3 in row 1 (they are counted from 0 to 2): leave it out");
  CHECK(refused([](auto& m) { m.column[1] = 1; }) ==
        "a sparse matrix of 2 x 3 has column 1 twice in row 1 (sparse products need each once): add the two up");
  CHECK(refused([](auto& m) {
          m.rows = 3, m.begin = {0, 2, 1, 3};
        }) ==
        "a sparse matrix of 3 x 3 has a row 1 from 2 to 1 (rows may not end before they begin): sort the elements by "
        "row");
  CHECK(refused([](auto& m) {
          m.begin = {0, 1, 2};
        }) ==
        "a sparse matrix of 2 x 3 with 3 elements has 3 places where rows begin, from 0 to 2 (one more than rows are "
        "needed, from 0 to the number of elements): count them again");
  CHECK(refused([](auto& m) { m.value.pop_back(); }) ==
        "a sparse matrix of 2 x 3 with 3 elements has 2 values (there is one for each, or none for all 1): give as "
        "many");
  CHECK(refused([](auto& m) { m.column[1] = -1; }) != "");
  CHECK(refused([](auto& m) { m.rows = 3, m.begin = {0, 9, -9, 3}; }) != "");  // first and last are right
  CHECK(refused([](auto& m) { m.begin = {0, 3}; }) != "");
  CHECK(refused([](auto& m) { m.begin = {}; }) != "");
  CHECK(refused([](auto& m) { m.columns = 0; }) != "");
  CHECK(refused([](auto& m) { m.columns = std::int64_t{1} << 31; }) != "");
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
  const auto after = [](auto change) {  // what a product is answered whose arguments were changed
    by_hand h;
    change(h);
    const cusparseStatus_t s = h.multiply();
    CHECK_NOTHROW(h.c.synchronize());
    return s;
  };
  CHECK(after([](by_hand&) {}) == CUSPARSE_STATUS_SUCCESS);
  CHECK(after([](by_hand& h) { h.dense(h.b, 2, 4, 4, h.x.materialize()); }) == CUSPARSE_STATUS_INVALID_VALUE);
  CHECK(after([](by_hand& h) { h.buffer.reset(); }) == CUSPARSE_STATUS_INVALID_VALUE);
  CHECK(after([](by_hand& h) { h.dense(h.b, 3, 4, 4, h.x.materialize(), CUDA_R_16F); }) ==
        CUSPARSE_STATUS_NOT_SUPPORTED);
  CHECK(after([](by_hand& h) {
          h.column = nullptr;  // no address, and so no matrix
          CHECK(h.sparse(3) == CUSPARSE_STATUS_INVALID_VALUE);
        }) == CUSPARSE_STATUS_INVALID_VALUE);
  by_hand h;
  CHECK(h.multiply(CUSPARSE_OPERATION_TRANSPOSE) == CUSPARSE_STATUS_NOT_SUPPORTED);
  CHECK(h.multiply(CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_SPMM_CSR_ALG2) ==  // other bits each time
        CUSPARSE_STATUS_NOT_SUPPORTED);
  CHECK(h.dense(h.b, 3, 4, 3, h.x.materialize()) == CUSPARSE_STATUS_INVALID_VALUE);  // leading below the columns
  CHECK(h.sparse(7) == CUSPARSE_STATUS_INVALID_VALUE);                               // more elements than places
  CHECK(cusparseSetStream(nullptr, nullptr) == CUSPARSE_STATUS_NOT_INITIALIZED);
  CHECK(cusparseDestroy(nullptr) == CUSPARSE_STATUS_NOT_INITIALIZED);
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
