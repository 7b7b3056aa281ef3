// SPDX-License-Identifier: Apache-2.0
// Element-wise operators that wait to be asked for: the bits of one launch for each, in fewer launches and with fewer
// bytes moved; whatever is held, dropped, asked for early or never.
#include <array>
#include <comp_cuda/comp_cuda.hpp>
#include <cstdlib>
#include <functional>

#include "fresh.hpp"
#include "kernel_test.hpp"

namespace comp::cuda::test {
namespace {

using native::activation;

/// The same bits; on a GPU a product with ReLU may be another algorithm's, with sums in another order.
bool same_products(const std::vector<float>& a, const std::vector<float>& b) {
#ifdef COMP_SIMT
  return same_bits(a, b);
#else
  float most = 0;
  for (const float v : b) most = std::max(most, std::abs(v));
  return std::ranges::equal(a, b, [&](float x, float y) { return std::abs(x - y) <= 0x1p-5F * most; });
#endif
}
/// Of element-wise operators, which are all that f asks for: the stand-in counts the same.
std::int64_t launches_of(const device& d, auto f) {
  const std::int64_t before = d.fused().launches;
#ifdef COMP_SIMT
  const std::uint64_t of_machine = simt::device.launches;
#endif
  f();
  const std::int64_t launches = d.fused().launches - before;
#ifdef COMP_SIMT
  CHECK(simt::device.launches == of_machine + static_cast<std::uint64_t>(launches));
#endif
  return launches;
}
tensor noise(device& d, const shape& s, unsigned seed, precision p, float scale = 1) {
  return d.upload(normal(static_cast<std::size_t>(elements(s)), seed, scale), s, p);
}

/// A program of random operators on tensors of one shape, some of which are dropped or asked for on the way. The same
/// seed gives the same program.
std::vector<std::vector<float>> run_program(device& d, unsigned seed, int length, std::size_t most_held) {
  std::mt19937 draw{seed};
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(draw() % n); };
  const shape s = seed % 3 == 0 ? shape{2, 5, 3, 3} : seed % 3 == 1 ? shape{41} : shape{7, 37};
  constexpr precision kinds[] = {precision::bf16, precision::fp16, precision::fp32};
  const precision p = kinds[seed % 7 % 3];
  const std::int64_t width = s.back();
  parameter gamma = d.make_parameter(normal(static_cast<std::size_t>(width), seed), {width});
  parameter beta = d.make_parameter(normal(static_cast<std::size_t>(width), seed + 1), {width});
  std::vector<tensor> held;
  for (unsigned i = 0; i < 4; ++i) held.push_back(noise(d, s, seed + i, i == 3 ? kinds[draw() % 3] : p));
  if (s.size() == 4) held[1] = in_order(d.shared(), held[1], order::channels_last);
  for (int i = 0; i < length; ++i) {
    const tensor a = held[below(held.size())], b = held[below(held.size())], e = held.back();
    const auto kind = static_cast<activation>(below(4));
    switch (below(18)) {
      case 14:
      case 15: {  // a norm of what waits, and its gradient, which waits
        const tensor x = d.add(a, d.dropout(e, 0.25 * static_cast<double>(below(2)), {seed, 99}));
        const auto norm = d.layer_norm(x, gamma, beta, 1e-3);
        held.push_back(norm.output);
        if (below(2) == 0) held.push_back(x);
        const tensor dx = d.layer_norm_backward(b, x, norm.saved, gamma, beta, 1e-3);
        held.push_back(below(2) == 0 ? dx : d.add(a, dx));
        break;
      }
      case 16:
        held.push_back(d.layer_norm(e, gamma, beta, 1e-3).output);
        break;
      case 17:
        d.sgd_step(std::array{&gamma, &beta}, {.learning_rate = 0.01});
        break;
      case 0:
      case 1:
        held.push_back(d.activate(kind, e));
        break;
      case 2:
        held.push_back(d.activate_backward(kind, e, a, b));
        break;
      case 3:
      case 4:
        held.push_back(d.add(e, a));
        break;
      case 5:
        held.push_back(d.add(a, e));
        break;
      case 6:
        held.push_back(d.mul(e, a));
        break;
      case 7:
        held.push_back(d.dropout(e, 0.25, {seed, static_cast<std::uint64_t>(i)}));
        break;
      case 8: {
        const tensor terms[] = {e, a, b};
        held.push_back(d.sum(terms));
        break;
      }
      case 9:
        held.push_back(d.cast(e, kinds[below(3)]));
        break;
      case 10:
        held.push_back(d.softmax(e));  // asks for it
        break;
      case 11:
        held.push_back(d.reshape(d.reshape(e, {e.size()}), s));
        break;
      case 12:
        if (below(4) == 0) d.synchronize();
        break;
      default:
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(below(held.size() - 1)));
    }
    while (held.size() > most_held) held.erase(held.begin() + static_cast<std::ptrdiff_t>(below(held.size() - 1)));
    if (held.size() == 1) held.push_back(noise(d, s, static_cast<unsigned>(i), p));
  }
  std::vector<std::vector<float>> values;
  for (const tensor& t : held) values.push_back(d.download(t));
  for (const parameter* each : {&gamma, &beta}) values.push_back(d.values(*each));
  return values;
}

