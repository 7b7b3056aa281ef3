// SPDX-License-Identifier: Apache-2.0
// comp's own kernels beside ATen's, and how they are chosen.

#include <algorithm>
#include <comp/files/plan_file.hpp>
#include <comp_libtorch/plan/executor_tuning.hpp>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernel_support.hpp"

using namespace libtorch_tests;
using comp::precision;

namespace {

constexpr auto channels_last = at::MemoryFormat::ChannelsLast;

struct convolution_case {
  std::int64_t images = 3, channels = 5, height = 4, width = 4, filters = 6, rows = 3, columns = 3;
  std::vector<std::int64_t> stride = {1, 1}, padding = {1, 1}, dilation = {1, 1};
  bool bias = true, transposed = false;
  std::int64_t groups = 1;
  at::ScalarType type = at::kBFloat16;

  at::Tensor input() const {
    return at::randn({images, channels, height, width}).to(type).contiguous(channels_last).requires_grad_();
  }
  at::Tensor weight() const {
    return at::randn({filters, channels / groups, rows, columns}).to(type).contiguous(channels_last).requires_grad_();
  }
};

at::Tensor run(const convolution_case& of, const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b,
               int parts) {
  const auto run_with = [&](const auto&... last) {
    return run_kernel(lt::detail::convolution_kernel, parts, {1, of.channels, of.height, of.width}, x, w, b,
                      pairs(of.stride), pairs(of.padding), pairs(of.dilation), last...);
  };
  return of.transposed ? run_with(true, pairs({0, 0}), of.groups) : run_with(of.groups);
}

bool refuses(const convolution_case& of) { return !run(of, of.input(), of.weight(), {}, 7).defined(); }

/// Returns: the 2-norm of the difference, divided by that of `expected` if that is not 0.
double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  REQUIRE(actual.sizes() == expected.sizes());
  const double size = expected.norm().item<double>();
  return (actual.to(at::kDouble) - expected).norm().item<double>() / (size == 0 ? 1 : size);
}

/// A convolution of 2 x 2 pixels that ends in one number.
struct small_images {
  lt::program program{{.images = lt::memory_format::channels_last}};
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions{4, 6, 3}.padding(1)};
  at::Tensor last;

  explicit small_images(lt::kernel_parts parts) {
    program.name_parameters(*conv, "conv");
    program.record(true);
    forward(at::ones({2, 4, 2, 2}));
    program.record(false);
    lt::program_settings settings = program.settings();
    if (parts != 0) settings.kernels = {{"conv.conv", {&lt::detail::convolution_kernel, parts}}};
    program.set_settings(settings);
    program.set_plan(lowered(program.graph(), precision::bf16));
  }
  void forward(const at::Tensor& x) {
    const auto region = program.enter();
    last = conv->forward(x);
  }
  std::string node() const { return last.grad_fn()->name(); }
};

}  // namespace

