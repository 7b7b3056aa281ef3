// SPDX-License-Identifier: Apache-2.0
// FP8: the kernels that quantise, and linear layers against FP64 products of what these make. The formats themselves
// are those of native/test_math.cpp.
#include <comp_cuda/device.hpp>
#include <comp_cuda/linear.hpp>
#include <comp_cuda/transfer.hpp>

#include "product_test.hpp"

namespace comp::cuda::test {
namespace {

using native::math::e4m3;
using native::math::e5m2;

template <class F>
constexpr bool is_e4m3 = std::is_same_v<F, e4m3>;
template <class F>
constexpr double largest_of_format = is_e4m3<F> ? 448 : 57344;

template <class F>
F stored(float x) {
  F to;
  native::math::store(to, x);
  return to;
}

/// What quantising makes of a tensor, multiplied back.
template <class F>
std::vector<double> quantised(const std::vector<float>& v) {
  float most = 0;
  for (const float x : v) most = std::max(most, std::abs(x));
  const float factor = most > 0 ? static_cast<float>(largest_of_format<F>) / most : 1;
  std::vector<double> to;
  for (const float x : v) {
    const float kept = native::math::load(stored<F>(x * factor)), inverse = 1 / factor;
    to.push_back(static_cast<double>(kept) * static_cast<double>(inverse));
  }
  return to;
}
std::vector<float> in_bf16(std::vector<float> v) {
  for (float& x : v) x = native::math::load(stored<bf16>(x));
  return v;
}
double most_of(const std::vector<float>& v) {
  double most = 0;
  for (const float x : v) most = std::max(most, std::abs(static_cast<double>(x)));
  return most;
}

/// sum over k of a(i,k) b(j,k), each operand given by a function.
std::vector<double> product(index m, index n, index k, auto a, auto b) {
  std::vector<double> to;
  for (index i = 0; i < m; ++i) {
    for (index j = 0; j < n; ++j) {
      double sum = 0;
      for (index x = 0; x < k; ++x) sum += a(i, x) * b(j, x);
      to.push_back(sum);
    }
  }
  return to;
}
std::size_t at(index row, index width, index column) { return static_cast<std::size_t>(row * width + column); }

/// got is within `allowed` of want, element by element.
void check_all(const std::vector<float>& got, const std::vector<double>& want, const std::vector<double>& allowed) {
  REQUIRE(got.size() == want.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]) / (allowed[i] + 1e-30));
  }
  CHECK(worst <= 1);
}

/// Compares a product of two quantised operands, places given by functions of (row, k), up to the roundings of an FP32
/// sum and of the result.
void check_product(const std::vector<float>& got, index m, index n, index k, const std::vector<double>& a, auto place_a,
                   const std::vector<double>& b, auto place_b, double result, bool fast = false) {
  const auto of = [&](auto value) {
    return product(
        m, n, k, [&](index i, index j) { return value(a[place_a(i, j)]); },
        [&](index i, index j) { return value(b[place_b(i, j)]); });
  };
  const auto want = of([](double x) { return x; }), sum = of([](double x) { return std::abs(x); });
  std::vector<double> rounding;
  for (std::size_t i = 0; i < want.size(); ++i) {
    rounding.push_back(1.01 * std::abs(want[i]) * result +
                       sum[i] * one_term(precision::fp8_e4m3, fast) * (static_cast<double>(k) + 6));
  }
  check_all(got, want, rounding);
}

std::vector<std::array<index, 3>> product_sizes() {
  if (small) return {{1, 1, 1}, {5, 17, 33}, {16, 32, 48}};
  return {{1, 1, 1},    {2, 3, 5},    {16, 16, 16}, {5, 17, 33},  {33, 10, 84},
          {64, 32, 48}, {70, 80, 65}, {1, 128, 7},  {129, 16, 96}};
}

