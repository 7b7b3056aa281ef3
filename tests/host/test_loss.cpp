// SPDX-License-Identifier: Apache-2.0
#include <comp_host/loss.hpp>

#include "agree.hpp"

namespace comp::host::test {
namespace {

TEST_CASE("the losses and their gradients agree with FP64") {
  for (const native::shape& s : {native::shape{1, 1}, {3, 17}, {65, 100}}) {
    for (const precision p : tested) {
      CAPTURE(text(s));
      CAPTURE(name(p));
      agree([&](auto& d, results& r) {
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
  }
}

TEST_CASE("a loss that is not finite is seen") {
  for (const precision p : tested) {
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

TEST_CASE("a loss refuses targets that do not fit") {
  device d;
  double loss = 0;
  const auto logits = tensor_of(d, {2, 3}, 1, precision::fp32);
  const auto with = [&](std::vector<std::int32_t> t) { return d.upload(t, {std::ssize(t)}); };
  CHECK_THROWS_WITH_AS(d.cross_entropy(logits, with({0, 3}), &loss),
                       "cross_entropy of target 3 (there are 3 classes): use targets below 3", error);
  CHECK_THROWS_WITH_AS(d.nll_loss(logits, with({-1, -1}), &loss),
                       "nll_loss with 2 targets, all below 0 (the mean of none is not defined): leave out such a batch",
                       error);
  CHECK_THROWS_AS(d.cross_entropy(logits, with({0}), &loss), error);
  CHECK_THROWS_AS(d.mse_loss(logits, tensor_of(d, {3, 2}, 1, precision::fp32), &loss), error);
}

}  // namespace
}  // namespace comp::host::test
