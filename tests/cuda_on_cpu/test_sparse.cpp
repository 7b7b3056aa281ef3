// SPDX-License-Identifier: Apache-2.0
// How sparse products are made, and what is refused; what a stand-in of cuSPARSE refuses. That products and what graph
// attention does along edges are those of FP64 is asked of each Device: ../native/devices/test_graphs.cpp.
#include <comp_cuda/device.hpp>

#include "../native/devices/agree.hpp"
#include "fresh.hpp"

namespace comp::cuda::test {
namespace {

using enum precision;
namespace contract = native::contract;
using native::host_csr;

/// From none to 6 elements in a row, whose columns come unsorted.
host_csr some_csr(std::int32_t rows, std::int32_t columns) {
  host_csr m{.rows = rows, .columns = columns, .begin = {0}};
  for (std::int32_t r = 0; r < rows; ++r) {
    for (std::int32_t i = 0; i < std::min(r % 7, columns); ++i) m.column.push_back((13 * r + 7 * (6 - i)) % columns);
    m.begin.push_back(static_cast<std::int32_t>(m.column.size()));
  }
  m.value = contract::numbers(std::ssize(m.column), 1, bf16);
  return m;
}

/// The product and its gradient are those of FP64, each time that they are made of the same operands.
void check_products(device& d, const host_csr& m, std::int64_t width, precision p) {
  CAPTURE(m.rows);
  CAPTURE(width);
  CAPTURE(comp::name(p));
  contract::agree_on(d, [&](auto& on, contract::results& r) {
    const auto a = on.make_sparse(m);
    const auto x = contract::tensor_of(on, {m.columns, width}, 5, p),
               dy = contract::tensor_of(on, {m.rows, width}, 6, p);
    for (int turn = 0; turn < 2; ++turn) {
      r.keep(on, "y", on.spmm(a, x, nullptr), 6);
      r.keep(on, "dx", on.spmm_backward(a, dy, nullptr, true), 6);
    }
  });
}

/// What a test leaves behind is a failure, also of cuSPARSE's objects.
struct fresh_for_sparse : fresh {
#ifdef COMP_SIMT
  ~fresh_for_sparse() { CHECK(simt::sparse::live.empty()); }
#endif
};

}  // namespace

TEST_CASE_FIXTURE(
    fresh_for_sparse,
    "a sparse product that was prepared once serves again, in every precision by turns, and gives the same bits") {
  device d;
  const csr on = d.make_sparse(some_csr(50, 50));
  std::vector<std::vector<float>> first;
  for (int round = 0; round < 3; ++round) {
    std::size_t at = 0;
    for (const precision p : {fp32, bf16, fp16}) {
      if (!d.shared().card().has(p)) continue;
      for (const std::int64_t width : {16, 24}) {
        const auto y = d.download(d.spmm(on, contract::tensor_of(d, {50, width}, 8, p), nullptr));
        if (round == 0) first.push_back(y);
        CHECK(y == first[at++]);
      }
    }
  }
}

TEST_CASE_FIXTURE(fresh_for_sparse, "sparse operators refuse tensors that do not fit the graph, naming both") {
  device d;
  context& c = d.shared();
  const csr m{c, {.rows = 2, .columns = 3, .begin = {0, 1, 3}, .column = {2, 0, 1}}};
  const auto of = [&](const shape& s) { return contract::tensor_of(d, s, 1, fp32); };
  const tensor two = of({2, 4}), three = of({3, 4}), odd = of({3, 3});
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

TEST_CASE_FIXTURE(fresh_for_sparse,
                  "a failing library, memory that ends and a lost device are told apart, and the next product works") {
  device d;
  context& c = d.shared();
  const csr m{c, some_csr(8, 8)};
  const tensor x = contract::tensor_of(d, {8, 4}, 1, bf16);
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

TEST_CASE_FIXTURE(fresh_for_sparse,
                  "where cuSPARSE has no product of 16-bit matrices, a kernel makes it and its gradient") {
  SUBCASE("because its release has none") { simt::sparse::without_16_bits = true; }
  SUBCASE("because the device has no BF16") { simt::device.properties.major = 7; }
  device d;
  for (const host_csr& m : {host_csr{.rows = 1, .columns = 1, .begin = {0, 0}}, some_csr(2, 1), some_csr(37, 37),
                            some_csr(33, 5), some_csr(7, 65)}) {
    for (const precision p : d.supported_precisions()) {
      if (p == tf32 || is_fp8(p)) continue;
      for (const std::int64_t width : {1, 16}) check_products(d, m, width, p);  // asked of cuSPARSE, and known
    }
  }
  simt::sparse::without_16_bits = false;
}

TEST_CASE_FIXTURE(fresh_for_sparse, "a sparse product whose workspace is beyond the limit is made without one") {
  device little{{.workspace_limit = 4}};
  check_products(little, some_csr(8, 8), 4, fp32);
}

#endif

}  // namespace comp::cuda::test
