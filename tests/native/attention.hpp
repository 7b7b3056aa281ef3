// SPDX-License-Identifier: Apache-2.0
// What tests of a Device's attention share: tokens, the operator's two directions on a Device, and how far two results
// may be apart.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <comp_native/op/attention.hpp>
#include <comp_native/random.hpp>
#include <cstdint>
#include <vector>

namespace comp::native::testing {

struct tokens {
  std::int64_t batch, queries, keys, channels;
};
struct given {
  std::vector<float> q, k, v, dy;
  std::vector<std::int32_t> lengths;  // of the keys: all of the first example, fewer of each after it
  explicit given(const tokens& t) {
    const auto some = [](std::int64_t n, std::uint64_t stream) {
      random_stream draws{1, stream};
      std::vector<float> all(static_cast<std::size_t>(n));
      for (float& x : all) x = static_cast<float>(std::round(draws.normal() * 16) / 16);  // exact in 16 bits
      return all;
    };
    q = some(t.batch * t.queries * t.channels, 1), k = some(t.batch * t.keys * t.channels, 2);
    v = some(t.batch * t.keys * t.channels, 3), dy = some(t.batch * t.queries * t.channels, 4);
    for (std::int64_t b = 0; b < t.batch; ++b)
      lengths.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(t.keys - 2 * b, 1)));
  }
};
struct attended {
  std::vector<float> y;
  std::array<std::vector<float>, 3> dx = {};
  bool in_one = false;
};
/// Forward and backward of the operator in precision p.
template <class D>
attended attend(D& d, const op::attention& what, const tokens& t, const given& from, precision p,
                const dropout_key& key = {5, 7}) {
  using tensor = typename D::tensor;
  const shape queries{t.batch, t.queries, t.channels}, keys{t.batch, t.keys, t.channels};
  const std::vector<tensor> x{d.upload(from.q, queries, p), d.upload(from.k, keys, p), d.upload(from.v, keys, p)};
  memory<D> left{.key = key};
  device_batch<D> batch;
  if (what.reads_lengths()) batch.lengths = d.upload(from.lengths, {t.batch});
  double loss = 0;
  const tensor y = what.forward(forward_call<D>{{d, batch, {}, p, left}, x, true, loss});
  const tensor dy = d.upload(from.dy, queries, p);
  const auto dx = what.backward(backward_call<D>{{d, batch, {}, p, left}, dy, {true, true, true}, 1});
  attended got{.y = d.download(y), .in_one = left.kept.size() == 5};
  for (std::size_t i = 0; i < 3; ++i) got.dx[i] = d.download(dx[i]);
  return got;
}
/// Off by that many roundings of what may be as large as the largest value.
inline void check_like(const std::vector<float>& got, const std::vector<float>& want, precision p, double roundings) {
  REQUIRE(got.size() == want.size());
  double largest = 0, worst = 0;
  for (const float w : want) largest = std::max(largest, std::abs(static_cast<double>(w)));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    worst = off <= worst ? worst : off;  // not a number stays
  }
  CHECK(worst <= roundings * traits(p).half_ulp * largest + 1e-6);
}
inline void check_like(const attended& got, const attended& want, precision p, double roundings) {
  check_like(got.y, want.y, p, roundings);
  for (std::size_t i = 0; i < 3; ++i) check_like(got.dx[i], want.dx[i], p, 2 * roundings);
}
inline double product(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}
/// What every Device's attention refuses; backward_of_nothing: its own words for a backward without a forward.
void check_refusals(auto& d, const char* backward_of_nothing) {
  const std::vector<float> some(6 * 16);
  const auto q = d.upload(some, {1, 6, 16}, precision::bf16), k = d.upload(some, {2, 3, 16}, precision::bf16);
  CHECK_THROWS_WITH_AS(d.attention(q, k, k, {}, {.heads = 2}, {}),
                       "attention of (1,6,16) to (2,3,16) (batches and channels must be equal, and causal as many "
                       "tokens): change one",
                       error);
  CHECK_THROWS_AS(d.attention(q, q, q, {}, {.heads = 3}, {}), error);
  CHECK_THROWS_WITH_AS(d.attention_backward(q, q, q, q, {}, {}, {.heads = 2}, {}), backward_of_nothing, error);
  const std::vector<std::int32_t> longer{7};
  CHECK_THROWS_WITH_AS(d.attention(q, q, q, d.upload(longer, {1}), {.heads = 2, .mask = op::softmax_mask::padding}, {}),
                       "softmax of x (1,6,6) with 1 lengths from 7 to 7 (one for each example, from 0 to the last "
                       "size): fix them",
                       error);
}

}  // namespace comp::native::testing
