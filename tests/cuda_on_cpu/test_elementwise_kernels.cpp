// SPDX-License-Identifier: Apache-2.0
// Casts, chains and dropout of many elements; two axes exchanged, bit by bit. That each operator agrees with FP64 is
// part of what any Device must do: native/devices/test_elementwise.cpp.
#include <cstring>

#include "kernel_test.hpp"

#ifdef COMP_SIMT
#include "kernels/elementwise.cuh"
#include "kernels/transpose.cuh"
#endif

namespace comp::cuda::test {
namespace {

constexpr stream on{};

template <class From, class To>
void check_casts() {
  std::vector<std::vector<From>> from;
  std::vector<buffer<From>> in;
  std::vector<buffer<To>> out;
  std::vector<cast_job<From, To>> jobs;
  for (std::size_t i = 0; i < 60; ++i) {  // more than one launch takes
    const std::size_t n = i == 7 ? 20000 : i * 5 % 77;
    from.push_back(values<From>(n, static_cast<unsigned>(i), i % 3 ? 1.0F : 1e5F));
    in.emplace_back(from.back(), i % 4);
    out.emplace_back(n, i % 3);
    jobs.push_back({in.back().data(), out.back().data(), static_cast<index>(n)});
  }
  cast<From, To>(on, jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    std::vector<To> want(from[i].size());
    for (std::size_t k = 0; k < want.size(); ++k) native::math::store(want[k], native::math::load(from[i][k]));
    CHECK((want.empty() || std::memcmp(out[i].values().data(), want.data(), want.size() * sizeof(To)) == 0));
  }
}

/// Kept or not, of the n elements from `first` on, as the definition of dropout_key says.
std::vector<bool> kept(std::size_t n, double p, const native::dropout_key& key, std::size_t first = 0) {
  std::vector<bool> k;
  for (std::size_t i = first; i < first + n; ++i) {
    const std::uint64_t group = i / 4;
    std::uint32_t word[4][1] = {{static_cast<std::uint32_t>(group)},
                                {static_cast<std::uint32_t>(group >> 32)},
                                {static_cast<std::uint32_t>(key.draw)},
                                {static_cast<std::uint32_t>(key.draw >> 32)}};
    native::math::philox(word, static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32));
    k.push_back(static_cast<double>(word[i % 4][0]) >= p * 0x1p32);
  }
  return k;
}

}  // namespace

TEST_CASE("casts of many tensors round as the host does, to the bit") {
  check_casts<float, bf16>();
  check_casts<float, fp16>();
  check_casts<bf16, float>();
  check_casts<fp16, float>();
  check_casts<bf16, fp16>();
  check_casts<fp16, bf16>();
}

TEST_CASE_TEMPLATE("a chain rounds once, keeps what it is asked to keep, and may write over its input", T, float, bf16,
                   fp16) {
  const std::size_t n = 1003;
  const input<T> x{values<T>(n, 3)}, residual{values<T>(n, 4)}, shift{values<T>(n, 5)};
  buffer<T> before{n}, y{x.host};
  const std::vector<chain_step<T>> steps{{.kind = step_kind::add, .other = shift.data()},
                                         {.kind = step_kind::keep, .kept = before.data()},
                                         {.kind = step_kind::gelu},
                                         {.kind = step_kind::scale, .number = 3},
                                         {.kind = step_kind::dropout, .mask = {0.5, {9, 4}}},
                                         {.kind = step_kind::add, .other = residual.data()}};
  run_chain<T>(on, y.data(), y.data(), n, steps);
  std::vector<double> want, want_before;
  const auto stays = kept(n, 0.5, {9, 4});
  for (std::size_t i = 0; i < n; ++i) {
    want_before.push_back(x.value[i] + shift.value[i]);
    const double v = want_before[i], gelu = 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    want.push_back((stays[i] ? 6 * gelu : 0) + residual.value[i]);
  }
  check_close(before.values(), want_before, 1.1, 1e-6);
  check_close(y.values(), want, 1.1, 6e-6);
  buffer<T> aside{n, 1};
  const chain_step<T> keep{.kind = step_kind::keep, .kept = aside.data()};
  run_chain<T>(on, x.data(), y.data(), n, {&keep, 1});
  CHECK(same_bits(aside.values(), x.host));
  const std::vector<chain_step<T>> nine(9, {.kind = step_kind::relu});
  CHECK_THROWS_WITH_AS(run_chain<T>(on, x.data(), y.data(), n, nine),
                       "a chain of 9 element-wise steps (one launch takes 8): split it", error);
}

