// SPDX-License-Identifier: Apache-2.0
// comp's attention in BF16 and FP32 against FP64, beside what ATen's own kernels are off by; in FP32 by AVX2, too. On a
// CPU without the instructions for a format only its refusal is tested.
#include <algorithm>
#include <array>
#include <comp_libtorch/kernels/attention.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "torch_and_doctest.hpp"

namespace attention_kernel {
namespace {

using comp::libtorch::detail::attend;

template <class T>
constexpr at::ScalarType format_of = c10::CppTypeToScalarType<T>::value;

template <class T>
bool this_cpu_computes() {
#if COMP_LIBTORCH_ATTENTION
  return comp::libtorch::detail::attention::multiplies(format_of<T>);
#else
  return false;
#endif
}

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double over_atens_error = 1.5;  // how much further off than ATen's kernel a result may be
/// How far off if ATen happens to be exact.
double floor_of_errors(at::ScalarType format) { return format == torch::kFloat ? 1e-6 : 1e-5; }
/// How far off a few roundings may be.
double roundings(at::ScalarType format) { return format == torch::kFloat ? 1.0 / (1 << 20) : 1.0 / 256; }

struct attention_shape {
  std::int64_t batch, heads, queries, keys, width;
};
struct attention_inputs {
  torch::Tensor q, k, v, dy;
  std::optional<torch::Tensor> mask = {};
  double dropout = 0;
  bool causal = false;
  std::optional<double> scale = {};
};

/// Heads as a model makes them: (B,L,H,D), transposed.
template <class T>
attention_inputs random_inputs(const attention_shape& s) {
  torch::manual_seed(static_cast<std::uint64_t>(s.queries * 1000 + s.width));
  const auto heads = [&](std::int64_t rows) {
    return torch::randn({s.batch, rows, s.heads, s.width}).to(format_of<T>).transpose(1, 2);
  };
  return {heads(s.queries), heads(s.keys), heads(s.keys), heads(s.queries)};
}

/// y, dq, dk and dv.
using results = std::array<torch::Tensor, 4>;
const std::array<std::string, 4> names{"y", "dq", "dk", "dv"};

results run(const attention_inputs& in, at::ScalarType format, const auto& attention) {
  torch::manual_seed(7);  // of dropout
  const auto leaf = [format](const torch::Tensor& t) {
    return (t.scalar_type() == format ? t.detach() : t.detach().to(format)).requires_grad_();
  };
  const torch::Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  std::optional<torch::Tensor> mask = in.mask;
  if (mask && mask->scalar_type() != torch::kBool && format == torch::kDouble) mask = mask->to(format);
  const torch::Tensor y = attention(q, k, v, mask, in.dropout, in.causal, in.scale);
  const auto gradients = torch::autograd::grad({y}, {q, k, v}, {in.dy.to(format)});
  return {y.detach(), gradients[0], gradients[1], gradients[2]};
}
torch::Tensor by_aten(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                      const std::optional<torch::Tensor>& mask = {}, double dropout = 0, bool causal = false,
                      std::optional<double> scale = {}) {
  return at::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale);
}
torch::Tensor by_comp(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                      const std::optional<torch::Tensor>& mask = {}, double dropout = 0, bool causal = false,
                      std::optional<double> scale = {}) {
  const auto y = attend(q, k, v, mask, dropout, causal, scale);
  REQUIRE(y.has_value());
  return *y;
}
/// As a CPU without AVX-512 computes FP32.
torch::Tensor by_avx2(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                      const std::optional<torch::Tensor>& mask, double dropout, bool causal,
                      std::optional<double> scale) {
  const auto y = attend(q, k, v, mask, dropout, causal, scale, true);
  REQUIRE(y.has_value());
  return *y;
}
/// What comp gives, in vectors of each width that the format has here.
std::vector<results> run_in_each_width(const attention_inputs& in) {
  const at::ScalarType format = in.q.scalar_type();
  std::vector<results> each{run(in, format, by_comp)};
  if (format == torch::kFloat) each.push_back(run(in, format, by_avx2));
  return each;
}

/// In FP64, operator by operator.
torch::Tensor exactly(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                      const std::optional<torch::Tensor>& mask = {}, double dropout = 0, bool causal = false,
                      std::optional<double> scale = {}) {
  std::optional<torch::Tensor> added = mask;
  if (mask && mask->scalar_type() == torch::kBool)
    added = torch::zeros_like(*mask, torch::kDouble).masked_fill(~*mask, -infinity);
  return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, added, dropout, causal, {}, scale));
}

