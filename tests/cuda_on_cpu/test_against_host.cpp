// SPDX-License-Identifier: Apache-2.0
// Where the host Device has the same operation, kernels give what it gives: the same bits where order and rounding are
// the same, within a rounding where sums are split otherwise. So a training on one can be compared with the other.
#include <comp_host/device.hpp>

#include "kernel_test.hpp"

namespace comp::cuda::test {
namespace {

constexpr stream on{};
template <class T>
constexpr precision format = precision::fp32;
template <>
constexpr precision format<bf16> = precision::bf16;
template <>
constexpr precision format<fp16> = precision::fp16;

constexpr std::int64_t rows = 37, width = 65, n = rows * width;

/// The same values on both.
template <class T>
struct both {
  host::device& device;
  input<T> here;
  host::tensor there;
  both(host::device& d, unsigned seed, float scale = 1)
      : device{d}, here{values<T>(n, seed, scale)}, there{d.upload(normal(n, seed, scale), {rows, width}, format<T>)} {}
};
template <class T>
std::vector<double> from(host::device& d, const host::tensor& t) {
  const std::vector<float> v = d.download(t);
  return {v.begin(), v.end()};
}
template <class T>
bool same(const buffer<T>& got, host::device& d, const host::tensor& want) {
  return exact(got.values()) == from<T>(d, want);
}

}  // namespace

TEST_CASE_TEMPLATE("element-wise kernels give the host's bits", T, float, bf16, fp16) {
  host::device d;
  const both<T> a{d, 1}, b{d, 2};
  buffer<T> y{n};
  const chain_step<T> plus{.kind = step_kind::add, .other = b.here.data()};
  run_chain<T>(on, a.here.data(), y.data(), n, {&plus, 1});
  CHECK(same(y, d, d.add(a.there, b.there)));
  const chain_step<T> times{.kind = step_kind::mul, .other = b.here.data()};
  run_chain<T>(on, a.here.data(), y.data(), n, {&times, 1});
  CHECK(same(y, d, d.mul(a.there, b.there)));
  const chain_step<T> relu{.kind = step_kind::relu};
  run_chain<T>(on, a.here.data(), y.data(), n, {&relu, 1});
  const host::tensor rectified = d.activate(native::activation::relu, a.there);
  CHECK(same(y, d, rectified));
  const buffer<T> positive{y.values()};
  const chain_step<T> back{.kind = step_kind::relu_backward, .other = positive.data()};
  run_chain<T>(on, b.here.data(), y.data(), n, {&back, 1});
  CHECK(same(y, d, d.activate_backward(native::activation::relu, b.there, a.there, rectified)));
  const chain_step<T> drop{.kind = step_kind::dropout, .mask = {0.3, {42, 7}}};
  run_chain<T>(on, a.here.data(), y.data(), n, {&drop, 1});
  CHECK(same(y, d, d.dropout(a.there, 0.3, {42, 7})));
  if constexpr (std::is_same_v<T, float>) {
    const both<float> t{d, 3};
    mse_loss_backward<float>(on, a.here.data(), t.here.data(), y.data(), n, 2);
    CHECK(same(y, d, d.mse_loss_backward(a.there, t.there, 2)));
  }
}

TEST_CASE_TEMPLATE("softmax, layer norm and cross entropy give the host's values within a rounding", T, float, bf16,
                   fp16) {
  host::device d;
  const both<T> x{d, 1, 3}, dy{d, 2};
  buffer<T> y{n}, dx{n};
  const double ulps = std::is_same_v<T, float> ? 32 : 2.1;
  softmax<T>(on, x.here.data(), y.data(), rows, width, softmax_kind::full);
  const host::tensor there = d.softmax(x.there, false);
  check_close(y.values(), from<T>(d, there), ulps);
  const buffer<T> result{rounded<T>(d.download(there))};
  softmax_backward<T>(on, dy.here.data(), result.data(), dx.data(), rows, width, softmax_kind::full);
  check_close(dx.values(), from<T>(d, d.softmax_backward(dy.there, there)), ulps, 1e-6);
  softmax<T>(on, x.here.data(), y.data(), rows, width, softmax_kind::log);
  check_close(y.values(), from<T>(d, d.log_softmax(x.there)), ulps, 2e-6);

  std::vector<std::int32_t> label(rows);
  for (std::int32_t r = 0; r < rows; ++r)
    label[static_cast<std::size_t>(r)] = r % 5 == 0 ? -1 : r * 11 % static_cast<std::int32_t>(width);
  const auto labels = d.upload(label, {rows});
  const buffer<std::int32_t> target{label};
  buffer<float> sums{rows}, terms{rows}, count{1};
  buffer<double> loss{1};
  double wanted = 0;
  const auto kept = d.cross_entropy(x.there, labels, &wanted);
  cross_entropy<T>(on, x.here.data(), target.data(), sums.data(), terms.data(), loss.data(), count.data(), rows, width);
  CHECK(loss.values()[0] == doctest::Approx(wanted).epsilon(1e-6));
  cross_entropy_backward<T>(on, x.here.data(), target.data(), sums.data(), count.data(), dx.data(), rows, width, 1024);
  check_close(dx.values(), from<T>(d, d.cross_entropy_backward(kept.saved, labels, 1024)), ulps, 4e-5);

  const std::vector<float> scale = normal(width, 5), shift = normal(width, 6);
  auto gamma = d.make_parameter(scale, {width}), beta = d.make_parameter(shift, {width});
  const input<float> g{scale}, b{shift};
  buffer<float> mean{rows}, inverse{rows}, d_gamma{width}, d_beta{width};
  buffer<float> scratch{static_cast<std::size_t>(column_scratch(rows, width, 2))};
  layer_norm<T>(on, x.here.data(), g.data(), b.data(), y.data(), mean.data(), inverse.data(), rows, width, 1e-5);
  const auto normal_there = d.layer_norm(x.there, gamma, beta, 1e-5);
  check_close(y.values(), from<T>(d, normal_there.output), ulps, 4e-6);
  d.zero_gradient(gamma);
  d.zero_gradient(beta);
  layer_norm_backward<T>(on, dy.here.data(), x.here.data(), g.data(), mean.data(), inverse.data(), dx.data(), rows,
                         width);
  layer_norm_parameters_backward<T>(on, dy.here.data(), x.here.data(), mean.data(), inverse.data(), d_gamma.data(),
                                    d_beta.data(), rows, width, false, scratch.data());
  check_close(dx.values(), from<T>(d, d.layer_norm_backward(dy.there, x.there, normal_there.saved, gamma, beta, 1e-5)),
              ulps, 4e-6);
  const auto of_gamma = d.gradient(gamma);
  check_close(d_gamma.values(), std::vector<double>(of_gamma.begin(), of_gamma.end()), 32, 1e-5);
}

TEST_CASE("an embedding's gradient has the host's bits, and steps of the optimizers its values") {
  host::device d;
  const std::int64_t entries = 50, wide_row = 24, tokens = 300;
  const std::vector<float> table = normal(static_cast<std::size_t>(entries * wide_row), 1),
                           g = normal(static_cast<std::size_t>(tokens * wide_row), 2);
  std::vector<std::int32_t> at;
  for (std::int32_t i = 0; i < tokens; ++i) at.push_back(i * i % static_cast<std::int32_t>(entries));
  const input<float> value{table}, dy{g};
  const input<float> first{std::vector<float>(table.size())}, second{std::vector<float>(table.size())};
  const buffer<std::int32_t> indices{at};
  const buffer<float> gradient{std::vector<float>(table.size())};
  buffer<bf16> copy{table.size()};
  const buffer<float> scratch{static_cast<std::size_t>(embedding_scratch(tokens, wide_row, entries))};
  embedding_backward<float>(on, dy.data(), indices.data(), gradient.data(), tokens, wide_row, entries, scratch.data());
  auto w = d.make_parameter(table, {entries, wide_row});
  d.zero_gradient(w);
  d.embedding_backward(d.upload(g, {tokens, wide_row}, precision::fp32), d.upload(at, {tokens}), w);
  CHECK(gradient.values() == d.gradient(w));

  host::device::parameter* all[] = {&w};
  const update_job<bf16> job{value.data(),  gradient.data(), first.data(),
                             second.data(), copy.data(),     entries * wide_row};
  const auto agree = [&] {
    const auto want = d.values(w);
    check_close(value.device.values(), std::vector<double>(want.begin(), want.end()), 2, 1e-7);
  };
  SUBCASE("SGD") {
    const native::sgd_options o{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    for (int s = 0; s < 4; ++s) sgd_step<bf16>(on, {&job, 1}, o), d.sgd_step(all, o);
    agree();
  }
  SUBCASE("AdamW") {
    const native::adam_options o{.learning_rate = 0.01, .weight_decay = 0.1, .decoupled = true};
    for (int s = 1; s < 5; ++s) adam_step<bf16>(on, {&job, 1}, o, s), d.adam_step(all, o, s);
    agree();
  }
}

}  // namespace comp::cuda::test
