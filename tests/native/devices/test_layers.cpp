// SPDX-License-Identifier: Apache-2.0
#include "agree.hpp"

namespace comp::native::contract {
namespace {

TEST_CASE("softmax, log-softmax and their gradients agree with FP64") {
  const auto cases = with({{1, 1}, {3, 17}, {2, 3, 33, 33}, {1, 1, 136, 136}}, rows);
  agree_for(cases, [&](auto& d, results& r, const shape& s, precision p) {
    const auto width = static_cast<double>(s.back());
    auto x = tensor_of(d, s, 1, p, -8, 8), dy = tensor_of(d, s, 2, p), y = tensor_of(d, s, 3, p, 0, 1),
         logs = tensor_of(d, s, 3, p, -5, 0);
    r.keep(d, "softmax", d.softmax(x, false), width);
    r.keep(d, "log-softmax", d.log_softmax(x), width);
    if (s.size() == 4) r.keep(d, "causal", d.softmax(x, true), width);
    r.keep(d, "softmax dx", d.softmax_backward(dy, y), 2 * width);
    if (s.size() == 4) r.keep(d, "causal dx", d.softmax_backward(dy, y, true), 2 * width);
    r.keep(d, "log-softmax dx", d.log_softmax_backward(dy, logs), 2 * width);
  });
}

TEST_CASE("softmaxes and cross-entropy bear scores whose exponentials overflow or vanish") {
  for (const float shift : {-1000.0F, 1000.0F}) {
    for (const precision p : tested::precisions) {
      CAPTURE(shift);
      CAPTURE(name(p));
      agree([&](auto& d, results& r) {
        const auto x = tensor_of(d, {40, 40}, 1, p, shift - 8, shift + 8);
        r.keep(d, "softmax", d.softmax(x, false), 40);
        r.keep(d, "causal", d.softmax(x, true), 40);
        r.keep(d, "padded", d.padded_softmax(x, d.upload(std::vector<std::int32_t>(40, 17), {40})), 40);
        r.keep(d, "log-softmax", d.log_softmax(x), 40);
        double loss = 0;
        const auto target = d.upload(std::vector<std::int32_t>(40, 3), {40});
        const auto forward = d.cross_entropy(x, target, &loss);
        r.keep_number("cross-entropy", loss, 4000);
        r.keep(d, "cross-entropy dx", d.cross_entropy_backward(forward.saved, target, 1), 4000);
        const auto m = d.make_sparse({.rows = 2, .columns = 20, .begin = {0, 20, 40}, .column = [] {
                                        std::vector<std::int32_t> each(40);
                                        for (std::int32_t i = 0; i < 40; ++i)
                                          each[static_cast<std::size_t>(i)] = i % 20;
                                        return each;
                                      }()});
        r.keep(d, "softmax of edges", d.edge_softmax(m, x), 20);
      });
    }
  }
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t width : {5, 9000}) {
    device d;
    std::vector<float> x(2 * width, -infinity);
    x[3] = 1e30F;
    std::fill(x.begin() + static_cast<std::ptrdiff_t>(width), x.end() - 1, 0.0F);
    x.back() = nan;
    const auto y = d.download(d.softmax(d.upload(x, {2, std::ssize(x) / 2}, precision::fp32), false));
    CHECK(y[3] == 1);
    CHECK(y[0] == 0);
    CHECK(std::isnan(y[width]));
  }
}

TEST_CASE("the causal softmax ignores what lies above the diagonal, and lets NaN below it through") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const precision p : tested::precisions) {
    device d;
    const auto y = d.download(
        d.softmax(d.upload(std::vector{0.0F, nan, infinity, 1.0F, 1.0F, nan, nan, 0.0F, 0.0F}, {1, 3, 3}, p), true));
    CHECK(std::vector(y.begin(), y.begin() + 6) == std::vector{1.0F, 0.0F, 0.0F, 0.5F, 0.5F, 0.0F});
    CHECK(std::isnan(y[6]));
  }
}

