// SPDX-License-Identifier: Apache-2.0
#include <comp_libtorch/kernels/scaled_linear.hpp>
#include <comp_libtorch/plan/instrumentation.hpp>

#include "../native/reference_scaled.hpp"
#include "program_support.hpp"
#include "torch_and_doctest.hpp"

namespace scaled_linear_tests {
namespace {

using comp::element_rounding;
using comp::format_of;
using comp::operand;
using comp::operand_format;
using comp::plan;
using comp::product;
using comp::libtorch::detail::quantizer;
using comp::native::test::differing;

constexpr precision scaled_precisions[] = {precision::fp8_e4m3, precision::fp8_e5m2, precision::fp8_block128,
                                           precision::mxfp8,    precision::mxfp4,    precision::nvfp4};

torch::Tensor matrix_of(std::vector<float> values, std::size_t rows, std::size_t columns) {
  return torch::tensor(values).view({static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)});
}
std::vector<float> values_of(const torch::Tensor& t) {
  const torch::Tensor flat = t.to(torch::kFloat).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

/// A format of one operand that rounds to nearest, so that its bits are known.
std::vector<operand_format> formats() {
  std::vector<operand_format> all;
  for (const precision p : scaled_precisions) {
    for (const product of : {product::forward, product::input_gradient, product::weight_gradient}) {
      for (const operand o : {operand::input, operand::weight, operand::gradient}) {
        operand_format f = format_of(p, of, o);
        f.elements = element_rounding::nearest_even;
        if (std::ranges::find(all, f) == all.end()) all.push_back(f);
      }
    }
  }
  return all;
}

/// Returns what a product of two operands gives in FP64: rows of `a` times rows of `b`, both by the definition.
torch::Tensor product_by_definition(precision p, product of, operand first, const torch::Tensor& a, operand second,
                                    const torch::Tensor& b) {
  const auto read = [&](operand o, const torch::Tensor& m) {
    return torch::tensor(comp::native::test::quantized_by_definition(format_of(p, of, o), values_of(m),
                                                                     static_cast<std::size_t>(m.size(0)),
                                                                     static_cast<std::size_t>(m.size(1)), false, {}))
        .view(m.sizes())
        .to(torch::kDouble);
  };
  return read(first, a).matmul(read(second, b).t());
}
double off(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a.to(torch::kDouble) - b).norm() / b.norm()).item<double>();
}

/// A layer in one format, and what autograd gives for it.
struct layer_run {
  torch::Tensor x, w, b, dy, y;
  explicit layer_run(precision p, std::int64_t rows = 48, std::int64_t inputs = 80, std::int64_t outputs = 64) {
    const auto drawn = [](std::int64_t r, std::int64_t c) {
      return torch::randn({r, c}) * torch::exp(torch::randn({r, 1}));
    };
    x = drawn(rows, inputs).to(torch::kBFloat16).requires_grad_();
    w = drawn(outputs, inputs).requires_grad_();
    b = torch::randn({outputs}).requires_grad_();
    dy = drawn(rows, outputs).to(torch::kBFloat16);
    y = comp::libtorch::detail::scaled_linear::apply(x, w, std::optional{b}, static_cast<std::int64_t>(p));
    y.backward(dy);
  }
};

plan linear_plan(const program& p, precision low, precision others = precision::fp32) {
  plan all{p.graph().size()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const comp::op_info& op = p.graph()[i];
    if (op.choosable) all[i] = p.is_linear_layer(op) ? low : others;
  }
  return all;
}

}  // namespace

TEST_CASE("LibTorch's operators round as other implementations do") {
  for (const auto& r : comp::native::test::recorded_results) {
    const auto& m = comp::native::test::recorded_matrices[r.matrix];
    const operand_format f = format_of(r.precision, r.product, r.operand);
    if (f.elements == element_rounding::stochastic) continue;
    CAPTURE(comp::name(r.precision));
    CAPTURE(r.matrix);
    const torch::Tensor rounded = quantizer{f}(matrix_of(comp::native::test::floats(m.words), m.rows, m.columns));
    CHECK(differing(values_of(rounded), comp::native::test::values_of(r)) == 0);
  }
}

TEST_CASE("LibTorch's operators give the bits of the definition, for any shape and values") {
  std::uint64_t seed = 0;
  for (const operand_format& f : formats()) {
    for (const auto& [rows, columns] : {std::pair{1U, 1U}, {3U, 17U}, {33U, 40U}, {130U, 129U}, {16U, 300U}}) {
      for (const bool hostile : {false, true}) {
        const auto values = comp::native::test::drawn_values(rows * columns, ++seed, hostile);
        CAPTURE(static_cast<int>(f.scale));
        CAPTURE(f.block.across);
        CAPTURE(static_cast<int>(f.before));
        CAPTURE(rows);
        CAPTURE(hostile);
        const auto expected = comp::native::test::quantized_by_definition(f, values, rows, columns, false, {});
        CHECK(differing(values_of(quantizer{f}(matrix_of(values, rows, columns))), expected) == 0);
      }
    }
  }
}

