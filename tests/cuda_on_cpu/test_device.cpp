// SPDX-License-Identifier: Apache-2.0
// What is particular to the cuda Device: nothing waits that need not, precisions that are stored alike are views, low
// copies come from the optimizer's pass, memory is counted, and what is refused is refused in a sentence.
#include <comp_cuda/comp_cuda.hpp>

#include "fresh.hpp"
#include "kernel_test.hpp"

namespace comp::cuda::test {
namespace {

using native::activation;
using parameters = device::parameters;

/// How many pieces of work have run, on all streams.
std::uint64_t work_run() {
  std::uint64_t done = 0;
  for (const auto& s : simt::device.streams) done += s->done;
  return done;
}
std::vector<float> some(const shape& s, unsigned seed, float scale = 1) {
  return normal(static_cast<std::size_t>(elements(s)), seed, scale);
}
tensor noise(device& d, const shape& s, unsigned seed, precision p = precision::fp32) {
  return d.upload(some(s, seed), s, p);
}
std::uint64_t launches_of(auto f) {
  const std::uint64_t before = simt::device.launches;
  f();
  return simt::device.launches - before;
}

}  // namespace

TEST_CASE_FIXTURE(fresh, "no operator waits: everything is given to the stream before anything has run") {
  device d{{.measure_algorithms = false}};  // a measurement waits, once for a shape
  auto gamma = d.make_parameter(some({6}, 1), {6}), beta = d.make_parameter(some({6}, 2), {6});
  auto table = d.make_parameter(some({9, 6}, 3), {9, 6}), w = d.make_parameter(some({5, 6}, 4), {5, 6});
  const tensor x = noise(d, {2, 4, 6}, 5, precision::bf16);
  const indices tokens = d.upload(std::vector<std::int32_t>{0, 8, 3, 3, 1, 2, 7, 5}, {2, 4});
  const tensor e = d.add(x, d.embedding(tokens, table, precision::bf16));
  const auto norm = d.layer_norm(e, gamma, beta, 1e-5);
  const tensor a = d.activate(activation::gelu, d.dropout(norm.output, 0.3, {1, 2}));
  const tensor heads = d.split_heads(a, 2),
               joined = d.merge_heads(d.softmax(d.bmm(heads, heads, false, true, 0.5), true));
  const tensor y = d.linear(d.cast(norm.output, precision::fp16), w, nullptr);
  const tensor dx = d.linear_backward(y, d.cast(norm.output, precision::fp16), w, nullptr, true);
  (void)d.layer_norm_backward(d.cast(dx, precision::bf16), e, norm.saved, gamma, beta, 1e-5);
  d.embedding_backward(d.cast(dx, precision::bf16), tokens, table);
  parameter* all[] = {&gamma, &beta, &table, &w};
  d.scale_gradients(all, 0.5);
  d.adam_step(all, {}, 1);
  d.sgd_step(all, {.momentum = 0.9});
  CHECK(work_run() == 0);
  d.synchronize();
  CHECK(work_run() > 50);
  CHECK(std::isfinite(d.values(w)[0]));
}

TEST_CASE_FIXTURE(fresh, "uploads run beside what was given before, and the caller's memory is free when they return") {
  device d;
  const tensor x = noise(d, {300}, 1);
  const tensor y = d.activate(activation::tanh, x);
  std::vector<float> batch(300);
  std::vector<tensor> all;
  for (int i = 0; i < 30; ++i) {  // more than there are slots
    std::ranges::fill(batch, static_cast<float>(i));
    all.push_back(d.upload(batch, {300}, i % 2 ? precision::fp32 : precision::fp16));
  }
  std::ranges::fill(batch, -1.0F);
  const auto computed =
      std::ranges::find_if(simt::device.streams, [&](const auto& s) { return s.get() == d.shared().stream().get(); });
  CHECK((*computed)->done == 0);  // a full ring waits for copies, never for operators
  for (std::size_t i = 0; i < all.size(); ++i)
    CHECK(d.download(all[i]) == std::vector<float>(300, static_cast<float>(i)));
}

TEST_CASE_FIXTURE(fresh, "what is larger than a block of pinned memory goes another way, with the same values") {
  device small{{.pinned_limit = 64}}, none{{.pinned_limit = 0}};
  for (device* d : {&small, &none}) {
    for (const std::int64_t n : {15, 16, 17, 100}) {
      const auto v = some({n}, 1);
      auto given = v;
      const tensor x = d->upload(given, {n}, precision::fp32);
      std::ranges::fill(given, -1.0F);  // the caller's again
      CHECK(d->download(x) == v);
    }
  }
  std::size_t pinned = 0;
  for (const auto& [at, block] : simt::device.pinned) pinned += block.bytes;
  CHECK(pinned == 60 + 64);
}

TEST_CASE_FIXTURE(fresh, "precisions that are stored alike are views of the same memory") {
  device d;
  const tensor x = noise(d, {5, 7}, 1), low = d.cast(x, precision::bf16);
  d.synchronize();
  const std::int64_t live = d.live_bytes();
  const auto launches = launches_of([&] {
    CHECK(d.cast(x, precision::tf32).materialize() == x.materialize());
    CHECK(d.cast(x, precision::tf32).precision() == precision::tf32);
    CHECK(d.cast(low, precision::fp8_e4m3).materialize() == low.materialize());
    CHECK(d.cast(d.cast(low, precision::fp8_e5m2), precision::bf16).materialize() == low.materialize());
    CHECK(d.reshape(x, {7, 5}).materialize() == x.materialize());
    CHECK(d.live_bytes() == live);
  });
  CHECK(launches == 0);
  CHECK(d.cast(x, precision::fp16).materialize() != x.materialize());
  CHECK(d.activate(activation::relu, d.cast(low, precision::fp8_e4m3)).precision() == precision::fp8_e4m3);
  CHECK(d.upload(some({3}, 2), {3}, precision::fp8_e5m2).precision() == precision::fp8_e5m2);
}

TEST_CASE_FIXTURE(fresh, "the optimizer writes the low copies in its pass, and drops those that nobody reads") {
  device d;
  context& c = d.shared();
  std::vector<parameter> owned;
  for (unsigned i = 0; i < 60; ++i) owned.push_back(d.make_parameter(some({37}, i), {37}));
  std::vector<parameter*> all;
  const auto backward = [&] {
    for (parameter& p : owned) {
      const auto to = gradient_of(c, p);
      check(
          cudaMemcpyAsync(to.at, p.value.materialize(), 37 * sizeof(float), cudaMemcpyDeviceToDevice, c.stream().get()),
          "copying");
    }
  };
  for (parameter& p : owned) all.push_back(&p);
  for (std::size_t i = 0; i < owned.size(); ++i) (void)weights(c, owned[i], i % 2 ? precision::fp16 : precision::bf16);
  backward();
  const sgd_options o{.learning_rate = 0.25};
  CHECK(launches_of([&] { d.sgd_step(all, o); }) == 2);  // 30 of each type: one launch takes 48
  const auto read_again = launches_of([&] {
    for (std::size_t i = 0; i < owned.size(); ++i) {
      parameter& p = owned[i];
      const precision as = i % 2 ? precision::fp16 : precision::bf16;
      CHECK(weights(c, p, as) == p.low.materialize());
    }
  });
  CHECK(read_again == 0);
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(d.download(owned[i].low) == d.download(d.cast(owned[i].value, owned[i].low.precision())));
  CHECK(d.values(owned[5])[3] == some({37}, 5)[3] * 0.75F);

  SUBCASE("what was not read since the last step is dropped at the next, and its memory with it") {
    d.sgd_step(all, o);  // everything was read above
    CHECK(owned[0].low);
    const std::int64_t live = d.live_bytes();
    CHECK(launches_of([&] { d.sgd_step(all, o); }) == 2);  // 60 without copies in one table after another
    CHECK_FALSE(owned[0].low);
    CHECK(d.live_bytes() == live - 60 * 512);
  }
  SUBCASE("new values make the copy stale") {
    d.set_values(owned[0], some({37}, 99));
    CHECK(launches_of([&] { (void)weights(c, owned[0], precision::bf16); }) == 1);
    CHECK(d.download(owned[0].low) == d.download(d.cast(owned[0].value, precision::bf16)));
  }
  SUBCASE("a parameter without a gradient keeps values and copy") {
    d.zero_gradient(owned[0]);
    const auto before = d.values(owned[0]);
    d.sgd_step(all, o);
    CHECK(d.values(owned[0]) == before);
    CHECK(launches_of([&] { (void)weights(c, owned[0], precision::bf16); }) == 0);
    CHECK(d.gradient(owned[0]) == std::vector<float>(37));
  }
}

TEST_CASE_FIXTURE(fresh, "live and peak memory count tensors, slots and scratch, rounded to 512 bytes") {
  device d;
  CHECK(d.live_bytes() == 0);
  {
    const tensor x = noise(d, {1000}, 1);
    CHECK(d.live_bytes() == 4096);
    const tensor low = d.cast(x, precision::fp16);
    CHECK(d.live_bytes() == 4096 + 2048);
    double loss = 0;
    d.mse_loss(x, x, &loss);  // most_partials floats of scratch stay
    CHECK(loss == 0);
    CHECK(d.live_bytes() == 2 * 4096 + 2048);
    CHECK(d.peak_bytes() == 2 * 4096 + 2048 + 512);
  }
  CHECK(d.live_bytes() == 4096);
  d.reset_peak();
  CHECK(d.peak_bytes() == 4096);
  auto p = d.make_parameter(some({100}, 1), {100});
  (void)gradient_of(d.shared(), p);
  d.shared().clear(p.gradient.materialize(), 400);
  parameter* all[] = {&p};
  d.adam_step(all, {}, 1);
  CHECK(d.live_bytes() == 4096 + 4 * 512);
}

TEST_CASE_FIXTURE(fresh, "a library is given the workspace that it wants up to the limit, and never more") {
  std::mt19937 draw{11};
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(n)); };
  /// beside: what it may have beside the limit.
  const auto check_limits = [&](std::int64_t beside, const auto& work) {
    const auto given = [&](std::int64_t limit) {
      device d{{.workspace_limit = limit}};
      simt::device.counts.workspace = 0;
      work(d);
      d.synchronize();
      return static_cast<std::int64_t>(simt::device.counts.workspace);
    };
    const std::int64_t wanted = given(std::int64_t{1} << 30);
    REQUIRE(wanted > beside);
    for (const std::int64_t limit : {std::int64_t{0}, below(wanted - beside), wanted - beside, below(2 * wanted)}) {
      CAPTURE(limit);
      CHECK((limit + beside >= wanted ? given(limit) == wanted : given(limit) <= limit + beside));
    }
  };
  for (const precision p : {precision::fp32, precision::tf32, precision::bf16, precision::fp16, precision::fp8_e4m3}) {
    CAPTURE(p);
    const std::int64_t rows = 16 * (1 + below(3)), inputs = 16 * (2 + below(3)), outputs = 16 * (1 + below(3));
    if (!is_fp8(p)) {
      check_limits(0, [&](device& d) {
        (void)d.bmm(noise(d, {rows, inputs}, 1, p), noise(d, {inputs, outputs}, 2, p));
      });
    }
    check_limits(0, [&](device& d) {
      auto w = d.make_parameter(some({outputs, inputs}, 3), {outputs, inputs});
      (void)d.linear(noise(d, {rows, inputs}, 1, p), w, nullptr);
    });
  }
  for (const precision p : {precision::fp32, precision::bf16, precision::fp16}) {
    CAPTURE(p);
    native::host_csr ring{.rows = 20 + below(80), .columns = 0, .begin = {0}};
    ring.columns = ring.rows;
    for (std::int32_t i = 0; i < ring.rows; ++i) {
      ring.column.push_back(static_cast<std::int32_t>((i + 1) % ring.rows));
      ring.begin.push_back(i + 1);
    }
    check_limits(0, [&](device& d) { (void)d.spmm(d.make_sparse(ring), noise(d, {ring.rows, 8}, 1, p), nullptr); });
  }
  for (const precision p : {precision::bf16, precision::fp16}) {
    CAPTURE(p);
    const native::attention_options o{.heads = 1 + below(3)};
    const shape s{1 + below(2), 1 + below(9), 128 * o.heads};
    check_limits(2 * s[0] * o.heads * 128 * 128, [&](device& d) {  // the probabilities of whole blocks
      const tensor x = noise(d, s, 1, p);
      if (const auto y = d.attention(x, x, x, {}, o, {})) (void)d.attention_backward(x, x, x, x, y->saved, {}, o, {});
    });
  }
}