TEST_CASE("the padded softmax ignores what is behind an example's length, whatever it is") {
  for (const std::int64_t width : {5, 33, 1000}) {
    for (const precision p : tested::precisions) {
      CAPTURE(width);
      CAPTURE(name(p));
      const auto last = static_cast<std::int32_t>(width);
      agree([&](auto& d, results& r) {
        const auto x = tensor_of(d, {4, 2, 3, width}, 1, p, -8, 8);
        const auto lengths = d.upload(std::vector<std::int32_t>{last, 1, 0, last - 2}, {4});
        r.keep(d, "y", d.padded_softmax(x, lengths), static_cast<double>(width));
      });
    }
  }
  device d;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const auto x = d.upload(std::vector{0.0F, 0.0F, nan, nan, nan, nan}, {2, 3}, precision::fp32);
  const auto of = [&](std::vector<std::int32_t> lengths) { return d.upload(lengths, {std::ssize(lengths)}); };
  CHECK(d.download(d.padded_softmax(x, of({2, 0}))) == std::vector{0.5F, 0.5F, 0.0F, 0.0F, 0.0F, 0.0F});
  CHECK_THROWS_WITH_AS(
      d.padded_softmax(x, of({2, 4})),
      "softmax of x (2,3) with 2 lengths from 2 to 4 (one for each example, from 0 to the last size): fix them", error);
  CHECK_THROWS_AS(d.padded_softmax(x, of({2})), error);
  CHECK_THROWS_AS(d.padded_softmax(x, of({-1, 2})), error);
}

TEST_CASE("binary cross entropy and its gradient agree with FP64, and with the limit where FP64's would overflow") {
  agree_for(std::vector<shape>{shape{1, 1}, {17, 1}, {64, 300}}, [&](auto& d, results& r, const shape& s, precision p) {
    const auto x = tensor_of(d, s, 1, p, -8, 8);
    for (const double target : {0.0, 0.9, 1.0}) {
      double loss = 0;
      d.binary_cross_entropy(x, target, &loss);
      r.keep_number("loss", loss, 64);
      r.keep(d, "dx", d.binary_cross_entropy_backward(x, target, 128.0), 4);
    }
  });
  device d;
  const auto x = d.upload(std::vector{-1000.0F, 1000.0F}, {2}, precision::fp32);
  double loss = 0;
  d.binary_cross_entropy(x, 1, &loss);
  CHECK(loss == 500);
  CHECK(d.download(d.binary_cross_entropy_backward(x, 1, 2)) == std::vector{-1.0F, 0.0F});
  d.binary_cross_entropy(d.upload(std::vector{NAN}, {1}, precision::fp32), 0, &loss);
  CHECK(std::isnan(loss));
}