TEST_CASE_FIXTURE(fresh,
                  "whatever is fused, dropped or asked for early, the bits are those of one launch for each operator") {
  device fused, plain{{.fuse = false}};
  const unsigned programs = std::getenv("COMP_TEST_SMALL") ? 40 : 200;
  for (unsigned seed = 0; seed < programs; ++seed) {
    CAPTURE(seed);
    const std::size_t most_held = seed % 5 == 0 ? 3 : 9;
    const auto got = run_program(fused, seed, 40, most_held), want = run_program(plain, seed, 40, most_held);
    check_same_bits(got, want);
  }
  CHECK(plain.fused().launches == plain.fused().operators);
  CHECK(plain.fused().bytes_saved == 0);
  CHECK(fused.fused().operators <= plain.fused().operators);  // what nobody asks for is not computed
  CHECK(fused.fused().launches * 4 < fused.fused().operators * 3);
  CHECK(fused.fused().bytes_saved > 0);
}

TEST_CASE_TEMPLATE("a chain is one launch, and what nobody holds is never written", T, float, bf16, fp16) {
  [[maybe_unused]] const fresh machine;
  constexpr precision p = format<T>;
  device d;
  (void)d.dropout(noise(d, {1}, 1, p), 0.5, {}).materialize();  // what dropouts share is made with the first
  const shape s{3, 100};
  const std::int64_t bytes = 300 * bytes_of(storage_of(p)), block = (bytes + 511) / 512 * 512;
  const tensor x = noise(d, s, 1, p), r = noise(d, s, 2, p);
  d.synchronize();
  d.reset_peak();
  const std::int64_t live = d.live_bytes();
  const std::int64_t before = d.fused().operators, launched = d.fused().launches;
  tensor y;
  SUBCASE("five operators, none held") {
    CHECK(launches_of(d, [&] {
            y = d.add(d.mul(d.dropout(d.activate(activation::gelu, d.add(x, r)), 0.5, {1, 1}), x), r);
            CHECK(d.live_bytes() == live);
            (void)y.materialize();
          }) == 1);
    CHECK(d.fused().operators == before + 5);
    CHECK(d.fused().bytes_saved == 4 * 2 * bytes);
    CHECK(d.peak_bytes() == live + block);
  }
  SUBCASE("one between is held, and written by the same launch") {
    tensor kept;
    CHECK(launches_of(d, [&] {
            kept = d.add(x, r);
            y = d.mul(d.activate(activation::relu, kept), r);
            (void)y.materialize();
            (void)kept.materialize();
          }) == 1);
    CHECK(d.live_bytes() == live + 2 * block);
    CHECK(d.fused().bytes_saved == 3 * bytes);
    CHECK(d.download(kept) == d.download(device::tensor{d.add(x, r)}));
  }
  SUBCASE("two that read the same one") {
    tensor other;
    CHECK(launches_of(d, [&] {
            const tensor both = d.add(x, r);
            y = d.activate(activation::tanh, both);
            other = d.activate(activation::sigmoid, both);
            d.synchronize();
          }) == 2);
    CHECK(d.fused().operators == before + 3);
  }
  SUBCASE("more than fit into one launch") {
    CHECK(launches_of(d, [&] {
            y = x;
            for (int i = 0; i < 20; ++i) y = d.add(y, r);
            d.synchronize();
          }) == 3);  // 8, 8 and 4
  }
  SUBCASE("more than fit, all held") {
    std::vector<tensor> all{x};
    const auto launches = launches_of(d, [&] {
      for (int i = 0; i < 8; ++i) all.push_back(d.activate(activation::tanh, d.add(all.back(), r)));
      d.synchronize();
    });
    CHECK(launches >= 3);
    CHECK(launches <= 6);
    device plain{{.fuse = false}};
    const tensor at = noise(plain, s, 1, p), step = noise(plain, s, 2, p);
    tensor want = at;
    for (std::size_t i = 1; i < all.size(); ++i) {
      want = plain.activate(activation::tanh, plain.add(want, step));
      CHECK(same_bits(d.download(all[i]), plain.download(want)));
    }
  }
  SUBCASE("the one that waits goes on, as the second operand too") {
    CHECK(launches_of(d, [&] {
            y = d.add(r, d.activate(activation::relu, x));
            (void)y.materialize();
          }) == 1);
  }
  SUBCASE("nobody asks, and nothing is done") {
    CHECK(launches_of(d, [&] { y = d.activate(activation::gelu, d.add(x, r)); }) == 0);
    y = {};
    CHECK(launches_of(d, [&] { d.synchronize(); }) == 0);
  }
  SUBCASE("a cast and rows ask for what they read") {
    const tensor a = d.activate(activation::gelu, d.add(x, r));
    (void)d.softmax(a);
    CHECK(d.fused().launches == launched + 1);
    (void)d.cast(a, p == precision::fp32 ? precision::bf16 : precision::fp32);
    CHECK(d.fused().launches == launched + 1);
  }
}

