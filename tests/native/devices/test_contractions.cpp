// SPDX-License-Identifier: Apache-2.0
#include "agree.hpp"

namespace comp::native::contract {
namespace {

struct matrix {
  shape x;
  std::int64_t outputs;
};

TEST_CASE("a linear layer and its gradients agree with FP64") {
  const std::vector<matrix> cases{matrix{{1, 1}, 1},      matrix{{3, 17}, 5},    matrix{{2, 3, 17}, 17},
                                  matrix{{4, 7, 64}, 96}, matrix{{33, 256}, 10}, matrix{{1, 257}, 300},
                                  matrix{{600, 5}, 17}};
  for (const bool bias : {false, true}) {
    CAPTURE(bias);
    agree_for(cases, [&](auto& d, results& r, const matrix& s, precision p) {
      const std::int64_t k = s.x.back(), rows = elements(s.x) / k;
      auto w = parameter_of(d, {s.outputs, k}, 1, p), b = parameter_of(d, {s.outputs}, 2, p);
      auto x = tensor_of(d, s.x, 3, p);
      auto y_shape = s.x;
      y_shape.back() = s.outputs;
      auto dy = tensor_of(d, y_shape, 4, p);
      r.keep(d, "y", d.linear(x, w, bias ? &b : nullptr), static_cast<double>(k));
      fresh(d, w, b);
      r.keep(d, "dx", d.linear_backward(dy, x, w, bias ? &b : nullptr, true), static_cast<double>(s.outputs));
      r.keep_gradient(d, "dw", w, static_cast<double>(rows));
      if (bias) r.keep_gradient(d, "db", b, static_cast<double>(rows));
      CHECK_FALSE(d.linear_backward(dy, x, w, bias ? &b : nullptr, false));
      r.keep_gradient(d, "dw twice", w, 2.0 * static_cast<double>(rows));
    });
  }
}

TEST_CASE("a linear layer follows its weights when they change") {
  for (const precision p : tested::precisions) {
    agree([&](auto& d, results& r) {
      auto w = parameter_of(d, {17, 33}, 1, p);
      auto x = tensor_of(d, {3, 33}, 2, p);
      r.keep(d, "before", d.linear(x, w, nullptr), 33);
      d.set_values(w, numbers(17 * 33, 9, p));
      r.keep(d, "after", d.linear(x, w, nullptr), 33);
      fresh(d, w);
      (void)d.linear_backward(tensor_of(d, {3, 17}, 3, p), x, w, nullptr, true);
      r.keep(d, "in the layout of the gradient", d.linear(x, w, nullptr), 33);
      r.keep_values(d, "w", w);
    });
  }
}

struct convolution {
  shape x, w;
  conv2d_options options;
};
const std::vector<convolution>& convolutions() {
  static const std::vector<convolution> all{
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {}},
      {{2, 3, 9, 7}, {17, 3, 3, 3}, {.padding = {1, 1}}},
      {{3, 17, 5, 5}, {16, 17, 3, 3}, {.stride = {2, 1}, .padding = {1, 2}}},
      {{1, 32, 6, 6}, {32, 32, 3, 3}, {.padding = {2, 2}, .dilation = {2, 2}}},
      {{2, 6, 5, 5}, {4, 3, 3, 3}, {.padding = {1, 1}, .groups = 2}},
      {{2, 16, 5, 5}, {16, 1, 3, 3}, {.padding = {1, 1}, .groups = 16}},
      {{2, 3, 11, 11}, {8, 3, 5, 5}, {.stride = {2, 2}}},
      {{2, 3, 7, 11}, {5, 3, 3, 2}, {.stride = {1, 2}, .padding = {2, 1}, .dilation = {2, 3}}},
      {{2, 1, 5, 5}, {6, 1, 5, 5}, {.padding = {2, 2}}},
      {{2, 6, 5, 5}, {16, 6, 5, 5}, {.padding = {2, 2}}},
      {{1, 17, 5, 5}, {20, 17, 5, 5}, {.padding = {2, 2}}},
  };
  return all;
}

TEST_CASE("a convolution and its gradients agree with FP64") {
  for (const bool bias : {false, true}) {
    CAPTURE(bias);
    agree_for(convolutions(), [&](auto& d, results& r, const convolution& s, precision p) {
      auto w = parameter_of(d, s.w, 1, p), b = parameter_of(d, {s.w[0]}, 2, p);
      auto x = tensor_of(d, s.x, 3, p);
      const double terms = static_cast<double>(elements(s.w) / s.w[0]);
      auto y = d.conv2d(x, w, bias ? &b : nullptr, s.options);
      r.keep(d, "y", y, terms, bias && tested::convolutions_round_before_bias ? 1 : 0);
      auto dy = tensor_of(d, y.shape(), 4, p);
      const double sums = static_cast<double>(elements(y.shape()) / s.w[0]);
      fresh(d, w, b);
      r.keep(d, "dx", d.conv2d_backward(dy, x, w, bias ? &b : nullptr, s.options, true),
             terms * static_cast<double>(s.w[0]));
      r.keep_gradient(d, "dw", w, sums, tested::of_convolution_gradients(p));
      if (bias) r.keep_gradient(d, "db", b, sums);
      CHECK_FALSE(d.conv2d_backward(dy, x, w, bias ? &b : nullptr, s.options, false));
      r.keep_gradient(d, "dw twice", w, 2 * sums, tested::of_convolution_gradients(p));
      r.keep_values(d, "w", w);
    });
  }
}

TEST_CASE("convolutions of one size with other options are other convolutions") {
  agree([&](auto& d, results& r) {
    auto w = parameter_of(d, {3, 2, 3, 3}, 1, precision::fp32);
    auto x = tensor_of(d, {2, 2, 9, 9}, 2, precision::fp32);
    int number = 0;
    for (const conv2d_options& o : {conv2d_options{}, conv2d_options{.stride = {2, 2}},
                                    conv2d_options{.padding = {1, 1}}, conv2d_options{.dilation = {2, 2}}})
      r.keep(d, "y of " + std::to_string(number++), d.conv2d(x, w, nullptr, o), 18);
  });
}

TEST_CASE("a convolution's result goes on in its own layout into every kind of operator") {
  for (const precision p : tested::precisions) {
    CAPTURE(name(p));
    agree([&](auto& d, results& r) {
      auto w = parameter_of(d, {17, 3, 3, 3}, 1, p);
      auto x = tensor_of(d, {2, 3, 6, 6}, 2, p, -4, 4);
      auto plain = tensor_of(d, {2, 17, 6, 6}, 3, p);
      // numbers that every precision holds, so that what follows starts from equal values
      auto exact = d.make_parameter(std::vector<float>(17 * 3 * 9, 0.0F), {17, 3, 3, 3});
      auto zeros = d.conv2d(x, exact, nullptr, {.padding = {1, 1}});
      auto same = d.add(zeros, plain);
      r.keep(d, "blocked + plain", same);
      r.keep(d, "plain + blocked", d.add(plain, zeros));
      r.keep(d, "product", d.mul(same, plain));
      const std::vector terms{same, plain, same};
      r.keep(d, "sum", d.sum(terms), 3);
      r.keep(d, "relu", d.activate(activation::relu, same));
      r.keep(d, "sigmoid", d.activate(activation::sigmoid, same));
      r.keep(d, "gelu backward", d.activate_backward(activation::gelu, plain, same, same), 4);
      r.keep(d, "max pool", d.max_pool2d(same, {}).output);
      r.keep(d, "average pool", d.avg_pool2d(same, {}), 4);
      r.keep(d, "flatten", d.reshape(same, {2, 17 * 36}));
      r.keep(d, "dropout", d.dropout(same, 0.5, {.seed = 1, .draw = 2}));
      r.keep(d, "cast", d.cast(d.cast(same, precision::fp32), p));
      auto gamma = parameter_of(d, {17}, 4, p), beta = parameter_of(d, {17}, 5, p), mean = parameter_of(d, {17}, 6, p),
           variance = parameter_of(d, {17}, 7, p, 0.5, 1);
      r.keep(d, "batch norm", d.batch_norm(same, gamma, beta, mean, variance, {}).output, 72);
    });
  }
}

TEST_CASE("batched products agree with FP64, in every transposition") {
  struct sizes {
    shape batch;
    std::int64_t m, n, k;
  };
  for (const auto& s : {sizes{{}, 1, 1, 1}, sizes{{}, 1, 300, 257}, sizes{{3}, 17, 5, 3}, sizes{{2, 3}, 16, 17, 33},
                        sizes{{2, 4}, 64, 64, 32}}) {
    for (const precision p : tested::precisions) {
      for (const int transposition : {0, 1, 2, 3}) {
        CAPTURE(name(p));
        CAPTURE(transposition);
        CAPTURE(s.m);
        agree([&](auto& d, results& r) {
          const bool ta = transposition & 1, tb = transposition & 2;
          auto a = s.batch, b = s.batch;
          a.insert(a.end(), {ta ? s.k : s.m, ta ? s.m : s.k});
          b.insert(b.end(), {tb ? s.n : s.k, tb ? s.k : s.n});
          const auto x = tensor_of(d, a, 1, p), y = tensor_of(d, b, 2, p);
          r.keep(d, "y", d.bmm(x, y, ta, tb, 0.3), static_cast<double>(s.k));
          r.keep(d, "y of another factor", d.bmm(x, y, ta, tb, 1), static_cast<double>(s.k));
        });
      }
    }
  }
}

TEST_CASE("matrices of one size are multiplied by turns in batches of any number") {
  for (const precision p : tested::precisions) {
    agree([&](auto& d, results& r) {
      for (const std::int64_t batch : {3, 1, 5, 2}) {
        const shape s{batch, 16, 16};
        r.keep(d, "y", d.bmm(tensor_of(d, s, 1, p), tensor_of(d, s, 2, p), false, false, 1), 16);
      }
    });
  }
}

TEST_CASE("attention on views of heads agrees with FP64, forward and backward") {
  for (const precision p : tested::precisions) {
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
      const auto square = d.split_heads(tensor_of(d, {2, 8, 32}, 6, p), 4);  // as wide as there are tokens
      for (const bool ta : {false, true}) r.keep(d, "square", d.bmm(square, square, ta, !ta, 1), 8);
      r.keep(d, "square as it is", d.bmm(square, square, false, false, 1), 8);
      r.keep(d, "dv", d.merge_heads(d.bmm(weights, q, true, false, 1)), 17);
      r.keep(d, "dweights", d.bmm(q, v, false, true, 1), 8);
      const std::vector twice{q, k};
      r.keep(d, "sum of views", d.sum(twice));
      r.keep(d, "relu of a view", d.activate(activation::relu, q));
      r.keep(d, "cast of a view", d.cast(q, precision::fp32));
    });
  }
}

