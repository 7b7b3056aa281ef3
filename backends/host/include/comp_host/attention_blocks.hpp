// SPDX-License-Identifier: Apache-2.0
// The parts of attention by blocks (attention.hpp): which block of queries sees which keys, and the products of blocks.
// Each thread has oneDNN primitives of its own that run on that thread alone, so that results do not depend on the
// number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <comp_native/op/attention.hpp>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "context.hpp"
#include "dropout.hpp"
#include "softmax.hpp"

namespace comp::host::detail {

/// Rows and columns of a block of scores, which stays in a core's cache from one product to the next. The number of
/// columns is rounded up to steps of 64: padded examples have many lengths, and each size needs primitives of its own.
inline constexpr std::int64_t query_block = 192, key_block = 256, key_step = 64;

/// The sizes and options of one attention. q is (batch,queries,heads*width); k and v are (batch,keys,heads*width).
struct attention_case {
  std::int64_t batch, heads, queries, keys, width;
  bool causal;
  float scale;
  const std::int32_t* lengths;  // (batch): how many keys each example has; null: all keys
  double dropout;
  dropout_mask mask;

  attention_case(const shape& q, const shape& k, const native::attention_options& o, const indices& all,
                 const dropout_key& key)
      : batch{q[0]},
        heads{o.heads},
        queries{q[1]},
        keys{k[1]},
        width{q[2] / o.heads},
        causal{o.mask == native::op::softmax_mask::causal},
        scale{static_cast<float>(o.scale(q[2]))},
        lengths{o.mask == native::op::softmax_mask::padding ? all.values().data() : nullptr},
        dropout{o.dropout},
        mask{o.dropout, key} {}

  std::int64_t channels() const { return heads * width; }
  std::int64_t length(std::int64_t example) const { return lengths ? lengths[example] : keys; }
  /// True if one block has all keys that a query sees.
  bool whole_rows() const { return keys <= key_block; }
};

/// Throws: error, for shapes or lengths that do not fit.
inline attention_case case_of(const tensor& q, const tensor& k, const tensor& v, const indices& lengths,
                              const native::attention_options& o, const dropout_key& key) {
  native::require_attention(q.shape(), k.shape(), v.shape(), o);
  if (o.mask == native::op::softmax_mask::padding) require_lengths({k.shape()[0], q.shape()[1], k.shape()[1]}, lengths);
  return {q.shape(), k.shape(), o, lengths, key};
}

/// A block of a head's scores: `rows` queries from `query` on, and `columns` keys from `key` on.
struct score_block {
  std::int64_t query, key, rows, columns;  // no columns: the block's queries see none of these keys
  std::int64_t visible_to_any;             // how many of the head's first keys at least one of the queries sees
  bool causal;

  score_block(const attention_case& of, std::int64_t length, std::int64_t query_at, std::int64_t key_at)
      : query{query_at},
        key{key_at},
        rows{std::min(query_block, of.queries - query)},
        visible_to_any{of.causal ? std::min(length, query + rows) : length},
        causal{of.causal} {
    const std::int64_t visible = std::max<std::int64_t>(visible_to_any - key, 0);
    columns = std::min({(visible + key_step - 1) / key_step * key_step, key_block, of.keys - key});
  }
  /// Returns how many columns row `r` sees.
  COMP_HOST_INLINE std::size_t visible(std::int64_t r) const {
    const std::int64_t own = query + r + 1, end = causal && own < visible_to_any ? own : visible_to_any;
    return static_cast<std::size_t>(std::clamp<std::int64_t>(end - key, 0, columns));
  }
};

/// Fills in dropout's factors: factor[i] is that of key `key` + i. `row` is the query's number among all of batch and
/// heads. Random numbers come in groups of four, which a row can begin in the middle of.
COMP_HOST_INLINE void dropout_factors(const attention_case& of, std::int64_t row, std::int64_t key, std::size_t n,
                                      float* factor) {
  constexpr std::size_t lanes = 32, span = 4 * lanes;
  const auto first = static_cast<std::uint64_t>(row * of.keys + key), skipped = first % 4;
  float some[span];
  for (std::size_t at = 0; at < n + skipped; at += span) {
    of.mask.factors<lanes>((first + at) / 4, some);
    const std::size_t begin = at == 0 ? skipped : 0, end = std::min(span, n + skipped - at);
    std::copy(some + begin, some + end, factor + at + begin - skipped);
  }
}

/// The products of blocks; those "added" are added to what is in the result.
enum class product : std::uint8_t {
  scores,     // (rows,width) (columns,width)' -> (rows,columns)
  of_rows,    // added: (rows,columns) (columns,width) -> (rows,width)
  of_columns  // added: (rows,columns)' (rows,width) -> (columns,width)
};

/// All products of an attention, for each thread and each size of block that occurs. They read precision `p`, FP32 or
/// BF16, and write FP32.
class block_products {
 public:
  block_products(context& c, const attention_case& of, precision p, std::initializer_list<product> kinds, int threads) {
    std::set<sizes> all;
    for (std::int64_t example = 0; example < (of.lengths ? of.batch : 1); ++example) {
      for (std::int64_t query = 0; query < of.queries; query += query_block) {
        for (std::int64_t key = 0; key < of.keys; key += key_block) {
          const score_block b{of, of.length(example), query, key};
          if (b.columns > 0) all.insert({b.rows, b.columns});
        }
      }
    }
    for (const sizes& each : all) {
      for (const product kind : kinds) {
        for (int thread = 0; thread < threads; ++thread) {
          primitive& one = primitive_for(c, kind, p, each, of.width, thread);
          primitives_[{kind, each}].push_back(&one);
          scratch_ = std::max(scratch_, one.scratch_bytes());
        }
      }
    }
  }
  std::size_t scratch_bytes() const { return scratch_; }
  primitive& operator()(product kind, const score_block& b, int thread) const {
    return *primitives_.at({kind, {b.rows, b.columns}})[static_cast<std::size_t>(thread)];
  }

 private:
  using sizes = std::array<std::int64_t, 2>;  // rows, columns

  static primitive& primitive_for(context& c, product kind, precision p, const sizes& of, std::int64_t width,
                                  int thread) {
    return c.cached(key{operation::attention, kind, p, of, width, thread}, [&] {
      const auto [rows, columns] = of;
      const auto read = c.type_of(p);
      const auto matrix = [&](std::int64_t m, std::int64_t n) { return dnnl::memory::desc{{m, n}, read, shape{n, 1}}; };
      const auto transposed = [&](std::int64_t m, std::int64_t n) {
        return dnnl::memory::desc{{n, m}, read, shape{1, n}};
      };
      const auto make = [&](const dnnl::memory::desc& a, const dnnl::memory::desc& b, std::int64_t m, std::int64_t n) {
        const dnnl::memory::desc y{{m, n}, dnnl::memory::data_type::f32, shape{n, 1}};
        dnnl::primitive_attr attributes;
        attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
        dnnl::post_ops after;
        if (kind != product::scores) after.append_sum(1);
        attributes.set_post_ops(after);
        return c.make_primitive(onednn::described<dnnl::matmul>(c.engine, attributes, a, b, y),
                                {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, y}});
      };
      if (kind == product::scores) return make(matrix(rows, width), transposed(columns, width), rows, columns);
      if (kind == product::of_rows) return make(matrix(rows, columns), matrix(columns, width), rows, width);
      return make(transposed(rows, columns), matrix(rows, width), columns, width);
    });
  }

  std::map<std::pair<product, sizes>, std::vector<primitive*>> primitives_;
  std::size_t scratch_ = 0;
};

}  // namespace comp::host::detail