double error(const torch::Tensor& got, const torch::Tensor& exact) {
  return (got.to(torch::kDouble) - exact).norm().item<double>() / (exact.norm().item<double>() + 1e-5);
}
/// With dropout, ATen computes in FP32. A kernel is then held against ATen's without dropout, too.
void check_exactness(const attention_inputs& in) {
  const at::ScalarType format = in.q.scalar_type();
  attention_inputs undropped = in;
  undropped.dropout = 0;
  const results exact = run(in, torch::kDouble, exactly), theirs = run(in, format, by_aten);
  const results exact_undropped = run(undropped, torch::kDouble, exactly);
  const results theirs_undropped = run(undropped, format, by_aten);
  const int before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    at::set_num_threads(threads);
    for (const results& ours : run_in_each_width(in)) {
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CAPTURE(names[i]);
        const double of_aten = std::max(error(theirs[i], exact[i]), error(theirs_undropped[i], exact_undropped[i]));
        CHECK(ours[i].sizes() == theirs[i].sizes());
        if (exact[i].count_nonzero().item<std::int64_t>() == 0) {  // one key: all cancels but y's rounding
          CHECK(ours[i].norm().item<double>() <= (in.dy.norm() * ours[0].norm()).item<double>() * roundings(format));
        } else {
          CHECK(error(ours[i], exact[i]) <= over_atens_error * of_aten + floor_of_errors(format));
        }
      }
      CHECK(ours[0].strides() == theirs[0].strides());
    }
  }
  at::set_num_threads(before);
}

const std::vector<attention_shape> shapes{{2, 4, 128, 128, 64}, {4, 4, 64, 64, 32}, {1, 2, 256, 256, 64},
                                          {1, 2, 100, 37, 64},  {2, 3, 17, 17, 40}, {3, 2, 1, 1, 8},
                                          {8, 4, 1, 130, 40},   {1, 2, 65, 63, 96}, {1, 2, 70, 200, 128}};

torch::Tensor random_bool(at::IntArrayRef sizes) {
  torch::Tensor mask = torch::rand(sizes) < 0.7;
  mask.select(-1, 0).fill_(true);  // each query sees a key
  return mask;
}
std::string text(const attention_shape& s) {
  return std::to_string(s.batch) + " x " + std::to_string(s.heads) + " x " + std::to_string(s.queries) + " x " +
         std::to_string(s.keys) + " x " + std::to_string(s.width);
}

}  // namespace

TEST_CASE_TEMPLATE("attention in BF16 is as exact as ATen's, with each mask", T, at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  for (const attention_shape& s : shapes) {
    CAPTURE(text(s));
    attention_inputs in = random_inputs<T>(s);
    SUBCASE("none") {}
    SUBCASE("none, and a scale") { in.scale = 0.31; }
    SUBCASE("causal") { in.causal = true; }
    SUBCASE("padding") { in.mask = random_bool({s.batch, 1, 1, s.keys}); }
    SUBCASE("boolean, of each query") { in.mask = random_bool({s.batch, 1, s.queries, s.keys}); }
    SUBCASE("of each head, BF16") { in.mask = torch::randn({s.batch, s.heads, s.queries, s.keys}).to(format_of<T>); }
    SUBCASE("for all heads, FP32 with minus infinity") {
      in.mask = torch::randn({s.queries, s.keys}).masked_fill(~random_bool({s.queries, s.keys}), -infinity);
    }
    SUBCASE("one number for a query") { in.mask = torch::randn({1, 1, s.queries, 1}).to(format_of<T>); }
    SUBCASE("with gaps between its elements") { in.mask = torch::randn({s.keys, s.queries}).t(); }
    check_exactness(in);
  }
}