TEST_CASE("an embedding and its gradient agree with FP64, repeated indices included") {
  for (const precision p : tested::precisions) {
    CAPTURE(name(p));
    agree([&](auto& d, results& r) {
      for (const std::int64_t width : {1, 8, 33, 300}) {
        auto table = parameter_of(d, {11, width}, 1, p);
        r.keep(d, "rows", d.embedding(d.upload(std::vector<std::int32_t>{0, 10, 3, 3}, {2, 2}), table, p));
      }
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

TEST_CASE("batch norm, its running statistics and its gradients agree with FP64") {
  const std::vector<shape> cases{shape{4, 3, 5, 5}, {2, 17, 3, 3}, {5, 16}, {6, 33}, {7, 1}, {3, 33, 1, 1}};
  for (const bool training : {true, false}) {
    CAPTURE(training);
    agree_for(cases, [&](auto& d, results& r, const shape& s, precision p) {
      const shape vector{s[1]};
      const double count = static_cast<double>(elements(s) / s[1]);
      auto gamma = parameter_of(d, vector, 1, p), beta = parameter_of(d, vector, 2, p),
           mean = parameter_of(d, vector, 3, p), variance = parameter_of(d, vector, 4, p, 0.5F, 1.5F);
      const batch_norm_options o{.training = training};
      auto x = tensor_of(d, s, 5, p), dy = tensor_of(d, s, 6, p);
      auto y = d.batch_norm(x, gamma, beta, mean, variance, o);
      r.keep(d, "y", y.output, count);
      r.keep_values(d, "mean", mean, count);
      r.keep_values(d, "variance", variance, count);
      fresh(d, gamma, beta);
      r.keep(d, "dx", d.batch_norm_backward(dy, x, y.saved, gamma, beta, o), 4 * count);
      r.keep_gradient(d, "dgamma", gamma, 2 * count);
      r.keep_gradient(d, "dbeta", beta, count);
      (void)d.batch_norm_backward(dy, x, y.saved, gamma, beta, o);
      r.keep_gradient(d, "dgamma twice", gamma, 4 * count);
    });
  }
}

TEST_CASE("what an evaluation's batch norm saved is its own, and a gradient of another shape is refused") {
  device d;
  auto gamma = parameter_of(d, {3}, 1, precision::fp32), beta = parameter_of(d, {3}, 2, precision::fp32),
       mean = parameter_of(d, {3}, 3, precision::fp32), variance = parameter_of(d, {3}, 4, precision::fp32, 0.5F, 1.5F);
  const auto x = tensor_of(d, {4, 3}, 5, precision::fp32);
  const batch_norm_options fixed{.training = false};
  const auto y = d.batch_norm(x, gamma, beta, mean, variance, fixed);
  const auto gradient = [&] {
    d.zero_gradient(gamma);
    (void)d.batch_norm_backward(x, x, y.saved, gamma, beta, fixed);
    return d.gradient(gamma);
  };
  const auto before = gradient();
  (void)d.batch_norm(x, gamma, beta, mean, variance, {});
  CHECK(gradient() == before);
  const auto row = tensor_of(d, {1, 3}, 6, precision::fp32);
  (void)d.batch_norm(row, gamma, beta, mean, variance, {.momentum = 1});
  CHECK(d.values(variance) == std::vector<float>(3, 0));  // one value does not vary
  CHECK_THROWS_AS(d.batch_norm_backward(row, x, y.saved, gamma, beta, fixed), error);
  const auto z = d.layer_norm(x, gamma, beta, 1e-5);
  CHECK_THROWS_AS(d.layer_norm_backward(row, x, z.saved, gamma, beta, 1e-5), error);
}

TEST_CASE("gradients of a norm's scale and shift are kept apart, whether they learn, begin or go on") {
  device d;
  const auto x = tensor_of(d, {5, 6}, 1, precision::fp32), dy = tensor_of(d, {5, 6}, 2, precision::fp32);
  for (const auto& [layers, training] : {std::pair{true, true}, {false, true}, {false, false}}) {
    CAPTURE(layers);
    CAPTURE(training);
    const batch_norm_options o{.training = training};
    /// After two backwards, between which what does not go on is zeroed.
    const auto gradients = [&, layers = layers](bool gamma_learns, bool beta_learns, bool gamma_goes_on,
                                                bool beta_goes_on) {
      auto gamma = d.make_parameter(numbers(6, 3), {6}, gamma_learns);
      auto beta = d.make_parameter(numbers(6, 4), {6}, beta_learns);
      auto mean = parameter_of(d, {6}, 5, precision::fp32), variance = parameter_of(d, {6}, 6, precision::fp32, 0.5F);
      const auto y = layers ? d.layer_norm(x, gamma, beta, 1e-5) : d.batch_norm(x, gamma, beta, mean, variance, o);
      const auto back = [&] {
        if (layers) {
          (void)d.layer_norm_backward(dy, x, y.saved, gamma, beta, 1e-5);
        } else {
          (void)d.batch_norm_backward(dy, x, y.saved, gamma, beta, o);
        }
      };
      back();
      if (!gamma_goes_on) d.zero_gradient(gamma);
      if (!beta_goes_on) d.zero_gradient(beta);
      back();
      return std::pair{d.gradient(gamma), d.gradient(beta)};
    };
    const std::vector<float> none(6);
    const auto once = gradients(true, true, false, false), twice = gradients(true, true, true, true);
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(twice.first[i] == 2 * once.first[i]);
      CHECK(twice.second[i] == 2 * once.second[i]);
    }
    CHECK(gradients(true, true, true, false) == std::pair{twice.first, once.second});
    CHECK(gradients(true, true, false, true) == std::pair{once.first, twice.second});
    CHECK(gradients(false, true, false, true) == std::pair{none, twice.second});
    CHECK(gradients(true, false, true, false) == std::pair{twice.first, none});
    CHECK(gradients(false, false, true, true) == std::pair{none, none});
  }
}

TEST_CASE("layer norm and its gradients agree with FP64") {
  const auto cases = with({{1, 3}, {3, 17}, {2, 5, 64}, {17, 256}}, rows);
  agree_for(cases, [&](auto& d, results& r, const shape& s, precision p) {
    const shape vector{s.back()};
    const auto width = static_cast<double>(s.back());
    auto gamma = parameter_of(d, vector, 1, p), beta = parameter_of(d, vector, 2, p);
    auto x = tensor_of(d, s, 3, p), dy = tensor_of(d, s, 4, p);
    auto y = d.layer_norm(x, gamma, beta, 1e-5);
    r.keep(d, "y", y.output, width);
    fresh(d, gamma, beta);
    r.keep(d, "dx", d.layer_norm_backward(dy, x, y.saved, gamma, beta, 1e-5), 4 * width);
    r.keep_gradient(d, "dgamma", gamma, 2 * static_cast<double>(elements(s)) / width + width);
    r.keep_gradient(d, "dbeta", beta, static_cast<double>(elements(s)) / width);
  });
}

TEST_CASE("layer norm of values that are near each other and far from 0 agrees with FP64") {
  for (const shape& s : {shape{3, 17}, {5, 1000}, {2, 9000}}) {  // of E[x^2] - E[x]^2, FP32 would keep a few bits
    for (const precision p : tested::precisions) {
      CAPTURE(text(s));
      CAPTURE(name(p));
      agree([&](auto& d, results& r) {
        auto gamma = parameter_of(d, {s[1]}, 1, p), beta = parameter_of(d, {s[1]}, 2, p);
        auto x = tensor_of(d, s, 3, p, 99, 101), dy = tensor_of(d, s, 4, p);
        auto y = d.layer_norm(x, gamma, beta, 1e-5);
        r.keep(d, "y", y.output, 100);
        r.keep(d, "dx", d.layer_norm_backward(dy, x, y.saved, gamma, beta, 1e-5), 200);
      });
    }
  }
}

TEST_CASE("norms of one size with other epsilons are other norms") {
  agree([&](auto& d, results& r) {
    auto gamma = parameter_of(d, {64}, 1, precision::fp32), beta = parameter_of(d, {64}, 2, precision::fp32),
         mean = parameter_of(d, {64}, 3, precision::fp32),
         variance = parameter_of(d, {64}, 4, precision::fp32, 0.5F, 1.5F);
    auto x = tensor_of(d, {16, 64}, 5, precision::fp32), dy = tensor_of(d, {16, 64}, 6, precision::fp32);
    for (const double eps : {1e-5, 0.5}) {
      const std::string with = " with " + std::to_string(eps);
      const batch_norm_options o{.eps = eps};
      auto of_rows = d.layer_norm(x, gamma, beta, eps);
      auto of_columns = d.batch_norm(x, gamma, beta, mean, variance, o);
      r.keep(d, "layer norm" + with, of_rows.output, 64);
      r.keep(d, "batch norm" + with, of_columns.output, 16);
      fresh(d, gamma, beta);
      r.keep(d, "layer norm dx" + with, d.layer_norm_backward(dy, x, of_rows.saved, gamma, beta, eps), 256);
      r.keep(d, "batch norm dx" + with, d.batch_norm_backward(dy, x, of_columns.saved, gamma, beta, o), 64);
    }
  });
}

TEST_CASE("norms, pools and losses refuse what does not fit") {
  device d;
  double loss = 0;
  const auto of = [&](const shape& s) { return tensor_of(d, s, 2, precision::fp32); };
  auto three = parameter_of(d, {3}, 1, precision::fp32), four = parameter_of(d, {4}, 1, precision::fp32);
  const auto rows = of({2, 4}), image = of({1, 1, 2, 2}), logits = of({2, 3});
  const auto targets = [&](std::vector<std::int32_t> t) { return d.upload(t, {std::ssize(t)}); };
  refuses("layer_norm of x (2,4) with a parameter of (3) (it needs one value for each of 4): make it (4)",
          [&] { return d.layer_norm(rows, three, four, 1e-5).output; });
  refuses("batch_norm of x (2,4) with a parameter of (3) (it needs",
          [&] { return d.batch_norm(rows, four, four, four, three, {}).output; });
  refuses("batch_norm of x (2,4,3) (it takes (B,C,H,W) or (B,C)): reshape it", [&] {
    return d.batch_norm(of({2, 4, 3}), four, four, four, four, {}).output;
  });
  refuses("max_pool2d of x (1,1,2,2) with a kernel of 3 (it is larger than the padded image): use a smaller kernel",
          [&] {
            return d.max_pool2d(image, {.kernel = {3, 3}}).output;
          });
  refuses("avg_pool2d with kernel 2, stride 2 and padding 2", [&] { return d.avg_pool2d(image, {.padding = {2, 2}}); });
  refuses("adaptive_avg_pool2d of x (1,1,2,2) to 0x1 (it takes (B,C,H,W) and a positive size): fix the sizes", [&] {
    return d.adaptive_avg_pool2d(image, {0, 1});
  });
  refuses("", [&] { return d.adaptive_avg_pool2d_backward(of({1, 2, 2, 2}), {1, 1, 4, 4}); });
  refuses("max_pool2d of x (2,4) (it takes (B,C,H,W)): reshape it", [&] { return d.max_pool2d(rows, {}).output; });
  refuses("cross_entropy of target 3 (there are 3 classes): use targets below 3", [&] {
    return d.cross_entropy(logits, targets({0, 3}), &loss).output;
  });
  refuses("nll_loss with 2 targets, all below 0 (the mean of none is not defined): leave out such a batch", [&] {
    return d.nll_loss(logits, targets({-1, -1}), &loss);
  });
  refuses("", [&] { return d.cross_entropy(logits, targets({0}), &loss).output; });
  refuses("", [&] { return d.mse_loss(logits, of({3, 2}), &loss); });
}

struct window {
  shape x;
  pool2d_options options;
};

TEST_CASE("max and average pooling and their gradients agree with FP64") {
  const std::vector<window> cases{window{{2, 3, 8, 8}, {}},
                                  window{{1, 17, 7, 5}, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}}},
                                  window{{2, 3, 7, 11}, {.kernel = {4, 3}, .stride = {1, 2}, .padding = {2, 1}}},
                                  window{{1, 1, 3, 3}, {.kernel = {3, 3}, .stride = {1, 1}}},
                                  window{{2, 16, 9, 9}, {.kernel = {3, 3}, .stride = {2, 2}}}};
  agree_for(cases, [&](auto& d, results& r, const window& s, precision p) {
    // all different in every precision, so that each window has one largest element
    std::vector<float> v(static_cast<std::size_t>(elements(s.x)));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i * 37 % 251) - 100.0F;
    auto x = d.upload(v, s.x, p);
    auto y = d.max_pool2d(x, s.options);
    r.keep(d, "max", y.output);
    auto dy = tensor_of(d, y.output.shape(), 2, p);
    r.keep(d, "max dx", d.max_pool2d_backward(dy, x, y.saved, s.options), 9);
    r.keep(d, "average", d.avg_pool2d(x, s.options), 9);
    r.keep(d, "average dx", d.avg_pool2d_backward(dy, s.x, s.options), 9);
  });
}