TEST_CASE_FIXTURE(fresh, "two devices work side by side, on one GPU and on two") {
  simt::device.count = 2;
  device one, same, other{{.gpu = 1}};
  const std::vector<float> v = some({64}, 1);
  std::vector<tensor> x, y;
  device* all[] = {&one, &other, &same};
  for (device* d : all) x.push_back(d->upload(v, {64}, precision::fp16));
  for (std::size_t i = 0; i < 3; ++i) y.push_back(all[i]->softmax(all[i]->activate(activation::tanh, x[i])));
  const std::vector<float> want = one.download(y[0]);
  CHECK(other.download(y[1]) == want);
  CHECK(same.download(y[2]) == want);
  CHECK(one.live_bytes() == other.live_bytes());
}

TEST_CASE_FIXTURE(fresh, "what a device does not have is refused in a sentence") {
  CHECK_THROWS_AS((device{{.gpu = -1}}), error);
  CHECK_THROWS_WITH_AS((device{{.workspace_limit = -1}}),
                       "a workspace of -1 bytes asked for (0 is the least): use 0 to forbid workspaces",
                       settings_error);
  CHECK_THROWS_WITH_AS((device{{.pinned_limit = -1}}),
                       "-1 bytes of pinned memory asked for (0 is the least): use 0 for none", settings_error);
  simt::device.properties.major = 7;
  device volta;
  CHECK(volta.hardware().compute_capability == 70);
  CHECK(volta.hardware().kind == device_kind::cuda);
  CHECK(volta.hardware().name == "stand-in");
  const tensor x = noise(volta, {4}, 1);
  const char* sentence = "precision bf16 asked of the cuda device (stand-in has fp32, fp16): use one of these";
  CHECK_THROWS_WITH_AS((void)volta.cast(x, precision::bf16), sentence, error);
  CHECK_THROWS_WITH_AS(noise(volta, {4}, 1, precision::bf16), sentence, error);
  auto table = volta.make_parameter(some({3, 2}, 1), {3, 2});
  CHECK_THROWS_WITH_AS((void)volta.embedding(volta.upload(std::vector<std::int32_t>{1}, {1}), table, precision::bf16),
                       sentence, error);
}

