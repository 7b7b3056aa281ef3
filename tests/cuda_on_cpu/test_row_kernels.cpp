// SPDX-License-Identifier: Apache-2.0
// Softmax, layer norm and losses over rows of any width, and softmax over edges, each against FP64.
#include <limits>
#include <span>

#include "kernel_test.hpp"

#ifdef COMP_SIMT
#include "kernels/losses.cuh"
#endif

namespace comp::cuda::test {
namespace {

constexpr stream on{};
constexpr float infinite = std::numeric_limits<float>::infinity();

struct rows_case {
  std::size_t rows, width, shift;
};
std::vector<rows_case> cases() {
  std::vector<rows_case> all{{0, 5, 0}, {1, 1, 1}, {3, 256, 1}};
  for (const std::size_t width : widths) all.push_back({width > 2000 ? std::size_t{2} : std::size_t{9}, width, 0});
  return all;
}

std::vector<double> softmax_of(const double* x, std::size_t seen, std::size_t width, bool log) {
  double largest = -1e300, total = 0;
  for (std::size_t i = 0; i < seen; ++i) largest = std::max(largest, x[i]);
  for (std::size_t i = 0; i < seen; ++i) total += std::exp(x[i] - largest);
  std::vector<double> y;
  for (std::size_t i = 0; i < width; ++i) {
    y.push_back(log ? x[i] - largest - std::log(total) : i < seen ? std::exp(x[i] - largest) / total : 0);
  }
  return y;
}
/// How much more than one rounding FP32 sums over a row may be off.
double slack(std::size_t width) { return 2 + std::sqrt(static_cast<double>(width)) / 16; }

template <class T>
void check_softmax(softmax_kind kind, const rows_case& c) {
  const input<T> x{values<T>(c.rows * c.width, 1, 3), c.shift}, dy{values<T>(c.rows * c.width, 2), c.shift};
  buffer<T> y{c.rows * c.width, c.shift};
  softmax<T>(on, x.data(), y.data(), static_cast<index>(c.rows), static_cast<index>(c.width), kind);
  std::vector<double> want, gradient;
  const auto got = exact(y.values());
  for (std::size_t r = 0; r < c.rows; ++r) {
    const std::size_t seen = kind == softmax_kind::causal ? r % c.width + 1 : c.width;
    const auto row = softmax_of(x.value.data() + r * c.width, seen, c.width, kind == softmax_kind::log);
    want.insert(want.end(), row.begin(), row.end());
    double sum = 0;
    for (std::size_t i = r * c.width; i < r * c.width + seen; ++i)
      sum += dy.value[i] * (kind == softmax_kind::log ? 1 : got[i]);
    for (std::size_t i = r * c.width; i < (r + 1) * c.width; ++i) {
      gradient.push_back(kind == softmax_kind::log ? dy.value[i] - std::exp(got[i]) * sum
                                                   : got[i] * (dy.value[i] - sum));
    }
  }
  const bool single = std::is_same_v<T, float>;
  check_close(y.values(), want, single ? 8 * slack(c.width) : 1.1, kind == softmax_kind::log ? 2e-6 : 1e-9);
  buffer<T> dx{c.rows * c.width, c.shift};
  softmax_backward<T>(on, dy.data(), y.data(), dx.data(), static_cast<index>(c.rows), static_cast<index>(c.width),
                      kind);
  check_close(dx.values(), gradient, single ? 8 : 1.1, 2e-6 * slack(c.width));
}

}  // namespace

TEST_CASE_TEMPLATE("softmax, causal and log, and their gradients agree with FP64 for any width", T, float, bf16, fp16) {
  for (const rows_case& c : cases()) {
    CAPTURE(c.rows);
    CAPTURE(c.width);
    for (const softmax_kind kind : {softmax_kind::full, softmax_kind::causal, softmax_kind::log})
      check_softmax<T>(kind, c);
  }
}

TEST_CASE("softmax holds for infinities, NaN and large values") {
  const std::size_t width = 9000;  // read again in each pass: the online sum
  for (const std::size_t w : {std::size_t{5}, width}) {
    std::vector<float> x(2 * w, -infinite);
    x[3] = 1e30F;
    for (std::size_t i = w; i < 2 * w; ++i) x[i] = 0;
    x[2 * w - 1] = std::nanf("");
    const input<float> in{x};
    buffer<float> y{2 * w};
    softmax<float>(on, in.data(), y.data(), 2, static_cast<index>(w), softmax_kind::full);
    const auto got = y.values();
    CHECK(got[3] == 1.0F);
    CHECK(got[0] == 0.0F);
    CHECK(std::isnan(got[w]));
  }
}

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

TEST_CASE("the causal form never looks right of the diagonal, nor does its gradient") {
  std::vector<float> x(16, 1);
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t k = r + 1; k < 4; ++k) x[r * 4 + k] = std::nanf("");
  }
  const input<float> in{x};
  buffer<float> y{16}, dx{16};
  softmax_backward<float>(on, in.data(), in.data(), dx.data(), 4, 4, softmax_kind::causal);
  const auto gradient = dx.values();
  for (std::size_t i = 0; i < 16; ++i) CHECK(gradient[i] == (i % 4 > i / 4 ? 0.0F : -static_cast<float>(i / 4)));
  softmax<float>(on, in.data(), y.data(), 4, 4, softmax_kind::causal);
  CHECK(y.values() ==
        std::vector<float>{1, 0, 0, 0, .5F, .5F, 0, 0, 1 / 3.0F, 1 / 3.0F, 1 / 3.0F, 0, .25F, .25F, .25F, .25F});
}

