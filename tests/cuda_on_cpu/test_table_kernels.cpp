// SPDX-License-Identifier: Apache-2.0
// Reductions and embedding. That each operator and optimizer agrees with FP64, over many tensors at once too, is part
// of what any Device must do: native/devices.
#include <utility>

#include "kernel_test.hpp"

namespace comp::cuda::test {
namespace {

constexpr stream on{};

/// What embedding_backward makes of a gradient of rows of `width`.
template <class T>
std::vector<float> table_gradient(const input<T>& dy, const std::vector<std::int32_t>& at, std::size_t width,
                                  const std::vector<float>& before) {
  const buffer<std::int32_t> indices{at};
  const buffer<float> gradient{before};
  const auto n = static_cast<index>(at.size()), w = static_cast<index>(width);
  const auto entries = static_cast<index>(before.size()) / w;
  const buffer<float> scratch{static_cast<std::size_t>(embedding_scratch(n, w, entries))};
  embedding_backward<T>(on, dy.data(), indices.data(), gradient.data(), n, w, entries, scratch.data());
  return gradient.values();
}

}  // namespace

TEST_CASE("sums over more rows than 1024 chunks of 256 make longer chunks") {
  CHECK(column_chunks(0) == 0);
  CHECK(column_chunks(256 * 1024) == 1024);
  CHECK(column_chunks(index{1} << 40) == 1024);
  const index rows = 256 * 1024 + 3;
  CHECK(rows_of_chunk(rows) == 257);
  const buffer<bf16> x{values<bf16>(static_cast<std::size_t>(rows), 1)};
  buffer<float> to{1}, scratch{static_cast<std::size_t>(column_scratch(rows, 1, 1))};
  column_sums<bf16>(on, x.data(), to.data(), rows, 1, false, scratch.data());
  double want = 0;
  for (const double v : exact(x.values())) want += v;
  CHECK(to.values()[0] == doctest::Approx(want).epsilon(1e-5));
}

#ifdef COMP_SIMT  // a GPU meets it in test_large.cpp
TEST_CASE("sums over rows whose elements 32 bits cannot count find the first and the last") {
  const index rows = (index{1} << 24) + 5, width = 257;
  const simt::vast_buffer<bf16> x{static_cast<std::size_t>(rows * width)};
  const simt::vast_buffer<float> scratch{static_cast<std::size_t>(column_scratch(rows, width, 1))};
  const auto at = [&](index row, index column) -> bf16& { return x.data()[row * width + column]; };
  native::math::store(at(0, 0), 1);
  native::math::store(at(rows_of_chunk(rows) - 1, 0), 2);
  native::math::store(at(rows - rows % rows_of_chunk(rows), width - 1), 4);
  native::math::store(at(rows - 1, width - 1), 8);
  native::math::store(at(rows - 1, 0), 16);
  const buffer<float> to{static_cast<std::size_t>(width)};
  const simt::only_corners_run corners;
  column_sums<bf16>(on, x.data(), to.data(), rows, width, false, scratch.data());
  CHECK(to.values().front() == 1 + 2 + 16);
  CHECK(to.values().back() == 4 + 8);
}
#endif

TEST_CASE("an index that is none gives NaN for its row, and touches no other row of the gradient") {
  const input<float> table{values<float>(6, 1)}, dy{values<float>(6, 2)};
  const std::vector<std::int32_t> wrong{-1, 3, 2};
  const buffer<std::int32_t> indices{wrong};
  buffer<float> y{6};
  embedding<float>(on, table.data(), indices.data(), y.data(), 3, 2, 3);
  CHECK(std::isnan(y.values()[3]));
  const auto gradient = table_gradient(dy, wrong, 2, std::vector<float>(6));
  CHECK(gradient[4] == dy.host[4]);
  CHECK(gradient[0] == 0);
  embedding_backward<float>(on, nullptr, nullptr, nullptr, 0, 2, 3, nullptr);
}

TEST_CASE_TEMPLATE("an embedding's gradient adds each 64 of many equal indices first, wherever their row lies", T,
                   float, bf16, fp16) {
  const std::vector<std::size_t> places = {0, 1, 63, 64, 65, 127, 128, 129, 192, 193, 2600};
  const std::size_t entries = 300, apart = 29;  // rows of the table between those that are asked for
  std::vector<std::int32_t> at, mirrored;
  for (std::size_t k = 0; k < places.size(); ++k) at.insert(at.end(), places[k], static_cast<std::int32_t>(k * apart));
  std::shuffle(at.begin(), at.end(), std::mt19937{3});
  for (const std::int32_t row : at) mirrored.push_back(static_cast<std::int32_t>(entries) - 1 - row);
  for (const std::size_t width : {1, 8, 35}) {
    CAPTURE(width);
    const input<T> dy{values<T>(at.size() * width, 2)};
    const std::vector<float> before = normal(entries * width, 4);
    std::vector<float> want = before, turned(before.size()), sum(entries * width);
    std::vector<std::size_t> counts(entries);
    const auto add = [&](std::size_t row) {
      for (std::size_t c = row * width; c < (row + 1) * width; ++c) want[c] += std::exchange(sum[c], 0.0F);
    };
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto row = static_cast<std::size_t>(at[i]);
      auto& to = places[row / apart] > 64 ? sum : want;
      for (std::size_t c = 0; c < width; ++c) to[row * width + c] += native::math::load(dy.host[i * width + c]);
      if (++counts[row] % 64 == 0) add(row);
    }
    for (std::size_t row = 0; row < entries; ++row) add(row);
    CHECK(table_gradient(dy, at, width, before) == want);

    const auto turn = [&](const std::vector<float>& from) {
      for (std::size_t row = 0; row < entries; ++row)
        std::copy_n(&from[row * width], width, &turned[(entries - 1 - row) * width]);
      return turned;
    };
    CHECK(table_gradient(dy, mirrored, width, turn(before)) == turn(want));
  }
}

TEST_CASE("a norm of more sums of blocks than one block has threads is added up in FP64") {
  buffer<double> norm{1};
  const buffer<float> two{std::vector<float>{2}}, large{std::vector<float>{0x1p14F}};
  std::vector<gradient_job> many(625, {two.data(), 1});
  const buffer<float> sums{static_cast<std::size_t>(norm_scratch(many))};
  gradient_norm(on, many, norm.data(), sums.data());
  CHECK(norm.values()[0] == 2 * 25);
  many.front().gradient = large.data();  // beside its square FP32 would lose those of the others
  gradient_norm(on, many, norm.data(), sums.data());
  CHECK(norm.values()[0] == std::sqrt(0x1p28 + 624 * 4));
  gradient_norm(on, {}, norm.data(), sums.data());
  CHECK(norm.values()[0] == 0);
}

}  // namespace comp::cuda::test