TEST_CASE_FIXTURE(fresh, "operands that do not fit are refused before anything is launched") {
  device d;
  const tensor x = noise(d, {2, 3}, 1);
  const std::vector<float> five(5);
  const indices one = d.upload(std::vector<std::int32_t>{0}, {1});
  const auto launches = launches_of([&] {
    CHECK_THROWS_WITH_AS((void)d.upload(five, {2, 3}, precision::fp32),
                         "upload of 5 values as (2,3) (it has 6 elements): give as many values", error);
    CHECK_THROWS_WITH_AS((void)d.softmax(x, true),
                         "softmax of x (2,3), causal (the last two sizes must be equal): leave the mask out or fix the "
                         "shape",
                         error);
    CHECK_THROWS_WITH_AS((void)d.split_heads(x, 2),
                         "split_heads of x (2,3) into 2 (it takes (B,T,C), C a multiple of the heads): fix the sizes",
                         error);
    CHECK_THROWS_WITH_AS(
        (void)d.count_correct(x, one),
        "count_correct of scores (2,3) with 1 targets (scores are (N,V), one target for each row): fix "
        "the shapes",
        error);
  });
  CHECK(launches == 0);
}

TEST_CASE_FIXTURE(fresh, "element-wise operators keep the order of channels, and the others give row-major meaning") {
  device d;
  for (const precision p : {precision::fp32, precision::bf16, precision::fp16}) {
    CAPTURE(p);
    const shape s{3, 5, 7, 7};
    const tensor x = noise(d, s, 1, p), y = noise(d, s, 2, p);
    const tensor last = in_order(d.shared(), x, order::channels_last);
    REQUIRE(last.order() == order::channels_last);
    CHECK(d.download(last) == d.download(x));
    const tensor sum = d.add(last, y);
    CHECK(sum.order() == order::channels_last);
    CHECK(d.download(sum) == d.download(d.add(x, y)));
    const tensor back = d.activate_backward(activation::relu, y, last, last);
    CHECK(back.order() == order::channels_last);
    CHECK(d.download(back) == d.download(d.activate_backward(activation::relu, y, x, x)));
    const tensor three[] = {x, last, sum}, plain[] = {x, x, d.add(x, y)};
    CHECK(d.download(d.sum(three)) == d.download(d.sum(plain)));
    CHECK(d.download(d.dropout(last, 0.5, {3, 4})) == d.download(d.dropout(x, 0.5, {3, 4})));
    CHECK(d.download(d.softmax(last)) == d.download(d.softmax(x)));
    CHECK(d.download(d.log_softmax_backward(last, sum)) == d.download(d.log_softmax_backward(x, plain[2])));
    CHECK(d.download(d.merge_heads(last)) == d.download(d.merge_heads(x)));
    CHECK(d.download(d.reshape(last, {15, 49})) == d.download(x));
    double of_last = 0, of_x = 0;
    d.mse_loss(last, y, &of_last);
    d.mse_loss(x, y, &of_x);
    CHECK(of_last == doctest::Approx(of_x).epsilon(1e-6));
    CHECK(d.download(d.mse_loss_backward(last, y, 3)) == d.download(d.mse_loss_backward(x, y, 3)));
  }
}