TEST_CASE("adaptive pooling and its gradient agree with FP64, for even and uneven bins") {
  struct bins {
    shape x;
    std::array<std::int64_t, 2> to;
  };
  const std::vector<bins> cases{bins{{2, 3, 6, 6}, {1, 1}}, {{2, 3, 6, 6}, {3, 3}},   {{2, 3, 6, 6}, {2, 6}},
                                {{2, 3, 6, 6}, {9, 7}},  // more bins than elements
                                {{1, 8, 8, 9}, {5, 4}},     {{1, 5, 4, 40}, {3, 37}}, {{1, 2, 40, 41}, {33, 34}},
                                {{1, 1032, 3, 2}, {2, 1}},  {{1, 1100, 2, 3}, {1, 2}}};
  agree_for(cases, [&](auto& d, results& r, const bins& s, precision p) {
    auto zeros = d.make_parameter(std::vector<float>(static_cast<std::size_t>(s.x[1])), {s.x[1], 1, 1, 1});
    for (const bool convolved : {false, true}) {
      const auto input_of = [&](const shape& of, unsigned seed) {  // as a convolution lays its result, or as it is
        auto plain = tensor_of(d, of, seed, p);
        const auto image = tensor_of(d, {of[0], 1, of[2], of[3]}, seed, p);
        return convolved ? d.add(d.conv2d(image, zeros, nullptr, {}), plain) : plain;
      };
      const auto y = d.adaptive_avg_pool2d(input_of(s.x, 1), s.to);
      r.keep(d, "y", y, 36);
      r.keep(d, "dx", d.adaptive_avg_pool2d_backward(input_of(y.shape(), 2), s.x), 36);
    }
  });
}

