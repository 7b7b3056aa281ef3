// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <optional>

#include "agree.hpp"

namespace comp::native::contract {
namespace {

/// Three steps on a linear layer, a grouped convolution, so that values lie as the libraries like them, and on more
/// parameters than a launch takes, of sizes around a block's.
void train(auto& d, results& r, auto step) {
  auto w = parameter_of(d, {17, 33}, 1, precision::fp32), b = parameter_of(d, {17}, 2, precision::fp32),
       k = parameter_of(d, {6, 3, 3, 3}, 3, precision::fp32), frozen = d.make_parameter(numbers(17, 4), {17}, false);
  std::vector all{&w, &b, &k, &frozen};
  constexpr std::array<std::int64_t, 6> widths{13, 69, 1, 8191, 8193, 24581};
  std::vector<std::decay_t<decltype(w)>> more;
  for (unsigned i = 0; i < 56; ++i)
    more.push_back(parameter_of(d, {1, widths[i < 6 ? i : i % 3]}, 5 + i, precision::fp32));
  for (auto& p : more) all.push_back(&p);
  for (unsigned i = 1; i <= 3; ++i) {
    for (auto* p : all) d.zero_gradient(*p);
    (void)d.linear_backward(tensor_of(d, {5, 17}, 10 * i, precision::fp32),
                            tensor_of(d, {5, 33}, 20 * i, precision::fp32), w, &b, false);
    (void)d.conv2d_backward(tensor_of(d, {2, 6, 5, 5}, 30 * i, precision::fp32),
                            tensor_of(d, {2, 6, 5, 5}, 40 * i, precision::fp32), k, nullptr,
                            {.padding = {1, 1}, .groups = 2}, false);
    for (auto& p : more)
      (void)d.linear_backward(tensor_of(d, {1, 1}, 50 * i, precision::fp32),
                              tensor_of(d, d.shape_of(p), 60 * i, precision::fp32), p, nullptr, false);
    step(d, all, i);
  }
  for (auto& p : more) r.keep_values(d, "one of many", p, 9);
  r.keep_values(d, "w", w, 99);
  r.keep_values(d, "b", b, 99);
  r.keep_values(d, "k", k, 99);
}

TEST_CASE("SGD in all its forms agrees with FP64") {
  for (const auto& o : {sgd_options{}, sgd_options{.momentum = 0.9}, sgd_options{.weight_decay = 0.1},
                        sgd_options{.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}}) {
    CAPTURE(o.momentum);
    CAPTURE(o.weight_decay);
    agree([&](auto& d, results& r) { train(d, r, [&](auto& on, auto& all, unsigned) { on.sgd_step(all, o); }); });
  }
}

TEST_CASE("Adam and AdamW agree with FP64") {
  for (const auto& o : {adam_options{.learning_rate = 0.01}, adam_options{.learning_rate = 0.01, .weight_decay = 0.1},
                        adam_options{.learning_rate = 0.01, .weight_decay = 0.1, .decoupled = true}}) {
    CAPTURE(o.weight_decay);
    CAPTURE(o.decoupled);
    agree([&](auto& d, results& r) { train(d, r, [&](auto& on, auto& all, unsigned i) { on.adam_step(all, o, i); }); });
  }
}

TEST_CASE("scaling, norm and count of gradients agree with FP64") {
  agree([&](auto& d, results& r) {
    train(d, r, [&](auto& on, auto& all, unsigned) {
      on.scale_gradients(all, 0.125);
      r.keep_number("norm", on.gradient_norm(all), 1000);
      r.keep_number("bad", static_cast<double>(on.count_not_finite(all)));
    });
  });
}

TEST_CASE(
    "NaN and infinity in a gradient are counted one by one, behind many elements and in the last of many tensors") {
  device d;
  std::vector<device::parameter> parameters;
  for (int i = 0; i < 60; ++i) parameters.push_back(parameter_of(d, {1, i == 58 ? 24581 : 3}, 1, precision::fp32));
  std::vector<device::parameter*> all;
  for (auto& w : parameters) {
    all.push_back(&w);
    std::vector<float> x(static_cast<std::size_t>(elements(d.shape_of(w))), 1.0F);
    if (all.size() > 58) x.front() = NAN, x.back() = INFINITY;
    (void)d.linear_backward(d.upload(std::vector{1.0F}, {1, 1}, precision::fp32),
                            d.upload(x, d.shape_of(w), precision::fp32), w, nullptr, false);
  }
  CHECK(d.count_not_finite(all) == 4);
  for (auto* w : all) d.zero_gradient(*w);
  CHECK(d.count_not_finite(all) == 0);
  CHECK(d.gradient(parameters[58]) == std::vector<float>(24581));
}

TEST_CASE("sums and steps take all parameters that have a gradient and train, and leave all others alone") {
  device d;
  const auto with = [&](float gradient) {
    auto w = d.make_parameter(std::vector{1.0F}, {1, 1});
    const auto one = d.upload(std::vector{1.0F}, {1, 1}, precision::fp32);
    (void)d.linear_backward(d.upload(std::vector{gradient}, {1, 1}, precision::fp32), one, w, nullptr, false);
    return w;
  };
  auto three = with(3), four = with(4), nan = with(NAN), infinite = with(INFINITY), gone = with(NAN),
       frozen = with(INFINITY), never = d.make_parameter(std::vector{1.0F}, {1, 1});
  d.zero_gradient(gone);
  d.set_trainable(frozen, false);
  const std::vector finite{&three, &four, &gone, &frozen, &never}, bad{&nan, &infinite, &three, &frozen, &gone};
  CHECK(d.count_not_finite(bad) == 2);
  CHECK(d.count_not_finite(finite) == 0);
  CHECK(d.gradient_norm(finite) == 5);
  d.scale_gradients(finite, 2);
  CHECK(d.gradient_norm(finite) == 10);
  d.sgd_step(finite, {.learning_rate = 1});
  CHECK(d.values(three) == std::vector{-5.0F});
  CHECK(d.values(four) == std::vector{-7.0F});
  d.sgd_step(finite, {.weight_decay = 1});
  d.adam_step(finite, {.weight_decay = 1}, 1);
  for (const auto* p : {&gone, &frozen, &never}) CHECK(d.values(*p) == std::vector{1.0F});
  CHECK_THROWS_WITH_AS(d.adam_step(finite, {}, 0), "adam_step number 0 (steps count from 1): start at 1", error);
}

TEST_CASE("a restored parameter goes on with the same bits") {
  for (const precision p : tested::precisions) {
    CAPTURE(name(p));
    device d;
    auto w = parameter_of(d, {6, 3, 3, 3}, 1, precision::fp32);
    const std::vector all{&w};
    const auto x = tensor_of(d, {2, 3, 8, 8}, 2, p);
    const auto steps = [&](int from, int to) {
      for (int i = from; i <= to; ++i) {
        const auto y = d.conv2d(x, w, nullptr, {});
        d.zero_gradient(w);
        (void)d.conv2d_backward(y, x, w, nullptr, {}, false);
        d.adam_step(all, {.learning_rate = 0.1}, i);
      }
      return d.values(w);
    };
    (void)steps(1, 2);
    const auto saved = d.snapshot(w);
    const auto first = steps(3, 5);
    for (int i = 0; i < 2; ++i) {  // as often as one likes
      d.restore(w, saved);
      const auto again = steps(3, 5);
      CHECK(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) == 0);
    }
    auto other = parameter_of(d, {3}, 1, precision::fp32);
    CHECK_THROWS_WITH_AS(
        d.restore(other, saved),
        "a state of shape (6,3,3,3) restored into a parameter of (3) (they must agree): restore what this parameter saved",
        error);
  }
}

TEST_CASE("a state from before the first step takes the optimizer back to its beginning") {
  device d;
  auto w = parameter_of(d, {4, 5}, 1, precision::fp32);
  const std::vector all{&w};
  const auto saved = d.snapshot(w);
  const auto step = [&] {
    d.zero_gradient(w);
    (void)d.linear_backward(tensor_of(d, {3, 4}, 2, precision::fp32), tensor_of(d, {3, 5}, 3, precision::fp32), w,
                            nullptr, false);
    d.sgd_step(all, {.momentum = 0.9});
    return d.values(w);
  };
  const auto first = step();
  CHECK(step() != first);
  d.restore(w, saved);
  CHECK(step() == first);
}

TEST_CASE("a step gives the same bits twice, on one device and on two") {
  for (const precision p : tested::precisions) {
    CAPTURE(name(p));
    device d = tested::reproducible(), other = tested::reproducible();
    const auto first = one_step(d, p), again = one_step(d, p), elsewhere = one_step(other, p);
    CHECK(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) == 0);
    CHECK(std::memcmp(first.data(), elsewhere.data(), first.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("a step leaves behind only what the next one uses again") {
  for (const precision p : tested::precisions) {
    CAPTURE(name(p));
    device d;
    (void)one_step(d, p);
    const auto live = d.live_bytes();
    d.reset_peak();
    (void)one_step(d, p);
    CHECK(d.live_bytes() == live);
    CHECK(d.peak_bytes() > live + 4 * 3 * 64 * 2);
  }
}

TEST_CASE("tensors, indices and parameters may outlive the device that made them") {
  std::optional<device> d{std::in_place};
  const auto x = d->upload(std::vector{1.0F, 2.0F}, {2}, precision::fp32), y = d->activate(activation::relu, x);
  const auto at = d->upload(std::vector<std::int32_t>{3}, {1});
  auto w = d->make_parameter(std::vector{1.0F}, {1});
  d.reset();
  CHECK(x.shape() == y.shape());
}

TEST_CASE("reshape keeps the row-major meaning and refuses another number of elements") {
  device d;
  const auto x = tensor_of(d, {2, 6}, 1, precision::fp32);
  CHECK(d.download(d.reshape(x, {3, 4})) == d.download(x));
  CHECK_THROWS_WITH_AS(d.reshape(x, {5}),
                       "reshape of (2,6) to (5) (it has 12 elements, not 5): keep the number of elements", error);
}

}  // namespace
}  // namespace comp::native::contract