TEST_CASE("each product of a convolution has the value of FP64's, rounded once") {
  std::mt19937 random{5};
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>{low, high}(random);
  };
  torch::manual_seed(3);
  for (int i = 0; i < 60; ++i) {
    convolution_case of{draw(1, 4), draw(1, 20), draw(1, 6), draw(1, 6), draw(1, 20), draw(1, 4), draw(1, 4)};
    of.padding = {draw(of.rows > of.height ? (of.rows - of.height + 1) / 2 : 0, 3),
                  draw(of.columns > of.width ? (of.columns - of.width + 1) / 2 : 0, 3)};
    of.stride = {draw(1, 2), draw(1, 2)};
    of.bias = draw(0, 1) == 1;
    of.type = i % 4 == 0 ? at::kHalf : i % 4 == 1 ? at::kFloat : at::kBFloat16;
    const int parts = i % 7 + 1;
    const bool gives_input =
        of.stride == std::vector<std::int64_t>{1, 1} && of.padding[0] < of.rows && of.padding[1] < of.columns;
    CAPTURE(i);
    CAPTURE(parts);
    const at::Tensor x = of.input(), w = of.weight();
    std::optional<at::Tensor> b;
    if (of.bias) b = at::randn({of.filters}).to(of.type).requires_grad_();
    const at::Tensor y = run(of, x, w, b, parts);
    if (!gives_input && parts == 2) {
      CHECK_FALSE(y.defined());  // a part that it does not have for these strides
      continue;
    }
    REQUIRE(y.defined());
    CHECK(y.is_contiguous(channels_last));
    CHECK((y.scalar_type() == of.type));
    const auto exact = [](const at::Tensor& t) { return t.detach().to(at::kDouble).requires_grad_(); };
    const at::Tensor x64 = exact(x), w64 = exact(w), b64 = of.bias ? exact(*b) : at::Tensor{};
    const at::Tensor y64 = at::conv2d(x64, w64, b64, of.stride, of.padding);
    const at::Tensor gradient = at::randn(y.sizes()).to(of.type);
    y.backward(gradient);
    y64.backward(gradient.to(at::kDouble));
    // of one rounding to the format
    const double rounding = of.type == at::kHalf ? 4e-4 : of.type == at::kFloat ? 1e-6 : 3e-3;
    // only what comp computes: oneDNN 3.10.2 gives wrong values for some filters that are higher than wide
    if ((parts & 1) != 0) CHECK(error_of(y, y64) < rounding);
    if ((parts & 2) != 0 && gives_input) CHECK(error_of(x.grad(), x64.grad()) < rounding);
    if ((parts & 4) != 0) CHECK(error_of(w.grad(), w64.grad()) < rounding);
    if (of.bias) CHECK(error_of(b->grad(), b64.grad()) < 2 * rounding);
  }
}

TEST_CASE("a convolution that comp's kernel does not serve is left to ATen") {
  CHECK_FALSE(refuses({}));
  CHECK(refuses({.channels = 6, .filters = 6, .groups = 2}));
  CHECK(refuses({.dilation = {2, 2}}));
  CHECK(refuses({.transposed = true}));
  CHECK(refuses({.type = at::kDouble}));
  CHECK(refuses({.images = 0}));
  CHECK(refuses({.height = 1, .rows = 3, .padding = {0, 1}}));                // no pixel of the output
  CHECK(refuses({.images = 64, .channels = 64, .height = 32, .width = 32}));  // a matrix of 75 MB
  const convolution_case of;
  const at::Tensor w = of.weight();
  const auto ran = [&](const at::Tensor& x) { return run(of, x, w, {}, 7).defined(); };
  CHECK(ran(of.input()));
  CHECK_FALSE(ran(of.input().contiguous()));                                        // not channels-last
  CHECK_FALSE(ran(at::randn({3, 5, 4, 5}).to(of.type).contiguous(channels_last)));  // not the recorded size
  CHECK_FALSE(ran(of.input().squeeze(0).select(0, 0)));
  check_refuses_dual(of.input(), [&](const at::Tensor& x) { return run(of, x, w, {}, 7); });
}

TEST_CASE("autograd treats a convolution of matrices as ATen's") {
  const convolution_case of;
  const at::Tensor x = of.input(), w = of.weight();
  check_autograd(x, [&](const at::Tensor& t) { return run(of, t, w, {}, 7); });
  SUBCASE("it can be differentiated twice") {
    const auto twice = [&](const at::Tensor& y) {
      const auto first = torch::autograd::grad({y.pow(2).sum()}, {x, w}, {}, true, true);
      return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {x, w});
    };
    const auto own = twice(run(of, x, w, {}, 7)), aten = twice(at::conv2d(x, w, {}, of.stride, of.padding));
    CHECK(error_of(own[0], aten[0].to(at::kDouble)) < 0.01);
    CHECK(error_of(own[1], aten[1].to(at::kDouble)) < 0.01);
  }
}