/// A layer norm over rows of 24, and its gradient.
struct norm_case {
  device& d;
  precision p;
  tensor x = noise(d, {3, 5, 24}, 1, p), r = noise(d, {3, 5, 24}, 2, p), dy = noise(d, {3, 5, 24}, 3, p);
  parameter gamma = d.make_parameter(normal(24, 4), {24}), beta = d.make_parameter(normal(24, 5), {24});
  std::int64_t bytes() const { return x.size() * bytes_of(storage_of(p)); }
  auto forward(const tensor& of) { return d.layer_norm(of, gamma, beta, 1e-5); }
  tensor backward(const tensor& of, const device::saved& saved) {
    return d.layer_norm_backward(dy, of, saved, gamma, beta, 1e-5);
  }
};

TEST_CASE_FIXTURE(fresh, "a sum that waits is made by the layer norm that reads it, with the dropout before it") {
  device fused{{.measure_algorithms = false}}, plain{{.measure_algorithms = false, .fuse = false}};
  std::function<tensor(norm_case&)> make;
  std::int64_t operators = 0, launches = 0, saved = 0;  // launches: beside the norm's; saved: in tensors
  tensor held;
  SUBCASE("a sum") {
    make = [](norm_case& of) { return of.d.add(of.x, of.r); };
    operators = 1, saved = 1;
  }
  SUBCASE("a sum behind a dropout") {
    make = [](norm_case& of) { return of.d.add(of.d.dropout(of.r, 0.4, {7, 1}), of.x); };
    operators = 2, saved = 3;
  }
  SUBCASE("a sum before a dropout's result") {
    make = [](norm_case& of) { return of.d.add(of.x, of.d.dropout(of.r, 0.4, {7, 1})); };
    operators = 2, saved = 3;
  }
  SUBCASE("a sum behind a dropout that is held") {
    make = [&](norm_case& of) {
      const tensor dropped = of.d.dropout(of.r, 0.4, {7, 1});
      if (&of.d == &fused) held = dropped;
      return of.d.add(of.x, dropped);
    };
    operators = 2, launches = 1, saved = 1;
  }
  SUBCASE("a sum behind something else") {
    make = [](norm_case& of) { return of.d.add(of.x, of.d.activate(activation::tanh, of.r)); };
    operators = 2, launches = 1, saved = 2;
  }
  SUBCASE("a dropout behind a sum") {
    make = [](norm_case& of) { return of.d.dropout(of.d.add(of.x, of.r), 0.4, {7, 1}); };
    operators = 2, launches = 1, saved = 2;
  }
  for (const precision p : {precision::fp32, precision::tf32, precision::bf16, precision::fp16}) {
    CAPTURE(p);
    norm_case got{fused, p}, want{plain, p};
    (void)fused.dropout(got.x, 0.5, {}).materialize();  // what dropouts share is made with the first
    const fusion_counts before = fused.fused();
    const tensor a = make(got), b = make(want);
    const auto y = got.forward(a), y_apart = want.forward(b);
    CHECK_FALSE(a.held()->pending());
    CHECK(fused.fused().operators == before.operators + operators);
    CHECK(fused.fused().launches == before.launches + launches);
    CHECK(fused.fused().bytes_saved == before.bytes_saved + saved * got.bytes());
    CHECK(same_bits(fused.download(a), plain.download(b)));
    CHECK(same_bits(fused.download(y.output), plain.download(y_apart.output)));
    for (std::size_t i = 0; i < y.saved.size(); ++i)
      CHECK(same_bits(fused.download(y.saved[i]), plain.download(y_apart.saved[i])));
    if (held) CHECK(same_bits(fused.download(held), plain.download(plain.dropout(want.r, 0.4, {7, 1}))));
  }
#ifdef COMP_SIMT
  norm_case once{fused, precision::bf16};
  const tensor x = make(once);
  const std::uint64_t given = simt::device.launches;
  (void)once.forward(x);
  CHECK(simt::device.launches == given + 1 + static_cast<std::uint64_t>(launches));
#endif
}