TEST_CASE_TEMPLATE("a tensor is quantised to fill its format, as rows and transposed, with zeros around", F, e4m3,
                   e5m2) {
  const auto run = [&]<class T>(std::type_identity<T>) {
    for (const auto [rows, columns, shift] : std::vector<std::array<index, 3>>{
             {1, 1, 0}, {3, 5, 1}, {16, 16, 0}, {63, 65, 0}, {65, 64, 0}, {64, 72, 1}, {130, 8, 0}, {7, 200, 3}}) {
      INFO(rows, "x", columns, " shifted by ", shift);
      const input<T> x{values<T>(static_cast<std::size_t>(rows * columns), 5, 3), static_cast<std::size_t>(shift)};
      const index R = fp8_padded(rows), C = fp8_padded(columns);
      const buffer<float> partial{most_partials}, inverse{1};
      const buffer<std::uint8_t> by_rows{static_cast<std::size_t>(R * C)}, by_columns{static_cast<std::size_t>(R * C)};
      const index partials = largest_magnitudes<T>(nullptr, x.data(), rows * columns, partial.data());
      quantize(nullptr, static_cast<const T*>(x.data()), rows, columns, partial.data(), partials, inverse.data(),
               reinterpret_cast<F*>(by_rows.data()), reinterpret_cast<F*>(by_columns.data()));
      std::vector<float> v;
      for (const T e : x.host) v.push_back(native::math::load(e));
      const auto want = quantised<F>(v);
      const auto a = by_rows.values(), b = by_columns.values();
      const auto undo = static_cast<double>(inverse.values().front());
      CHECK(undo == doctest::Approx(most_of(v) / largest_of_format<F>).epsilon(1e-6));
      bool same = true;
      for (index r = 0; r < R; ++r) {
        for (index c = 0; c < C; ++c) {
          const bool inside = r < rows && c < columns;
          const double expected = inside ? want[at(r, columns, c)] : 0.0;
          const std::uint8_t code = a[at(r, C, c)];
          same = same && code == b[at(c, R, r)] && static_cast<double>(native::math::load(F{code})) * undo == expected;
        }
      }
      CHECK(same);
    }
  };
  run(std::type_identity<float>{});
  run(std::type_identity<bf16>{});
}

TEST_CASE("quantising looks at all parts' magnitudes, of however large a tensor") {
  const buffer<float> x{std::vector<float>{3, -1.5F}}, inverse{1};
  std::vector<float> magnitudes(most_partials, 1);
  magnitudes[300] = 448 * 8;
  const buffer<float> partial{magnitudes};
  const buffer<std::uint8_t> codes{16 * 16};
  quantize<e4m3, float>(nullptr, x.data(), 1, 2, partial.data(), most_partials, inverse.data(),
                        reinterpret_cast<e4m3*>(codes.data()), nullptr);
  CHECK(inverse.values().front() == 8);
  CHECK(native::math::load(e4m3{codes.values()[0]}) == 0.375F);
}

TEST_CASE("quantising zeros, tiny values and what is not finite gives numbers that tell") {
  const auto quantise = [](std::vector<float> v) {
    const input<float> x{std::move(v)};
    const buffer<float> partial{most_partials}, inverse{1};
    const buffer<std::uint8_t> codes{16 * 16};
    const index n = static_cast<index>(x.host.size());
    const index partials = largest_magnitudes<float>(nullptr, x.data(), n, partial.data());
    quantize<e4m3, float>(nullptr, x.data(), 1, n, partial.data(), partials, inverse.data(),
                          reinterpret_cast<e4m3*>(codes.data()), nullptr);
    std::vector<double> got;
    for (index i = 0; i < n; ++i)
      got.push_back(static_cast<double>(native::math::load(e4m3{codes.values()[static_cast<std::size_t>(i)]})) *
                    static_cast<double>(inverse.values().front()));
    return got;
  };
  CHECK(quantise({0, -0.0F, 0}) == std::vector<double>{0, 0, 0});
  const auto tiny = quantise({0x1p-140F, -0x1p-149F});  // their factor is bounded: they vanish, nothing becomes NaN
  CHECK(std::abs(tiny[0]) <= 0x1p-109);
  CHECK(std::isfinite(tiny[1]));
  const auto large = quantise({3e38F, 1e38F});
  CHECK(large[0] == doctest::Approx(3e38));
  CHECK(large[1] == doctest::Approx(1e38).epsilon(0.0626));
  CHECK(quantise({1.1F, std::nanf("")})[0] == 1.125);  // by nothing, as it is for what follows
  const auto infinite = quantise({1, HUGE_VALF, -2});
  CHECK(infinite[0] == 1);
  CHECK(std::isnan(infinite[1]));
  CHECK(std::isnan(quantise({std::nanf(""), 1})[0]));
}