TEST_CASE_TEMPLATE("where a query's largest scores are equal, the rounding of the result is no gradient of them", T,
                   at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  attention_inputs in = random_inputs<T>({1, 2, 130, 130, 32});
  in.k = in.k.slice(2, 0, 65).repeat_interleave(2, 2);  // keys in pairs of equal ones
  in.q = in.k * 32;
  const results want = run(in, torch::kDouble, exactly);
  const auto largest = [](const torch::Tensor& x) { return x.abs().max().item<double>(); };
  for (const results& ours : run_in_each_width(in))
    CHECK(largest(ours[1] - want[1]) < 5e-6 * largest(want[2]));  // the gradients of a pair's scores add up to 0
}

TEST_CASE_TEMPLATE("dropout in attention takes ATen's random numbers", T, at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  for (const attention_shape& s : shapes) {
    CAPTURE(text(s));
    attention_inputs in = random_inputs<T>(s);
    in.dropout = 0.25;
    SUBCASE("no mask") {}
    SUBCASE("causal") { in.causal = true; }
    SUBCASE("padding") { in.mask = random_bool({s.batch, 1, 1, s.keys}); }
    (void)run(in, format_of<T>, by_aten);
    const torch::Tensor after = at::detail::getDefaultCPUGenerator().get_state();
    (void)run(in, format_of<T>, by_comp);
    CHECK(after.equal(at::detail::getDefaultCPUGenerator().get_state()));
    check_exactness(in);
  }
}

TEST_CASE_TEMPLATE("queries that see no key get what ATen gives them", T, at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  attention_inputs in = random_inputs<T>({2, 2, 70, 70, 64});
  SUBCASE("boolean") { in.mask = random_bool({70, 70}).index_fill(0, torch::tensor({3, 69}), false); }
  SUBCASE("minus infinity") { in.mask = torch::zeros({70, 70}).index_fill(0, torch::tensor({3, 69}), -infinity); }
  const results theirs = run(in, format_of<T>, by_aten);
  for (const results& ours : run_in_each_width(in)) {
    for (const std::int64_t query : {3, 69}) {
      CHECK(ours[0].select(2, query).equal(theirs[0].select(2, query)));
      CHECK(ours[1].select(2, query).equal(theirs[1].select(2, query)));
    }
  }
  check_exactness(in);
}

TEST_CASE_TEMPLATE("queries whose keys are all masked by FP32's or BF16's lowest number see all keys alike", T,
                   at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  attention_inputs in = random_inputs<T>({1, 2, 40, 40, 64});
  in.mask = torch::zeros({40, 40}).index_fill(0, torch::tensor({5}), std::numeric_limits<float>::lowest());
  SUBCASE("FP32") {}
  SUBCASE("BF16") { in.mask = torch::zeros({40, 40}).index_fill(0, torch::tensor({5}), -3e38).to(format_of<T>); }
  const results exact = run(in, torch::kDouble, exactly);
  const torch::Tensor mean = in.v.to(torch::kDouble).mean(2);
  for (const results& ours : run_in_each_width(in)) {
    CHECK(error(ours[0].select(2, 5), mean) < roundings(format_of<T>));
    CHECK(error(ours[3], exact[3]) < 2 * roundings(format_of<T>));
  }
}

TEST_CASE_TEMPLATE("numbers that are none stay visible", T, at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  attention_inputs in = random_inputs<T>({1, 1, 40, 40, 32});
  in.q = in.q.clone();
  in.q[0][0][7][0] = std::numeric_limits<double>::quiet_NaN();
  const results exact = run(in, torch::kDouble, exactly);
  for (const results& ours : run_in_each_width(in)) {
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(names[i]);
      CHECK(ours[i].isnan().equal(exact[i].isnan()));
    }
  }
}