TEST_CASE_TEMPLATE("layer norm and its gradients agree with FP64 for any width", T, float, bf16, fp16) {
  for (const rows_case& c : cases()) {
    CAPTURE(c.rows);
    CAPTURE(c.width);
    const std::size_t n = c.rows * c.width, w = c.width;
    input<T> x{values<T>(n, 1), c.shift}, dy{values<T>(n, 2), c.shift};
    const input<float> gamma{values<float>(w, 3)}, beta{values<float>(w, 4)};
    buffer<T> y{n, c.shift}, dx{n, c.shift};
    buffer<float> mean{c.rows}, scale{c.rows}, d_gamma{std::vector<float>(w, 1)}, d_beta{w};
    buffer<float> scratch{
        static_cast<std::size_t>(column_scratch(static_cast<index>(c.rows), static_cast<index>(w), 2))};
    const auto rows = static_cast<index>(c.rows), width = static_cast<index>(w);
    layer_norm<T>(on, x.data(), gamma.data(), beta.data(), y.data(), mean.data(), scale.data(), rows, width, 1e-5);
    layer_norm_backward<T>(on, dy.data(), x.data(), gamma.data(), mean.data(), scale.data(), dx.data(), rows, width);
    std::vector<double> want, gradient, want_gamma(w, 1), want_beta(w);
    for (std::size_t r = 0; r < c.rows; ++r) {
      const double *v = x.value.data() + r * w, *d = dy.value.data() + r * w;
      double m = 0, s = 0, a = 0, b = 0;
      for (std::size_t i = 0; i < w; ++i) m += v[i] / static_cast<double>(w);
      for (std::size_t i = 0; i < w; ++i) s += (v[i] - m) * (v[i] - m) / static_cast<double>(w);
      const double inverse = 1 / std::sqrt(s + 1e-5);
      for (std::size_t i = 0; i < w; ++i) {
        a += d[i] * gamma.value[i] / static_cast<double>(w);
        b += d[i] * gamma.value[i] * (v[i] - m) * inverse / static_cast<double>(w);
        want.push_back((v[i] - m) * inverse * gamma.value[i] + beta.value[i]);
        want_gamma[i] += d[i] * (v[i] - m) * inverse;
        want_beta[i] += d[i];
      }
      for (std::size_t i = 0; i < w; ++i)
        gradient.push_back(inverse * (d[i] * gamma.value[i] - a - (v[i] - m) * inverse * b));
    }
    check_close(y.values(), want, 1.1, 4e-6);
    check_close(dx.values(), gradient, 1.1, w < 4 ? 1e-3 : 2e-5);  // a width of 1 divides by the root of eps
    const auto parameters = [&](bool adds) {
      layer_norm_parameters_backward<T>(on, dy.data(), x.data(), mean.data(), scale.data(), d_gamma.data(),
                                        d_beta.data(), rows, width, adds, scratch.data());
    };
    if (c.rows == 0) continue;
    parameters(false);
    for (double& g : want_gamma) g -= 1;  // overwritten
    check_close(d_gamma.values(), want_gamma, 4, 1e-5);
    check_close(d_beta.values(), want_beta, 4, 1e-5);
    parameters(true);
    for (double& g : want_beta) g *= 2;
    check_close(d_beta.values(), want_beta, 4, 1e-5);
  }
}

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

