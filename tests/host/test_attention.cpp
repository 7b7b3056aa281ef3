// SPDX-License-Identifier: Apache-2.0
// Attention by blocks beside the FP64 reference and beside itself operator by operator: results, gradients, masks,
// dropout, memory, and when it is left to the operators.
#include <atomic>
#include <comp_host/attention.hpp>
#include <comp_host/device.hpp>
#include <comp_native/model_builder.hpp>
#include <comp_native/network.hpp>

#include "../native/attention.hpp"
#include "../native/reference_device.hpp"
#include "../native/support.hpp"

namespace comp::host::test {
namespace {

using namespace native::testing;
using native::op::attention;
using native::op::softmax_mask;

constexpr settings in_one{.threads = 2, .attention_from = 0};
constexpr double roundings(precision p) { return p == precision::fp32 ? 64 : 3; }

/// On a device with `chosen`.
attended on(const settings& chosen, const attention& what, const tokens& t, const given& from, precision p,
            const dropout_key& key = {5, 7}) {
  device d{chosen};
  return attend(d, what, t, from, p, key);
}
attended exactly(const attention& what, const tokens& t, const given& from, const dropout_key& key = {5, 7}) {
  native::reference::device d;
  return attend(d, what, t, from, precision::fp32, key);
}
void check_in_every_precision(const attention& what, const tokens& t, const given& from) {
  const attended want = exactly(what, t, from);
  for (const precision p : {precision::fp32, precision::bf16, precision::fp16}) {
    for (const bool native_bf16 : {true, false}) {
      if (!native_bf16 && p != precision::bf16) continue;
      CAPTURE(name(p));
      CAPTURE(native_bf16);
      const attended got = on({.threads = 2, .native_bf16 = native_bf16, .attention_from = 0}, what, t, from, p);
      CHECK(got.in_one);
      check_like(got, want, p, roundings(p));
    }
  }
}

native::model attending(bool as_one) {
  native::model_builder net{"attending", native::input_kind::values, {2, 5, 12}};
  const native::value x = net.input().linear("x", 12), k = x.linear("k", 12), v = x.linear("v", 12);
  constexpr auto causal = softmax_mask::causal;
  const native::value y =
      as_one ? x.attention("all", k, v, {.heads = 3, .mask = causal})
             : x.attention_scores("scores", k, 3).softmax("shares", causal).attention_context("context", v, 3);
  y.linear("after", 2).mse_loss("loss");
  return net.finish();
}
/// The loss, and the gradient of each parameter.
std::vector<std::vector<float>> step_of(const native::model& m, precision p) {
  device d;
  native::network<device> net{d, m, 1};
  net.set_precision(plan{net.graph().size(), p});
  const auto batch = native::uploaded(d, m, native::testing::random_batch(m, 3));
  std::vector<std::vector<float>> values{{static_cast<float>(net.forward(batch))}};
  net.backward(batch);
  for (const auto* each : net.trainable()) values.push_back(d.gradient(*each));
  return values;
}

}  // namespace

TEST_CASE("attention by blocks gives FP64's results and gradients, for sizes below, at and above a block's") {
  for (const auto& [t, heads] : std::vector<std::pair<tokens, std::int64_t>>{{{1, 1, 1, 8}, 1},
                                                                             {{1, 1, 3, 5}, 1},
                                                                             {{3, 5, 5, 12}, 3},
                                                                             {{2, 5, 9, 12}, 3},
                                                                             {{1, 192, 256, 16}, 2},
                                                                             {{1, 193, 257, 10}, 2},
                                                                             {{1, 400, 70, 8}, 1},
                                                                             {{2, 530, 530, 8}, 1}}) {
    const given from{t};
    for (const softmax_mask mask : {softmax_mask::none, softmax_mask::causal, softmax_mask::padding}) {
      if (mask == softmax_mask::causal && t.queries != t.keys) continue;
      CAPTURE(t.queries);
      CAPTURE(t.keys);
      CAPTURE(mask);
      check_in_every_precision({{.heads = heads, .mask = mask}}, t, from);
    }
  }
}

TEST_CASE("attention by blocks of one key gives its value, of none zeros, and neither a gradient elsewhere") {
  const tokens t{4, 300, 300, 8};
  given from{t};
  from.lengths = {300, 1, 0, 65};
  const attention what{{.heads = 2, .mask = softmax_mask::padding}};
  check_in_every_precision(what, t, from);
  const attended got = on(in_one, what, t, from, precision::fp32);
  const auto example = [&](const std::vector<float>& all, std::size_t b) {
    return std::span{all}.subspan(b * 300 * 8, 300 * 8);
  };
  const auto zero = [](float x) { return x == 0; };
  CHECK(std::ranges::equal(example(got.y, 1).first(8), example(from.v, 1).first(8)));
  CHECK(std::ranges::all_of(example(got.y, 2), zero));
  for (const auto& dx : got.dx) CHECK(std::ranges::all_of(example(dx, 2), zero));
  CHECK(std::ranges::all_of(example(got.dx[2], 1).subspan(8), zero));
  CHECK(std::ranges::all_of(example(got.dx[1], 3).subspan(65 * 8), zero));
}

TEST_CASE("attention by blocks drops what operators one by one drop, in both directions") {
  for (const tokens& t : {tokens{2, 7, 7, 12}, tokens{1, 203, 261, 8}}) {
    const given from{t};
    CAPTURE(t.keys);
    const attention what{{.heads = 2, .dropout = 0.3}};
    check_in_every_precision(what, t, from);
    const auto y_of = [&](const dropout_key& key) { return on(in_one, what, t, from, precision::fp32, key).y; };
    CHECK(y_of({5, 7}) == y_of({5, 7}));
    CHECK(y_of({5, 8}) != y_of({5, 7}));
    CHECK(y_of({6, 7}) != y_of({5, 7}));
  }
}

TEST_CASE("attention by blocks has the same bits on any number of threads") {
  const tokens t{2, 300, 300, 24};
  const given from{t};
  const attention what{{.heads = 3, .mask = softmax_mask::padding, .dropout = 0.1}};
  for (const precision p : {precision::fp32, precision::bf16}) {
    const attended one = on({.threads = 1, .attention_from = 0}, what, t, from, p);
    for (const int threads : {2, 3, 7}) {
      const attended more = on({.threads = threads, .attention_from = 0}, what, t, from, p);
      CHECK(more.y == one.y);
      CHECK(more.dx == one.dx);
      CHECK(threads_of_loops() == threads);  // is put back
    }
  }
}

TEST_CASE("attention by blocks bears large scores, and hands on what is not a number") {
  const tokens t{1, 300, 300, 8};
  given from{t};
  for (float& x : from.q) x *= 64;  // scores to some thousands: exponentials overflow without the largest taken off
  const attention what{{.heads = 1}};
  check_like(on(in_one, what, t, from, precision::fp32).y, exactly(what, t, from).y, precision::fp32, 1024);
  from.q[8 * 200] = std::numeric_limits<float>::quiet_NaN();
  const attended got = on(in_one, what, t, from, precision::fp32);
  for (std::size_t i = 0; i < got.y.size(); ++i) CHECK(std::isnan(got.y[i]) == (i / 8 == 200));
  CHECK(std::isnan(got.dx[1][0]));
}

TEST_CASE("where a query's largest probabilities are equal, the rounding of y is no gradient of its scores") {
  const tokens t{1, 320, 320, 32};
  given from{t};
  for (std::size_t i = 0; i < from.k.size(); ++i) {
    from.k[i] = from.k[i / 64 * 64 + i % 32];  // keys in pairs of equal ones
    from.q[i] = 32 * from.k[i];
    from.v[i] = 1 + static_cast<float>((i * 37 + i / 32 * 5) % 128) / 128;  // 8 bits; a pair's mean has 9
  }
  const attended want = exactly({{.heads = 1}}, t, from);
  const auto largest = [](const std::vector<float>& all, const auto& minus) {
    float most = 0;
    for (std::size_t i = 0; i < all.size(); ++i) most = std::max(most, std::abs(all[i] - minus(i)));
    return most;
  };
  const float all = largest(want.dx[1], [](std::size_t) { return 0.0F; });
  for (const precision p : {precision::fp32, precision::bf16, precision::fp16}) {
    CAPTURE(name(p));
    const attended got = on(in_one, {{.heads = 1}}, t, from, p);
    CHECK(got.in_one);
    CHECK(largest(got.dx[0], [&](std::size_t i) { return want.dx[0][i]; }) < 5e-6F * all);  // a pair's add up to 0
  }
}

TEST_CASE("attention by blocks has the same bits behind attentions of other sizes, scales and precisions") {
  device used{in_one};
  for (int pass = 0; pass < 2; ++pass) {
    for (const auto& [t, heads] : std::vector<std::pair<tokens, std::int64_t>>{{{1, 40, 40, 16}, 1},
                                                                               {{1, 40, 40, 16}, 2},
                                                                               {{1, 40, 40, 32}, 1},
                                                                               {{1, 41, 40, 16}, 1},
                                                                               {{1, 40, 41, 16}, 1},
                                                                               {{3, 40, 40, 16}, 1}}) {
      const given from{t};
      for (const precision p : {precision::fp32, precision::bf16, precision::fp16}) {
        CAPTURE(heads);
        CAPTURE(p);
        device fresh{in_one};
        const attention what{{.heads = heads}};
        const attended got = attend(used, what, t, from, p), want = attend(fresh, what, t, from, p);
        CHECK(got.y == want.y);
        CHECK(got.dx == want.dx);
      }
    }
  }
}

TEST_CASE("attention by blocks takes memory that grows with the tokens, not with their square") {
  const auto peak = [](std::int64_t length, std::int64_t attention_from) {
    const tokens t{1, length, length, 8};
    device d{{.threads = 1, .attention_from = attention_from}};
    (void)attend(d, {{.heads = 1}}, t, given{t}, precision::fp32);
    return d.peak_bytes();
  };
  const std::int64_t scores = 4 * 2048 * 2048;
  CHECK(peak(2048, 0) < scores / 4);
  CHECK(peak(2048, 0) < 2 * peak(1024, 0));
  CHECK(peak(2048, 4096) > 2 * scores);  // operator by operator
}

TEST_CASE("attention of few keys is left to its operators, whose bits it has; with dropout it is done by blocks") {
  for (const precision p : {precision::fp32, precision::bf16, precision::fp16}) {
    CAPTURE(p);
    CHECK(step_of(attending(true), p) == step_of(attending(false), p));
  }
  const settings usual;
  const auto by_blocks = [&](std::int64_t keys, double dropout) {
    const tokens t{1, 4, keys, 8};
    return on(usual, {{.heads = 1, .dropout = dropout}}, t, given{t}, precision::bf16).in_one;
  };
  CHECK_FALSE(by_blocks(usual.attention_from - 1, 0));
  CHECK(by_blocks(usual.attention_from, 0));
  CHECK(by_blocks(1, 0.1));
}

TEST_CASE("attention by blocks refuses what does not fit in words") {
  device d{in_one};
  check_refusals(d,
                 "backward of attention over (1,6,16) with 0 saved tensors (it takes two): give what attention() gave");
  const std::vector<float> some(6 * 16);
  const tensor q = d.upload(some, {1, 6, 16}, precision::bf16);
  CHECK_THROWS_AS(d.attention(q, q, q, {}, {.heads = 2, .mask = softmax_mask::padding}, {}), error);
  const std::vector saved{q, q};
  CHECK_THROWS_AS(d.attention_backward(q, q, q, q, saved, {}, {.heads = 2, .mask = softmax_mask::padding}, {}), error);
}

TEST_CASE("attention by blocks that finds no memory says so, and the next one works") {
  const tokens t{1, 300, 300, 8};
  const given from{t};
  device d{{.threads = 2, .memory_limit = 400'000, .attention_from = 0}};
  CHECK_THROWS_AS(attend(d, {{.heads = 1}}, t, from, precision::fp32), out_of_memory);
  CHECK(threads_of_loops() == 2);
  const tokens few{1, 30, 30, 8};
  CHECK(attend(d, {{.heads = 1}}, few, given{few}, precision::fp32).in_one);
}

TEST_CASE("what a thread throws of a head is thrown where attention was called, after the other heads") {
  struct none {
    none(detail::pieces&, const detail::attention_case&) {}
  };
  context c{{}};
  const int before = threads_of_loops();
  const detail::attention_case of{{2, 5, 12}, {2, 5, 12}, {.heads = 3}, {}, {}};
  for (const int threads : {1, 2, 4}) {
    set_threads(threads);
    for (const std::int64_t bad : {0, 5}) {
      std::atomic<int> heads = 0;
      const auto work = [&](const detail::head_worker& at, const none&, const detail::one_head& in) {
        heads += at.thread < threads;
        if (in.example * 3 + in.head == bad) throw out_of_memory{"none for this head"};
      };
      CHECK_THROWS_WITH_AS(detail::each_head<none>(c, of, precision::fp32, {}, work), "none for this head",
                           out_of_memory);
      CHECK(heads == 6);
      CHECK(threads_of_loops() == threads);
      CHECK(c.memory->live() == 0);
    }
  }
  set_threads(before);
}

}  // namespace comp::host::test