TEST_CASE_TEMPLATE("attention reads heads where they are", T, at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  torch::manual_seed(3);
  const torch::Tensor packed = torch::randn({2, 33, 3, 4, 40}).to(format_of<T>);  // q, k and v of one product
  attention_inputs in{packed.select(2, 0).transpose(1, 2), packed.select(2, 1).transpose(1, 2),
                      packed.select(2, 2).transpose(1, 2), torch::ones({2, 4, 33, 40}).to(format_of<T>)};
  SUBCASE("one product for q, k and v") {}
  SUBCASE("the same keys for all of the batch") {
    in.k = in.k.slice(0, 0, 1).expand_as(in.k);
    in.v = in.v.slice(0, 0, 1).expand_as(in.v);
  }
  SUBCASE("a gradient without memory of its own") { in.dy = in.dy.slice(3, 0, 1).slice(2, 0, 1).expand_as(in.dy); }
  attention_inputs copied = in;
  for (torch::Tensor* t : {&copied.q, &copied.k, &copied.v, &copied.dy}) *t = t->contiguous();
  const results ours = run(in, format_of<T>, by_comp), expected = run(copied, format_of<T>, by_comp);
  for (std::size_t i = 0; i < ours.size(); ++i) CHECK(ours[i].equal(expected[i]));
}

TEST_CASE_TEMPLATE("attention can be differentiated twice", T, at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  attention_inputs in = random_inputs<T>({1, 2, 20, 20, 16});
  SUBCASE("three inputs") {}
  SUBCASE("with dropout and a mask") {
    in.dropout = 0.5;
    in.mask = random_bool({1, 1, 1, 20});
  }
  SUBCASE("causal") { in.causal = true; }
  const auto second = [&](at::ScalarType format, const auto& attention) {
    torch::manual_seed(7);
    const torch::Tensor x = in.q.detach().to(format).requires_grad_();
    const torch::Tensor y = attention(x, x, x, in.mask, in.dropout, in.causal, std::optional<double>{});
    const torch::Tensor once = torch::autograd::grad({y}, {x}, {in.dy.to(format)}, std::nullopt, true)[0];
    return torch::autograd::grad({once.square().sum()}, {x})[0];
  };
  CHECK(error(second(format_of<T>, by_comp), second(torch::kDouble, exactly)) < 4 * roundings(format_of<T>));
}

TEST_CASE_TEMPLATE("attention gives gradients only to inputs that want them", T, at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  const attention_inputs in = random_inputs<T>({1, 2, 20, 20, 16});
  const torch::Tensor k = in.k.clone().requires_grad_();
  const torch::Tensor y = by_comp(in.q, k, in.v);
  const torch::Tensor once = torch::autograd::grad({y}, {k}, {in.dy}, true)[0];
  const torch::Tensor twice = torch::autograd::grad({y}, {k}, {in.dy}, std::nullopt, true)[0];
  CHECK(error(once, twice.detach().to(torch::kDouble)) < 4 * roundings(format_of<T>));
  CHECK_FALSE(by_comp(in.q, in.k, in.v).requires_grad());
}

TEST_CASE_TEMPLATE("a tensor that changed between attention's forward and backward is an error", T, at::BFloat16,
                   float) {
  if (!this_cpu_computes<T>()) return;
  const attention_inputs in = random_inputs<T>({1, 2, 20, 20, 16});
  const torch::Tensor q = in.q.clone().requires_grad_(), k = in.k.clone(), v = in.v.clone();
  const torch::Tensor mask = torch::zeros({20, 20});
  const torch::Tensor y = by_comp(q, k, v, mask);
  SUBCASE("k") { k.zero_(); }
  SUBCASE("v") { v.zero_(); }
  SUBCASE("the result") { y.detach().zero_(); }
  SUBCASE("a mask of numbers") { mask.fill_(1); }
  CHECK_THROWS_AS(y.backward(in.dy), c10::Error);
}

TEST_CASE_TEMPLATE("a boolean mask may be filled anew before attention's backward, as with ATen", T, at::BFloat16,
                   float) {
  if (!this_cpu_computes<T>()) return;
  attention_inputs in = random_inputs<T>({1, 2, 20, 20, 16});
  in.mask = random_bool({20, 20});
  const results expected = run(in, format_of<T>, by_comp);
  const torch::Tensor v = in.v.clone().requires_grad_();
  const torch::Tensor y = by_comp(in.q, in.k, v, in.mask);
  in.mask->fill_(true);
  CHECK(torch::autograd::grad({y}, {v}, {in.dy})[0].equal(expected[3]));
}

