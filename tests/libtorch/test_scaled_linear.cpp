// SPDX-License-Identifier: Apache-2.0
#include <comp_libtorch/kernels/scaled_linear.hpp>
#include <comp_libtorch/plan/instrumentation.hpp>
#include <comp_libtorch/train/planned_region.hpp>
#include <random>

#include "../native/reference_scaled.hpp"
#include "../scratch.hpp"
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
  return torch::tensor(values).view({static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)}).to(device);
}
torch::Tensor drawn(const std::vector<std::int64_t>& shape) { return torch::randn(shape).to(device); }
/// The values on the CPU, in FP64.
torch::Tensor exact(const torch::Tensor& t) { return t.detach().to(torch::kCPU, torch::kDouble); }
std::vector<float> values_of(const torch::Tensor& t) {
  const torch::Tensor flat = t.to(torch::kCPU, torch::kFloat).contiguous();
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

/// Returns what a product of two operands gives in FP64: rows of `a` times rows of `b`, both by the definition of what
/// a product in `p` reads.
torch::Tensor product_by_definition(precision p, product of, operand first, const torch::Tensor& a, operand second,
                                    const torch::Tensor& b) {
  const auto read = [&](operand o, const torch::Tensor& m) {
    if (!comp::is_scaled(p)) return exact(m.to(comp::libtorch::detail::scalar_type(p)));
    return torch::tensor(comp::native::test::quantized_by_definition(format_of(p, of, o), values_of(m),
                                                                     static_cast<std::size_t>(m.size(0)),
                                                                     static_cast<std::size_t>(m.size(1)), false, {}))
        .view(m.sizes())
        .to(torch::kDouble);
  };
  return read(first, a).matmul(read(second, b).t());
}
double off(const torch::Tensor& a, const torch::Tensor& b) { return ((exact(a) - b).norm() / b.norm()).item<double>(); }

/// A layer, and what autograd gives for it.
struct layer_run {
  torch::Tensor x, w, b, dy, y;
  explicit layer_run(const comp::product_precisions& p, std::int64_t rows = 48, std::int64_t inputs = 80,
                     std::int64_t outputs = 64) {
    const auto uneven = [](std::int64_t r, std::int64_t c) { return drawn({r, c}) * torch::exp(drawn({r, 1})); };
    const auto type = comp::libtorch::detail::scalar_type(p.forward);
    x = uneven(rows, inputs).to(type).requires_grad_();
    w = uneven(outputs, inputs).requires_grad_();
    b = drawn({outputs}).requires_grad_();
    dy = uneven(rows, outputs).to(comp::libtorch::detail::scalar_type(comp::handed_on(p.forward)));
    y = comp::libtorch::detail::scaled_linear::apply(x, w, std::optional{b}, p);
    y.backward(dy);
  }
};

/// Settings for every format below 16 bits.
program_settings here() { return {.device = device, .emulate = true}; }

plan linear_plan(const program& p, precision low, precision others = precision::fp32) {
  plan all{p.graph().size()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const comp::op_info& op = p.graph()[i];
    if (op.choosable) all[i] = p.products().is_linear_layer(op) ? low : others;
  }
  return all;
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
  row = row.to(device, torch::kFloat);
  const torch::Tensor all = row.repeat({20000, 1});
  const torch::Generator usual = at::globalContext().defaultGenerator(device);
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

TEST_CASE("each product of a linear layer reads its two operands as its own precision says") {
  torch::manual_seed(1);
  std::vector<precision> all{precision::fp32, precision::bf16, precision::fp16, precision::bf16_fp32};
  for (const precision p : scaled_precisions) {
    if (p != precision::nvfp4) all.push_back(p);  // its gradients are drawn
  }
  std::vector<comp::product_precisions> drawn{all.begin(), all.end()};
  std::mt19937_64 random{7};
  for (int i = 0; i < 40; ++i) {
    const auto any = [&] { return all[random() % all.size()]; };
    drawn.emplace_back(i % 4 == 0 ? precision::nvfp4 : any(), any(), any());
  }
  for (const comp::product_precisions& p : drawn) {
    CAPTURE(comp::name(p.forward));
    CAPTURE(comp::name(p.input_gradient));
    CAPTURE(comp::name(p.weight_gradient));
    const layer_run run{p};
    const torch::NoGradGuard off_now;
    using comp::libtorch::detail::scalar_type;
    CHECK((run.y.scalar_type() == scalar_type(comp::handed_on(p.forward))));
    CHECK((run.w.grad().scalar_type() == torch::kFloat));
    CHECK((run.x.grad().scalar_type() == scalar_type(p.forward)));
    const auto rounds = [](precision in) {
      return comp::handed_on(in) == precision::fp32 ? 1e-5 : in == precision::fp16 ? 1e-3 : 4e-3;
    };
    const double as_x = p.forward == precision::bf16_fp32 ? 4e-3 : rounds(p.forward);  // a gradient is rounded as x is
    const auto y = product_by_definition(p.forward, product::forward, operand::input, run.x, operand::weight, run.w);
    CHECK(off(run.y, y + exact(run.b)) < rounds(p.forward));
    const auto dx = run.dy.to(scalar_type(p.input_gradient));
    CHECK(off(run.x.grad(), product_by_definition(p.input_gradient, product::input_gradient, operand::gradient, dx,
                                                  operand::weight, run.w.t())) <
          std::max(as_x, rounds(p.input_gradient)));
    const auto dw = run.dy.to(scalar_type(p.weight_gradient)), x = run.x.to(scalar_type(p.weight_gradient));
    CHECK(off(run.w.grad(), product_by_definition(p.weight_gradient, product::weight_gradient, operand::gradient,
                                                  dw.t(), operand::input, x.t())) <
          (comp::libtorch::multiplies_itself(p.weight_gradient, device) ? 1e-3  // a GPU's sums have fewer bits
           : comp::is_scaled(p.weight_gradient)                         ? 1e-5
                                                                        : rounds(p.weight_gradient)));
    const double of_bias = comp::is_scaled(p.weight_gradient) ? 1e-5 : rounds(p.weight_gradient);
    CHECK(off(run.b.grad(), exact(dw).sum(0)) < of_bias);
  }
}

TEST_CASE("the gradients of a layer in NVFP4 are right on average") {
  torch::manual_seed(2);
  const layer_run run{precision::nvfp4, 256, 64, 64};
  const torch::NoGradGuard off_now;
  CHECK(off(run.y, exact(run.x).matmul(exact(run.w).t()) + exact(run.b)) < 0.2);
  CHECK(off(run.x.grad(), exact(run.dy).matmul(exact(run.w))) < 0.3);
  CHECK(off(run.w.grad(), exact(run.dy).t().matmul(exact(run.x))) < 0.3);
}

TEST_CASE("a plan runs linear layers below 16 bits, in training, in evaluation and in a first forward") {
  torch::manual_seed(3);
  const job net = mlp();
  program p{here()};
  record(p, net);
  const auto forward = [&] { return inside(p, net.loss); };
  const auto evaluated = [&] {
    const torch::NoGradGuard no_gradients;
    const auto open = p.evaluate();
    return net.loss();
  };
  std::vector<double> losses;
  const precision all_low[] = {precision::bf16,         precision::mxfp8,    precision::mxfp4, precision::fp8_e4m3,
                               precision::fp8_block128, precision::fp8_e5m2, precision::nvfp4, precision::bf16_fp32};
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

TEST_CASE("what a layer below 16 bits gives may be written in place") {
  torch::manual_seed(6);
  torch::nn::Linear layer{32, 16};
  layer->to(device);
  const auto x = drawn({4, 5, 32});
  program p{here()};
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

TEST_CASE(
    "addmm with a weight, as GPT-2 has it, is a linear layer, unless it adds a matrix; no product of activations is") {
  torch::manual_seed(4);
  const auto w = drawn({32, 48}).requires_grad_(), b = drawn({48}).requires_grad_();
  const auto x = drawn({20, 32}).requires_grad_();
  program p{here()};
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
  CHECK(p.products().is_linear_layer(p.graph()[0]));
  CHECK(!p.products().is_linear_layer(p.graph()[2]));
  p.set_plan(comp::parse_plan("811"));
  const torch::NoGradGuard off_now;
  const auto y = product_by_definition(precision::mxfp8, product::forward, operand::input, (2 * x).to(torch::kBFloat16),
                                       operand::weight, w.t());
  CHECK(off(forward(), y + 0.5 * exact(b)) < 4e-3);
  CHECK_THROWS_WITH_AS(
      p.set_plan(comp::parse_plan("118")),
      "plan gives operator 2 (\"matmul\") mxfp8 (LibTorch runs fp32, bf16 and fp16, tf32 on CUDA, linear layers in bf16>fp32, and "
      "linear layers below 16 bits: fp8_e4m3 on a GPU with units for it, and any emulated on a CPU or "
      "with program_settings::emulate; moments are kept in fp32, bf16 and fp8_e4m3): choose one of "
      "those",
      comp::plan_error);
  recorded(p, [&] { (void)torch::addmm(drawn({20, 48}), x, w); });
  CHECK(!p.products().is_linear_layer(p.graph()[0]));
}

TEST_CASE("a gradient of a gradient below 16 bits is refused") {
  const auto x = drawn({4, 32}).requires_grad_(), w = drawn({8, 32}).requires_grad_();
  const auto y = comp::libtorch::detail::scaled_linear::apply(x, w, std::optional<torch::Tensor>{},
                                                              comp::product_precisions{precision::mxfp8});
  CHECK_THROWS_WITH_AS(
      (void)torch::autograd::grad({y.sum()}, {x}, {}, true, true),
      "a gradient of a gradient is wanted of a linear layer in mxfp8, with gradients in mxfp8 and mxfp8 "
      "(create_graph=True; rounding has none): give the layer and its gradients bf16",
      comp::error);
}

program_settings separated() {
  program_settings settings = here();
  settings.separate_products = true;
  return settings;
}
/// The loss of a step, and the gradients by parameter.
std::vector<torch::Tensor> step(const job& net, const std::function<comp::libtorch::region()>& enter) {
  net.model->zero_grad();
  torch::Tensor loss;
  {
    const auto open = enter();
    loss = net.loss();
  }
  loss.backward();
  std::vector<torch::Tensor> all{loss.detach()};
  for (const auto& w : net.model->parameters()) {
    if (w.grad().defined()) all.push_back(w.grad().clone());
  }
  return all;
}
std::vector<torch::Tensor> step(const job& net, program& p) {
  return step(net, [&] { return p.enter(); });
}
/// Which of them differ: "-x-".
std::string changes(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  std::string which;
  for (std::size_t i = 0; i < a.size(); ++i) which += same(a[i], b.at(i)) ? '-' : 'x';
  return which;
}
/// A plan that draws a precision for each operator that may have one.
plan drawn_plan(const program& p, std::mt19937_64& random) {
  constexpr precision levels[] = {precision::fp32, precision::bf16, precision::mxfp8, precision::nvfp4};
  plan all{p.graph().size()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const comp::op_info& op = p.graph()[i];
    if (op.choosable) all[i] = levels[random() % (p.products().is_linear_layer(op) ? 4 : 2)];
  }
  return all;
}

}  // namespace

TEST_CASE("the products of a layer's backward are operators behind all others, where their gradients are wanted") {
  torch::manual_seed(8);
  const job net = mlp(4);
  auto parameters = net.model->named_parameters();
  parameters["4.weight"].set_requires_grad(false);
  program whole{here()}, apart{separated()};
  record(whole, net);
  record(apart, net);
  REQUIRE(apart.graph().size() == whole.graph().size() + 6);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < apart.graph().size(); ++i) {
    const comp::op_info& op = apart.graph()[i];
    if (i < whole.graph().size()) {
      CHECK(op.name == whole.graph()[i].name);
      CHECK(op.product == (op.kind == "aten::addmm" ? product::forward : product::all));
      continue;
    }
    names.push_back(op.name);
    CHECK(op.choosable);
    CHECK(apart.products().is_linear_layer(op));
    const comp::op_info& layer = apart.graph()[op.producers.at(0)];
    CHECK(op.name == layer.name + std::string{suffix(op.product)});
    CHECK(op.flops == layer.flops);
    CHECK(op.outputs[0].shape == (op.product == product::input_gradient ? std::vector<std::int64_t>{16, 32}
                                                                        : std::vector<std::int64_t>{32, 32}));
  }
  CHECK(names == std::vector<std::string>{"0.addmm.weight_gradient", "2.addmm.input_gradient",
                                          "2.addmm.weight_gradient", "4.addmm.input_gradient", "6.addmm.input_gradient",
                                          "6.addmm.weight_gradient"});
}

TEST_CASE("products that have one precision give the bits of layers that are whole") {
  torch::manual_seed(9);
  for (const job& net : {mlp(), transformer()}) {
    program whole{here()}, apart{separated()};
    record(whole, net);
    record(apart, net);
    CHECK(apart.graph().size() - whole.graph().size() >= 5);
    for (const precision p : {precision::fp32, precision::bf16, precision::mxfp8, precision::nvfp4}) {
      CAPTURE(comp::name(p));
      const auto with_low = [&](program& run) {
        run.set_plan(linear_plan(run, p, comp::is_scaled(p) ? precision::bf16 : p));
        torch::manual_seed(1);
        return step(net, run);
      };
      const auto expected = with_low(whole);
      CHECK(changes(with_low(apart), expected) == std::string(expected.size(), '-'));
    }
  }
}

TEST_CASE("a plan file has a precision for each product, and one without them means the same as ever") {
  torch::manual_seed(11);
  const scratch folder;
  const std::string path = folder / "plan.json";
  std::mt19937_64 random{3};
  for (const bool separate : {true, false}) {
    for (int i = 0; i < 4; ++i) {
      const job net = i % 2 == 0 ? mlp() : transformer();
      net.model->eval();  // no dropout
      program_settings settings = here();
      settings.separate_products = separate;
      program p{settings};
      record(p, net);
      const plan chosen = drawn_plan(p, random);
      CAPTURE(chosen.str());
      p.set_plan(chosen);
      const auto expected = step(net, p);
      comp::save(chosen, p.graph(), comp::libtorch::probe(device), path);
      for (const auto match : {comp::libtorch::plan_match::by_name, comp::libtorch::plan_match::exact}) {
        comp::libtorch::planned_region planned{{{"", *net.model}}, path, {.match = match, .forced = true}};
        for (int step_of = 0; step_of < 3; ++step_of) {  // the first is recorded under the plan
          CHECK(changes(step(net, [&] { return planned.enter(); }), expected) == std::string(expected.size(), '-'));
        }
        CHECK(planned.executor().current_plan() == chosen);
        CHECK(planned.warnings().empty());
      }
      if (separate) continue;
      program apart{separated()};  // a file of whole layers for a graph of products
      record(apart, net);
      apart.set_plan(comp::libtorch::fitted_by_name(comp::load_listing(path), apart.graph()).plan);
      CHECK(changes(step(net, apart), expected) == std::string(expected.size(), '-'));
    }
  }
}

TEST_CASE("products share the time of a layer's backward, and autocast gives them what it gives the layer") {
  torch::manual_seed(13);
  const job net = mlp(2);
  program p{separated()};
  record(p, net);
  const std::size_t layer = index_of(p.graph(), "2.addmm"), input = index_of(p.graph(), "2.addmm.input_gradient"),
                    weight = index_of(p.graph(), "2.addmm.weight_gradient");
  const plan autocast = comp::libtorch::detail::autocast_plan(p, precision::bf16, [&] { (void)step(net, p); });
  for (const std::size_t i : {layer, input, weight}) CHECK(autocast[i] == precision::bf16);
  p.set_plan(linear_plan(p, precision::mxfp8));
  const auto times = comp::libtorch::detail::operator_times(p, 1, [&] {
    (void)step(net, p);
    p.end_step();
  });
  REQUIRE(times.size() == p.graph().size());
  CHECK(times[layer].forward > 0);
  CHECK(times[layer].backward == 0);
  CHECK(times[input].backward > 0);
  CHECK(times[input].backward == times[weight].backward);
}

TEST_CASE("the gradient's error of a layer is that of its products") {
  torch::manual_seed(12);
  const job net = mlp(2, 64);
  program whole{here()}, apart{separated()};
  record(whole, net);
  record(apart, net);
  const auto errors = [&](program& p) {
    return comp::libtorch::detail::lowering_errors(p, precision::mxfp4, [&] { (void)step(net, p); });
  };
  const auto one = errors(whole), three = errors(apart);
  const auto of = [&](std::string_view name) { return three[index_of(apart.graph(), name)]; };
  const std::size_t layer = index_of(whole.graph(), "2.addmm");
  CHECK(of("2.addmm").output == one[layer].output);
  CHECK(of("2.addmm").gradient == 0);
  const double least = std::min(of("2.addmm.input_gradient").gradient, of("2.addmm.weight_gradient").gradient);
  const double most = std::max(of("2.addmm.input_gradient").gradient, of("2.addmm.weight_gradient").gradient);
  CHECK(least > 0.05);
  CHECK(least <= one[layer].gradient);
  CHECK(one[layer].gradient <= most);
}

}  // namespace scaled_linear_tests