TEST_CASE_TEMPLATE("cross entropy and its gradient agree with FP64, targets below 0 left out", T, float, bf16, fp16) {
  for (const rows_case& c : cases()) {
    if (c.rows == 0) continue;
    CAPTURE(c.width);
    const input<T> x{values<T>(c.rows * c.width, 1, 3), c.shift};
    std::vector<std::int32_t> label;
    for (std::size_t r = 0; r < c.rows; ++r)
      label.push_back(r % 4 == 2 ? -static_cast<std::int32_t>(r) / 2 : static_cast<std::int32_t>(r * 37 % c.width));
    const buffer<std::int32_t> target{label};
    buffer<float> sums{c.rows}, terms{c.rows}, count{1};
    buffer<double> loss{1};
    buffer<T> dx{c.rows * c.width, c.shift};
    buffer<int> right{std::vector<int>{5}};
    const auto rows = static_cast<index>(c.rows), width = static_cast<index>(c.width);
    cross_entropy<T>(on, x.data(), target.data(), sums.data(), terms.data(), loss.data(), count.data(), rows, width);
    cross_entropy_backward<T>(on, x.data(), target.data(), sums.data(), count.data(), dx.data(), rows, width, 3.0);
    count_correct<T>(on, x.data(), target.data(), right.data(), rows, width);
    double want = 0, counted = 0;
    int hits = 5;
    std::vector<double> gradient;
    for (std::size_t r = 0; r < c.rows; ++r) counted += label[r] >= 0;
    for (std::size_t r = 0; r < c.rows; ++r) {
      const double* v = x.value.data() + r * c.width;
      const auto row = softmax_of(v, c.width, c.width, true);
      if (label[r] >= 0) want -= row[static_cast<std::size_t>(label[r])] / counted;
      hits += std::max_element(v, v + c.width) - v == label[r];
      for (std::size_t i = 0; i < c.width; ++i) {
        const double hit = label[r] == static_cast<std::int32_t>(i);
        gradient.push_back(label[r] < 0 ? 0 : 3 / counted * (std::exp(row[i]) - hit));
      }
    }
    CHECK(loss.values()[0] == doctest::Approx(want).epsilon(1e-5));
    CHECK(static_cast<double>(count.values()[0]) == counted);
    CHECK(right.values()[0] == hits);
    check_close(dx.values(), gradient, std::is_same_v<T, float> ? 40 : 1.2, 1e-6);
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

TEST_CASE_TEMPLATE("negative log likelihood and squared error agree with FP64", T, float, bf16, fp16) {
  const input<T> logp{values<T>(21, 1)};
  const buffer<std::int32_t> target{std::vector<std::int32_t>{0, 6, -1}};
  buffer<float> terms{3}, count{1}, scratch{most_partials};
  buffer<double> loss{1};
  buffer<T> dx{21};
  nll_loss<T>(on, logp.data(), target.data(), terms.data(), loss.data(), count.data(), 3, 7);
  CHECK(loss.values()[0] == doctest::Approx(-(logp.value[0] + logp.value[13]) / 2).epsilon(1e-6));
  nll_loss_backward<T>(on, target.data(), count.data(), dx.data(), 3, 7, 3);
  std::vector<double> want(21);
  want[0] = want[13] = -1.5;
  check_close(dx.values(), want);
  for (const std::size_t n : {1, 3, 257, 70000}) {
    for (const std::size_t shift : {0, 1}) {
      CAPTURE(n);
      const input<T> x{values<T>(n, 2), shift}, y{values<T>(n, 3), 2 * shift};
      buffer<T> gradient{n, shift};
      mse_loss<T>(on, x.data(), y.data(), static_cast<index>(n), loss.data(), scratch.data());
      mse_loss_backward<T>(on, x.data(), y.data(), gradient.data(), static_cast<index>(n), 2);
      double sum = 0;
      std::vector<double> slopes;
      for (std::size_t i = 0; i < n; ++i) {
        sum += (x.value[i] - y.value[i]) * (x.value[i] - y.value[i]) / static_cast<double>(n);
        slopes.push_back(4 / static_cast<double>(n) * (x.value[i] - y.value[i]));
      }
      CHECK(loss.values()[0] == doctest::Approx(sum).epsilon(1e-6));
      check_close(gradient.values(), slopes, std::is_same_v<T, float> ? 3 : 1.1, 1e-9);
    }
  }
}

TEST_CASE_TEMPLATE("softmax over edges agrees with FP64, nodes without edges included", T, float, bf16, fp16) {
  for (const std::size_t heads : {1, 3, 8, 12, 64}) {
    const std::vector<std::int32_t> begin{0, 0, 1, 34, 34, 36, 200};
    const std::size_t edges = 200, nodes = 6;
    CAPTURE(heads);
    std::vector<T> scores_of_all = values<T>(edges * heads, 1, 3);
    for (std::size_t h = 0; h < heads; ++h) native::math::store(scores_of_all[h], -200.0F);  // exp of it is 0
    const input<T> x{scores_of_all}, dy{values<T>(edges * heads, 2)};
    const buffer<std::int32_t> first{begin};
    buffer<T> y{edges * heads}, dx{edges * heads};
    edge_softmax<T>(on, x.data(), first.data(), y.data(), nodes, static_cast<index>(heads));
    edge_softmax_backward<T>(on, dy.data(), y.data(), first.data(), dx.data(), nodes, static_cast<index>(heads));
    const auto got = exact(y.values());
    std::vector<double> want(edges * heads), gradient(edges * heads);
    for (std::size_t v = 0; v < nodes; ++v) {
      for (std::size_t h = 0; h < heads; ++h) {
        std::vector<double> scores;
        double dot = 0;
        for (auto e = static_cast<std::size_t>(begin[v]); e < static_cast<std::size_t>(begin[v + 1]); ++e) {
          scores.push_back(x.value[e * heads + h]);
          dot += dy.value[e * heads + h] * got[e * heads + h];
        }
        const auto row = softmax_of(scores.data(), scores.size(), scores.size(), false);
        for (std::size_t k = 0; k < row.size(); ++k) {
          const std::size_t at = (static_cast<std::size_t>(begin[v]) + k) * heads + h;
          want[at] = row[k];
          gradient[at] = got[at] * (dy.value[at] - dot);
        }
      }
    }
    check_close(y.values(), want, std::is_same_v<T, float> ? 40 : 1.1);
    check_close(dx.values(), gradient, 1.1, 1e-6);
  }
}

}  // namespace comp::cuda::test