TEST_CASE_TEMPLATE("attention's result may be changed in place where autograd allows it", T, at::BFloat16, float) {
  if (!this_cpu_computes<T>()) return;
  const attention_inputs in = random_inputs<T>({1, 2, 20, 20, 16});
  const torch::Tensor v = in.v.clone().requires_grad_();
  torch::Tensor y = by_comp(in.q, in.k, v);
  CHECK_NOTHROW(y.add_(1));
}

TEST_CASE_TEMPLATE("attention that comp does not compute is left to ATen", T, at::BFloat16, float) {
  const attention_inputs in = random_inputs<T>({2, 2, 20, 20, 16});
  const torch::Tensor &q = in.q, &k = in.k, &v = in.v, mask = torch::zeros({20, 20});
  REQUIRE(attend(q, k, v).has_value() == this_cpu_computes<T>());
  SUBCASE("other formats") {
    for (const auto other : {torch::kDouble, torch::kHalf}) {
      CHECK_FALSE(attend(q.to(other), k.to(other), v.to(other)));
      CHECK_FALSE(attend(q, k, v.to(other)));
      CHECK_FALSE(attend(q, k, v, mask.to(other)));
    }
    CHECK_FALSE(attend(q, k, v.to(format_of<T> == torch::kFloat ? torch::kBFloat16 : torch::kFloat)));
    CHECK(attend(q, k, v, mask.to(torch::kBFloat16)).has_value() ==
          (format_of<T> == torch::kBFloat16 && this_cpu_computes<T>()));
  }
  SUBCASE("three axes") { CHECK_FALSE(attend(q[0], k[0], v[0])); }
  SUBCASE("nothing to compute") {
    CHECK_FALSE(attend(q.slice(2, 0, 0), k, v));
    CHECK_FALSE(attend(q, k.slice(2, 0, 0), v.slice(2, 0, 0)));
  }
  SUBCASE("grouped queries") { CHECK_FALSE(attend(q, k.slice(1, 0, 1), v.slice(1, 0, 1))); }
  SUBCASE("v of another width") { CHECK_FALSE(attend(q, k, v.slice(3, 0, 8))); }
  SUBCASE("a mask that wants gradients") { CHECK_FALSE(attend(q, k, v, mask.clone().requires_grad_())); }
  SUBCASE("a mask of keys alone") { CHECK_FALSE(attend(q, k, v, torch::zeros({20}))); }
  SUBCASE("a mask and causal") { CHECK_FALSE(attend(q, k, v, mask, 0, true)); }
  SUBCASE("gaps between the elements of a row") {
    CHECK_FALSE(attend(q.transpose(2, 3).contiguous().transpose(2, 3), k, v));
  }
  SUBCASE("few queries, unless a backward follows") {
    CHECK_FALSE(attend(q.slice(2, 0, 15), k, v));
    CHECK(attend(q.slice(2, 0, 16), k, v).has_value() == this_cpu_computes<T>());
    CHECK(attend(q.slice(2, 0, 15), k, v.clone().requires_grad_()).has_value() == this_cpu_computes<T>());
  }
  SUBCASE("all is dropped") { CHECK_FALSE(attend(q, k, v, {}, 1)); }
  SUBCASE("a tangent of forward-mode gradients") {
    const auto level = torch::autograd::ForwardADLevel::get_next_idx();
    CHECK_FALSE(attend(torch::_make_dual(q, torch::ones_like(q), static_cast<std::int64_t>(level)), k, v));
    torch::autograd::ForwardADLevel::release_idx(level);
  }
  SUBCASE("the user wants another kernel") {
    at::globalContext().setSDPUseFlash(false);
    CHECK_FALSE(attend(q, k, v));
    at::globalContext().setSDPUseFlash(true);
  }
  SUBCASE("the user wants no oneDNN") {
    at::globalContext().setUserEnabledMkldnn(false);
    CHECK_FALSE(attend(q, k, v));
    at::globalContext().setUserEnabledMkldnn(true);
  }
}

}  // namespace attention_kernel