TEST_CASE("a program runs what is chosen by comp's kernel, and other sizes by ATen's") {
  small_images own{7}, aten{0};
  const at::Tensor x = at::randn({2, 4, 2, 2});
  own.forward(x);
  CHECK(own.node().find("convolution_of_matrices") != std::string::npos);
  aten.forward(x);
  CHECK(aten.node() == "ConvolutionBackward0");
  own.forward(at::randn({9, 4, 2, 2}));
  CHECK(own.node().find("convolution_of_matrices") != std::string::npos);  // another number of images
  CHECK(own.program.problems().by_aten == 0);
  own.forward(at::randn({2, 4, 3, 2}));
  own.forward(at::randn({2, 4, 3, 2}));
  CHECK(own.node() == "ConvolutionBackward0");
  CHECK(own.program.problems().by_aten == 2);
  CHECK(own.program.problems().first ==
        "conv.conv2d has arguments that comp's kernel does not take, such as other shapes");
  SUBCASE("nor where images lie as they are") {
    auto settings = own.program.settings();
    settings.images = lt::memory_format::as_is;
    own.program.set_settings(settings);
    own.forward(x);
    CHECK(own.node() == "ConvolutionBackward0");
  }
  SUBCASE("nor in FP32") {
    own.program.set_plan(comp::plan{own.program.graph().size()});
    own.forward(x);
    CHECK(own.node() == "ConvolutionBackward0");
    CHECK(own.program.options_of(own.program.current_plan()).kernels.empty());
    CHECK(own.last.is_contiguous());
  }
  const lt::executor_options open = aten.program.options_of(aten.program.current_plan());
  REQUIRE(open.kernels.size() == 1);
  CHECK(open.kernels.front().layer == "conv.conv");
}

TEST_CASE("tuned FP32 runs by comp's kernel and channels-last, to FP32's results up to roundings") {
  small_images tuned{7}, plain{0};
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 2; ++i) tuned.conv->parameters()[i].copy_(plain.conv->parameters()[i]);
  }
  tuned.program.set_plan(comp::plan{1}.as_tuned());
  plain.program.set_plan(comp::plan{1});
  REQUIRE(tuned.program.options_of(comp::plan{1}.as_tuned()).kernels.size() == 1);
  const at::Tensor x = at::randn({2, 4, 2, 2});
  for (small_images* each : {&tuned, &plain}) {
    each->forward(x);
    CHECK((each->last.scalar_type() == at::kFloat));
    each->last.pow(2).sum().backward();
  }
  CHECK(tuned.node().find("convolution_of_matrices") != std::string::npos);
  CHECK(tuned.last.is_contiguous(channels_last));
  CHECK(plain.node() == "ConvolutionBackward0");
  CHECK(plain.last.is_contiguous());
  CHECK(error_of(tuned.last, plain.last.to(at::kDouble)) < 1e-6);
  for (std::size_t i = 0; i < 2; ++i) {
    const at::Tensor expected = plain.conv->parameters()[i].grad().to(at::kDouble);
    CHECK(error_of(tuned.conv->parameters()[i].grad(), expected) < 1e-6);
  }
  CHECK(tuned.conv->weight.grad().is_contiguous());  // as the optimizer expects it
}

TEST_CASE("tuned FP32 leaves a block of the author's as it is, and serves views that forwards add") {
  small_images tuned{7};
  tuned.program.set_plan(comp::plan{1}.as_tuned());
  const at::Tensor x = at::randn({2, 4, 2, 2});
  {
    const auto region = tuned.program.enter();
    const lt::autocast_guard on{at::kCPU, at::kBFloat16};
    tuned.last = tuned.conv->forward(x);
    CHECK((tuned.last.scalar_type() == at::kBFloat16));
  }
  tuned.last.sum().backward();
  const auto region = tuned.program.enter();
  const at::Tensor y = tuned.conv->forward(x);
  CHECK(y.is_contiguous(channels_last));
  CHECK(at::equal(y.view({2, -1}), y.reshape({2, -1})));
}

TEST_CASE("images stay as they are where a view of them is written, under any plan") {
  using viewed = at::Tensor (*)(const at::Tensor&);
  const viewed views[] = {[](const at::Tensor& y) { return y.flatten(1); },
                          [](const at::Tensor& y) {
                            return y.reshape({2, -1});
                          },
                          [](const at::Tensor& y) {
                            return y.view({2, -1});
                          }};
  for (const viewed view : views) {
    lt::program program{{.images = lt::memory_format::channels_last}};
    torch::nn::Conv2d conv{torch::nn::Conv2dOptions{4, 6, 3}.padding(1)};
    program.name_parameters(*conv, "conv");
    const at::Tensor x = at::randn({2, 4, 2, 2});
    const auto zeros = [&] {
      const auto region = program.enter();
      const at::Tensor y = conv->forward(x);
      view(y).slice(1, 0, {}, 2).zero_();
      return y.mul(1).eq(0).sum().item<std::int64_t>();
    };
    program.record(true);
    CHECK(zeros() == 24);
    program.record(false);
    for (const comp::plan& p :
         {comp::plan{program.graph().size()}.as_tuned(), lowered(program.graph(), precision::bf16)}) {
      const lt::executor_options open = program.options_of(p);
      CHECK_FALSE(open.images);
      CHECK(open.kernels.empty());
      program.set_plan(p);
      CHECK(zeros() == 24);
    }
  }
}