TEST_CASE(
    "contractions refuse shapes that do not fit, in words that ../test_operators.cpp and ../test_model.cpp have whole") {
  device d;
  const auto of = [&](const shape& s) { return tensor_of(d, s, 1, precision::fp32); };
  auto w = parameter_of(d, {5, 4}, 1, precision::fp32), b = parameter_of(d, {4}, 2, precision::fp32),
       k = parameter_of(d, {5, 4, 3, 3}, 3, precision::fp32);
  const auto row = of({2, 3}), fits = of({2, 4}), image = of({1, 4, 4, 4}), a = of({2, 3, 4}), three = of({3});
  refuses("linear of x (2,3) with weights (5,4)", [&] { return d.linear(row, w, nullptr); });
  refuses("linear with weights (5,4) and a bias of (4)", [&] { return d.linear(fits, w, &b); });
  refuses("linear_backward of (2,3) and (2,5)", [&] { return d.linear_backward(row, fits, w, nullptr, true); });
  refuses("upload of a tensor of shape (0,4)", [&] { return d.upload(std::vector<float>{}, {0, 4}, precision::fp32); });
  refuses("conv2d of x (1,3,8,8) with weights (5,4,3,3) in 1 groups", [&] {
    return d.conv2d(of({1, 3, 8, 8}), k, nullptr, {});
  });
  refuses("conv2d of x (1,4,2,2) with weights (5,4,3,3) (the kernel is larger", [&] {
    return d.conv2d(of({1, 4, 2, 2}), k, nullptr, {});
  });
  refuses("conv2d with weights (5,4,3,3) and a bias of (4)", [&] { return d.conv2d(image, k, &b, {}); });
  refuses("conv2d_backward of (1,5,3,3) and (1,5,2,2)", [&] {
    return d.conv2d_backward(of({1, 5, 3, 3}), image, k, nullptr, {}, true);
  });
  const auto embedded = [&](std::int32_t i) { return d.embedding(d.upload(std::vector{i}, {1}), w, precision::fp32); };
  refuses("embedding of index 5 (the table has 5 rows): use indices from 0 to 4", [&] { return embedded(5); });
  refuses("", [&] { return embedded(-1); });
  refuses("bmm of (2,3,4) and (2,3,4) (the inner sizes and the batches must be equal): fix the shapes",
          [&] { return d.bmm(a, a); });
  refuses("bmm of (2,3,4) and (3,3,4)'", [&] { return d.bmm(a, of({3, 3, 4}), false, true); });
  refuses("bmm of (2,3,4) and (4,3) (they need as many axes): reshape one of them", [&] {
    return d.bmm(a, of({4, 3}));
  });
  refuses("bmm of (3) and (3) (they need as many axes)", [&] { return d.bmm(three, three); });
  refuses("", [&] { return d.split_heads(a, 3); });
  refuses("", [&] { return d.softmax(a, true); });
}

}  // namespace
}  // namespace comp::native::contract