TEST_CASE_FIXTURE(fresh, "a layer norm's gradient waits for the sum with another, which its launch makes") {
  device fused{{.measure_algorithms = false}}, plain{{.measure_algorithms = false, .fuse = false}};
  std::function<tensor(norm_case&, tensor&)> add;  // to a gradient, which it may let go
  std::int64_t launches = 0, saved = 2;            // in tensors
  SUBCASE("behind the other") {
    add = [](norm_case& of, tensor& dx) {
      const tensor both[] = {of.r, std::exchange(dx, {})};
      return of.d.sum(both);
    };
  }
  SUBCASE("before the other") {
    add = [](norm_case& of, tensor& dx) { return of.d.add(std::exchange(dx, {}), of.r); };
  }
  SUBCASE("with the scale of before a step") {
    add = [](norm_case& of, tensor& dx) {
      const tensor sum = of.d.add(of.r, std::exchange(dx, {}));
      of.d.sgd_step(std::array{&of.gamma, &of.beta}, {.learning_rate = 1});
      return sum;
    };
  }
  SUBCASE("not where the gradient is held") {
    add = [](norm_case& of, tensor& dx) { return of.d.add(of.r, dx); };
    launches = 1, saved = 0;
  }
  for (const precision p : {precision::fp32, precision::tf32, precision::bf16, precision::fp16}) {
    CAPTURE(p);
    norm_case got{fused, p}, want{plain, p};
    tensor dx = got.backward(got.x, got.forward(got.x).saved);
    tensor apart = want.backward(want.x, want.forward(want.x).saved);
    const std::vector<float> alone = plain.download(apart);
    CHECK(dx.held()->pending());
    CHECK_FALSE(apart.held()->pending());
    const fusion_counts before = fused.fused();
    const tensor sum = add(got, dx);
    CHECK(same_bits(fused.download(sum), plain.download(add(want, apart))));
    if (dx) CHECK(same_bits(fused.download(dx), alone));
    CHECK(fused.fused().operators == before.operators + 1);
    CHECK(fused.fused().launches == before.launches + launches);
    CHECK(fused.fused().bytes_saved == before.bytes_saved + saved * got.bytes());
    CHECK(same_bits(fused.gradient(got.gamma), plain.gradient(want.gamma)));
  }
#ifdef COMP_SIMT
  norm_case once{fused, precision::bf16};
  tensor dx = once.backward(once.x, once.forward(once.x).saved);
  const std::uint64_t given = simt::device.launches;
  const tensor sum = fused.add(once.r, std::exchange(dx, {}));
  (void)sum.materialize();
  CHECK(simt::device.launches == given + 1);
#endif
}

/// A convolution of 3 channels to 6, one of whose biases is NaN.
struct layer_of_images {
  device& d;
  precision p;
  tensor x = in_order(d.shared(), noise(d, {2, 3, 5, 5}, 1, p), order::channels_last);
  parameter w = d.make_parameter(normal(6 * 3 * 9, 2), {6, 3, 3, 3}), b = d.make_parameter(biases(), {6});
  static std::vector<float> biases() {
    auto v = normal(6, 3);
    v[2] = NAN;
    return v;
  }
  tensor forward() { return d.conv2d(x, w, &b, {.padding = {1, 1}}); }
};