TEST_CASE("random numbers for an image are those of the plain loop, however the image lies") {
  using drawn = at::Tensor (*)(const at::Tensor&);
  const drawn ways[] = {[](const at::Tensor& y) { return at::dropout(y, 0.5, true); },
                        [](const at::Tensor& y) { return at::dropout(y.transpose(1, 2), 0.5, true); },
                        [](const at::Tensor& y) { return at::rand_like(y, at::kFloat).gt(0.5); }};
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions{4, 6, 3}.padding(1)};
  for (const at::MemoryFormat by_author : {at::MemoryFormat::Contiguous, channels_last}) {
    for (const drawn& draw : ways) {
      CAPTURE(&draw - ways);
      CAPTURE(by_author);
      lt::program program{{.images = lt::memory_format::channels_last}};
      const at::Tensor x = at::randn({2, 4, 5, 7}).contiguous(by_author);
      const auto dropped = [&] {
        torch::manual_seed(7);
        const auto region = program.enter();
        return draw(conv->forward(x)).eq(0);
      };
      program.record(true);
      const at::Tensor plain = dropped();
      program.record(false);
      const comp::plan fp32{program.graph().size()};
      for (const comp::plan& p : {fp32.as_tuned(), lowered(program.graph(), precision::bf16)}) {
        program.set_plan(p);
        CHECK(at::equal(dropped(), plain));
      }
    }
  }
}

TEST_CASE("a program runs attention by comp's kernel, for any length of the sequence") {
  lt::program program;
  const auto heads = [](std::int64_t rows) { return at::randn({2, 3, rows, 8}).requires_grad_(); };
  const auto attended = [&](std::int64_t rows, bool shares_keys = false, bool in_authors_block = false) {
    const auto region = program.enter();
    std::optional<lt::autocast_guard> block;
    if (in_authors_block) block.emplace(at::kCPU, at::kBFloat16);
    return at::scaled_dot_product_attention(heads(rows), heads(rows), heads(rows), {}, 0, true, {}, shares_keys);
  };
  const auto by_comp = [](const at::Tensor& y) {
    return y.grad_fn()->name().find("attention_function") != std::string::npos;
  };
  program.record(true);
  (void)attended(20);
  program.record(false);
  const comp::plan fp32{program.graph().size()};
  CHECK(program.options_of(fp32).kernels.empty());
  for (const comp::plan& p : {lowered(program.graph(), precision::bf16), fp32.as_tuned()}) {
    const at::ScalarType format = p.is_tuned() ? at::kFloat : at::kBFloat16;
    CAPTURE(format);
    program.set_plan(p);
    const auto found = program.options_of(p).kernels;
    if (found.empty()) {
      MESSAGE("this CPU has no products that attention could use in ", std::string{c10::toString(format)});
      continue;
    }
    auto settings = program.settings();
    settings.kernels = {{found.front().layer, {found.front().own, 1}}};
    program.set_settings(settings);
    for (const std::int64_t rows : {20, 33}) {
      const at::Tensor y = attended(rows);
      CHECK(by_comp(y));
      CHECK((y.scalar_type() == format));
    }
    CHECK(program.problems().by_aten == 0);
    CHECK_FALSE(by_comp(attended(20, true)));
    CHECK(program.problems().by_aten == 1);
    program.clear_problems();
    CHECK_FALSE(by_comp(attended(20, false, true)));
  }
  program.set_plan(fp32);
  CHECK_FALSE(by_comp(attended(20)));
}