TEST_CASE("stochastic rounding gives one of both neighbours, the value on average, and the same again") {
  const operand_format f = format_of(precision::nvfp4, product::input_gradient, operand::gradient);
  REQUIRE(f.elements == element_rounding::stochastic);
  torch::Tensor row =
      torch::tensor({6.0, 0.1, 0.6, -1.3, 2.25, 3.1, -4.5, 5.0, 0.0, 0.25, 1.0, 2.0, 3.0, -4.0, 6.0, 1.75});
  const torch::Tensor all = row.to(torch::kFloat).repeat({20000, 1});
  const torch::Generator usual = at::globalContext().defaultGenerator(torch::kCPU);
  const torch::Tensor before = usual.get_state(), rounded = quantizer{f}(all);
  CHECK(torch::equal(usual.get_state(), before));
  CHECK(torch::equal(quantizer{f}(all), rounded));
  CHECK((rounded.mean(0) - row).abs().max().item<double>() < 0.02);  // four standard errors of the widest spacing
  operand_format nearest = f;
  nearest.elements = element_rounding::nearest_even;
  const torch::Tensor exact = quantizer{nearest}(all);
  const torch::Tensor own = exact == all;  // elements stay as they are
  CHECK(torch::equal(rounded.masked_select(own), all.masked_select(own)));
  for (std::int64_t i = 0; i < 16; ++i) CHECK(std::get<0>(at::_unique(rounded.select(1, i))).numel() <= 2);
}

TEST_CASE("each product of a linear layer reads its two operands as the format says") {
  torch::manual_seed(1);
  for (const precision p : scaled_precisions) {
    if (p == precision::nvfp4) continue;  // its gradients are drawn
    CAPTURE(comp::name(p));
    const layer_run run{p};
    const torch::NoGradGuard off_now;
    CHECK((run.y.scalar_type() == torch::kBFloat16));
    CHECK((run.w.grad().scalar_type() == torch::kFloat));
    CHECK((run.x.grad().scalar_type() == torch::kBFloat16));
    const auto y = product_by_definition(p, product::forward, operand::input, run.x, operand::weight, run.w);
    CHECK(off(run.y, y + run.b.to(torch::kDouble)) < 4e-3);
    CHECK(off(run.x.grad(), product_by_definition(p, product::input_gradient, operand::gradient, run.dy,
                                                  operand::weight, run.w.t())) < 4e-3);
    CHECK(off(run.w.grad(), product_by_definition(p, product::weight_gradient, operand::gradient, run.dy.t(),
                                                  operand::input, run.x.t())) < 1e-5);
    CHECK(off(run.b.grad(), run.dy.to(torch::kDouble).sum(0)) < 1e-5);
  }
}

TEST_CASE("the gradients of a layer in NVFP4 are right on average") {
  torch::manual_seed(2);
  const layer_run run{precision::nvfp4, 256, 64, 64};
  const torch::NoGradGuard off_now;
  CHECK(off(run.y, run.x.to(torch::kDouble).matmul(run.w.to(torch::kDouble).t()) + run.b.to(torch::kDouble)) < 0.2);
  CHECK(off(run.x.grad(), run.dy.to(torch::kDouble).matmul(run.w.to(torch::kDouble))) < 0.3);
  CHECK(off(run.w.grad(), run.dy.to(torch::kDouble).t().matmul(run.x.to(torch::kDouble))) < 0.3);
}

TEST_CASE("a plan runs linear layers below 16 bits, in training, in evaluation and in a first forward") {
  torch::manual_seed(3);
  const job net = mlp();
  program p;
  record(p, net);
  const auto forward = [&] {
    const auto open = p.enter();
    return net.loss();
  };
  const auto evaluated = [&] {
    const torch::NoGradGuard no_gradients;
    const auto open = p.evaluate();
    return net.loss();
  };
  std::vector<double> losses;
  const precision all_low[] = {precision::bf16,         precision::mxfp8,    precision::mxfp4, precision::fp8_e4m3,
                               precision::fp8_block128, precision::fp8_e5m2, precision::nvfp4};
  for (const precision low : all_low) {
    CAPTURE(comp::name(low));
    p.set_plan(linear_plan(p, low));
    const torch::Tensor loss = forward();
    loss.backward();
    for (const auto& w : net.model->parameters()) {
      CHECK(w.grad().defined());
      CHECK((w.grad().scalar_type() == torch::kFloat));
      w.mutable_grad().reset();
    }
    CHECK(same(forward(), loss));
    CHECK(same(evaluated(), loss.detach()));
    losses.push_back(loss.item<double>());
  }
  CHECK(losses[0] != losses[1]);
  CHECK(std::abs(losses[1] - losses[0]) < std::abs(losses[2] - losses[0]));

  const plan chosen = p.current_plan();
  const torch::Tensor later = forward();
  p.record_under({.choose = [&](std::size_t i, const comp::op_info&, const std::string&) {
    return comp::libtorch::detail::first_choice{chosen[i]};
  }});
  CHECK(same(forward(), later));
}

