// SPDX-License-Identifier: Apache-2.0
// Graph convolution and graph attention on the cuda Device: layers against FP64, and both models learning the classes
// of a graph's nodes, in FP32 and in BF16.
#include <comp_cuda/device.hpp>
#include <set>

#include "graph_test.hpp"

namespace comp::cuda::test {
namespace {

using enum precision;
using native::activation;

/// D^-1/2 (A + I) D^-1/2, as Kipf and Welling 2017 propagate; `weighted` off: A + I alone.
host_csr with_self_loops(const host_csr& a, bool weighted) {
  host_csr m{.rows = a.rows, .columns = a.columns, .begin = {0}};
  for (std::int64_t r = 0; r < a.rows; ++r) {
    m.column.push_back(static_cast<std::int32_t>(r));
    for (std::int32_t e = a.begin[static_cast<std::size_t>(r)]; e < a.begin[static_cast<std::size_t>(r) + 1]; ++e) {
      if (a.column[static_cast<std::size_t>(e)] != r) m.column.push_back(a.column[static_cast<std::size_t>(e)]);
    }
    m.begin.push_back(static_cast<std::int32_t>(m.column.size()));
  }
  const auto degree = [&](std::int64_t v) {
    return static_cast<double>(m.begin[static_cast<std::size_t>(v) + 1] - m.begin[static_cast<std::size_t>(v)]);
  };
  for_elements_of(m, [&](std::int64_t r, std::int64_t k, std::int64_t) {
    if (weighted) m.value.push_back(static_cast<float>(1 / std::sqrt(degree(r) * degree(k))));
  });
  return m;
}

/// x w' in FP64.
matrix product(const matrix& x, const matrix& w) {
  matrix y{x.rows, w.rows};
  for (std::int64_t r = 0; r < x.rows; ++r) {
    for (std::int64_t n = 0; n < w.rows; ++n) {
      for (std::int64_t k = 0; k < x.columns; ++k) y(r, n) += x(r, k) * w(n, k);
    }
  }
  return y;
}
matrix propagated(const host_csr& m, const matrix& x) {
  matrix y{m.rows, x.columns};
  for_elements_of(m, [&](std::int64_t r, std::int64_t k, std::int64_t e) {
    for (std::int64_t i = 0; i < x.columns; ++i) y(r, i) += value_of(m, e) * x(k, i);
  });
  return y;
}
matrix relu_of(matrix m) {
  for (double& v : m.v) v = std::max(v, 0.0);
  return m;
}
/// A layer of graph attention: heads side by side, the scores' own weights being matrices.
matrix attended(const host_csr& m, const matrix& x, const matrix& w, const matrix& to, const matrix& from) {
  const matrix h = product(x, w), target = product(h, to), source = product(h, from);
  const std::int64_t heads = to.rows, width = h.columns / heads;
  matrix y{m.rows, h.columns}, total{m.rows, heads};
  const auto weight = [&](std::int64_t r, std::int64_t k, std::int64_t head) {
    const double sum = target(r, head) + source(k, head);
    return std::exp(sum > 0 ? sum : 0.2 * sum);
  };
  for_elements_of(m, [&](std::int64_t r, std::int64_t k, std::int64_t) {
    for (std::int64_t i = 0; i < heads; ++i) total(r, i) += weight(r, k, i);
  });
  for_elements_of(m, [&](std::int64_t r, std::int64_t k, std::int64_t) {
    for (std::int64_t i = 0; i < h.columns; ++i) y(r, i) += weight(r, k, i / width) / total(r, i / width) * h(k, i);
  });
  return y;
}

/// Weights on the device.
parameter weights_of(device& d, const matrix& m) {
  return d.make_parameter(std::vector<float>(m.v.begin(), m.v.end()), {m.rows, m.columns});
}

/// relu?(A (x w')), and what its backward needs.
class convolution_layer {
 public:
  convolution_layer(device& d, const csr& a, const matrix& w, bool active)
      : d_{d}, a_{a}, w_{weights_of(d, w)}, active_{active} {}
  tensor forward(const tensor& x) {
    x_ = x;
    const tensor y = spmm(d_.shared(), a_, d_.linear(x, w_, nullptr));
    return y_ = active_ ? d_.activate(activation::relu, y) : y;
  }
  tensor backward(const tensor& dy, bool need_dx = true) {
    const tensor d = active_ ? d_.activate_backward(activation::relu, dy, y_, y_) : dy;
    return d_.linear_backward(spmm_backward(d_.shared(), a_, d), x_, w_, nullptr, need_dx);
  }
  std::vector<parameter*> parameters() { return {&w_}; }

