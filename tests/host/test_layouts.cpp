// SPDX-License-Identifier: Apache-2.0
// Memory layouts: copies of weights for BF16, tensors whose layout pads their channels, what pooling goes back to.
#include <atomic>
#include <comp_host/device.hpp>
#include <comp_host/linear.hpp>
#include <comp_host/optimizer.hpp>
#include <cstring>

#include "../native/devices/agree.hpp"

namespace comp::host::test {

using namespace native::contract;

namespace {

using tag = dnnl::memory::format_tag;

TEST_CASE("weights in rows and the same by pairs of rows are told from all other layouts") {
  context c{{}};
  if (!c.computes(precision::bf16)) return;
  struct pair {
    shape extents;
    tag rows, pairs;
    std::size_t length;  // 0: the second is not the first by pairs
  };
  for (const pair& s :
       {pair{{128, 48}, tag::AB16b64a, tag::AB8b64a2b, 64}, pair{{100, 30}, tag::AB16b64a, tag::AB8b64a2b, 64},
        pair{{64, 16}, tag::AB16b64a, tag::AB8b64a2b, 64}, pair{{1, 40}, tag::AB16b16a, tag::AB8b16a2b, 16},
        pair{{32, 48, 3, 2}, tag::ABcd16b16a, tag::ABcd8b16a2b, 16},
        pair{{16, 6, 5, 5}, tag::Acdb16a, tag::AcdB16a2b, 16}, pair{{16, 2, 1, 1}, tag::Acdb16a, tag::AcdB16a2b, 16},
        pair{{16, 3, 5, 5}, tag::Acdb16a, tag::AcdB16a2b, 0}, pair{{128, 48}, tag::AB16b16a, tag::AB8b64a2b, 0},
        pair{{32, 48, 3, 2}, tag::ABcd16b16a, tag::ABcd8a16b2a, 0}, pair{{64, 48}, tag::ab, tag::AB8b64a2b, 0},
        pair{{2, 4}, tag::ab, tag::ba, 4}, pair{{64, 4}, tag::ba, tag::ba, 0}}) {
    CAPTURE(text(s.extents));
    CAPTURE(s.length);
    const layout* rows = c.layouts.intern({s.extents, dnnl::memory::data_type::f32, s.rows});
    const layout* pairs = c.layouts.intern({s.extents, dnnl::memory::data_type::bf16, s.pairs});
    REQUIRE(c.layouts.paired_rows(rows, pairs) == s.length);
    CHECK(c.layouts.paired_rows(pairs, rows) == 0);
    if (s.length == 0) continue;
    auto values = numbers(elements(s.extents), 1, precision::fp32, -2, 2);
    values[0] = std::numeric_limits<float>::infinity();
    values[1] = 0x1.018p0F;  // half way between two of BF16
    const tensor from = placed(c, upload(c, values, s.extents, precision::fp32), rows);
    const tensor expected = c.make(pairs), got = c.make(pairs);
    reorder_into(c, from, expected);
    convert_paired(from.as<float>(), got.data(), rows->stored, s.length);
    CHECK(std::memcmp(got.data(), expected.data(), pairs->bytes) == 0);
  }
}

TEST_CASE(
    "weights' copies are those of fresh weights after any optimizer's step, and written by it from the second on") {
  const sgd_options plain{.learning_rate = 0.1}, momentum{.learning_rate = 0.1, .momentum = 0.9};
  const adam_options adam{.learning_rate = 0.1};
  for (const shape& s : {shape{70, 33}, shape{128, 64}, shape{1, 40}, shape{300, 500}}) {
    for (int optimizer = 0; optimizer < 3; ++optimizer) {
      CAPTURE(text(s));
      CAPTURE(optimizer);
      context c{{}};
      const auto upload_as = [&](const shape& extents, unsigned seed, precision p) {
        return upload(c, numbers(elements(extents), seed, precision::bf16), extents, p);
      };
      auto w = make_parameter(c, numbers(elements(s), 1, precision::fp32), s, true);
      parameter* const all[] = {&w};
      int in_turn = 0;
      for (const precision p : {precision::bf16, precision::bf16, precision::bf16, precision::fp32, precision::bf16,
                                precision::fp32, precision::bf16, precision::bf16}) {
        in_turn = p == precision::bf16 ? in_turn + 1 : 0;
        CAPTURE(in_turn);
        const tensor x = upload_as({4, s[1]}, 2, p), dy = upload_as({4, s[0]}, 3, p);
        auto same = make_parameter(c, values(c, w), s, true);
        CHECK(download(c, linear(c, x, w, nullptr)) == download(c, linear(c, x, same, nullptr)));
        w.fresh = true;
        CHECK(download(c, linear_backward(c, dy, x, w, nullptr, true)) ==
              download(c, linear_backward(c, dy, x, same, nullptr, true)));
        const bool pairs =
            std::ranges::any_of(w.copies, [&](const auto& known) { return paired_rows(c, w, known) > 0; });
        if (optimizer == 2) {
          adam_step(c, all, adam, 1);
        } else {
          sgd_step(c, all, optimizer == 0 ? plain : momentum);
        }
        CHECK(std::ranges::any_of(w.copies, &parameter::copy::current) == (pairs && in_turn > 1));
      }
    }
  }
}

TEST_CASE("a step that writes a copy along passes each value once, and pairs what it made, on any number of threads") {
  const int before = threads_of_loops();
  for (const int threads : {1, 2, 3}) {
    for (const auto& [rows, length] :
         {std::array<std::size_t, 2>{2, 1}, {128, 64}, {1000, 48}, {64, 300}, {10, 3000}}) {
      CAPTURE(threads);
      CAPTURE(length);
      set_threads(threads);
      const auto addends = numbers(static_cast<std::int64_t>(rows * length), 1);
      std::vector<float> values(addends.size());
      std::vector<std::uint32_t> pairs(addends.size() / 2), expected(pairs.size());
      detail::launch_paired(values.size(), values.data(), pairs.data(), length, [&](std::size_t from, std::size_t to) {
        for (std::size_t i = from; i < to; ++i) values[i] += addends[i];
      });
      CHECK(values == addends);
      detail::pair_rows(addends.data(), expected.data(), addends.size(), length);
      CHECK(pairs == expected);
    }
  }
  set_threads(before);
}

TEST_CASE("blocks of 16 channels with padding become channels last as oneDNN makes them, for any channels and size") {
  const int before = threads_of_loops();
  for (const int threads : {1, 2, 3}) {
    set_threads(threads);
    context c{{}};
    for (const shape& s : {shape{64, 6, 14, 14}, shape{1, 1, 1, 1}, shape{2, 3, 1, 2}, shape{3, 5, 41, 43},
                           shape{9, 15, 20, 20}, shape{2, 17, 30, 30}, shape{5, 33, 16, 16}}) {
      for (const precision p : {precision::fp32, precision::bf16}) {
        if (!c.computes(p)) continue;
        CAPTURE(text(s));
        CAPTURE(threads);
        const auto type = c.type_of(p);
        const layout *blocks = c.layouts.intern({s, type, tag::nChw16c}),
                     *last = c.layouts.intern({s, type, tag::nhwc});
        REQUIRE(detail::unblocks(blocks, last));
        CHECK_FALSE(detail::unblocks(last, blocks));
        const tensor from = placed(c, upload(c, numbers(elements(s), 1, p, -1, 1), s, p), blocks);
        const tensor expected = c.make(last);
        reorder_into(c, from, expected);
        CHECK(std::memcmp(placed(c, from, last).data(), expected.data(), last->bytes) == 0);
      }
    }
  }
  set_threads(before);
}

TEST_CASE("a layout that differs in name alone costs no copy") {
  context c{{}};
  const auto f32 = dnnl::memory::data_type::f32;
  const auto placed_as = [&](const shape& s, tag from, tag to) {
    const tensor t = c.make(c.layouts.intern({s, f32, from}));
    std::fill_n(t.as<float>(), t.layout()->stored, 0.0F);
    const tensor there = placed(c, t, c.layouts.intern({s, f32, to}));
    CHECK(there.layout() == c.layouts.intern({s, f32, to}));
    return there.data() == t.data();
  };
  CHECK(placed_as({3, 1, 4, 5}, tag::nchw, tag::nhwc));
  CHECK(placed_as({3, 16, 4, 5}, tag::nChw16c, tag::nhwc));
  CHECK(placed_as({3, 7, 1, 1}, tag::nchw, tag::nhwc));
  CHECK_FALSE(placed_as({3, 2, 4, 5}, tag::nchw, tag::nhwc));
  CHECK_FALSE(placed_as({3, 32, 4, 5}, tag::nChw16c, tag::nhwc));
  CHECK_FALSE(placed_as({3, 15, 4, 5}, tag::nChw16c, tag::nhwc));
}

TEST_CASE("a gradient and an operand that lie otherwise than a convolution's result agree with FP64") {
  for (const precision p : tested::precisions) {
    for (const std::int64_t channels : {16, 17}) {
      CAPTURE(name(p));
      CAPTURE(channels);
      agree([&](auto& d, results& r) {
        const shape s{2, channels, 6, 6};
        auto w = d.make_parameter(std::vector<float>(static_cast<std::size_t>(channels * channels * 9)),
                                  {channels, channels, 3, 3}),
             gamma = parameter_of(d, {channels}, 1, p), beta = parameter_of(d, {channels}, 2, p),
             mean = parameter_of(d, {channels}, 3, p), variance = parameter_of(d, {channels}, 4, p, 0.5F, 1);
        const auto plain = tensor_of(d, s, 5, p), other = tensor_of(d, s, 6, p);
        const auto sum = d.add(d.conv2d(plain, w, nullptr, {.padding = {1, 1}}), plain);  // of zeros, so it is exact
        const auto y = d.batch_norm(sum, gamma, beta, mean, variance, {});
        r.keep(d, "batch norm dx", d.batch_norm_backward(other, sum, y.saved, gamma, beta, {}), 288);
        r.keep(d, "left of a product", d.bmm(sum, other, false, false, 1), 6);
        r.keep(d, "right of a product, transposed", d.bmm(other, sum, false, true, 1), 6);
      });
    }
  }
}

TEST_CASE("the lines of a sparse matrix are shared by their elements, each to one thread") {
  const int before = threads_of_loops();
  native::host_csr m{.rows = 300, .columns = 2000, .begin = {0}};  // row 250 has as many as all others together
  for (std::int32_t r = 0; r < 300; ++r) {
    for (std::int32_t k = 0; k < (r == 250 ? 2000 : r % 14); ++k) m.column.push_back(k);
    m.begin.push_back(static_cast<std::int32_t>(m.column.size()));
  }
  const sparse_side over = make_sparse(m).by_row;
  CHECK(over.longest == 2000);
  CHECK(make_sparse(m).by_column.longest == 278);
  for (const int threads : {1, 2, 3, 4}) {
    CAPTURE(threads);
    set_threads(threads);
    std::vector<std::size_t> times(300);
    const std::size_t fair = (300 + m.column.size()) / static_cast<std::size_t>(threads) + 2001;
    std::atomic<int> uneven = 0, parts = 0;
    launch_lines(over, 64, [&](std::size_t from, std::size_t to) {
      for (std::size_t line = from; line < to; ++line) ++times[line];
      uneven += static_cast<std::size_t>(over.begin[to] - over.begin[from]) + to - from > fair;
      ++parts;
    });
    CHECK(times == std::vector<std::size_t>(300, 1));
    CHECK(parts == threads);
    CHECK(uneven == 0);
  }
  set_threads(before);
}

/// Forward and backward through layouts that pad 6, 5 and 7 channels or outputs, twice.
struct run {
  std::vector<float> values = {};
  std::vector<std::size_t> bytes = {};  // of all that was written
};
run padded_run(device& d, precision p) {
  run result;
  const auto keep = [&](const tensor& t) {
    const auto values = d.download(t);
    result.values.insert(result.values.end(), values.begin(), values.end());
    result.bytes.push_back(t.layout()->bytes);
    return t;
  };
  auto w1 = parameter_of(d, {6, 1, 5, 5}, 1, p), b1 = parameter_of(d, {6}, 2, p),
       w2 = parameter_of(d, {5, 6, 3, 3}, 3, p), b2 = parameter_of(d, {5}, 4, p), w3 = parameter_of(d, {7, 20}, 5, p),
       b3 = parameter_of(d, {7}, 6, p);
  auto gamma = parameter_of(d, {6}, 8, p), beta = parameter_of(d, {6}, 9, p), mean = parameter_of(d, {6}, 10, p),
       variance = parameter_of(d, {6}, 11, p, 0.5F, 1);
  const auto x = tensor_of(d, {3, 1, 12, 12}, 7, p);
  for (int pass = 0; pass < 2; ++pass) {  // the second one's gradients are added
    const auto first = keep(d.conv2d(x, w1, &b1, {.padding = {2, 2}}));
    const auto n = d.batch_norm(first, gamma, beta, mean, variance, {});
    const auto a = keep(d.activate(activation::sigmoid, keep(n.output)));
    const auto q = keep(d.avg_pool2d(a, {}));
    const auto y = keep(d.conv2d(q, w2, &b2, {}));
    const auto m = d.max_pool2d(y, {});
    const auto flat = d.reshape(keep(m.output), {3, 20});
    const auto out = keep(d.linear(flat, w3, &b3));
    const auto d_flat = keep(d.linear_backward(out, flat, w3, &b3, true));
    const auto dm = keep(d.max_pool2d_backward(d.reshape(d_flat, {3, 5, 2, 2}), y, m.saved, {}));
    const auto dq = keep(d.conv2d_backward(dm, q, w2, &b2, {}, true));
    const auto da = keep(d.avg_pool2d_backward(dq, d.places_of(a), {}));
    const auto dn = keep(d.activate_backward(activation::sigmoid, da, a, a));
    const auto d_first = keep(d.batch_norm_backward(dn, first, n.saved, gamma, beta, {}));
    (void)d.conv2d_backward(d_first, x, w1, &b1, {.padding = {2, 2}}, false);
  }
  for (const parameter* q : {&w1, &b1, &w2, &b2, &w3, &b3, &gamma, &beta}) {
    const auto g = d.gradient(*q);
    result.values.insert(result.values.end(), g.begin(), g.end());
    result.bytes.push_back(q->gradient.layout()->bytes);
  }
  return result;
}

TEST_CASE("padding is zero in memory that other values have been in") {
  for (const precision p : tested::precisions) {
    CAPTURE(name(p));
    device clean, used;
    const run expected = padded_run(clean, p);
    CHECK(std::ranges::all_of(expected.values, [](float v) { return std::isfinite(v); }));
    for (int times = 0; times < 3; ++times) {
      CHECK(padded_run(used, p).values == expected.values);
      std::vector<tensor> nan;
      for (int copies = 0; copies < 6; ++copies) {
        for (const std::size_t bytes : expected.bytes) {
          const std::vector<float> all(bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
          nan.push_back(used.upload(all, {std::ssize(all)}, precision::fp32));
        }
      }
    }
  }
}

TEST_CASE(
    "the gradient of an average pooling whose windows lie apart lies where its input did, and has the same bits") {
  struct window {
    pool2d_options options;
    bool apart;
  };
  for (const window& s : {window{{}, true}, window{{.kernel = {3, 2}, .stride = {3, 2}, .padding = {1, 1}}, true},
                          window{{.kernel = {3, 2}, .stride = {2, 2}, .padding = {1, 1}}, false},
                          window{{.kernel = {2, 3}, .stride = {2, 2}, .padding = {1, 1}}, false}}) {
    for (const precision p : tested::precisions) {
      for (const std::int64_t channels : {1, 3, 6, 16, 17}) {
        CAPTURE(name(p));
        CAPTURE(channels);
        CAPTURE(s.apart);
        device d;
        auto w = parameter_of(d, {channels, 3, 3, 3}, 1, p);
        const auto x = d.conv2d(tensor_of(d, {2, 3, 7, 6}, 2, p), w, nullptr, {.padding = {1, 1}});
        const auto dy = tensor_of(d, d.avg_pool2d(x, s.options).shape(), 3, p);
        const auto there = d.avg_pool2d_backward(dy, d.places_of(x), s.options);
        if (s.apart) CHECK(there.layout() == x.layout());
        CHECK_FALSE(d.places_of(x));
        CHECK(d.download(d.places_of(x)).empty());
        CHECK(d.places_of(x).data() == nullptr);
        CHECK(d.download(there) == d.download(d.avg_pool2d_backward(dy, x.shape(), s.options)));
        CHECK_THROWS_AS(d.avg_pool2d_backward(x, d.places_of(x), s.options), error);
      }
    }
  }
}

}  // namespace
}  // namespace comp::host::test
