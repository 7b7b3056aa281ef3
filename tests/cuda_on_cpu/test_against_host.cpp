// SPDX-License-Identifier: Apache-2.0
// If the host Device has the same operation in the same order, kernels give its bits. That the others are off by a
// rounding follows from what both are held against, FP64.
#include <comp_host/device.hpp>

#include "kernel_test.hpp"

namespace comp::cuda::test {
namespace {

constexpr stream on{};

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

TEST_CASE("an embedding's gradient has the host's bits") {
  host::device d;
  const std::int64_t entries = 50, wide_row = 24, tokens = 300;
  const std::vector<float> table = normal(static_cast<std::size_t>(entries * wide_row), 1),
                           g = normal(static_cast<std::size_t>(tokens * wide_row), 2);
  std::vector<std::int32_t> at;
  for (std::int32_t i = 0; i < tokens; ++i) at.push_back(i * i % static_cast<std::int32_t>(entries));
  const input<float> dy{g};
  const buffer<std::int32_t> indices{at};
  const buffer<float> gradient{std::vector<float>(table.size())};
  const buffer<float> scratch{static_cast<std::size_t>(embedding_scratch(tokens, wide_row, entries))};
  embedding_backward<float>(on, dy.data(), indices.data(), gradient.data(), tokens, wide_row, entries, scratch.data());
  auto w = d.make_parameter(table, {entries, wide_row});
  d.zero_gradient(w);
  d.embedding_backward(d.upload(g, {tokens, wide_row}, precision::fp32), d.upload(at, {tokens}), w);
  CHECK(gradient.values() == d.gradient(w));
}

}  // namespace comp::cuda::test