TEST_CASE("the columns that are wanted are taken out of a wider product") {
  for (const auto [rows, width, leading] :
       std::vector<std::array<index, 3>>{{1, 1, 16}, {5, 10, 16}, {3, 24, 32}, {9, 1100, 1104}}) {
    INFO(rows, "x", width);
    std::vector<float> product = normal(static_cast<std::size_t>(rows * leading), 1);
    product[0] = NAN;
    const input<float> from{product}, bias{normal(static_cast<std::size_t>(width), 2)};
    const auto run = [&, rows = rows, width = width, leading = leading]<class T>(std::type_identity<T>, bool biased,
                                                                                 bool relu, bool adds) {
      const input<T> old{values<T>(static_cast<std::size_t>(rows * width), 3)};
      take_columns(nullptr, static_cast<const float*>(from.data()), leading, old.data(), rows, width,
                   biased ? bias.data() : nullptr, relu, adds);
      std::vector<double> want;
      for (index r = 0; r < rows; ++r) {
        for (index c = 0; c < width; ++c) {
          const double v = from.value[at(r, leading, c)] + (biased ? bias.value[at(0, 0, c)] : 0);
          want.push_back((relu && v < 0 ? 0 : v) + (adds ? old.value[at(r, width, c)] : 0));
        }
      }
      check_close(old.device.values(), want, 2, 1e-6);
    };
    run(std::type_identity<bf16>{}, true, true, false);
    run(std::type_identity<bf16>{}, false, false, false);
    run(std::type_identity<float>{}, false, false, true);
    run(std::type_identity<float>{}, true, false, false);
  }
}

TEST_CASE_FIXTURE(with_rig, "FP8 linear is the product of the quantised operands") {
  if (!r.has(precision::fp8_e4m3)) return;
  for (const precision p : {precision::fp8_e4m3, precision::fp8_e5m2}) {
    for (const auto [rows, outputs, inputs] : product_sizes()) {
      INFO(std::string{name(p)}, " ", rows, "x", outputs, "x", inputs);
      const auto x = in_bf16(normal(static_cast<std::size_t>(rows * inputs), 1, 2));
      const auto w = normal(static_cast<std::size_t>(outputs * inputs), 2, 0.1F);
      const auto dy = in_bf16(normal(static_cast<std::size_t>(rows * outputs), 3, 1e-3F));
      parameter weight = make_parameter(r.c, w, {outputs, inputs}, true);
      const tensor in = upload(r.c, x, {rows, inputs}, p), g = upload(r.c, dy, {rows, outputs}, p);
      const tensor y = linear(r.c, in, weight, nullptr);
      CHECK(y.precision() == p);
      const auto row = [](index width) { return [=](index i, index k) { return at(i, width, k); }; };
      const auto column = [](index width) { return [=](index i, index k) { return at(k, width, i); }; };
      const auto x_forward = p == precision::fp8_e4m3 ? quantised<e4m3>(x) : quantised<e5m2>(x);
      const auto x_backward = quantised<e4m3>(x), of_w = quantised<e4m3>(w), of_dy = quantised<e5m2>(dy);
      check_product(download(r.c, y), rows, outputs, inputs, x_forward, row(inputs), of_w, row(inputs), 0x1p-8, true);
      const tensor dx = linear_backward(r.c, g, in, weight, nullptr, true);
      CHECK(dx.precision() == p);
      check_product(download(r.c, dx), rows, inputs, outputs, of_dy, row(outputs), of_w, column(inputs), 0x1p-8);
      check_product(gradient(r.c, weight), outputs, inputs, rows, of_dy, column(outputs), x_backward, column(inputs),
                    0x1p-24);
    }
  }
}