TEST_CASE_FIXTURE(
    fresh, "where channels lie side by side a called convolution's bias and ReLU are one launch, and NaN passes") {
  device fused{{.measure_algorithms = false, .graph_convolutions = false}},
      plain{{.measure_algorithms = false, .fuse = false, .graph_convolutions = false}};
  for (const precision p : {precision::tf32, precision::bf16, precision::fp16}) {
    CAPTURE(p);
    layer_of_images got{fused, p}, want{plain, p};
    const tensor bare = want.forward();
    const auto values = plain.download(bare), clipped = plain.download(plain.activate(activation::relu, bare));
    const std::int64_t bytes = bare.size() * bytes_of(storage_of(p)), block = (bytes + 511) / 512 * 512;
    (void)got.forward().materialize();  // the weights get the layout in which they are read
    fused.synchronize();
    const std::int64_t live = fused.live_bytes();
    fused.reset_peak();
    const fusion_counts before = fused.fused();
    {
      const tensor y = got.forward();
      (void)y.materialize();
      CHECK(fused.peak_bytes() == live + block);  // in the convolution's place
      CHECK(same_bits(fused.download(y), values));
    }
    {
      const tensor y = fused.activate(activation::relu, got.forward());
      CHECK(y.held()->pending());
#ifdef COMP_SIMT
      const std::uint64_t given = simt::device.launches;
      (void)y.materialize();
      CHECK(simt::device.launches == given + 1);
#endif
      const auto output = fused.download(y);
      CHECK(same_bits(output, clipped));
      for (std::size_t i = 0; i < output.size(); ++i) CHECK(std::isnan(output[i]) == (i / 25 % 6 == 2));
      CHECK(fused.fused().launches == before.launches);
      CHECK(fused.fused().bytes_saved == before.bytes_saved + 2 * bytes);
    }
    {
      const tensor between = got.forward(), y = fused.activate(activation::relu, between);
      CHECK(same_bits(fused.download(y), clipped));
      CHECK(same_bits(fused.download(between), values));
      CHECK(fused.fused().launches == before.launches + 1);
    }
    {
      const tensor waits = got.forward();  // with the bias of now
      (void)fused.conv2d_backward(noise(fused, {2, 6, 5, 5}, 7, p), got.x, got.w, &got.b, {.padding = {1, 1}}, false);
      fused.sgd_step(std::array{&got.b}, {.learning_rate = 1});
      CHECK(same_bits(fused.download(waits), values));
    }
  }
}

/// A linear layer of (rows,7) to (rows,width).
struct layer {
  device& d;
  precision p;
  std::int64_t width = 16, rows = 6;
  tensor x = noise(d, {2, rows / 2, 7}, 1, p);
  parameter w = d.make_parameter(normal(static_cast<std::size_t>(7 * width), 2), {width, 7});
  parameter b = d.make_parameter(normal(static_cast<std::size_t>(width), 3), {width});

  tensor forward(bool bias = true) { return d.linear(x, w, bias ? &b : nullptr); }
  tensor relu(const tensor& y) const { return d.activate(activation::relu, y.viewed(between())); }
  precision between() const { return is_fp8(p) ? precision::bf16 : p; }
  std::int64_t bytes() const { return rows * width * bytes_of(storage_of(between())); }
};

TEST_CASE_FIXTURE(fresh, "a ReLU behind a linear layer is made by its product, where nobody holds what lies between") {
  device fused{{.measure_algorithms = false, .fuse_relu = true}}, plain{{.measure_algorithms = false, .fuse = false}};
  for (const precision p : fused.supported_precisions()) {
    for (const std::int64_t width : {16, 10}) {  // FP8's products fill up the second
      CAPTURE(p);
      CAPTURE(width);
      layer got{fused, p, width}, want{plain, p, width};
      const bool bias = width == 16 || p == precision::bf16;
      (void)fused.download(got.forward(bias));  // low copies and codes are there
      fused.synchronize();
      const std::int64_t saved = fused.fused().bytes_saved, operators = fused.fused().operators;
      const std::int64_t launched = fused.fused().launches;
      tensor y = got.relu(got.forward(bias));
      CHECK(same_products(fused.download(y), plain.download(want.relu(want.forward(bias)))));
      CHECK(fused.fused().launches == launched);
      CHECK(fused.fused().operators == operators + 1);
      CHECK(fused.fused().bytes_saved == saved + 2 * got.bytes());
      y = fused.activate(activation::gelu, got.forward(bias).viewed(got.between()));  // none of the product's
      CHECK(same_products(fused.download(y),
                          plain.download(plain.activate(activation::gelu, want.forward(bias).viewed(want.between())))));
      CHECK(fused.fused().launches == launched + 1);
    }
  }
}

