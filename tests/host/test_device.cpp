// SPDX-License-Identifier: Apache-2.0
#include <comp_host/device.hpp>
#include <numeric>

#include "../native/devices/agree.hpp"

namespace comp::host::test {

using namespace native::contract;

namespace {

TEST_CASE("after a step nothing is live, and the next step asks the system for nothing") {
  device d;
  (void)one_step(d, precision::bf16);
  CHECK(d.live_bytes() == 0);
  const auto primitives = d.primitives_made();
  (void)one_step(d, precision::bf16);
  CHECK(d.primitives_made() == primitives);
  CHECK(d.live_bytes() == 0);
  CHECK(d.peak_bytes() > 4 * 3 * 64 * 2);
}

TEST_CASE("operators on graphs give the same bits for any number of threads") {
  const auto bits = [](int threads, precision p) {
    device d{{.threads = threads}};
    native::host_csr m{.rows = 3000, .columns = 3000, .begin = {0}};  // rows of 0 to 16 elements, one of all columns
    for (std::int32_t r = 0; r < 3000; ++r) {
      for (std::int32_t k = 0; k < (r == 17 ? 3000 : r % 17); ++k)
        m.column.push_back(r == 17 ? k : (r * 7 + k * 13) % 3000);
      m.begin.push_back(static_cast<std::int32_t>(m.column.size()));
    }
    const auto a = d.make_sparse(m);
    auto b = parameter_of(d, {24}, 1, p), w = parameter_of(d, {3000, 24}, 2, p),
         source = parameter_of(d, {1, 8, 3}, 3, p), target = parameter_of(d, {1, 8, 3}, 4, p);
    const auto h = d.spmm(a, d.sparse_linear(a, tensor_of(d, {1, a.elements()}, 5, p), w), &b);
    const auto scores = d.edge_scores(a, h, source, target, 0.2);
    const auto shares = d.edge_softmax(a, scores.output);
    const auto y = d.weighted_sum(a, shares, h, &b);
    const auto [d_share, dh] = d.weighted_sum_backward(a, y, shares, h, &b);
    const auto d_scores = d.edge_softmax_backward(a, d_share, shares);
    const auto dx = d.edge_scores_backward(a, d_scores, h, scores.saved, source, target, 0.2);
    (void)d.sparse_linear_backward(a, d.spmm_backward(a, dx, &b, true), tensor_of(d, {1, a.elements()}, 5, p), w,
                                   false);
    std::vector<float> all = d.download(dh);
    for (const auto* q : {&b, &w, &source, &target}) {
      const auto g = d.gradient(*q);
      all.insert(all.end(), g.begin(), g.end());
    }
    return all;
  };
  for (const precision p : {precision::fp32, precision::bf16}) {
    const auto one = bits(1, p);
    CHECK(std::ranges::all_of(one, [](float v) { return std::isfinite(v); }));
    for (const int threads : {2, 3, 8}) CHECK(bits(threads, p) == one);
  }
}

TEST_CASE("live and peak bytes are those of the tensors") {
  device d;
  {
    const auto a = d.upload(std::vector<float>(1000), {1000}, precision::fp32);
    CHECK(d.live_bytes() == 4000);
    const auto half = d.cast(a, precision::bf16);
    CHECK(d.live_bytes() == 6000);
    const auto view = d.reshape(half, {10, 100});
    CHECK(d.live_bytes() == 6000);
  }
  CHECK(d.live_bytes() == 0);
  CHECK(d.peak_bytes() == 6000);
  d.reset_peak();
  CHECK(d.peak_bytes() == 0);
}

TEST_CASE("a device over its limit says how much was asked for, and stays usable") {
  device d{settings{.memory_limit = 10000}};
  const auto a = d.upload(std::vector<float>(2000), {2000}, precision::fp32);
  CHECK_THROWS_WITH_AS(
      d.upload(std::vector<float>(1000), {1000}, precision::fp32),
      "4000 bytes asked for with 8000 live (the memory limit is 10000): use a smaller batch or raise the limit",
      out_of_memory);
  CHECK(d.live_bytes() == 8000);
  CHECK(d.download(d.upload(std::vector<float>(500), {500}, precision::fp32)).size() == 500);
}

TEST_CASE("merging the heads of a product takes no memory") {
  device d;
  const auto q = d.split_heads(tensor_of(d, {2, 16, 32}, 1, precision::fp32), 4);
  const auto mixed = d.bmm(tensor_of(d, {2, 4, 16, 16}, 2, precision::fp32), q);
  const auto before = d.live_bytes();
  const auto merged = d.merge_heads(mixed);
  CHECK(d.live_bytes() == before);
  CHECK(merged.data() == mixed.data());
}

TEST_CASE("the clocks count only while asked for") {
  device d;
  (void)one_step(d, precision::fp32);
  CHECK(d.primitive_seconds() == 0);
  d.profile_primitives(true);
  (void)one_step(d, precision::fp32);
  CHECK(d.primitive_seconds() > 0);
  CHECK(d.shares().kernels > 0);
  d.profile_primitives(true);
  CHECK(d.primitive_seconds() == 0);
}

TEST_CASE("a change of layout counts as a reorder, and a loop as a kernel") {
  device d;
  const auto heads = d.split_heads(tensor_of(d, {2, 300, 64}, 1, precision::fp32), 4);
  d.profile_primitives(true);
  (void)d.reshape(heads, {2400, 16});
  CHECK(d.shares().reorders > 0);
  CHECK(d.shares().kernels == 0);
  CHECK(d.primitive_seconds() == 0);
  (void)d.mul(heads, heads);
  CHECK(d.shares().kernels > 0);
}

/// All values of tensors and gradients.
std::vector<float> all_of(device& d, std::initializer_list<tensor> tensors,
                          std::initializer_list<const parameter*> of) {
  std::vector<std::vector<float>> each;
  for (const tensor& t : tensors) each.push_back(d.download(t));
  for (const parameter* p : of) each.push_back(d.gradient(*p));
  std::vector<float> all;
  for (const auto& values : each) all.insert(all.end(), values.begin(), values.end());
  return all;
}
std::vector<float> of_linear(device& d, precision p, const std::array<std::int64_t, 3>& s, bool bias) {
  auto w = parameter_of(d, {s[2], s[1]}, 1, p), b = parameter_of(d, {s[2]}, 2, p);
  const auto x = tensor_of(d, {s[0], s[1]}, 3, p), y = d.linear(x, w, bias ? &b : nullptr);
  return all_of(d, {y, d.linear_backward(y, x, w, bias ? &b : nullptr, true)}, {&w, &b});
}
std::vector<float> of_conv2d(device& d, precision p, const shape& w_sizes, const conv2d_options& o, bool bias) {
  auto w = parameter_of(d, w_sizes, 1, p), b = parameter_of(d, {w_sizes[0]}, 2, p);
  const auto x = tensor_of(d, {2, 4, 9, 9}, 3, p), y = d.conv2d(x, w, bias ? &b : nullptr, o);
  return all_of(d, {y, d.conv2d_backward(y, x, w, bias ? &b : nullptr, o, true)}, {&w, &b});
}
std::vector<float> of_pools(device& d, precision p, const pool2d_options& o) {
  const auto x = tensor_of(d, {2, 4, 9, 9}, 1, p), average = d.avg_pool2d(x, o);
  const auto largest = d.max_pool2d(x, o);
  return all_of(d,
                {average, largest.output, d.avg_pool2d_backward(average, x.shape(), o),
                 d.max_pool2d_backward(average, x, largest.saved, o)},
                {});
}
std::vector<float> of_batch_norm(device& d, precision p, bool training) {
  auto gamma = parameter_of(d, {4}, 1, p), beta = parameter_of(d, {4}, 2, p), mean = parameter_of(d, {4}, 3, p),
       variance = parameter_of(d, {4}, 4, p, 0.5F, 1.5F);
  const native::batch_norm_options o{.training = training};
  const auto x = tensor_of(d, {2, 4, 9, 9}, 5, p);
  const auto y = d.batch_norm(x, gamma, beta, mean, variance, o);
  return all_of(d, {y.output, d.batch_norm_backward(x, x, y.saved, gamma, beta, o)}, {&gamma, &beta});
}

TEST_CASE("operators have a fresh device's bits behind those that differ from them in one size or option") {
  device used;
  const auto check = [&](const auto& program) {
    device fresh;
    CHECK(program(used) == program(fresh));
  };
  for (const precision p : {precision::fp32, precision::bf16}) {
    CAPTURE(name(p));
    for (const auto& s : {std::array<std::int64_t, 3>{8, 16, 24}, {9, 16, 24}, {8, 17, 24}, {8, 16, 25}}) {
      for (const bool bias : {true, false}) check([&](device& d) { return of_linear(d, p, s, bias); });
    }
    const shape usual{6, 4, 3, 3};
    for (const shape& w : {usual, shape{7, 4, 3, 3}, shape{6, 4, 2, 3}})
      check([&](device& d) { return of_conv2d(d, p, w, {}, true); });
    check([&](device& d) { return of_conv2d(d, p, usual, {}, false); });
    for (const conv2d_options& o :
         {conv2d_options{.stride = {2, 1}}, conv2d_options{.stride = {1, 2}}, conv2d_options{.padding = {1, 0}},
          conv2d_options{.padding = {0, 1}}, conv2d_options{.dilation = {2, 1}}, conv2d_options{.dilation = {1, 2}}})
      check([&](device& d) { return of_conv2d(d, p, usual, o, true); });
    for (const pool2d_options& o :
         {pool2d_options{}, pool2d_options{.kernel = {3, 2}}, pool2d_options{.kernel = {2, 3}},
          pool2d_options{.stride = {1, 2}}, pool2d_options{.stride = {2, 1}}, pool2d_options{.padding = {1, 0}},
          pool2d_options{.padding = {0, 1}}})
      check([&](device& d) { return of_pools(d, p, o); });
    for (const bool training : {true, false}) check([&](device& d) { return of_batch_norm(d, p, training); });
    for (const activation a : {activation::gelu, activation::tanh, activation::leaky_relu}) {
      for (const shape& s : {shape{40}, shape{50}, shape{4, 10}}) {
        check([&](device& d) {
          const auto x = tensor_of(d, s, 1, p), y = d.activate(a, x);
          return all_of(d, {y, d.activate_backward(a, x, x, y)}, {});
        });
      }
    }
  }
}

TEST_CASE("sums have the same bits on any number of threads, and threads leave no element out") {
  const std::int64_t n = 2 * 313 * 64 + 1;  // shares of whole cache lines, and one element
  std::vector<double> losses;
  for (const int threads : {1, 2, 3}) {
    device d{settings{.threads = threads}};
    const auto x = tensor_of(d, {n}, 1, precision::fp16), y = tensor_of(d, {n}, 2, precision::fp32);
    CHECK(d.download(x) == numbers(n, 1, precision::fp16));
    d.mse_loss(d.cast(x, precision::fp32), y, &losses.emplace_back());
  }
  CHECK(losses[1] == losses[0]);
  CHECK(losses[2] == losses[0]);
}

TEST_CASE("ReLU tells signs of the largest and the least numbers that a precision has") {
  for (const auto& [p, most, least] : {std::tuple{precision::fp32, 0x1.fffffep127F, 0x1p-149F},
                                       {precision::bf16, 0x1.fep127F, 0x1p-133F},
                                       {precision::fp16, 65504.0F, 0x1p-24F}}) {
    CAPTURE(name(p));
    device d;
    const auto x = d.upload(std::vector{most, -most, least, -least, 0.0F}, {5}, p),
               ones = d.upload(std::vector<float>(5, 1), {5}, p);
    CHECK(d.download(d.activate(activation::relu, x)) == std::vector{most, 0.0F, least, 0.0F, 0.0F});
    CHECK(d.download(d.activate_backward(activation::relu, ones, x, x)) == std::vector<float>{1, 0, 1, 0, 0});
  }
}

TEST_CASE("rows of a table that no index names get no gradient at all, and TF32 no embedding") {
  device d;
  auto w = parameter_of(d, {50, 8}, 1, precision::fp32);
  const auto at = d.upload(std::vector<std::int32_t>{0, 49, 7}, {3});
  d.embedding_backward(tensor_of(d, {3, 8}, 2, precision::fp32), at, w);
  const auto g = d.gradient(w);
  for (std::size_t row = 0; row < 50; ++row) {
    const auto own = std::span{g}.subspan(row * 8, 8);
    CHECK(std::ranges::all_of(own, [](float v) { return v == 0; }) == (row != 0 && row != 49 && row != 7));
  }
  CHECK_THROWS_AS(d.embedding(at, w, precision::tf32), error);
}

TEST_CASE("gradients have a norm where FP32 cannot hold their squares") {
  device d;
  for (const float each : {1e13F, 1e-15F}) {
    auto w = parameter_of(d, {1, 1}, 1, precision::fp32);
    const auto x = d.upload(std::vector{each}, {1, 1}, precision::fp32);
    (void)d.linear_backward(x, x, w, nullptr, false);
    const double want = static_cast<double>(each) * static_cast<double>(each);
    CHECK(d.gradient_norm(std::vector{&w}) == doctest::Approx(want).scale(0));
  }
}

TEST_CASE("an embedding's gradient has the same bits on any number of threads") {
  std::vector<std::vector<float>> gradients;
  for (const int threads : {1, 2, 3}) {
    device d{settings{.threads = threads}};
    auto w = parameter_of(d, {24, 64}, 1, precision::fp32);
    std::vector<std::int32_t> each(24);
    std::iota(each.begin(), each.end(), 0);
    d.embedding_backward(tensor_of(d, {24, 64}, 2, precision::fp32), d.upload(each, {24}), w);
    gradients.push_back(d.gradient(w));
  }
  CHECK(gradients[1] == gradients[0]);
  CHECK(gradients[2] == gradients[0]);
}

TEST_CASE("frozen weights get no gradient and take none from their bias") {
  device d;
  const auto check = [](const auto& backward) {
    const std::vector<float> want = backward(true, true).second;
    CHECK(backward(false, true).second == want);
    CHECK(backward(false, true).first == std::vector<float>(24));
    CHECK(backward(true, false).first == backward(true, true).first);
    CHECK(backward(true, false).second == std::vector<float>(6));
    CHECK(backward(false, false).second == std::vector<float>(6));
  };
  for (const bool with_bias : {true, false}) {
    const auto run = [&](const shape& sizes, bool of_w, bool of_b, const auto& backward) {
      auto w = d.make_parameter(numbers(24, 1), sizes, of_w), b = d.make_parameter(numbers(6, 2), {6}, of_b);
      backward(w, with_bias ? &b : nullptr);
      return std::pair{d.gradient(w), d.gradient(b)};
    };
    for (const precision p : {precision::fp32, precision::bf16, precision::mxfp8}) {
      check([&](bool of_w, bool of_b) {
        return run({6, 4}, of_w, of_b, [&](auto& w, auto* b) {
          (void)d.linear_backward(tensor_of(d, {5, 6}, 3, p), tensor_of(d, {5, 4}, 4, p), w, b, true);
        });
      });
      if (is_scaled(p)) continue;
      check([&](bool of_w, bool of_b) {
        return run({6, 4, 1, 1}, of_w, of_b, [&](auto& w, auto* b) {
          (void)d.conv2d_backward(tensor_of(d, {2, 6, 3, 3}, 3, p), tensor_of(d, {2, 4, 3, 3}, 4, p), w, b, {}, true);
        });
      });
    }
  }
}

TEST_CASE("a backward reads its inputs in the precision of the gradient, and adds gradients only where it is to") {
  device d;
  const precision p = precision::bf16;
  auto w = parameter_of(d, {6, 4}, 1, p), k = parameter_of(d, {6, 4, 1, 1}, 1, p), gamma = parameter_of(d, {4}, 2, p),
       beta = parameter_of(d, {4}, 3, p);
  const auto x = tensor_of(d, {5, 4}, 4, precision::fp32), image = tensor_of(d, {2, 4, 3, 3}, 5, precision::fp32);
  const auto dy = tensor_of(d, {5, 6}, 6, p), d_image = tensor_of(d, {2, 6, 3, 3}, 7, p),
             g = tensor_of(d, {5, 4}, 8, p);
  const auto of = [&](std::int64_t n) {
    return std::vector{tensor_of(d, {n}, 9, precision::fp32), tensor_of(d, {n}, 10, precision::fp32, 1, 2)};
  };
  const auto all = [&](const tensor& from, const tensor& from_image) {
    fresh(d, w, k, gamma, beta);
    return all_of(
        d,
        {d.linear_backward(dy, from, w, nullptr, true), d.conv2d_backward(d_image, from_image, k, nullptr, {}, true),
         d.batch_norm_backward(g, from, of(4), gamma, beta, {}),
         d.layer_norm_backward(g, from, of(5), gamma, beta, 1e-5), d.softmax_backward(g, from),
         d.log_softmax_backward(g, from), d.activate_backward(activation::gelu, g, from, from),
         d.activate_backward(activation::relu, g, from, from)},
        {&w, &k, &gamma, &beta});
  };
  CHECK(all(x, image) == all(d.cast(x, p), d.cast(image, p)));
  fresh(d, w);
  CHECK(d.linear_backward(dy, x, w, nullptr, true, false).shape() == x.shape());
  CHECK(d.gradient(w) == std::vector<float>(24));
}

TEST_CASE("the gradient of a bias has each row once, however many there are") {
  device d;
  for (const std::int64_t rows : {1, 255, 256, 257, 600}) {
    CAPTURE(rows);
    native::host_csr m{.rows = rows, .columns = 1};
    m.begin.resize(static_cast<std::size_t>(rows) + 1);
    const auto a = d.make_sparse(m);
    auto b = parameter_of(d, {3}, 1, precision::fp32);
    for (const float each : {1.0F, 0.0F}) {
      fresh(d, b);
      const std::vector<float> dy(static_cast<std::size_t>(rows * 3), each);
      (void)d.spmm_backward(a, d.upload(dy, {rows, 3}, precision::fp32), &b, false);
      CHECK(d.gradient(b) == std::vector<float>(3, each * static_cast<float>(rows)));
    }
  }
}

TEST_CASE("weights are rounded to the precision of their product") {
  for (const precision p : {precision::bf16, precision::fp16}) {
    device d;
    auto w = d.make_parameter(std::vector{1 + 0x1p-12F, 1.0F}, {1, 2});
    const auto x = d.upload(std::vector{1.0F, -1.0F}, {1, 2}, p);
    CHECK(d.download(d.linear(x, w, nullptr)) == std::vector{0.0F});
  }
}

TEST_CASE("weights that were rounded for one precision are not those of another in the same layout") {
  for (const precision first : {precision::fp16, precision::bf16, precision::fp32}) {
    for (const precision then : {precision::fp16, precision::bf16, precision::fp32}) {
      CAPTURE(name(first));
      CAPTURE(name(then));
      device d{{.native_bf16 = false}}, fresh{{.native_bf16 = false}};
      const auto make = [](device& on) { return on.make_parameter(numbers(64 * 64, 1), {64, 64}); };
      auto w = make(d), same = make(fresh);
      (void)d.linear(tensor_of(d, {32, 64}, 2, first), w, nullptr);
      for (int i = 0; i < 2; ++i) {  // the second time after the values have changed
        CHECK(d.download(d.linear(tensor_of(d, {32, 64}, 2, then), w, nullptr)) ==
              fresh.download(fresh.linear(tensor_of(fresh, {32, 64}, 2, then), same, nullptr)));
        d.set_values(w, numbers(64 * 64, 3));
        fresh.set_values(same, numbers(64 * 64, 3));
      }
    }
  }
}

TEST_CASE("a gradient lies where its values lie, whatever precision came before") {
  for (const precision before : {precision::fp32, precision::bf16}) {
    device d;
    auto w = parameter_of(d, {64, 48}, 1, precision::fp32);
    for (const precision p : {before, precision::mxfp8}) {
      d.zero_gradient(w);
      (void)d.linear_backward(tensor_of(d, {32, 64}, 2, p), tensor_of(d, {32, 48}, 3, p), w, nullptr, false);
      CHECK(w.gradient.layout() == w.value.layout());
    }
  }
}

TEST_CASE("a gradient behind a restore lies where the restored values lie") {
  device d;
  auto w = parameter_of(d, {64, 48}, 1, precision::fp32), same = parameter_of(d, {64, 48}, 1, precision::fp32);
  const auto before = d.snapshot(w);
  (void)d.linear_backward(tensor_of(d, {32, 64}, 2, precision::fp32), tensor_of(d, {32, 48}, 3, precision::fp32), w,
                          nullptr, false);
  d.restore(w, before);
  for (auto* p : {&w, &same}) {
    d.zero_gradient(*p);
    d.embedding_backward(tensor_of(d, {3, 48}, 4, precision::fp32), d.upload(std::vector<std::int32_t>{5, 0, 63}, {3}),
                         *p);
  }
  CHECK(w.gradient.layout() == w.value.layout());
  CHECK(d.gradient(w) == d.gradient(same));
}

TEST_CASE("slots that are set lie where the values lie") {
  device d;
  auto w = parameter_of(d, {16, 16, 3, 3}, 1, precision::fp32);
  const std::vector all{&w};
  const auto x = tensor_of(d, {2, 16, 6, 6}, 2, precision::fp32);
  const auto y = d.conv2d(x, w, nullptr, {});
  (void)d.conv2d_backward(y, x, w, nullptr, {}, false);
  d.sgd_step(all, {.learning_rate = 0.1, .momentum = 0.9});
  d.set_slots(w, d.slots(w));
  CHECK(w.first.layout() == w.value.layout());
}

TEST_CASE("what oneDNN refuses is an error of comp") {
  device d;
  auto w = parameter_of(d, {4, 4, 1, 1}, 1, precision::fp32);
  const auto x = tensor_of(d, {1, 4, 4, 4}, 2, precision::fp32);
  CHECK_THROWS_AS(d.conv2d(x, w, nullptr, {.stride = {1, 1}, .padding = {-1, -1}}), error);
  CHECK_THROWS_AS(d.bmm(tensor_of(d, {2, 2}, 1, precision::fp32), tensor_of(d, {3, 2}, 1, precision::fp32)), error);
}

TEST_CASE("what oneDNN refuses is told in its words, and a lack of memory from other refusals") {
  context c{{}};
  const auto refused = [&](dnnl_status_t status) {
    (void)c.cached(key{operation::bmm}, [&]() -> primitive { throw dnnl::error{status, "could not"}; });
  };
  CHECK_THROWS_WITH_AS(refused(dnnl_out_of_memory), "oneDNN had no memory (could not): use a smaller batch",
                       out_of_memory);
  CHECK_THROWS_WITH_AS(refused(dnnl_unimplemented),
                       "oneDNN refused an operator (could not, status 3): use other sizes or another precision", error);
}

TEST_CASE("backwards of graphs, a dropout and a loss refuse what does not fit") {
  device d;
  const auto m = d.make_sparse({.rows = 2, .columns = 3, .begin = {0, 1, 2}, .column = {0, 2}});
  const auto of = [&](const shape& s) { return tensor_of(d, s, 1, precision::fp32); };
  CHECK_THROWS_AS(d.edge_softmax_backward(m, of({2, 3}), of({2, 4})), error);
  auto ends = parameter_of(d, {1, 2, 3}, 1, precision::fp32);
  CHECK_THROWS_AS(d.edge_scores(m, of({3, 6}), ends, ends, 0.2), error);  // both ends are x's, so it must be square
  CHECK_THROWS_AS(d.dropout(of({2}), -0.1, {}), error);
  double loss = 0;
  CHECK_THROWS_AS(d.cross_entropy(of({2, 3, 1}), d.upload(std::vector<std::int32_t>{0, 1}, {2}), &loss), error);
}

#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)
TEST_CASE(
    "a library gets back the functions that it defines itself and whose names are wanted, in both of its tables") {
  // A library at address 0, so that its offsets are addresses. The table of calls is the longer one.
  const char names[] = "\0mine\0other";
  const auto function = [](Elf64_Word name, Elf64_Half section, unsigned char type, Elf64_Addr at) {
    return Elf64_Sym{name, static_cast<unsigned char>(STB_WEAK << 4 | type), 0, section, at, 0};
  };
  const std::array symbols{Elf64_Sym{}, function(1, 1, STT_FUNC, 100), function(6, 1, STT_FUNC, 200),
                           function(1, SHN_UNDEF, STT_FUNC, 300), function(1, 1, STT_OBJECT, 400)};
  std::array<Elf64_Addr, 6> slots{7, 7, 7, 7, 7, 7};
  const auto address = [](const auto& of) { return reinterpret_cast<Elf64_Addr>(&of); };
  const auto at = [&](std::size_t slot, unsigned symbol, unsigned kind) {
    return Elf64_Rela{address(slots[slot]), ELF64_R_INFO(Elf64_Xword{symbol}, kind), 0};
  };
  const std::array relocations{at(0, 1, R_X86_64_GLOB_DAT)};
  const std::array calls{at(1, 1, R_X86_64_JUMP_SLOT), at(2, 2, R_X86_64_JUMP_SLOT), at(3, 3, R_X86_64_JUMP_SLOT),
                         at(4, 4, R_X86_64_GLOB_DAT), at(5, 1, R_X86_64_64)};
  const auto entry = [](Elf64_Sxword tag, Elf64_Addr value) { return Elf64_Dyn{tag, {value}}; };
  const std::array dynamic{entry(DT_SYMTAB, address(symbols)),
                           entry(DT_STRTAB, address(names)),
                           entry(DT_RELA, address(relocations)),
                           entry(DT_RELASZ, sizeof relocations),
                           entry(DT_JMPREL, address(calls)),
                           entry(DT_PLTRELSZ, sizeof calls),
                           entry(DT_NULL, 0)};
  Elf64_Phdr part{};
  part.p_type = PT_DYNAMIC;
  part.p_vaddr = address(dynamic);
  dl_phdr_info library{};
  library.dlpi_phdr = &part;
  library.dlpi_phnum = 1;
  detail::loaded_library{library}.bind_own([](std::string_view name) { return name == "mine"; });
  CHECK(slots == std::array<Elf64_Addr, 6>{100, 100, 7, 7, 7, 7});
}
#endif

TEST_CASE("settings that cannot be are refused") {
  CHECK_THROWS_WITH_AS(device{settings{.threads = -1}},
                       "-1 threads asked for (a device needs at least one): use 0 for all", settings_error);
}

}  // namespace
}  // namespace comp::host::test
