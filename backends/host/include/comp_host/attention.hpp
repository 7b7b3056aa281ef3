// SPDX-License-Identifier: Apache-2.0
// Attention as one operator, forward and backward, computed in blocks, so that neither scores nor probabilities are
// ever in memory as a whole. The softmax of a query goes on from block to block with its largest score and its sum so
// far. The backward computes the probabilities again, from the logarithms of these sums.
// Scores and all sums are FP32. In BF16, probabilities and the gradients of scores are rounded when a product reads
// them. The backward of more keys than a block has needs dy y, with y before it was rounded: if the largest
// probabilities of a query are 1, the gradients of its scores nearly vanish, and the rounding of y, which all of them
// share, would be larger. Weights then grow without end (Qiu, Yao 2025, arXiv 2510.04212).
// Dropout draws the same masks as attention operator by operator does, so that a plan does not change them.
// A thread has a head to itself, so that a block's scores stay in its core's cache; blocks of 64 to 512 either way
// differ by less than a machine's noise. With few keys the scores fit there anyhow (attention_from).
// Source: Dao 2023, "FlashAttention-2" (arXiv 2307.08691).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp_native/op/attention.hpp>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

#include "attention_blocks.hpp"
#include "attention_heads.hpp"
#include "convert.hpp"
#include "normalization.hpp"
#include "transfer.hpp"

namespace comp::host {

namespace detail {

/// The memory that a thread needs for a head's forward. W is the type that products read: BF16 or FP32.
template <class W>
struct forward_buffers {
  W *q, *k, *v;          // a block of queries; all keys and values of the head
  float *scores, *y;     // of one block of queries
  W* shares;             // the scores' exponentials, as the product with v reads them
  float *largest, *sum;  // of each query: its largest score, and its sum of exponentials, so far
  float* factor;         // dropout's factors for one row