TEST_CASE_FIXTURE(with_rig, "FP8 linear has a bias, gradients that add up, and bias gradients in FP32") {
  if (!r.has(precision::fp8_e4m3)) return;
  for (const index outputs : {10, 32}) {  // filled up, and as it is
    CAPTURE(outputs);
    const index rows = 9, inputs = 48;
    const auto x = normal(static_cast<std::size_t>(rows * inputs), 1),
               dy = in_bf16(normal(static_cast<std::size_t>(rows * outputs), 4));
    const auto b = in_bf16(normal(static_cast<std::size_t>(outputs), 3, 5));
    const auto w = normal(static_cast<std::size_t>(outputs * inputs), 2);
    const auto magnitude = [&](std::size_t i) {
      double sum = 0;
      for (index k = 0; k < inputs; ++k) {
        sum += std::abs(static_cast<double>(x[at(static_cast<index>(i) / outputs, inputs, k)]) *
                        static_cast<double>(w[at(static_cast<index>(i) % outputs, inputs, k)]));
      }
      return sum;
    };
    parameter weight = make_parameter(r.c, w, {outputs, inputs}, true);
    parameter bias = make_parameter(r.c, b, {outputs}, true);
    const tensor in = upload(r.c, x, {3, 3, inputs}, precision::fp8_e4m3),
                 g = upload(r.c, dy, {3, 3, outputs}, precision::fp8_e4m3);
    const auto bare = download(r.c, linear(r.c, in, weight, nullptr)),
               with = download(r.c, linear(r.c, in, weight, &bias));
    for (std::size_t i = 0; i < bare.size(); ++i) {  // each may be another algorithm's, with sums in another order
      const double sum = static_cast<double>(bare[i]) + static_cast<double>(b[i % b.size()]);
      const double order = one_term(precision::fp8_e4m3, true) * magnitude(i) * static_cast<double>(inputs);
      CHECK(std::abs(static_cast<double>(with[i]) - sum) <=
            0x1p-8 * (std::abs(sum) + std::abs(static_cast<double>(bare[i]))) * 1.02 + order);
    }
    CHECK_FALSE(linear_backward(r.c, g, in, weight, &bias, false));
    const auto once = gradient(r.c, weight);
    CHECK(linear_backward(r.c, g, in, weight, &bias, true).shape() == in.shape());
    const auto twice = gradient(r.c, weight);
    for (std::size_t i = 0; i < once.size(); ++i)
      CHECK(twice[i] == doctest::Approx(2 * static_cast<double>(once[i])).epsilon(1e-5));
    const auto db = gradient(r.c, bias);
    for (index n = 0; n < outputs; ++n) {
      double sum = 0;
      for (index i = 0; i < rows; ++i) sum += static_cast<double>(dy[at(i, outputs, n)]);
      CHECK(std::abs(static_cast<double>(db[at(0, 0, n)]) - 2 * sum) <= 1e-5);
    }
  }
}

#ifdef COMP_SIMT  // which counts the work that is given
TEST_CASE_FIXTURE(with_rig, "the forward in FP8 accumulates fast, the backward does not") {
  const index n = 8192;
  const auto small_but_first = [](index count) {  // lost one by one beside the first if sums keep 13 bits
    std::vector<float> to(static_cast<std::size_t>(count), 0x1p-15F);
    to[0] = 1;
    return to;
  };
  const auto ones = [](index count) { return std::vector<float>(static_cast<std::size_t>(count), 1.0F); };
  const auto e4m3_of = [&](const std::vector<float>& from, const shape& s) {
    return upload(r.c, from, s, precision::fp8_e4m3);
  };
  parameter wide = make_parameter(r.c, ones(16 * n), {16, n}, true);
  for (const float y : download(r.c, linear(r.c, e4m3_of(small_but_first(n), {1, n}), wide, nullptr))) CHECK(y == 1);
  parameter w = make_parameter(r.c, ones(16), {16, 1}, true);
  const tensor x = e4m3_of(small_but_first(n), {n, 1});
  (void)linear_backward(r.c, e4m3_of(ones(16 * n), {n, 16}), x, w, nullptr, false);
  for (const float dw : gradient(r.c, w)) CHECK(dw == doctest::Approx(1 + (n - 1) * 0x1p-15).epsilon(1e-4));
}

TEST_CASE_FIXTURE(with_rig, "layers that read one tensor, and their backward, quantise it once") {
  r.c.part<matrix_products>().settings.measure = false;
  for (const precision p : {precision::fp8_e4m3, precision::fp8_e5m2}) {
    parameter query = make_parameter(r.c, normal(32 * 32, 1), {32, 32}, true),
              key = make_parameter(r.c, normal(32 * 32, 2), {32, 32}, true);
    const tensor x = upload(r.c, normal(64 * 32, 3), {64, 32}, p), dy = upload(r.c, normal(64 * 32, 4), {64, 32}, p);
    const auto launched = [&](auto work) {
      const auto before = r.c.stream().get()->given;
      work();
      return r.c.stream().get()->given - before;
    };
    const auto forward = [&](parameter& w) { return launched([&] { (void)linear(r.c, x, w, nullptr); }); };
    const auto backward = [&](parameter& w) {
      return launched([&] { (void)linear_backward(r.c, dy, x, w, nullptr, true); });
    };
    const auto first = forward(query);
    CHECK(forward(key) == first - 2);  // magnitudes and codes of x are there
    const auto of_query = backward(query);
    CHECK(backward(key) == of_query - (p == precision::fp8_e5m2 ? 2 : 0));  // the forward of E5M2 has no E4M3
    const auto y = download(r.c, linear(r.c, x.viewed({32, 2, 32}), query, nullptr));
    CHECK(y == download(r.c, linear(r.c, upload(r.c, normal(64 * 32, 3), {64, 32}, p), query, nullptr)));
    parameter still = make_parameter(r.c, normal(32 * 32, 5), {32, 32}, false);  // needs no columns of its input
    const tensor again = upload(r.c, normal(64 * 32, 3), {64, 32}, p);
    (void)linear(r.c, again, still, nullptr);
    std::vector<std::vector<float>> gradients;
    for (const tensor* of : {&x, &again}) {
      query.fresh = true;
      (void)linear_backward(r.c, dy, *of, query, nullptr, false);
      gradients.push_back(gradient(r.c, query));
    }
    CHECK(gradients[0] == gradients[1]);
    parameter narrow = make_parameter(r.c, normal(16 * 16, 5), {16, 16}, true);  // other rows of the same memory
    CHECK(download(r.c, linear(r.c, x.viewed({128, 16}), narrow, nullptr)) ==
          download(r.c, linear(r.c, upload(r.c, normal(64 * 32, 3), {128, 16}, p), narrow, nullptr)));
  }
}