TEST_CASE_FIXTURE(fresh, "a snapshot restores values, slots and order, bit for bit") {
  device d;
  const shape s{4, 3, 3, 3};
  auto p = d.make_parameter(some(s, 1), s);
  parameter* all[] = {&p};
  const auto step = [&](std::int64_t n) {
    d.zero_gradient(p);
    const auto to = gradient_of(d.shared(), p);
    check(cudaMemcpyAsync(to.at, p.value.materialize(), 432, cudaMemcpyDeviceToDevice, d.shared().stream().get()),
          "copying");
    d.adam_step(all, {.learning_rate = 0.1}, n);
  };
  step(1);
  const auto plain = d.snapshot(p);
  const auto at_plain = d.values(p);
  settle(d.shared(), p, order::channels_last);
  CHECK(d.values(p) == at_plain);
  step(2);
  const auto last = d.snapshot(p);
  const auto at_last = d.values(p);
  step(3);
  const auto after = d.values(p);
  d.restore(p, last);
  CHECK(p.value.order() == order::channels_last);
  CHECK(d.values(p) == at_last);
  d.set_slots(p, d.slots(p));  // they get the order of the values
  step(3);
  CHECK(same_bits(d.values(p), after));
  d.restore(p, plain);
  CHECK(p.value.order() == order::row_major);
  CHECK(d.values(p) == at_plain);
  CHECK(d.gradient(p) == std::vector<float>(108));  // that of the other order is gone
  step(2);
  step(3);
  CHECK(d.values(p) == after);
}

}  // namespace comp::cuda::test
