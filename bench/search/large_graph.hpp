// SPDX-License-Identifier: Apache-2.0
// A transformer of any number of operators, with residual edges, shapes and sizes as a backend would record them.
#pragma once

#include <fmt/format.h>

#include <comp/core/op_graph.hpp>
#include <cstddef>
#include <utility>
#include <vector>

namespace bench {

/// `n` operators in blocks of ten: norm, three linears, a product of matrices, softmax, a product, linear, add, GELU.
inline comp::op_graph large_graph(std::size_t n) {
  constexpr std::string_view kinds[] = {"layer_norm", "linear", "linear", "linear", "bmm",
                                        "softmax",    "bmm",    "linear", "add",    "gelu"};
  const std::vector<std::size_t> reads[] = {{1}, {1}, {2}, {3}, {3, 2}, {1}, {1, 3}, {1}, {1, 9}, {1}};  // how far back
  std::vector<comp::op_info> ops(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = i % 10, block = i / 10;
    comp::op_info& op = ops[i];
    op.name = fmt::format("block{}.{}", block, at);
    op.kind = kinds[at];
    op.scopes = {fmt::format("block{}", block)};
    op.inputs = {{.shape = {64, 512}}};
    op.outputs = {{.shape = {64, 512}}};
    for (const std::size_t back : reads[at]) {
      if (back <= i) op.producers.push_back(i - back);
    }
    if (op.kind == "linear" || op.kind == "bmm") {
      op.m = 64, op.k = 512, op.n = block % 3 == 0 ? 509 : 512;  // every third block has sizes that do not suit
      op.flops = 2 * op.m * op.n * op.k;
    }
    op.bytes = 2 * 64 * 512 * 4;
  }
  return {std::move(ops)};
}

}  // namespace bench