TEST_CASE("NaN and infinity pass through pooling") {
  for (const precision p : tested::precisions) {
    CAPTURE(name(p));
    device d;
    std::vector<float> v(32, -1.0F);
    v[0] = NAN;
    v[3] = INFINITY;
    v[17] = NAN;
    const auto x = d.upload(v, {1, 2, 4, 4}, p);
    const auto columns = d.download(d.max_pool2d(x, {.kernel = {2, 1}, .stride = {2, 1}}).output);
    CHECK(std::isnan(columns[9]));
    const auto above = d.download(d.max_pool2d(x, {.padding = {1, 0}}).output);  // padding along one axis
    CHECK(std::isnan(above[6]));
    CHECK(above[7] == -1);
    const auto average = d.download(d.avg_pool2d(x, {})), largest = d.download(d.max_pool2d(x, {}).output);
    CHECK(std::isnan(average[0]));
    CHECK(average[1] == INFINITY);
    CHECK(std::isnan(largest[0]));
    CHECK(largest[1] == INFINITY);
  }
}

TEST_CASE("the losses and their gradients agree with FP64") {
  agree_for(with({{1, 1}, {3, 17}, {65, 100}}, rows), [&](auto& d, results& r, const shape& s, precision p) {
    const auto width = static_cast<double>(s[1]);
    std::vector<std::int32_t> labels(static_cast<std::size_t>(s[0]));
    for (std::size_t i = 0; i < labels.size(); ++i)
      labels[i] = static_cast<std::int32_t>(i * 7 % static_cast<std::size_t>(s[1]));
    if (labels.size() > 2) labels[1] = -1;  // left out
    auto target = d.upload(labels, {s[0]});
    auto logits = tensor_of(d, s, 1, p, -5, 5), logp = tensor_of(d, s, 2, p, -5, 0), goal = tensor_of(d, s, 3, p);
    double loss = 0;
    auto e = d.cross_entropy(logits, target, &loss);
    r.keep_number("cross-entropy", loss, width);
    r.keep(d, "cross-entropy dx", d.cross_entropy_backward(e.saved, target, 128.0), width);
    d.nll_loss(logp, target, &loss);
    r.keep_number("nll", loss, static_cast<double>(s[0]));
    r.keep(d, "nll dx", d.nll_loss_backward(logp, target, 128.0));
    d.mse_loss(logits, goal, &loss);
    r.keep_number("mse", loss, width);
    r.keep(d, "mse dx", d.mse_loss_backward(logits, goal, 128.0), 2);
    r.keep_number("right", static_cast<double>(d.count_correct(logits, target)));
  });
}