TEST_CASE_FIXTURE(with_rig, "quantised weights are kept until the values change") {
  parameter w = make_parameter(r.c, normal(32 * 32, 1), {32, 32}, true);
  const tensor x = upload(r.c, normal(32 * 32, 2), {32, 32}, precision::fp8_e4m3);
  const auto launched = [&] {
    const auto before = r.c.stream().get()->given;
    const tensor y = linear(r.c, x, w, nullptr);
    return r.c.stream().get()->given - before;
  };
  (void)launched();
  const auto kept = launched();
  CHECK(launched() == kept);
  const auto old = download(r.c, linear(r.c, x, w, nullptr));
  set_values(r.c, w, normal(32 * 32, 3));
  CHECK(launched() == kept + 2);  // magnitudes and codes again
  CHECK(download(r.c, linear(r.c, x, w, nullptr)) != old);
}
#endif

TEST_CASE_FIXTURE(with_rig, "quantised weights that were only recorded for a graph are not taken for made") {
  if (!r.has(precision::fp8_e4m3)) return;
  r.c.part<matrix_products>().settings.measure = false;
  const auto values = normal(32 * 32, 3);
  parameter w = make_parameter(r.c, normal(32 * 32, 1), {32, 32}, true),
            same = make_parameter(r.c, values, {32, 32}, true);
  const tensor x = upload(r.c, normal(32 * 32, 2), {32, 32}, precision::fp8_e4m3);
  (void)linear(r.c, x, w, nullptr);
  set_values(r.c, w, values);
  parameter* const all[] = {&w};
  SUBCASE("and not launched") {
    const captured_step never_given = capture(r.c, all, 0, [&] { (void)linear(r.c, x, w, nullptr); });
  }
  SUBCASE("that was refused") {
    const auto refused = [&] { (void)capture(r.c, all, 0, [&] { linear(r.c, x, w, nullptr), r.c.synchronize(); }); };
    CHECK_THROWS_AS(refused(), native::capture_refused);
  }
  CHECK(download(r.c, linear(r.c, x, w, nullptr)) == download(r.c, linear(r.c, x, same, nullptr)));
}

TEST_CASE_FIXTURE(with_rig, "an overflow before FP8 is seen after it") {
  if (!r.has(precision::fp8_e4m3)) return;
  parameter w = make_parameter(r.c, normal(16 * 16, 1), {16, 16}, true);
  auto dy = normal(16 * 16, 2);
  dy[7] = HUGE_VALF;
  const tensor x = upload(r.c, normal(16 * 16, 3), {16, 16}, precision::fp8_e4m3);
  (void)linear_backward(r.c, upload(r.c, dy, {16, 16}, precision::fp8_e4m3), x, w, nullptr, false);
  parameter* const all[] = {&w};
  CHECK(count_not_finite(r.c, all) > 0);
}

TEST_CASE_FIXTURE(fresh_for_products, "linear layers alone run in FP8") {
  cuda::device d;
  if (!d.shared().card().has(precision::fp8_e4m3)) return;
  CHECK(d.supports({.kind = "linear"}, precision::fp8_e5m2));
  CHECK_FALSE(d.supports({.kind = "conv2d"}, precision::fp8_e4m3));
  CHECK(d.supports({.kind = "conv2d"}, precision::bf16));
}

}  // namespace

}  // namespace comp::cuda::test