TEST_CASE("a linear layer's bias is added with ATen's bits, and so are its gradients") {
  for (const std::int64_t width : {1, 7, 37, 64}) {
    CAPTURE(width);
    torch::manual_seed(static_cast<std::uint64_t>(width));
    torch::nn::Linear linear{5, width};
    lt::program program;
    program.name_parameters(*linear, "linear");
    const at::Tensor x = at::randn({3, 4, 5});
    at::Tensor y;
    const auto run = [&] { inside(program, [&] { y = linear->forward(x); }); };
    program.record(true);
    run();
    program.record(false);
    program.set_plan(lowered(program.graph(), precision::bf16));
    run();
    CHECK(y.grad_fn()->name().find("added_bias") != std::string::npos);
    const at::Tensor w = linear->weight.detach().clone().requires_grad_(),
                     b = linear->bias.detach().clone().requires_grad_();
    const at::Tensor expected = x.to(at::kBFloat16).matmul(w.to(at::kBFloat16).t()).add_(b);
    CHECK(at::equal(y, expected));
    const at::Tensor gradient = at::randn(y.sizes()).to(at::kBFloat16);
    y.backward(gradient);
    expected.backward(gradient);
    CHECK(at::equal(linear->bias.grad(), b.grad()));
    CHECK(at::equal(linear->weight.grad(), w.grad()));
    {
      const torch::NoGradGuard no_grad;
      run();
      CHECK(y.grad_fn() == nullptr);
      CHECK(at::equal(y, expected));
    }
    program.set_plan(comp::plan{program.graph().size()});
    run();
    CHECK(y.grad_fn()->name().find("added_bias") == std::string::npos);
  }
}

TEST_CASE("sums of which no bias is one are ATen's") {
  const at::Tensor rows = at::randn({4, 6}).to(at::kBFloat16), bias = at::randn({6});
  const auto adds = [&](const at::Tensor& to, const at::Tensor& other, const at::Scalar& factor = 1) {
    torch::jit::Stack stack{to, other, factor};
    return lt::detail::add_bias(stack);
  };
  CHECK(adds(rows, bias));
  CHECK(rows._version() == 1);
  {
    const torch::NoGradGuard no_grad;
    CHECK(adds(rows, bias));
  }
  CHECK(rows._version() == 2);
  CHECK_FALSE(adds(rows, bias, 2));
  CHECK_FALSE(adds(rows, at::randn({1})));
  CHECK_FALSE(adds(rows, at::randn({4, 6})));
  CHECK_FALSE(adds(rows, bias.to(at::kBFloat16)));
  CHECK_FALSE(adds(rows.to(at::kFloat), bias));
  CHECK_FALSE(adds(rows.t(), at::randn({4})));             // not contiguous
  CHECK_FALSE(adds(rows.slice(0, 0, 2), bias));            // a view, whose base autograd would have to know
  CHECK_FALSE(adds(rows.clone().requires_grad_(), bias));  // an error of autograd's
}

TEST_CASE("the steps of a round time each part of a kernel once, and no two of the same phase together") {
  for (const lt::kernel* own : lt::detail::all_kernels) {
    CAPTURE(own->name);
    unsigned timed = 0;
    for (std::size_t step = 0; const unsigned parts = lt::detail::parts_of_step(*own, step); ++step) {
      CHECK((timed & parts) == 0);
      timed |= parts;
      int forward = 0, backward = 0;
      for (std::size_t part = 0; part < own->parts.size(); ++part) {
        if ((parts >> part & 1U) == 0) continue;
        forward += own->parts[part].phase != lt::kernel_phase::backward;
        backward += own->parts[part].phase != lt::kernel_phase::forward;
      }
      CHECK(forward <= 1);
      CHECK(backward <= 1);
    }
    CHECK(timed == (1U << own->parts.size()) - 1);
  }
}

TEST_CASE("where images have no say, a quick measurement takes a kernel by its operator's time alone") {
  const lt::kernel* own = &lt::detail::attention_kernel;
  int steps = 0;
  const auto found = lt::measured_choice(
      {{.weights = true, .kernels = {{0, "a", own}}}, lt::quick({})}, [](const lt::executor_choice&) {},
      [&](bool by_operator) {
        CHECK(by_operator);
        const bool is_own = steps % 2 == 1;  // the first is not timed; each round begins with the other one
        const bool second_round = steps > 0 && (steps - 1) / 2 % 2 == 1;
        ++steps;
        return lt::step_times{9, {{is_own != second_round ? 1.0 : 2.0, 1}}};
      });
  CHECK(steps == 1 + 6 * 2);
  REQUIRE(found.choice.kernels.size() == 1);
  CHECK(found.kernels.at("a").ratio == doctest::Approx(1.5));
  CHECK(lt::execution_of(found).size() == 3);
}