TEST_CASE("a loss keeps what is small beside its largest term") {
  device d;
  const std::size_t rows = 600, far = 69000;  // FP32 would lose each 1 beside the largest
  std::vector<float> logp(rows, -1), x(far + 1000);
  logp[0] = -0x1p25F;
  x[0] = 0x1p13F;
  for (std::size_t i = far; i < x.size(); ++i) x[i] = 1;
  double loss = 0;
  d.nll_loss(d.upload(logp, {rows, 1}, precision::fp32), d.upload(std::vector<std::int32_t>(rows), {rows}), &loss);
  CHECK(loss == (0x1p25 + 599) / 600);
  const shape all{std::ssize(x)};
  d.mse_loss(d.upload(x, all, precision::fp32), d.upload(std::vector<float>(x.size()), all, precision::fp32), &loss);
  CHECK(loss == doctest::Approx((0x1p26 + 1000) / static_cast<double>(x.size())).epsilon(1e-14));
}

TEST_CASE("of equal largest scores the first is the answer") {
  for (const precision p : tested::precisions) {
    device d;
    std::vector<float> scores(5 * 100, -1.0F);
    scores[0 * 100 + 33] = scores[0 * 100 + 2] = 1;   // columns that different threads of a warp look at
    scores[1 * 100 + 5] = scores[1 * 100 + 69] = 1;   // that the same one does
    scores[2 * 100 + 98] = scores[2 * 100 + 99] = 1;  // rows 3 and 4: all alike
    const auto right = [&](std::vector<std::int32_t> t) {
      return d.count_correct(d.upload(scores, {5, 100}, p), d.upload(t, {5}));
    };
    CHECK(right({2, 5, 98, 0, 0}) == 5);
    CHECK(right({33, 69, 99, 1, 99}) == 0);
  }
}

TEST_CASE("a loss that is not finite is seen") {
  for (const precision p : tested::precisions) {
    device d;
    double loss = 0;
    const auto target = d.upload(std::vector<std::int32_t>{0}, {1});
    (void)d.cross_entropy(d.upload(std::vector{NAN, 0.0F}, {1, 2}, p), target, &loss);
    CHECK(std::isnan(loss));
    (void)d.cross_entropy(d.upload(std::vector{0.0F, 1e30F}, {1, 2}, precision::fp16), target, &loss);
    CHECK_FALSE(std::isfinite(loss));
    d.mse_loss(d.upload(std::vector{NAN, 0.0F}, {1, 2}, p), d.upload(std::vector{0.0F, 0.0F}, {1, 2}, p), &loss);
    CHECK(std::isnan(loss));
  }
}

}  // namespace
}  // namespace comp::native::contract