 private:
  device& d_;
  const csr& a_;
  parameter w_;
  bool active_;
  tensor x_, y_;
};

class attention_layer {
 public:
  attention_layer(device& d, const csr& a, const matrix& w, const matrix& to, const matrix& from, bool active)
      : d_{d}, a_{a}, w_{weights_of(d, w)}, to_{weights_of(d, to)}, from_{weights_of(d, from)}, active_{active} {}
  tensor forward(const tensor& x) {
    x_ = x;
    h_ = d_.linear(x, w_, nullptr);
    target_ = d_.linear(h_, to_, nullptr);
    source_ = d_.linear(h_, from_, nullptr);
    share_ = edge_softmax(d_.shared(), a_, edge_scores(d_.shared(), a_, target_, source_));
    const tensor y = weighted_sum(d_.shared(), a_, share_, h_);
    return y_ = active_ ? d_.activate(activation::relu, y) : y;
  }
  tensor backward(const tensor& dy, bool need_dx = true) {
    context& c = d_.shared();
    const tensor d = active_ ? d_.activate_backward(activation::relu, dy, y_, y_) : dy;
    const auto [d_share, d_h] = weighted_sum_backward(c, a_, d, share_, h_);
    const auto [d_to, d_from] =
        edge_scores_backward(c, a_, edge_softmax_backward(c, a_, d_share, share_), target_, source_);
    const tensor all[] = {d_h, d_.linear_backward(d_to, h_, to_, nullptr, true),
                          d_.linear_backward(d_from, h_, from_, nullptr, true)};
    return d_.linear_backward(d_.sum(all), x_, w_, nullptr, need_dx);
  }
  std::vector<parameter*> parameters() { return {&w_, &to_, &from_}; }

 private:
  device& d_;
  const csr& a_;
  parameter w_, to_, from_;
  bool active_;
  tensor x_, h_, target_, source_, share_, y_;
};

/// A device of its own for each test. The stand-in has to be left empty.
struct models_device {
#ifdef COMP_SIMT
  models_device() {
    simt::device = {};
    made = std::make_unique<device>();
  }
  ~models_device() {
    made.reset();
    CHECK_NOTHROW(simt::device.reset());
  }
#else
  models_device() : made{std::make_unique<device>()} {}
#endif
  std::unique_ptr<device> made;
};

matrix of_values(const std::vector<float>& v, const shape& s) {
  matrix m{s[0], s[1]};
  std::copy(v.begin(), v.end(), m.v.begin());
  return m;
}
/// Every element within `part` of the largest wanted one.
void check_gradient(const matrix& got, const matrix& want, double part = 1e-4) {
  REQUIRE(got.v.size() == want.v.size());
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < want.v.size(); ++i) {
    largest = std::max(largest, std::abs(want.v[i]));
    worst = std::max(worst, std::abs(got.v[i] - want.v[i]));
  }
  CHECK(largest > 0);
  CHECK(worst <= part * largest);
}

/// Nodes of four classes: most edges stay within a class, and features say little of it.
struct community {
  static constexpr std::int64_t nodes = 80, features = 16, classes = 4;
  host_csr a{.rows = nodes, .columns = nodes, .begin = {0}};
  matrix x = normal_matrix(nodes, features, fp32, 3);
  std::vector<std::int32_t> label, train;
  community() {
    std::mt19937 random{5};
    std::vector<std::set<std::int32_t>> next(nodes);
    for (int edge = 0; edge < 400; ++edge) {
      const auto from = static_cast<std::int32_t>(random() % nodes);
      const auto within = static_cast<std::int32_t>(from % classes + classes * (random() % (nodes / classes)));
      const auto to = random() % 8 == 0 ? static_cast<std::int32_t>(random() % nodes) : within;
      next[static_cast<std::size_t>(from)].insert(to);
      next[static_cast<std::size_t>(to)].insert(from);
    }
    for (std::int32_t v = 0; v < nodes; ++v) {
      for (const std::int32_t to : next[static_cast<std::size_t>(v)]) a.column.push_back(to);
      a.begin.push_back(static_cast<std::int32_t>(a.column.size()));
      label.push_back(v % classes);
      train.push_back(v < nodes / 2 ? v % classes : -1);  // the other half does not count in the loss
      x(v, v % classes) += 1;
    }
  }
};

/// Trains two layers for 40 steps. Returns: the first and last loss, and the share of nodes that never trained and are
/// recognised.
struct learnt {
  double first, last, score;
};
template <class Layer>
learnt learn(device& d, const community& data, precision p, Layer& one, Layer& two) {
  const tensor x = on_device(d.shared(), data.x, p);
  const indices train = d.upload(data.train, {community::nodes});
  std::vector<parameter*> all = one.parameters();
  for (parameter* w : two.parameters()) all.push_back(w);
  learnt got{};
  tensor logits;
  for (std::int64_t step = 1; step <= 40; ++step) {
    logits = two.forward(one.forward(x));
    CHECK(logits.precision() == p);
    auto [output, saved] = d.cross_entropy(logits, train, &got.last);
    if (step == 1) got.first = got.last;
    for (parameter* w : all) d.zero_gradient(*w);
    one.backward(two.backward(d.cross_entropy_backward(saved, train, 1.0)), false);
    d.adam_step(all, {.learning_rate = 0.02}, step);
  }
  const auto values = d.download(logits);
  int right = 0;
  for (std::int64_t v = community::nodes / 2; v < community::nodes; ++v) {
    const auto row = values.begin() + v * community::classes;
    right += std::max_element(row, row + community::classes) - row == data.label[static_cast<std::size_t>(v)];
  }
  got.score = right / (community::nodes / 2.0);
  return got;
}

}  // namespace