  forward_buffers(pieces& from, const attention_case& of) {
    const std::int64_t rows = std::min(query_block, of.queries), columns = std::min(key_block, of.keys);
    q = from.take<W>(rows * of.width);
    k = from.take<W>(of.keys * of.width);
    v = from.take<W>(of.keys * of.width);
    scores = from.take<float>(rows * columns);
    y = from.take<float>(rows * of.width);
    shares = from.take_or<W>(scores, rows * columns);
    largest = from.take<float>(rows);
    sum = from.take<float>(rows);
    factor = from.take<float>(columns);
  }
};

/// Turns the scores of a block into exponentials relative to each query's largest score so far, and adds them to the
/// query's sum. When the largest score grows, the sum and y so far are scaled down to match. The division by the sum
/// comes once, at the end.
template <class W>
void soften(const attention_case& of, const score_block& b, const one_head& in, const forward_buffers<W>& on) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const auto width = static_cast<std::size_t>(of.width), columns = static_cast<std::size_t>(b.columns);
  run_widest(
      [&](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        const float scale = of.scale;
        for (std::size_t r = begin; r < end; ++r) {
          float *s = on.scores + r * columns, *y = on.y + r * width;
          W* share = on.shares + r * columns;
          const std::size_t visible = b.visible(static_cast<std::int64_t>(r));
          // Loops run to a multiple of 16, which vectorises without a remainder; masked columns are minus infinity.
          const std::size_t full = std::min((visible + 15) / 16 * 16, columns);
          for (std::size_t i = visible; i < full; ++i) s[i] = -infinity;
          float top = -infinity;
#pragma omp simd reduction(max : top)
          for (std::size_t i = 0; i < full; ++i) top = s[i] > top ? s[i] : top;
          top = std::max(on.largest[r], top * scale);
          const float shift = top == -infinity ? 0.0F : top;  // a query that has seen no key yet: inf - inf is NaN
          float total = 0;
#pragma omp simd reduction(+ : total)
          for (std::size_t i = 0; i < full; ++i) {
            s[i] = exp_of(s[i] * scale - shift);
            total += s[i];
          }
          if (of.dropout > 0) {
            dropout_factors(of, in.row() + b.query + static_cast<std::int64_t>(r), b.key, full, on.factor);
#pragma omp simd
            for (std::size_t i = 0; i < full; ++i) s[i] *= on.factor[i];
          }
          if constexpr (!std::is_same_v<W, float>) {
#pragma omp simd
            for (std::size_t i = 0; i < full; ++i) store(share[i], s[i]);
          }
          std::memset(share + full, 0, (columns - full) * sizeof(W));
          const float kept = exp_of(on.largest[r] - shift);
          on.sum[r] = on.sum[r] * kept + total;
          on.largest[r] = top;
          if (b.key == 0) continue;  // in the first block there is no y to scale
#pragma omp simd
          for (std::size_t i = 0; i < width; ++i) y[i] *= kept;
        }
      },
      0, static_cast<std::size_t>(b.rows));
}

/// Computes a head. q, k, v and y point to the head's first element; log_sums has shape (queries). `unrounded`: where y
/// goes in FP32, too; null: nowhere.
template <class W, class T>
void attend(const head_worker& at, const attention_case& of, const forward_buffers<W>& on, const one_head& in,
            const T* q, const T* k, const T* v, T* y, float* unrounded, float* log_sums) {
  const std::int64_t length = of.length(in.example);
  in.take(k, on.k, of.keys);
  in.take(v, on.v, of.keys);
  for (std::int64_t query = 0; query < of.queries; query += query_block) {
    const std::int64_t rows = std::min(query_block, of.queries - query);
    in.take(q + query * of.channels(), on.q, rows);
    std::fill_n(on.largest, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(on.sum, rows, 0.0F);
    std::fill_n(on.y, rows * of.width, 0.0F);
    for (std::int64_t key = 0; key < of.keys; key += key_block) {
      const score_block b{of, length, query, key};
      if (b.columns == 0) break;
      at.run(product::scores, b, on.q, on.k + key * of.width, on.scores);
      soften(of, b, in, on);
      at.run(product::of_rows, b, on.shares, on.v + key * of.width, on.y);
    }
    for (std::int64_t r = 0; r < rows; ++r) log_sums[query + r] = on.largest[r] + std::log(on.sum[r]);
    // A query without any key gets 0, not 0/0.
    const auto by_sum = [=, sum = on.sum](std::size_t r) { return length > 0 ? 1 / sum[r] : 0; };
    if (unrounded) in.put(on.y, unrounded + query * of.channels(), rows, by_sum);
    in.put(on.y, y + query * of.channels(), rows, by_sum);
  }
}

/// The memory that a thread needs for a head's backward.
template <class W>
struct backward_buffers {
  W *q, *k, *v, *dy;                // of the whole head
  float *scores, *share_gradients;  // of a block: scores, and gradients of the probabilities
  W *shares, *score_gradients;      // of a block, as products read them: probabilities, and gradients of the scores
  float *dq, *dk, *dv;              // dq of all queries; dk and dv of one block of keys
  float *dot, *factor;              // of each query the product dy y; dropout's factors for one row

  backward_buffers(pieces& from, const attention_case& of) {
    const std::int64_t rows = std::min(query_block, of.queries), columns = std::min(key_block, of.keys);
    q = from.take<W>(of.queries * of.width);
    k = from.take<W>(of.keys * of.width);
    v = from.take<W>(of.keys * of.width);
    dy = from.take<W>(of.queries * of.width);
    scores = from.take<float>(rows * columns);
    share_gradients = from.take<float>(rows * columns);
    shares = from.take_or<W>(scores, rows * columns);
    score_gradients = from.take_or<W>(share_gradients, rows * columns);
    dq = from.take<float>(of.queries * of.width);
    dk = from.take<float>(columns * of.width);
    dv = from.take<float>(columns * of.width);
    dot = from.take<float>(of.queries);
    factor = from.take<float>(columns);
  }
};

/// Turns a block's scores into probabilities with dropout, and the gradients of the probabilities into those of the
/// scores.
template <class W>
void soften_backward(const attention_case& of, const score_block& b, const one_head& in, const float* log_sums,
                     const backward_buffers<W>& on) {
  const auto columns = static_cast<std::size_t>(b.columns);
  std::fill_n(on.factor, columns, 1.0F);
  run_widest(
      [&](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        const float scale = of.scale;
        for (std::size_t r = begin; r < end; ++r) {
          float *s = on.scores + r * columns, *g = on.share_gradients + r * columns;
          W *share = on.shares + r * columns, *ds = on.score_gradients + r * columns;
          const auto query = static_cast<std::size_t>(b.query) + r;
          const std::size_t visible = b.visible(static_cast<std::int64_t>(r));
          const std::size_t full = std::min((visible + 15) / 16 * 16, columns);
          for (std::size_t i = visible; i < full; ++i) {
            s[i] = -std::numeric_limits<float>::infinity();
            g[i] = 0;
          }
          if (of.dropout > 0) dropout_factors(of, in.row() + static_cast<std::int64_t>(query), b.key, full, on.factor);
          const float log_sum = log_sums[query], *factor = on.factor;
          float dot = 0;
#pragma omp simd reduction(+ : dot)
          for (std::size_t i = 0; i < full; ++i) {
            const float p = exp_of(s[i] * scale - log_sum), of_p = g[i] * factor[i];
            s[i] = p;
            g[i] = of_p;
            dot += p * of_p;
          }
          // The softmax's gradient needs a sum over the whole row. A block has a part of the row only, but the sum is
          // also dy y, which was computed before.
          if (!of.whole_rows()) dot = on.dot[query];
#pragma omp simd
          for (std::size_t i = 0; i < full; ++i) {
            const float p = s[i];
            store(ds[i], native::math::softmax_gradient(g[i], p, dot));
            store(share[i], p * factor[i]);
          }
          std::memset(share + full, 0, (columns - full) * sizeof(W));
          std::memset(ds + full, 0, (columns - full) * sizeof(W));
        }
      },
      0, static_cast<std::size_t>(b.rows));
}

/// What the backward of a head reads and writes; all pointers are to the head's first element.
template <class T>
struct head_gradients {
  const T *dy, *q, *k, *v;
  const float *y, *log_sums;  // y is null if a block has whole rows
  T *dq, *dk, *dv;
};
template <class W, class T>
void attend_backward(const head_worker& at, const attention_case& of, const backward_buffers<W>& on, const one_head& in,
                     const head_gradients<T>& x) {
  const std::int64_t length = of.length(in.example), width = of.width;
  in.take(x.q, on.q, of.queries);
  in.take(x.dy, on.dy, of.queries);
  in.take(x.k, on.k, of.keys);
  in.take(x.v, on.v, of.keys);
  if (!of.whole_rows()) {
    in.take(x.y, on.dq, of.queries);
    multiply_rows(on.dy, on.dq, on.dot, of.queries, width);  // dq's memory holds y until dq is needed
  }
  std::fill_n(on.dq, of.queries * width, 0.0F);
  const auto scaled = [scale = of.scale](std::size_t) { return scale; };
  for (std::int64_t key = 0; key < of.keys; key += key_block) {
    const std::int64_t columns = std::min(key_block, of.keys - key);
    std::fill_n(on.dk, columns * width, 0.0F);
    std::fill_n(on.dv, columns * width, 0.0F);
    for (std::int64_t query = 0; query < of.queries; query += query_block) {
      const score_block b{of, length, query, key};
      if (b.columns == 0) continue;
      const W *q = on.q + query * width, *dy = on.dy + query * width, *k = on.k + key * width;
      at.run(product::scores, b, q, k, on.scores);
      at.run(product::scores, b, dy, on.v + key * width, on.share_gradients);
      soften_backward(of, b, in, x.log_sums, on);
      at.run(product::of_columns, b, on.shares, dy, on.dv);
      at.run(product::of_columns, b, on.score_gradients, q, on.dk);
      at.run(product::of_rows, b, on.score_gradients, k, on.dq + query * width);
    }
    in.put(on.dk, x.dk + key * of.channels(), columns, scaled);
    in.put(on.dv, x.dv + key * of.channels(), columns, [](std::size_t) { return 1.0F; });
  }
  in.put(on.dq, x.dq, of.queries, scaled);
}

}  // namespace detail

/// Returns: y (B,Tq,C); saved for the backward are y, in FP32 if that reads it, and the logarithms of the softmax's
/// sums (B,heads,Tq). Nothing for fewer keys than settings::attention_from without dropout: operators one by one are as
/// fast there. Throws: error, for shapes that do not fit.
inline std::optional<saved_tensor> attention(context& c, const tensor& q, const tensor& k, const tensor& v,
                                             const indices& lengths, const native::attention_options& o,
                                             const dropout_key& key) {
  const detail::attention_case of = detail::case_of(q, k, v, lengths, o, key);
  const precision p = q.precision();
  if (of.keys < c.attention_from() && o.dropout == 0) return {};
  const tensor queries = row_major(c, q), keys = row_major(c, cast(c, k, p)), values = row_major(c, cast(c, v, p));
  const tensor y = c.make_plain(q.shape(), p), log_sums = c.make_plain({of.batch, of.heads, of.queries});
  const bool rounded = p != precision::fp32 && !of.whole_rows();
  const tensor saved_y = rounded ? c.make_plain(q.shape()) : y;
  detail::with_products(c, p, [&]<class W, class T>(precision read, W*, T*) {
    using buffers = detail::forward_buffers<W>;
    detail::each_head<buffers>(c, of, read, {detail::product::scores, detail::product::of_rows},
                               [&](const detail::head_worker& at, const buffers& on, const detail::one_head& in) {
                                 detail::attend(at, of, on, in, in.queries(queries.as<T>()), in.keys(keys.as<T>()),
                                                in.keys(values.as<T>()), in.queries(y.as<T>()),
                                                rounded ? in.queries(saved_y.as<float>()) : nullptr,
                                                log_sums.as<float>() + in.row());
                               });
  });
  return saved_tensor{y, {saved_y, log_sums}};
}

/// Returns: the gradients of q, k and v. `saved` is what attention() saved, with the same options and key.
/// Throws: error, for shapes that do not fit.
inline std::array<tensor, 3> attention_backward(context& c, const tensor& dy, const tensor& q, const tensor& k,
                                                const tensor& v, std::span<const tensor> saved, const indices& lengths,
                                                const native::attention_options& o, const dropout_key& key) {
  require_same("attention_backward", dy.shape(), q.shape());
  require<error>(saved.size() == 2,
                 "backward of attention over {} with {} saved tensors (it takes two): give what attention() gave",
                 text(q.shape()), saved.size());
  const precision p = q.precision();
  const detail::attention_case of = detail::case_of(q, k, v, lengths, o, key);
  const auto as_read = [&](const tensor& t) { return row_major(c, cast(c, t, p)); };
  const std::array<tensor, 4> x{as_read(dy), as_read(q), as_read(k), as_read(v)};
  const std::array<tensor, 3> dx{c.make_plain(q.shape(), p), c.make_plain(k.shape(), p), c.make_plain(v.shape(), p)};
  detail::with_products(c, p, [&]<class W, class T>(precision read, W*, T*) {
    using buffers = detail::backward_buffers<W>;
    detail::each_head<buffers>(
        c, of, read, {detail::product::scores, detail::product::of_rows, detail::product::of_columns},
        [&](const detail::head_worker& at, const buffers& on, const detail::one_head& in) {
          detail::attend_backward<W, T>(at, of, on, in,
                                        {.dy = in.queries(x[0].as<T>()),
                                         .q = in.queries(x[1].as<T>()),
                                         .k = in.keys(x[2].as<T>()),
                                         .v = in.keys(x[3].as<T>()),
                                         .y = of.whole_rows() ? nullptr : in.queries(saved[0].as<float>()),
                                         .log_sums = saved[1].as<float>() + in.row(),
                                         .dq = in.queries(dx[0].as<T>()),
                                         .dk = in.keys(dx[1].as<T>()),
                                         .dv = in.keys(dx[2].as<T>())});
        });
  });
  return {cast(c, dx[0], dy.precision()), cast(c, dx[1], dy.precision()), cast(c, dx[2], dy.precision())};
}

}  // namespace comp::host
