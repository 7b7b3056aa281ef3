// SPDX-License-Identifier: Apache-2.0
// Rows in more elements or threads than 32 bits count, the layer norm of a sum, targets that are no class. That rows of
// any width agree with FP64 is part of what any Device must do: native/devices/test_layers.cpp.
#include <span>

#include "kernel_test.hpp"

#ifdef COMP_SIMT
#include "kernels/losses.cuh"
#endif

namespace comp::cuda::test {
namespace {

constexpr stream on{};

struct rows_case {
  std::size_t rows, width, shift;
};
std::vector<rows_case> cases() {
  std::vector<rows_case> all{{0, 5, 0}, {1, 1, 1}, {3, 256, 1}};
  for (const std::size_t width : widths) all.push_back({width > 2000 ? std::size_t{2} : std::size_t{9}, width, 0});
  return all;
}

}  // namespace

TEST_CASE("more rows than 32 bits count are refused before anything is launched") {
  CHECK_THROWS_WITH_AS(softmax<float>(on, nullptr, nullptr, index{1} << 32, 1, softmax_kind::causal),
                       "4294967296 rows in one launch (it has less than 4294967296): split them", error);
}

#ifdef COMP_SIMT  // a GPU meets it in test_large.cpp
TEST_CASE("rows are found where 32 bits count neither their threads nor their elements") {
  struct place {
    index rows, width;
  };
  for (const auto& [rows, width] : {place{(index{1} << 24) + 9, 257}, {(index{1} << 22) + 3, 1032}}) {
    CAPTURE(width);
    const auto n = static_cast<std::size_t>(rows * width);
    const index last = rows - 1, at = last * width;
    const simt::vast_buffer<bf16> x{n}, y{n};
    const simt::vast_buffer<float> mean{static_cast<std::size_t>(rows)}, scale{static_cast<std::size_t>(rows)};
    const simt::vast_buffer<std::int32_t> target{static_cast<std::size_t>(rows)}, lengths{2};
    const buffer<float> ones{std::vector<float>(static_cast<std::size_t>(width), 1)}, count{std::vector<float>{1}};
    const buffer<int> right{std::vector<int>{0}};
    const auto got = [&](index i) { return native::math::load(y.data()[at + i]); };
    native::math::store(x.data()[at + 2], 100);
    target.data()[last] = 2;
    lengths.data()[1] = 3;
    const simt::only_corners_run corners;
    add_bias<bf16>(on, x.data(), ones.data(), y.data(), rows, width);
    CHECK(got(2) == 101);
    CHECK(got(width - 1) == 1);
    softmax<bf16>(on, x.data(), y.data(), rows, width, softmax_kind::full);
    CHECK(got(2) == 1);
    softmax<bf16>(on, x.data(), y.data(), rows, width, softmax_form{softmax_kind::padded, lengths.data(), rows - 1});
    CHECK(got(2) == 1);
    softmax_backward<bf16>(on, x.data(), x.data(), y.data(), rows, width, softmax_kind::full);
    CHECK(got(2) == doctest::Approx(100 * (100 - 10000)).epsilon(0.01));
    layer_norm<bf16>(on, x.data(), ones.data(), ones.data(), y.data(), mean.data(), scale.data(), rows, width, 1e-5);
    CHECK(mean.data()[last] == doctest::Approx(100.0 / static_cast<double>(width)));
    CHECK(got(2) == doctest::Approx(1 + std::sqrt(static_cast<double>(width))).epsilon(0.01));
    layer_norm_backward<bf16>(on, x.data(), x.data(), ones.data(), mean.data(), scale.data(), y.data(), rows, width,
                              x.data());
    CHECK(got(2) == doctest::Approx(100).epsilon(0.01));  // a norm's gradient along its result is 0
    for_rows<8>(on, rows, width, false,
                detail::cross_entropy_rows<bf16>{x.data(), target.data(), mean.data(), scale.data(), width});
    CHECK(mean.data()[last] == 100);
    cross_entropy_backward<bf16>(on, x.data(), target.data(), mean.data(), count.data(), y.data(), rows, width, 2);
    CHECK(got(2) == 0);
    nll_loss_backward<bf16>(on, target.data(), count.data(), y.data(), rows, width, 2);
    CHECK(got(2) == -2);
    count_correct<bf16>(on, x.data(), target.data(), right.data(), rows, width);
    CHECK(right.values()[0] == 8 + rows % 8);
  }
}
#endif

TEST_CASE_TEMPLATE("a layer norm of a sum, and its gradient with another, have the bits of one after the other", T,
                   float, bf16, fp16) {
  for (const rows_case& c : cases()) {
    for (const bool drops : {false, true}) {
      CAPTURE(c.rows);
      CAPTURE(c.width);
      CAPTURE(drops);
      const std::size_t n = c.rows * c.width, w = c.width;
      const auto rows = static_cast<index>(c.rows), width = static_cast<index>(w);
      const input<T> from{values<T>(n, 1), c.shift}, other{values<T>(n, 2), c.shift}, dy{values<T>(n, 3), c.shift};
      const input<float> gamma{values<float>(w, 4)}, beta{values<float>(w, 5)};
      const buffer<std::uint64_t> draws{std::vector<std::uint64_t>{3}};
      const native::math::dropout_mask mask{0.3, {7, 1}};
      buffer<T> x{n, c.shift}, y{n, c.shift}, dx{n, c.shift}, want_x{n, c.shift}, want_y{n, c.shift},
          want_dx{n, c.shift};
      buffer<float> mean{c.rows}, scale{c.rows}, want_mean{c.rows}, want_scale{c.rows};
      layer_norm<T>(on, {from.data(), other.data(), drops, mask, draws.data()}, x.data(), gamma.data(), beta.data(),
                    y.data(), mean.data(), scale.data(), rows, width, 1e-5);
      layer_norm_backward<T>(on, dy.data(), x.data(), gamma.data(), mean.data(), scale.data(), dx.data(), rows, width,
                             other.data());

      const chain_step<T> both[] = {{.kind = step_kind::dropout, .mask = mask, .draws = draws.data(), .rounds = true},
                                    {.kind = step_kind::add, .other = other.data()}};
      const std::span<const chain_step<T>> steps{both};
      run_chain<T>(on, from.data(), want_x.data(), rows * width, drops ? steps : steps.last(1));
      layer_norm<T>(on, want_x.data(), gamma.data(), beta.data(), want_y.data(), want_mean.data(), want_scale.data(),
                    rows, width, 1e-5);
      layer_norm_backward<T>(on, dy.data(), want_x.data(), gamma.data(), want_mean.data(), want_scale.data(),
                             want_dx.data(), rows, width);
      run_chain<T>(on, want_dx.data(), want_dx.data(), rows * width, steps.last(1));
      CHECK(same_bits(x.values(), want_x.values()));
      CHECK(same_bits(y.values(), want_y.values()));
      CHECK(same_bits(mean.values(), want_mean.values()));
      CHECK(same_bits(scale.values(), want_scale.values()));
      CHECK(same_bits(dx.values(), want_dx.values()));
    }
  }
}

TEST_CASE("a target that is no class makes the loss NaN and touches no other memory") {
  const input<float> x{values<float>(6, 1)};
  const buffer<std::int32_t> target{std::vector<std::int32_t>{0, 3}};
  buffer<float> sums{2}, terms{2}, count{1}, dx{6};
  buffer<double> loss{1};
  buffer<int> right{std::vector<int>{0}};
  cross_entropy<float>(on, x.data(), target.data(), sums.data(), terms.data(), loss.data(), count.data(), 2, 3);
  CHECK(std::isnan(loss.values()[0]));
  cross_entropy_backward<float>(on, x.data(), target.data(), sums.data(), count.data(), dx.data(), 2, 3, 1);
  nll_loss<float>(on, x.data(), target.data(), terms.data(), loss.data(), count.data(), 2, 3);
  CHECK(std::isnan(loss.values()[0]));
  count_correct<float>(on, x.data(), target.data(), right.data(), 2, 3);
}

}  // namespace comp::cuda::test
