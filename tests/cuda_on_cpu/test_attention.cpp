// SPDX-License-Identifier: Apache-2.0
// Attention in one beside the same operator by operator and the FP64 reference: results, gradients, dropout, what is
// refused and then done otherwise. The graphs are the stand-in's (attention_on_cpu.cpp); cuDNN's own are built in
// test_attention_graphs.cpp. Captured steps: test_captured_steps.cpp.
#include <comp_cuda/device.hpp>

#include "fresh.hpp"
#include "kernel_test.hpp"
#include "native/attention.hpp"
#include "native/reference_device.hpp"
#include "native/support.hpp"

#ifdef COMP_SIMT
#include "attention_on_cpu.hpp"
#endif

namespace comp::cuda::test {

using native::attention_options;
using native::op::attention;
using native::op::softmax_mask;
using namespace native::testing;

TEST_CASE_FIXTURE(fresh_for_training,
                  "attention in one gives FP64's results and gradients, rounded less than operator by operator") {
  device one, apart{{.fuse_attention = false}};
  native::reference::device exact;
  for (const auto& [t, heads] : std::vector<std::pair<tokens, std::int64_t>>{
           {{1, 1, 1, 8}, 1}, {{2, 5, 5, 16}, 2}, {{1, 33, 33, 24}, 3}, {{2, 3, 7, 16}, 1}, {{3, 13, 13, 128}, 1}}) {
    const given from{t};
    for (const softmax_mask mask : {softmax_mask::none, softmax_mask::causal, softmax_mask::padding}) {
      if (mask == softmax_mask::causal && t.queries != t.keys) continue;
      for (const precision p : {precision::bf16, precision::fp16}) {
        CAPTURE(t.queries);
        CAPTURE(mask);
        CAPTURE(name(p));
        const attention what{{.heads = heads, .mask = mask}};
        const attended got = attend(one, what, t, from, p), parts = attend(apart, what, t, from, p);
        CHECK(got.in_one == one.attention_in_parts().empty());
        CHECK_FALSE(parts.in_one);
        const attended want = attend(exact, what, t, from, precision::fp32);
        check_like(got, want, p, 3);
        check_like(parts, want, p, 8);
      }
    }
  }
#ifdef COMP_SIMT  // a GPU, or a build without cuDNN's front end, may have none
  CHECK(one.attention_in_parts().empty());
#else
  for (const std::string& why : one.attention_in_parts()) MESSAGE(why);
#endif
}

struct with_attention : fresh_for_training {
  device d;
};

TEST_CASE_FIXTURE(with_attention, "precisions that cuDNN's attention has not, and wide ones, go operator by operator") {
  native::reference::device exact;
  const tokens t{2, 6, 6, 16};
  const given from{t};
  const attention what{{.heads = 2, .mask = softmax_mask::causal}};
  for (const precision p : {precision::fp32, precision::tf32}) {
    const attended got = attend(d, what, t, from, p);
    CHECK_FALSE(got.in_one);
    check_like(got, attend(exact, what, t, from, p), p, p == precision::fp32 ? 64 : 8);
  }
  CHECK(d.attention_in_parts().empty());  // nobody was asked
}

#ifdef COMP_SIMT
TEST_CASE_FIXTURE(with_attention, "an example of padding alone goes operator by operator, and gives zeros") {
  const tokens t{2, 6, 6, 16};
  given from{t};
  from.lengths = {6, 0};
  const attended got = attend(d, {{.heads = 2, .mask = softmax_mask::padding}}, t, from, precision::bf16);
  CHECK_FALSE(got.in_one);
  CHECK(std::ranges::all_of(std::span{got.y}.subspan(6 * 16), [](float y) { return y == 0; }));
  for (const auto& dx : got.dx) CHECK(std::ranges::all_of(dx, [](float x) { return std::isfinite(x); }));
}

TEST_CASE_FIXTURE(fresh_for_training, "what cuDNN refuses goes operator by operator, and is named") {
  native::reference::device exact;
  const tokens t{1, 6, 6, 24};
  const given from{t};
  const auto refused = [&](device& d, const attention& what, precision p) {
    const attended got = attend(d, what, t, from, p);
    CHECK_FALSE(got.in_one);
    if (what.options.dropout == 0) check_like(got, attend(exact, what, t, from, precision::fp32), p, 8);
    const auto why = d.attention_in_parts();
    REQUIRE(why.size() == 1);
    return why[0];
  };
  {
    device d;
    CHECK(refused(d, {{.heads = 2, .mask = softmax_mask::causal}}, precision::bf16) ==
          "attention of (1,2,6,12) to 6 keys in bf16, causal runs operator by operator (cuDNN: hidden_dim should be a "
          "multiple of 8 and at most 128)");
  }
  simt::device.properties.major = 7;
  {
    device d;
    CHECK(refused(d, {{.heads = 3}}, precision::fp16).find("requires SM80") != std::string::npos);
  }
  simt::device.properties.major = 10;
  {
    device d;
    CHECK(refused(d, {{.heads = 3, .dropout = 0.1}}, precision::bf16).find("with dropout") != std::string::npos);
  }
  {
    device d{{.attention_in_any_order = true}};
    CHECK(attend(d, {{.heads = 3, .dropout = 0.1}}, t, from, precision::bf16).in_one);
    CHECK(d.attention_in_parts().empty());
  }
}

TEST_CASE_FIXTURE(with_attention, "attention that fails when it runs goes on operator by operator") {
  native::reference::device exact;
  const tokens t{1, 6, 6, 16};
  const given from{t};
  const attention what{{.heads = 2}};
  simt::attention_fails = true;
  const attended got = attend(d, what, t, from, precision::bf16);
  simt::attention_fails = false;
  CHECK_FALSE(got.in_one);
  check_like(got, attend(exact, what, t, from, precision::fp32), precision::bf16, 8);
  CHECK_FALSE(attend(d, what, t, from, precision::bf16).in_one);  // is not tried again
  REQUIRE(d.attention_in_parts().size() == 1);
  CHECK(d.attention_in_parts()[0].find("asked to fail") != std::string::npos);
}

TEST_CASE_FIXTURE(with_attention, "what has run in one goes back in one, whatever became of the case since") {
  const tokens t{1, 6, 6, 16};
  const given from{t};
  const attention_options o{.heads = 2};
  const auto up = [&](const std::vector<float>& v) { return d.upload(v, {1, 6, 16}, precision::bf16); };
  const tensor q = up(from.q), k = up(from.k), v = up(from.v);
  const auto result = d.attention(q, k, v, {}, o, {});
  REQUIRE(result);
  simt::attention_fails = true;
  CHECK_FALSE(d.attention(q, k, v, {}, o, {}));
  simt::attention_fails = false;
  const auto dx = d.attention_backward(up(from.dy), q, k, v, result->saved, {}, o, {});
  native::reference::device exact;
  check_like(d.download(dx[0]), attend(exact, {o}, t, from, precision::fp32).dx[0], precision::bf16, 6);
}
#endif

TEST_CASE_FIXTURE(with_attention,
                  "attention of tensors that do not fit, or a backward of nothing, is refused in words") {
  check_refusals(d, "backward of attention over (1,6,16) (its forward was not cuDNN's): give what attention() gave");
}

TEST_CASE_FIXTURE(with_attention, "dropout in one: the backward has the forward's mask, and each draw another") {
  const tokens t{2, 24, 24, 16};
  given from{t};
  const attention what{{.heads = 2, .dropout = 0.5}};
  const attended got = attend(d, what, t, from, precision::fp16);
  CHECK(got.in_one == d.attention_in_parts().empty());
  // The result is linear in the values: <dy, y> = <dv, v>, for one mask.
  CHECK(native::testing::product(from.dy, got.y) ==
        doctest::Approx(native::testing::product(from.v, got.dx[2])).epsilon(0.01));
  CHECK(attend(d, what, t, from, precision::fp16).y == got.y);
  CHECK(attend(d, what, t, from, precision::fp16, {5, 8}).y != got.y);
  CHECK(attend(d, what, t, from, precision::fp16, {6, 7}).y != got.y);
  from.v.assign(from.v.size(), 1.0F);  // each result is what is left of its row's probabilities: 1 on average
  double sum = 0;
  for (const float y : attend(d, what, t, from, precision::fp16).y) sum += static_cast<double>(y);
  CHECK(sum / static_cast<double>(from.q.size()) == doctest::Approx(1).epsilon(0.05));
}

TEST_CASE_FIXTURE(with_attention, "where masks have to be those of every Device, dropout goes operator by operator") {
  native::reference::device exact;
  const tokens t{1, 9, 9, 16};
  const given from{t};
  const attention what{{.heads = 2, .dropout = 0.3}};
  const attended got = attend(d, what, t, from, precision::bf16, {5, 7, true});
  CHECK_FALSE(got.in_one);
  check_like(got, attend(exact, what, t, from, precision::fp32, {5, 7}), precision::bf16, 8);
}

}  // namespace comp::cuda::test