TEST_CASE("lowering a layer further costs it more, forward and backward") {
  torch::manual_seed(5);
  const job net = mlp(2, 64);
  program p;
  record(p, net);
  const auto step = [&] {
    const auto open = p.enter();
    return net.loss();
  };
  std::vector<comp::op_error> errors;
  for (const precision low : {precision::bf16, precision::mxfp8, precision::mxfp4}) {
    const auto all = comp::libtorch::detail::lowering_errors(p, low, [&] { step().backward(); });
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (p.is_linear_layer(p.graph()[i])) errors.push_back(all[i]);
    }
  }
  REQUIRE(errors.size() == 6);  // two layers in three formats
  for (std::size_t i = 2; i < errors.size(); ++i) {
    CHECK(errors[i].output > 3 * errors[i - 2].output);
    CHECK(errors[i].gradient > 3 * errors[i - 2].gradient);
  }
}

TEST_CASE("what a layer below 16 bits gives may be written in place") {
  torch::manual_seed(6);
  torch::nn::Linear layer{32, 16};
  const auto x = torch::randn({4, 5, 32});
  program p;
  p.name_parameters(*layer);
  const auto forward = [&](bool in_place) {
    const auto open = p.enter();
    torch::Tensor y = layer->forward(x);
    return in_place ? y.relu_() : y.relu();
  };
  const auto gradient = [&](bool in_place) {
    p.record(true);
    (void)forward(in_place);
    p.record(false);
    p.set_plan(linear_plan(p, precision::mxfp8));
    return torch::autograd::grad({forward(in_place).sum()}, {layer->weight})[0];
  };
  CHECK(same(gradient(true), gradient(false)));
}

TEST_CASE("addmm with a weight, as GPT-2 has it, is a linear layer, and a product of two activations is none") {
  torch::manual_seed(4);
  const auto w = torch::randn({32, 48}).requires_grad_(), b = torch::randn({48}).requires_grad_();
  const auto x = torch::randn({20, 32}).requires_grad_();
  program p;
  p.name_parameter(w, "w");
  p.name_parameter(b, "b");
  torch::Tensor scores;
  const auto forward = [&] {
    const auto open = p.enter();
    const auto y = torch::addmm(b, x, w, 0.5, 2);
    scores = torch::matmul(y, y.t());
    return y;
  };
  p.record(true);
  (void)forward();
  p.record(false);
  REQUIRE(p.graph().size() == 3);
  CHECK(p.is_linear_layer(p.graph()[0]));
  CHECK(!p.is_linear_layer(p.graph()[2]));
  p.set_plan(comp::parse_plan("811"));
  const torch::NoGradGuard off_now;
  const auto y = product_by_definition(precision::mxfp8, product::forward, operand::input, (2 * x).to(torch::kBFloat16),
                                       operand::weight, w.t());
  CHECK(off(forward(), y + 0.5 * b.to(torch::kDouble)) < 4e-3);
  CHECK_THROWS_WITH_AS(p.set_plan(comp::parse_plan("118")),
                       "plan gives operator 2 (\"matmul\") mxfp8 (LibTorch runs fp32, bf16 and fp16, tf32 on CUDA, and "
                       "linear layers below 16 bits, emulated on a CPU or with program_settings::emulate): choose one "
                       "of those",
                       comp::plan_error);
}

TEST_CASE("addmm that adds a matrix is no linear layer") {
  const auto w = torch::randn({32, 48}).requires_grad_(), b = torch::randn({20, 48}), x = torch::randn({20, 32});
  program p;
  p.name_parameter(w, "w");
  p.record(true);
  {
    const auto open = p.enter();
    (void)torch::addmm(b, x, w);
  }
  p.record(false);
  REQUIRE(p.graph().size() == 1);
  CHECK(!p.is_linear_layer(p.graph()[0]));
}

TEST_CASE("a gradient of a gradient below 16 bits is refused") {
  const auto x = torch::randn({4, 32}).requires_grad_(), w = torch::randn({8, 32}).requires_grad_();
  const auto y = comp::libtorch::detail::scaled_linear::apply(x, w, std::optional<torch::Tensor>{},
                                                              static_cast<std::int64_t>(precision::mxfp8));
  CHECK_THROWS_WITH_AS((void)torch::autograd::grad({y.sum()}, {x}, {}, true, true),
                       "a gradient of a gradient is wanted of a linear layer in mxfp8 (create_graph=True; rounding has "
                       "none): give the layer bf16",
                       comp::error);
}

}  // namespace scaled_linear_tests