/// to[i] = from[i] / (1 - p) if `key` keeps it, else 0.
template <class T>
void dropout(const T* from, T* to, std::size_t n, double p, const native::dropout_key& key,
             const std::uint64_t* draws = nullptr) {
  const chain_step<T> step{.kind = step_kind::dropout, .mask = {p, key}, .draws = draws};
  run_chain<T>(on, from, to, static_cast<index>(n), {&step, 1});
}

TEST_CASE("a dropout in a graph is that of its draw where the draws before it take more than 32 bits") {
  const std::size_t n = 256;
  const input<float> x{std::vector<float>(n, 1)};
  buffer<float> y{n}, want{n};
  for (const std::uint64_t before : {0xfffffffcULL, 0x1fffffffdULL, 0x500000000ULL}) {
    const buffer<std::uint64_t> draws{std::vector<std::uint64_t>{before}};
    dropout<float>(x.data(), y.data(), n, 0.5, {.seed = 9, .draw = 3}, draws.data());
    dropout<float>(x.data(), want.data(), n, 0.5, {.seed = 9, .draw = before + 3});
    CHECK(y.values() == want.values());
    std::vector<float> expected(n);
    const auto stays = kept(n, 0.5, {.seed = 9, .draw = before + 3});
    for (std::size_t i = 0; i < n; ++i) expected[i] = stays[i] ? 2 : 0;
    CHECK(y.values() == expected);
  }
}

#ifdef COMP_SIMT  // a GPU meets it in test_large.cpp, by size
TEST_CASE("masks of elements beyond the 2^34th, whose groups 32 bits cannot count") {
  const native::dropout_key key{.seed = 0x123456789abcULL, .draw = 0x700000007ULL};
  const native::math::dropout_mask mask{0.5, key};
  for (const index first : {(index{1} << 34) - 8, (index{1} << 34) + 4, (index{5} << 34) + 1}) {
    CAPTURE(first);
    float four[4] = {1, 1, 1, 1}, eight[8] = {1, 1, 1, 1, 1, 1, 1, 1}, one[1] = {1};
    drop(four, mask, first);
    drop(eight, mask, first);
    drop(one, mask, first + 3);
    const auto stays = kept(8, 0.5, key, static_cast<std::size_t>(first));
    for (std::size_t i = 0; i < 8; ++i) CHECK(eight[i] == (stays[i] ? 2 : 0));
    CHECK(std::equal(four, four + 4, eight));
    CHECK(one[0] == eight[3]);
  }
}

TEST_CASE("a grid with fewer threads than packs goes on until the end") {
  for (const std::size_t n : {std::size_t{5003}, std::size_t{2 * block_size * 4 * 3}}) {
    for (const index head : {0, 3}) {
      const input<float> x{values<float>(n, 1), static_cast<std::size_t>(4 - head) % 4};
      buffer<float> y{n, static_cast<std::size_t>(4 - head) % 4};
      const detail::chain<float> copy{x.data(), y.data(), 0, {}};
      launch(on, {dim3{2}, block_size}, over_elements<4, detail::chain<float>>, copy, static_cast<index>(n), head);
      check_close(y.values(), x.value);
    }
  }
}
#endif