TEST_CASE("a layer of a graph convolution and its gradients are those of FP64") {
  const models_device on;
  device& d = *on.made;
  const host_csr m = with_self_loops(random_csr(12, 12, 0.2, 1), true);
  const csr a{d.shared(), m};
  const matrix x = normal_matrix(12, 5, fp32, 2), w = normal_matrix(7, 5, fp32, 3), dy = normal_matrix(12, 7, fp32, 4);
  convolution_layer layer{d, a, w, true};
  const auto exact = [&](const matrix& at, const matrix& weight) {
    return relu_of(propagated(m, product(at, weight)));
  };
  const tensor y = layer.forward(on_device(d.shared(), x, fp32));
  check_gradient(of_values(d.download(y), y.shape()), exact(x, w), 1e-6);
  const tensor dx = layer.backward(on_device(d.shared(), dy, fp32));
  check_gradient(of_values(d.download(dx), dx.shape()), by_differences(
                                                            x, dy, [&](const matrix& v) { return exact(v, w); }, 1e-6));
  check_gradient(of_values(d.gradient(*layer.parameters()[0]), {7, 5}),
                 by_differences(
                     w, dy, [&](const matrix& v) { return exact(x, v); }, 1e-6));
}

TEST_CASE("a layer of graph attention and all its gradients are those of differences in FP64") {
  const models_device on;
  device& d = *on.made;
  const host_csr m = with_self_loops(random_csr(9, 9, 0.3, 1), false);
  const csr a{d.shared(), m};
  const matrix x = normal_matrix(9, 4, fp32, 2), w = normal_matrix(6, 4, fp32, 3), dy = normal_matrix(9, 6, fp32, 4);
  const matrix to = normal_matrix(2, 6, fp32, 5, 0.3F), from = normal_matrix(2, 6, fp32, 6, 0.3F);
  attention_layer layer{d, a, w, to, from, false};
  const tensor y = layer.forward(on_device(d.shared(), x, fp32));
  check_gradient(of_values(d.download(y), y.shape()), attended(m, x, w, to, from), 1e-5);
  const tensor dx = layer.backward(on_device(d.shared(), dy, fp32));
  const auto parameters = layer.parameters();
  const auto gradient = [&](std::size_t i, const matrix& like) {
    return of_values(d.gradient(*parameters[i]), {like.rows, like.columns});
  };
  check_gradient(of_values(d.download(dx), dx.shape()),
                 by_differences(
                     x, dy, [&](const matrix& v) { return attended(m, v, w, to, from); }, 1e-6));
  check_gradient(gradient(0, w), by_differences(
                                     w, dy, [&](const matrix& v) { return attended(m, x, v, to, from); }, 1e-6));
  check_gradient(gradient(1, to), by_differences(
                                      to, dy, [&](const matrix& v) { return attended(m, x, w, v, from); }, 1e-6));
  check_gradient(gradient(2, from), by_differences(
                                        from, dy, [&](const matrix& v) { return attended(m, x, w, to, v); }, 1e-6));
}

TEST_CASE(
    "a graph convolutional network learns from half of the nodes what the others are, in FP32 and in low precision") {
  const models_device on;
  device& d = *on.made;
  const community data;
  const csr a{d.shared(), with_self_loops(data.a, true)};
  const matrix w1 = normal_matrix(16, community::features, fp32, 7, 0.25F);
  const matrix w2 = normal_matrix(community::classes, 16, fp32, 8, 0.25F);
  double exact = 0;
  for (const precision p : {fp32, bf16, fp16}) {
    if (!d.shared().card().has(p)) continue;
    CAPTURE(name(p));
    convolution_layer one{d, a, w1, true}, two{d, a, w2, false};
    const learnt got = learn(d, data, p, one, two);
    CHECK(got.last < 0.3 * got.first);
    CHECK(got.score > 0.85);
    if (p == fp32) exact = got.last;
    CHECK(std::abs(got.last - exact) < 0.1 * exact);
  }
}

TEST_CASE("a graph attention network learns from half of the nodes what the others are, in FP32 and in BF16") {
  const models_device on;
  device& d = *on.made;
  const community data;
  const csr a{d.shared(), with_self_loops(data.a, false)};
  const auto drawn = [](std::int64_t rows, std::int64_t columns, unsigned seed) {
    return normal_matrix(rows, columns, fp32, seed, 0.25F);
  };
  for (const precision p : {fp32, bf16}) {
    if (!d.shared().card().has(p)) continue;
    CAPTURE(name(p));
    attention_layer one{d, a, drawn(16, community::features, 1), drawn(4, 16, 2), drawn(4, 16, 3), true};
    attention_layer two{d, a, drawn(community::classes, 16, 4), drawn(1, 4, 5), drawn(1, 4, 6), false};
    const learnt got = learn(d, data, p, one, two);
    CHECK(got.last < 0.4 * got.first);
    CHECK(got.score > 0.8);
  }
}

}  // namespace comp::cuda::test