TEST_CASE_FIXTURE(fresh,
                  "a linear layer that waits outlives its device, and one that nobody asks for is not computed") {
  tensor y;
  std::vector<float> want;
  {
    device d{{.fuse_relu = true}};
    layer of{d, precision::bf16};
    want = d.download(of.forward());
    y = of.forward();
#ifdef COMP_SIMT
    const auto given = d.shared().stream().get()->given;
    (void)of.relu(of.forward());
    CHECK(d.shared().stream().get()->given == given);
#endif
  }
  device d;
  const auto* at = static_cast<const bf16*>(y.materialize());
  check(cudaDeviceSynchronize(), "waiting");
  std::vector<bf16> got(want.size());
  check(cudaMemcpy(got.data(), at, got.size() * 2, cudaMemcpyDeviceToHost), "reading");
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(native::math::load(got[i]) == want[i]);
  y = {};
}

TEST_CASE_FIXTURE(fresh, "products that wait are given before an operator takes scratch memory, which they take, too") {
  device d{{.fuse_relu = true}};
  layer of{d, precision::bf16};
  const tensor waits = of.forward(), clipped = of.relu(of.forward());
  REQUIRE(waits.held()->pending());
  REQUIRE(clipped.held()->pending());
  (void)d.shared().scratch(64);
  CHECK_FALSE(waits.held()->pending());
  CHECK_FALSE(clipped.held()->pending());
  CHECK(d.fused().launches == 0);  // the ReLU is in its product all the same
}

TEST_CASE_FIXTURE(
    fresh, "NaN passes a linear layer and the ReLU behind it, where its product was not asked to make the ReLU") {
  const auto seen_of = [](bool fuse_relu) {
    device d{{.fuse_relu = fuse_relu}};
    layer of{d, precision::bf16};
    std::vector<float> bias = d.values(of.b);
    bias[3] = NAN;
    d.set_values(of.b, bias);
    const tensor y = of.relu(of.forward());
    return d.download(y);
  };
  const auto apart = seen_of(false);
  for (std::size_t i = 0; i < apart.size(); ++i) CHECK(std::isnan(apart[i]) == (i % 16 == 3));
#ifdef COMP_SIMT
  CHECK(seen_of(true)[3] == 0);
#endif
}

