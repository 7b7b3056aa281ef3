// SPDX-License-Identifier: Apache-2.0
#include <comp_host/bmm.hpp>
#include <comp_host/embedding.hpp>
#include <comp_host/softmax.hpp>
#include <limits>

#include "agree.hpp"

namespace comp::host::test {
namespace {

TEST_CASE("batched products agree with FP64, in every transposition") {
  struct sizes {
    native::shape batch;
    std::int64_t m, n, k;
  };
  for (const auto& s :
       {sizes{{}, 1, 1, 1}, sizes{{3}, 17, 5, 3}, sizes{{2, 3}, 16, 17, 33}, sizes{{2, 4}, 64, 64, 32}}) {
    for (const precision p : tested) {
      for (const int transposition : {0, 1, 2, 3}) {
        CAPTURE(name(p));
        CAPTURE(transposition);
        CAPTURE(s.m);
        agree([&](auto& d, results& r) {
          const bool ta = transposition & 1, tb = transposition & 2;
          auto a = s.batch, b = s.batch;
          a.insert(a.end(), {ta ? s.k : s.m, ta ? s.m : s.k});
          b.insert(b.end(), {tb ? s.n : s.k, tb ? s.k : s.n});
          r.keep(d, "y", d.bmm(tensor_of(d, a, 1, p), tensor_of(d, b, 2, p), ta, tb, 0.3), static_cast<double>(s.k));
        });
      }
    }
  }
}

TEST_CASE("attention on views of heads agrees with FP64, forward and backward") {
  for (const precision p : tested) {
    CAPTURE(name(p));
    agree([&](auto& d, results& r) {
      auto q = d.split_heads(tensor_of(d, {2, 17, 32}, 1, p), 4), k = d.split_heads(tensor_of(d, {2, 17, 32}, 2, p), 4),
           v = d.split_heads(tensor_of(d, {2, 17, 32}, 3, p), 4);
      r.keep(d, "heads", q);
      r.keep(d, "scores", d.bmm(q, k, false, true, 0.35), 8);
      auto weights = tensor_of(d, {2, 4, 17, 17}, 4, p, 0);
      auto mixed = d.bmm(weights, v, false, false, 1);
      r.keep(d, "mixed", mixed, 17);
      r.keep(d, "merged", d.merge_heads(mixed), 17);
      r.keep(d, "merged row-major", d.merge_heads(tensor_of(d, {2, 4, 17, 8}, 5, p)));
      r.keep(d, "dv", d.merge_heads(d.bmm(weights, q, true, false, 1)), 17);
      r.keep(d, "dweights", d.bmm(q, v, false, true, 1), 8);
      const std::vector twice{q, k};
      r.keep(d, "sum of views", d.sum(twice));
      r.keep(d, "relu of a view", d.activate(native::activation::relu, q));
      r.keep(d, "cast of a view", d.cast(q, precision::fp32));
    });
  }
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

TEST_CASE("softmax, log-softmax and their gradients agree with FP64") {
  for (const native::shape& s : {native::shape{1, 1}, {3, 17}, {2, 3, 33, 33}, {5, 1000}}) {
    for (const precision p : tested) {
      CAPTURE(text(s));
      CAPTURE(name(p));
      agree([&](auto& d, results& r) {
        const auto width = static_cast<double>(s.back());
        auto x = tensor_of(d, s, 1, p, -8, 8), dy = tensor_of(d, s, 2, p), y = tensor_of(d, s, 3, p, 0, 1),
             logs = tensor_of(d, s, 3, p, -5, 0);
        r.keep(d, "softmax", d.softmax(x, false), width);
        r.keep(d, "log-softmax", d.log_softmax(x), width);
        if (s.size() == 4) r.keep(d, "causal", d.softmax(x, true), width);
        r.keep(d, "softmax dx", d.softmax_backward(dy, y), 2 * width);
        r.keep(d, "log-softmax dx", d.log_softmax_backward(dy, logs), 2 * width);
      });
    }
  }
}

TEST_CASE("the causal softmax ignores what lies above the diagonal, and lets NaN below it through") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const precision p : tested) {
    device d;
    const auto y = d.download(
        d.softmax(d.upload(std::vector{0.0F, nan, infinity, 1.0F, 1.0F, nan, nan, 0.0F, 0.0F}, {1, 3, 3}, p), true));
    CHECK(std::vector(y.begin(), y.begin() + 6) == std::vector{1.0F, 0.0F, 0.0F, 0.5F, 0.5F, 0.0F});
    CHECK(std::isnan(y[6]));
  }
}

TEST_CASE("the exponential of the loops is right to two units in the last place") {
  for (float x = -87.0F; x < 88.0F; x += 0.00713F) {
    const double wanted = std::exp(static_cast<double>(x));
    REQUIRE(std::abs(exp_of(x) - wanted) <= 2 * 0x1p-23 * wanted);
  }
  CHECK(exp_of(-std::numeric_limits<float>::infinity()) == 0.0F);
  CHECK(exp_of(-88.0F) == 0.0F);
  CHECK(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("an embedding and its gradient agree with FP64, repeated indices included") {
  for (const precision p : tested) {
    CAPTURE(name(p));
    agree([&](auto& d, results& r) {
      auto w = parameter_of(d, {11, 17}, 1, p);
      auto at = d.upload(std::vector<std::int32_t>{0, 10, 3, 3, 3, 7}, {2, 3});
      r.keep(d, "y", d.embedding(at, w, p));
      auto dy = tensor_of(d, {2, 3, 17}, 2, p);
      fresh(d, w);
      d.embedding_backward(dy, at, w);
      r.keep_gradient(d, "dw", w, 3);
      d.embedding_backward(dy, at, w);
      r.keep_gradient(d, "dw twice", w, 6);
      // tied to a linear layer, whose gradient lies otherwise
      auto x = tensor_of(d, {5, 17}, 3, p), dz = tensor_of(d, {5, 11}, 4, p);
      fresh(d, w);
      (void)d.linear_backward(dz, x, w, nullptr, false);
      d.embedding_backward(dy, at, w);
      r.keep_gradient(d, "dw tied", w, 8);
      r.keep(d, "y after", d.embedding(at, w, p));
    });
  }
}

TEST_CASE("attention's operators refuse what does not fit") {
  device d;
  auto w = parameter_of(d, {4, 3}, 1, precision::fp32);
  CHECK_THROWS_WITH_AS(d.embedding(d.upload(std::vector<std::int32_t>{4}, {1}), w, precision::fp32),
                       "embedding of index 4 (the table has 4 rows): use indices from 0 to 3", error);
  CHECK_THROWS_AS(d.embedding(d.upload(std::vector<std::int32_t>{-1}, {1}), w, precision::fp32), error);
  const auto a = tensor_of(d, {2, 3, 4}, 1, precision::fp32), b = tensor_of(d, {2, 3, 4}, 1, precision::fp32);
  CHECK_THROWS_WITH_AS(
      d.bmm(a, b), "bmm of (2,3,4) and (2,3,4) (the inner sizes and the batches must be equal): fix the shapes", error);
  CHECK_THROWS_AS(d.split_heads(a, 3), error);
  CHECK_THROWS_AS(d.softmax(a, true), error);
}

}  // namespace
}  // namespace comp::host::test