TEST_CASE("of comp's kernels those parts are taken that are faster, if steps are faster, too") {
  const lt::kernel* own = &lt::detail::convolution_kernel;
  lt::executor_choice now;
  int steps = 0;
  lt::tuning_settings settings;
  // `a` takes 1 s and 2 s, half of that with the first and the third part; `b` 1 s each, and twice that with any
  const auto measured = [&](double others) {
    steps = 0;
    return lt::measured_choice(
        {{true, true, {{0, "a", own}, {1, "b", own}}}, settings}, [&](const lt::executor_choice& c) { now = c; },
        [&](bool by_operator) {
          const auto parts = [&](const char* of) {
            const auto at = now.kernels.find(of);
            return at == now.kernels.end() ? 0 : int{at->second.parts};
          };
          ++steps;
          const int a = parts("a"), b = parts("b");
          const double forward = (a & 1) != 0 ? 0.5 : 1, backward = (a & 4) != 0 ? 1 : 2, of_b = b == 0 ? 1 : 2;
          lt::step_times times{forward + backward + 2 * of_b + (now.kernels.empty() ? 0 : others)};
          if (by_operator) times.operators = {{forward, backward}, {of_b, of_b}};
          return times;
        });
  };
  const auto found = measured(0);
  REQUIRE(found.choice.kernels.size() == 1);
  CHECK(found.choice.kernels.at("a").own == own);
  CHECK(found.choice.kernels.at("a").parts == 5);
  CHECK(found.kernels.at("a").ratio == doctest::Approx(2));
  CHECK(found.choice.images == lt::memory_format::channels_last);
  CHECK(found.channels_last.ratio == doctest::Approx(5 / 3.5));
  CHECK(now == found.choice);
  CHECK(steps == 28 + 1 + 7 * 3 + 28);
  const auto slower = measured(10);  // steps with comp's kernels take longer, whatever operators take
  CHECK(slower.choice == lt::executor_choice{});
  CHECK(now == slower.choice);
  settings = lt::quick({});
  CHECK(measured(0).choice == found.choice);
  CHECK(steps == 1 + 6 * 3 + 24);
  CHECK(measured(10).choice == lt::executor_choice{});

  comp::loaded_plan file{.plan = {}, .made_for = {.name = "this"}, .execution = lt::execution_of(found)};
  REQUIRE(file.execution.size() == 3);
  CHECK(file.execution[2].name == "kernel of a");
  CHECK(file.execution[2].value == "matrices: forward, weight gradient");
  lt::tuned_choice back;
  CHECK(lt::apply(file, {.name = "this"}, back).empty());
  CHECK(back.choice == found.choice);
  CHECK(back.kernels.at("a").ratio == doctest::Approx(2));
  file.execution[2].value = "winograd: forward";
  lt::tuned_choice other;
  const auto unknown = lt::apply(file, {.name = "this"}, other);
  REQUIRE(unknown.size() == 1);
  CHECK(unknown[0] ==
        "the plan was run with \"kernel of a\" = \"winograd: forward\" (this version of comp has no such "
        "choice): the default is used");
  CHECK(other.choice.kernels.empty());
}

TEST_CASE("loops of comp's run on as many threads as LibTorch has, and do each step once") {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  std::vector<int> done(1000);
  std::mutex one_at_a_time;
  std::set<std::thread::id> threads;
  lt::detail::in_parallel(1000, 100, [&](std::int64_t first, std::int64_t last) {
    const std::lock_guard lock{one_at_a_time};
    threads.insert(std::this_thread::get_id());
    for (std::int64_t i = first; i < last; ++i) ++done[static_cast<std::size_t>(i)];
  });
  CHECK(threads.size() == 2);
  CHECK(std::ranges::count(done, 1) == 1000);
  at::set_num_threads(before);
}