#ifdef COMP_SIMT  // on a GPU sums may be in another order
/// A program of random layers, backwards and changes of their weights; the same seed gives the same program.
std::vector<std::vector<float>> run_layers(device& d, unsigned seed, int length) {
  std::mt19937 draw{seed};
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(draw() % n); };
  constexpr precision kinds[] = {precision::fp32, precision::tf32, precision::bf16, precision::fp16,
                                 precision::fp8_e4m3};
  std::vector<parameter> all;
  for (unsigned i = 0; i < 4; ++i) {  // two layers
    all.push_back(i % 2 == 0 ? d.make_parameter(normal(256, seed + i, 0.3F), {16, 16})
                             : d.make_parameter(normal(16, seed + i, 0.3F), {16}));
  }
  std::vector<parameter*> each;
  for (parameter& p : all) each.push_back(&p);
  std::vector<tensor> held{noise(d, {5, 16}, seed, precision::fp32), noise(d, {5, 16}, seed + 9, precision::bf16)};
  parameter_state kept = d.snapshot(all[0]);
  const auto plain = [](const tensor& t) { return t.viewed(is_fp8(t.precision()) ? precision::bf16 : t.precision()); };
  for (int i = 0; i < length; ++i) {
    const std::size_t layer = 2 * below(2);
    parameter *w = each[layer], *b = below(2) == 0 ? each[layer + 1] : nullptr;
    tensor e = plain(held.back()), a = plain(held[below(held.size())]);
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
        held.push_back(d.linear(d.cast(a, kinds[below(5)]), *w, b));
        break;
      case 3:
      case 4:
        held.back() = {};
        held.back() = d.activate(activation::relu, std::exchange(e, {}));
        break;
      case 5:
        held.push_back(d.dropout(e, 0.25, {seed, static_cast<std::uint64_t>(i)}));
        break;
      case 6: {
        const precision p = kinds[below(5)];
        held.push_back(d.linear_backward(d.cast(d.softmax(e), p), d.cast(a, p), *w, b, true));
        break;
      }
      case 7:
        if (below(2) == 0) {
          d.sgd_step(each, {.learning_rate = 0.01});
        } else {
          d.adam_step(each, {.learning_rate = 0.01}, 1);
        }
        for (parameter* p : each) d.zero_gradient(*p);
        break;
      case 8:
        d.set_values(*w, normal(256, seed + static_cast<unsigned>(i), 0.3F));
        break;
      case 9:
        d.restore(all[0], std::exchange(kept, d.snapshot(all[0])));
        break;
      case 10:
        held.push_back(d.softmax(d.add(e, a)));
        break;
      default:
        if (held.size() > 2) held.erase(held.begin() + static_cast<std::ptrdiff_t>(below(held.size() - 1)));
    }
  }
  std::vector<std::vector<float>> values;
  for (const tensor& t : held) values.push_back(d.download(t));
  for (const parameter& p : all) values.push_back(d.values(p));
  return values;
}

TEST_CASE_FIXTURE(
    fresh, "whatever changes weights, reads or drops what lies between, a ReLU made by its product has the same bits") {
  device fused{{.measure_algorithms = false, .fuse_relu = true}}, plain{{.measure_algorithms = false, .fuse = false}};
  const unsigned programs = std::getenv("COMP_TEST_SMALL") ? 20 : 100;
  std::size_t differing = 0, not_finite = 0;
  for (unsigned seed = 0; seed < programs; ++seed) {
    const auto got = run_layers(fused, seed, 40), want = run_layers(plain, seed, 40);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      differing += same_bits(got[i], want[i]) ? 0 : 1;
      not_finite += std::ranges::all_of(want[i], [](float v) { return std::isfinite(v); }) ? 0 : 1;
    }
  }
  CHECK(differing == 0);
  CHECK(not_finite == 0);
  CHECK(fused.fused().launches < plain.fused().launches);
}
#endif

#ifdef COMP_SIMT  // which fails to order
TEST_CASE_FIXTURE(fresh, "out of memory, what waits can be asked for again") {
  device d{{.fuse_relu = true}};
  const tensor x = noise(d, {100}, 1, precision::fp32), r = noise(d, {100}, 2, precision::fp32);
  d.synchronize();
  const tensor kept = d.add(x, r), y = d.activate(activation::relu, kept);
  for (const int nth : {1, 2}) {
    simt::device.fail_allocation = nth;
    const std::size_t limit = simt::device.properties.totalGlobalMem;
    simt::device.properties.totalGlobalMem = 0;  // nor is there more when the pool has given back
    CHECK_THROWS_AS((void)y.materialize(), out_of_memory);
    simt::device.fail_allocation = 0;
    simt::device.properties.totalGlobalMem = limit;
  }
  simt::device.fail_launch = 1;
  CHECK_THROWS_AS((void)y.materialize(), unsupported);
  layer of{d, precision::fp32};
  const auto want = d.download(of.forward());
  const tensor waits = of.relu(of.forward());
  {
    const std::size_t limit = std::exchange(simt::device.properties.totalGlobalMem, std::size_t{0});
    simt::device.fail_allocation = 1;
    CHECK_THROWS_AS((void)waits.materialize(), out_of_memory);
    simt::device.fail_allocation = 0;
    simt::device.properties.totalGlobalMem = limit;
  }
  const auto clipped = d.download(waits);
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(clipped[i] == std::max(want[i], 0.0F));
  const auto sum = d.download(kept), got = d.download(y);
  for (std::size_t i = 0; i < 100; ++i) CHECK(got[i] == (sum[i] > 0 ? sum[i] : 0));
}
#endif

}  // namespace

}  // namespace comp::cuda::test