TEST_CASE_TEMPLATE("two axes are exchanged without a bit changed, in packs where the last one allows it", T, float,
                   bf16, fp16) {
  struct exchange {
    std::size_t batch, i, j, width, shift;
  };
  for (const auto& [batch, i, j, width, shift] : {exchange{1, 1, 1, 1, 0},
                                                  {2, 3, 5, 8, 0},
                                                  {2, 3, 5, 8, 1},
                                                  {1, 7, 4, 5, 0},
                                                  {3, 16, 2, 64, 0},
                                                  {1, 2, 3, 1032, 0}}) {
    INFO(batch, "x", i, "x", j, "x", width, " shifted by ", shift);
    std::vector<T> from = values<T>(batch * i * j * width, 1), want;
    std::memset(&from[0], 0xff, sizeof(T));  // a NaN with a payload, and its sign
    for (std::size_t b = 0; b < batch; ++b) {
      for (std::size_t column = 0; column < j; ++column) {
        for (std::size_t row = 0; row < i; ++row) {
          const auto start = from.begin() + static_cast<std::ptrdiff_t>(((b * i + row) * j + column) * width);
          want.insert(want.end(), start, start + static_cast<std::ptrdiff_t>(width));
        }
      }
    }
    const buffer<T> x{from, shift};
    const auto check_swapped = [&](auto swap) {
      for (const std::size_t shift_of_y : {shift, std::size_t{1}}) {
        buffer<T> y{from.size(), shift_of_y};
        swap(y.data());
        CHECK(std::memcmp(y.values().data(), want.data(), want.size() * sizeof(T)) == 0);
      }
    };
    const auto size = [](std::size_t n) { return static_cast<index>(n); };
    check_swapped([&](T* y) { swap_middle<T>(on, x.data(), y, size(batch), size(i), size(j), size(width)); });
#ifdef COMP_SIMT  // on a GPU it takes 2^31 elements: test_large.cpp
    check_swapped([&](T* y) {
      const T* begin = x.data();
      detail::swap_middle_by<index, T>(on, begin, y, size(from.size()), size(i), size(j), size(width));
    });
#endif
  }
}

#ifdef COMP_SIMT  // a GPU meets them in test_large.cpp
TEST_CASE("matrices after the 65535th are transposed, and those beyond 2^32 elements") {
  const index rows = 256, columns = 257, all = 65537, size = rows * columns;
  const simt::vast_buffer<bf16> x{static_cast<std::size_t>(all * size)}, y{static_cast<std::size_t>(all * size)};
  const auto value = [](index matrix, int corner) {
    return bf16{static_cast<std::uint16_t>(matrix % 1000 * 4 + corner)};
  };
  for (const index m : {index{0}, index{65534}, index{65535}, all - 1}) {
    x.data()[m * size + 1] = value(m, 1);
    x.data()[m * size + size - 1] = value(m, 2);
  }
  const simt::only_corners_run corners;
  transpose<bf16>(on, x.data(), y.data(), all, rows, columns);
  for (const index m : {index{0}, index{65534}, index{65535}, all - 1}) {
    CHECK(y.data()[m * size + rows].bits == value(m, 1).bits);
    CHECK(y.data()[m * size + size - 1].bits == value(m, 2).bits);
  }
}

TEST_CASE("two axes of more than 2^32 elements are exchanged") {
  const index j = (index{1} << 31) + 3, n = 2 * j;
  const simt::vast_buffer<bf16> x{static_cast<std::size_t>(n)}, y{static_cast<std::size_t>(n)};
  x.data()[j] = {1};
  x.data()[j - 1] = {2};
  x.data()[n - 1] = {3};
  const simt::only_corners_run corners;
  swap_middle<bf16>(on, x.data(), y.data(), 1, 2, j, 1);
  CHECK(y.data()[1].bits == 1);
  CHECK(y.data()[n - 2].bits == 2);
  CHECK(y.data()[n - 1].bits == 3);
}
#endif

}  // namespace comp::cuda::test
