// SPDX-License-Identifier: Apache-2.0
// Plan files in loops of the user's own: the first step runs under the plan, and each operator is held against it.
#include <algorithm>
#include <atomic>
#include <comp/comp.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::precision;

namespace {

comp::hardware here() { return lt::probe(at::kCPU); }

/// A step of a plain training loop; its loss.
double train_step(lt::planned_region& planned, torch::optim::Optimizer& optimizer, auto&& loss_of) {
  const at::Tensor loss = inside(planned, loss_of);
  loss.backward();
  optimizer.step();
  optimizer.zero_grad();
  return loss.template item<double>();
}

/// The plan file of `it` with every choosable operator in BF16, or as `changed` says.
void save_low(const job& it, const std::string& path, auto changed) {
  program p;
  record(p, it);
  comp::plan low = everywhere(p.graph(), precision::bf16);
  changed(low);
  comp::save(low, p.graph(), here(), path);
}
void save_low(const job& it, const std::string& path) {
  save_low(it, path, [](comp::plan&) {});
}

/// Reads a file's JSON, changes it and writes it again.
void edit(const std::string& path, auto change) {
  auto document = nlohmann::json::parse(comp::detail::read_file(path, 1 << 20));
  change(document);
  comp::detail::write_file(path, document.dump());
}

/// y = x w with its own backward, which needs both in one format.
struct own_product : torch::autograd::Function<own_product> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    return torch::mm(x, w).tanh_();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto y = torch::mm(saved[0], saved[1]).tanh();
    const auto g = gradients[0] * (1 - y * y);
    return {torch::mm(g, saved[1].t()), torch::mm(saved[0].t(), g)};
  }
};

job with_function() {
  struct weights : torch::nn::Module {
    torch::Tensor a = register_parameter("a", torch::randn({16, 16}) / 4),
                  b = register_parameter("b", torch::randn({16, 16}) / 4);
  };
  const auto net = std::make_shared<weights>();
  const auto x = torch::randn({8, 16});
  return {net, [=] {
            const auto h = own_product::apply(torch::mm(x, net->a), net->b);
            return torch::mm(h, net->a).pow(2).mean();
          }};
}

/// Several operators read one tensor, and autograd keeps no cast of it: the gradients of its readers meet in its cast.
job read_by_some() {
  const auto net = std::make_shared<torch::nn::LinearImpl>(16, 16);
  const auto x = torch::randn({8, 16});
  return {net, [=] {
            const auto h = net->forward(x);
            const auto a = h.sum(0), b = h.mean(0), c = h.cumsum(0);
            return torch::sin(a.sum() + b.sum()) + c.pow(2).mean() + (h + a).tanh().mean();
          }};
}

}  // namespace

TEST_CASE("a plan from a file runs in a loop of the user's own as it does in the trainer, from the first step on") {
  const scratch_file file;
  std::vector<double> expected;
  {
    classification user;
    classification_trainer trainer{user.setup, user.batches, user.make_step()};
    const auto p = lowered(trainer.graph(), precision::bf16, "conv2d");
    comp::save(p, trainer.graph(), trainer.hardware(), file.str());
    torch::manual_seed(5);
    trainer.set_precision(p);
    expected = trainer.run_epoch().curve;
    for (const double loss : trainer.run_epoch().curve) expected.push_back(loss);
  }
  classification user;
  lt::planned_region planned{{{"net", user.net}}, file.str()};
  torch::manual_seed(5);
  std::vector<double> got;
  for (int epoch = 0; epoch < 2; ++epoch) {
    user.batches.begin_epoch();
    while (const auto batch = user.batches.next()) {
      CHECK(planned.planned() == (got.size() > 1));
      got.push_back(train_step(planned, user.optimizer, [&] { return user.loss(*batch); }));
    }
  }
  CHECK(got == expected);
  CHECK(planned.warnings().empty());
  CHECK_FALSE(planned.needs_scaling());

  SUBCASE("another batch size is refused, or taken by name") {
    const auto other = torch::data::Example<>{user.data.x.narrow(0, 0, 5), user.data.y.narrow(0, 0, 5)};
    lt::planned_region exact{{{"net", user.net}}, file.str(), {.match = lt::plan_match::exact}};
    inside(exact, [&] { user.loss(other); });
    CHECK_THROWS_WITH_AS((void)exact.enter(), doctest::Contains("the operators agree, so shapes"), comp::plan_error);
    CHECK_THROWS_AS((void)exact.enter(), comp::plan_error);
    lt::planned_region named{{{"net", user.net}}, file.str()};
    for (int i = 0; i < 2; ++i) inside(named, [&] { user.loss(other); });
    CHECK(named.planned());
    CHECK(named.executor().current_plan() == planned.executor().current_plan());
    CHECK(named.warnings().empty());
  }
  SUBCASE("inference without gradients, in evaluation mode, by name") {
    user.net->eval();
    const torch::NoGradGuard no_grad;
    lt::planned_region serving{{{"net", user.net}}, file.str()};
    const at::Tensor fp32 = user.net->forward(user.data.x);
    at::Tensor low[2];
    for (at::Tensor& each : low) inside(serving, [&] { each = user.net->forward(user.data.x); });
    CHECK(torch::equal(low[0], low[1]));
    CHECK_FALSE(torch::equal(fp32, low[0]));
    CHECK(torch::allclose(fp32, low[0], 0.05, 0.05));
  }
}

TEST_CASE("later plans of a file run from their batches on in a loop of the user's own, as in the trainer") {
  const scratch_file file, changing;
  std::vector<comp::later_plan> later;
  std::vector<double> expected;
  double later_first = 0;
  {
    classification user;
    classification_trainer trainer{user.setup, user.batches, user.make_step()};
    const comp::op_graph graph = trainer.graph();
    const comp::plan first = lowered(graph, precision::bf16, "conv2d");
    comp::save(first, graph, trainer.hardware(), file.str());
    later = {{2, comp::plan{graph.size()}}, {5, lowered(graph, precision::bf16, "linear")}};
    comp::save_later(file.str(), later, changing.str());
    torch::manual_seed(5);
    const auto start = trainer.save();
    for (std::size_t b = 0; b < 7; ++b) {
      trainer.set_precision(comp::plan_at(b, first, later));
      expected.push_back(trainer.run_batch().loss);
    }
    trainer.restore(start);
    trainer.set_precision(later[1].plan);
    later_first = trainer.run_batch().loss;
  }
  const auto losses = [&](std::size_t begin, std::size_t end) {
    classification user;
    lt::planned_region planned{{{"net", user.net}}, changing.str()};
    torch::manual_seed(5);
    user.batches.begin_epoch();
    std::vector<double> got;
    for (std::size_t b = begin; b < end; ++b) {
      auto batch = user.batches.next();
      if (!batch) user.batches.begin_epoch(), batch = user.batches.next();
      planned.set_batch(b);
      got.push_back(train_step(planned, user.optimizer, [&] { return user.loss(*batch); }));
    }
    return got;
  };
  CHECK(losses(0, 7) == expected);
  // A loop that goes on late begins with the plan of then, in its first forward too.
  CHECK(losses(5, 6) == std::vector{later_first});
}

TEST_CASE("the first step of every model is the same step as later ones, and is recorded as in FP32") {
  auto jobs = all_jobs();
  jobs.emplace_back("function", with_function);
  jobs.emplace_back("readers", read_by_some);
  jobs.emplace_back("checkpoints", [] { return of_blocks(true); });
  jobs.emplace_back("slopes", [] { return with_slopes(1); });
  for (const auto& [name, make] : jobs) {
    for (const unsigned low : {1u, 2u, 3u}) {  // all operators, every second one, every third one
      CAPTURE(name);
      CAPTURE(low);
      const scratch_file file;
      torch::manual_seed(1);
      const job it = make();
      save_low(it, file.str(), [low](comp::plan& p) {
        for (std::size_t i = 0; i < p.size(); ++i) {
          if (i % low != 0) p[i] = precision::fp32;
        }
      });
      std::vector<torch::Tensor> losses;
      std::vector<std::vector<torch::Tensor>> gradients;
      lt::planned_region planned{{{"", *it.model}}, file.str()};
      for (int i = 0; i < 3; ++i) {
        torch::manual_seed(3);
        it.model->zero_grad();
        const at::Tensor loss = inside(planned, it.loss);
        loss.backward();
        losses.push_back(loss.detach());
        gradients.emplace_back();
        for (const auto& parameter : it.model->parameters()) gradients.back().push_back(parameter.grad().clone());
      }
      CHECK(planned.planned());  // its fingerprint is that of the recording in FP32
      CHECK(same(losses[0], losses[1]));
      CHECK(same(losses[1], losses[2]));
      CHECK(std::ranges::equal(gradients[0], gradients[1], [](const auto& a, const auto& b) { return same(a, b); }));
      CHECK(std::ranges::equal(gradients[1], gradients[2], [](const auto& a, const auto& b) { return same(a, b); }));
      CHECK(planned.executor().current_plan().count_low() > 0);
    }
  }
}

TEST_CASE("the first step needs no more memory than the later ones") {
  auto* const memory = lt::detail::counting_allocator::installed();
  REQUIRE(memory != nullptr);
  const scratch_file file;
  using namespace torch::nn;
  const auto of_layers = [](std::int64_t batch) {
    Sequential net;
    for (int i = 0; i < 8; ++i) {
      net->push_back(Linear{128, 128});
      net->push_back(GELU{});
      net->push_back(LayerNorm{LayerNormOptions{{128}}});
    }
    const auto x = torch::randn({batch, 128});
    return job{net.ptr(), [=]() mutable { return net->forward(x).pow(2).mean(); }};
  };
  const auto of_images = [](std::int64_t batch) {
    Sequential net{Conv2d{Conv2dOptions{3, 32, 3}.padding(1)},
                   BatchNorm2d{32},
                   ReLU{},
                   Conv2d{Conv2dOptions{32, 32, 3}.padding(1)},
                   BatchNorm2d{32},
                   ReLU{},
                   MaxPool2d{2}};
    const auto x = torch::randn({batch, 3, 32, 32});
    return job{net.ptr(), [=]() mutable { return net->forward(x).pow(2).mean(); }};
  };
  for (const job& it : {of_layers(1024), of_images(32)}) {
    save_low(it, file.str());
    const auto peak_of = [&](auto&& region) {
      it.model->zero_grad();
      const std::int64_t before = memory->current();
      memory->reset_peak();
      at::Tensor loss;
      {
        const auto on = region();
        loss = it.loss();
      }
      loss.backward();
      return static_cast<double>(memory->peak() - before);
    };
    lt::planned_region planned{{{"", *it.model}}, file.str()};
    const double first = peak_of([&] { return planned.enter(); });
    double later = 0;
    for (int i = 0; i < 3; ++i) later = std::max(later, peak_of([&] { return planned.enter(); }));
    program p;
    record(p, it);
    const double fp32 = peak_of([&] { return p.enter(); });
    MESSAGE("first ", first / 1e6, " MB, later ", later / 1e6, ", FP32 ", fp32 / 1e6);
    CHECK(first <= 1.03 * later);
    if (runs_low_lstm()) CHECK(later < 0.8 * fp32);  // without AVX-512 oneDNN computes in FP32 copies
  }
}

TEST_CASE("the first operator that differs is named while the first forward runs, and nothing of it stays") {
  const scratch_file file;
  classification user;
  {
    lt::trainer trainer{user.setup, user.batches, user.make_step()};
    comp::save(lowered(trainer.graph(), precision::bf16), trainer.graph(), trainer.hardware(), file.str());
  }
  const auto batch = *user.batches.next();
  lt::planned_region planned{{{"net", user.net}}, file.str(), {.match = lt::plan_match::exact}};
  const auto other = [&] { inside(planned, [&] { (void)torch::sigmoid(user.net->forward(batch.data)); }); };
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH_AS(other(), doctest::Contains("the model's is \"net.6.sigmoid\" (\"aten::sigmoid\")"),
                         comp::plan_error);
    CHECK_FALSE(planned.planned());
  }
  const auto longer = [&] { inside(planned, [&] { (void)torch::sigmoid(user.loss(batch)); }); };
  CHECK_THROWS_WITH_AS(longer(), doctest::Contains("this one has more (the first that the file lacks is operator"),
                       comp::plan_error);
  for (int i = 0; i < 2; ++i) inside(planned, [&] { user.loss(batch); });
  CHECK(planned.planned());

  lt::planned_region shorter{{{"net", user.net}}, file.str(), {.match = lt::plan_match::exact}};
  inside(shorter, [&] { user.net->forward(batch.data); });
  CHECK_THROWS_WITH_AS((void)shorter.enter(), doctest::Contains("the first that the model lacks is operator"),
                       comp::plan_error);
}

TEST_CASE("a planned region waits for all segments, and forgets a first forward that failed") {
  torch::nn::Linear a{2, 2}, b{2, 2};
  const auto x = torch::ones({1, 2});
  const comp::plan low{precision::fp32, precision::bf16, precision::fp32, precision::fp16};
  const scratch_file file;
  program p;
  p.name_parameters(*a, "a");
  p.name_parameters(*b, "b");
  p.record(true);
  for (auto [segment, net] : {std::pair{"one", a}, {"two", b}}) {
    const auto on = p.enter(segment);
    net(x);
  }
  p.record(false);
  comp::save(low, p.graph(), here(), file.str());
  lt::planned_region planned{{{"a", a}, {"b", b}}, file.str(), {.segments = {"one", "two"}, .forced = true}};
  CHECK(planned.needs_scaling());
  const auto run = [&](const char* segment, torch::nn::Linear& net, bool fails = false) {
    const auto on = planned.enter(segment);
    const auto type = net(x).scalar_type();
    if (fails) throw std::runtime_error{"in the first forward"};
    return type;
  };
  CHECK_THROWS_AS(run("one", a, true), std::runtime_error);
  CHECK((run("one", a) == at::kBFloat16));
  CHECK((run("one", a) == at::kBFloat16));  // again, before the other was seen
  CHECK_THROWS_AS(run("two", b, true), std::runtime_error);
  CHECK_FALSE(planned.planned());
  CHECK((run("two", b) == at::kHalf));
  CHECK((run("one", a) == at::kBFloat16));
  CHECK(planned.planned());
  CHECK((run("two", b) == at::kHalf));

  lt::planned_region alone{{{"a", a}}, comp::plan{precision::fp32, precision::bf16}};
  for (const auto expected : {at::kFloat, at::kBFloat16}) {  // nothing says what its operators hand on
    const auto on = alone.enter();
    CHECK((a(x).scalar_type() == expected));
  }
}

TEST_CASE("a first forward that autocast makes impossible, or that an exception ends, leaves nothing open") {
  torch::nn::Linear a{2, 2};
  const auto x = torch::ones({1, 2});
  lt::planned_region planned{{{"a", a}}, comp::plan{precision::fp32, precision::bf16}};
  {
    const lt::autocast_guard other{at::kCPU};
    CHECK_THROWS_AS((void)planned.enter(), comp::error);
  }
  for (const auto expected : {at::kFloat, at::kBFloat16}) {
    const auto on = planned.enter();
    CHECK((a(x).scalar_type() == expected));
  }
}

TEST_CASE("a model's own conversions to a low format are recorded as they are, in FP32 where the file says so") {
  const scratch_file file;
  const auto w = torch::randn({4, 4});
  const auto x = torch::randn({4, 4});
  const auto rows = torch::tensor({0, 1, 1, 3});
  const auto converts = [=](const at::Tensor& h, at::ScalarType to) {
    return torch::mm(h, w.to(to).to(h.scalar_type())).sum() + w.to(at::kBFloat16).exp().to(at::kFloat).sum();
  };
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> models{
      [=](const at::Tensor& h) { return converts(h, at::kBFloat16); },
      [=](const at::Tensor& h) { return converts(h, h.scalar_type()); },
      // made in the format of something, for an operator that the plan has in FP32
      [=](const at::Tensor& h) {
        return torch::zeros({4, 4}, h.options()).index_add(0, rows, w).sum();
      }};
  for (const auto& model : models) {
    const job it{std::make_shared<torch::nn::Module>(), [=] { return model(torch::mm(x, w)); }};
    save_low(it, file.str(), [](comp::plan& p) { p[p.size() - 2] = precision::fp32; });  // index_add, of the last
    lt::planned_region planned{{{"", *it.model}}, file.str()};
    std::vector<double> losses;
    for (int i = 0; i < 4; ++i) {
      const at::Tensor loss = inside(planned, it.loss);
      losses.push_back(loss.item<double>());
    }
    CHECK(planned.planned());
    CHECK(losses[2] == losses[3]);
  }
}

TEST_CASE("what a model converts by itself is not widened, as the file says what it gives without a plan") {
  const scratch_file file;
  torch::nn::Sequential net{torch::nn::Linear{4, 4}, torch::nn::Linear{4, 4}};
  net->ptr(1)->to(at::kBFloat16);
  const auto x = torch::randn({3, 4}), scales = torch::rand(2);
  const job it{net.ptr(), [=]() mutable {
                 const auto h = net->begin()->forward(x);
                 return ((net->begin() + 1)->forward(x.to(at::kBFloat16) * scales[1]) + h).sum();
               }};
  save_low(it, file.str());
  lt::planned_region planned{{{"", *it.model}}, file.str(), {.forced = true}};
  for (int i = 0; i < 3; ++i) CHECK(inside(planned, it.loss).dtype() == at::kBFloat16);
}

TEST_CASE("a part that the model has in BF16 itself runs as its author wrote it, from the first forward on") {
  for (const auto low : {precision::fp32, precision::bf16}) {
    CAPTURE(name(low));
    const scratch_file file;
    torch::manual_seed(1);
    torch::nn::Sequential net{torch::nn::Linear{4, 4}, torch::nn::Linear{4, 4}, torch::nn::Linear{4, 4}};
    net->ptr(1)->to(at::kBFloat16);
    const auto x = torch::randn({3, 4});
    const job it{net.ptr(), [=]() mutable {
                   const auto own = (net->begin() + 1)->forward(net->begin()->forward(x).to(at::kBFloat16)).relu();
                   return (net->begin() + 2)->forward(own.to(at::kFloat)).sum();
                 }};
    program p;
    record(p, it);
    const comp::plan chosen = everywhere(p.graph(), low);
    CHECK(chosen.count_low() == (low == precision::fp32 ? 0 : 3));  // two layers and the sum
    comp::save(chosen, p.graph(), here(), file.str());
    lt::planned_region planned{{{"", *it.model}}, file.str(), {.forced = true}};
    std::vector<at::Tensor> losses;
    for (int i = 0; i < 3; ++i) inside(planned, [&] { losses.push_back(it.loss()); });
    CHECK(planned.planned());
    CHECK(at::equal(losses[0], losses[2]));
    p.set_plan(chosen);
    const auto on = p.enter();
    CHECK(at::equal(it.loss(), losses[0]));
  }
}

TEST_CASE("an evaluation under FP32, tuned or not, is left to LibTorch, before the first step, too") {
  const scratch_file file;
  const job it = mlp();
  program p;
  record(p, it);
  const comp::plan fp32{p.graph().size()};
  for (const bool tuned : {false, true}) {
    CAPTURE(tuned);
    comp::save(tuned ? fp32.as_tuned() : fp32, p.graph(), here(), file.str());
    lt::planned_region planned{{{"", *it.model}}, file.str()};
    for (int steps = 0; steps < 3; ++steps) {
      {
        const auto on = planned.evaluate();
        CHECK(lt::detail::listening == nullptr);
      }
      const auto on = planned.enter();
      it.loss();
    }
    CHECK(planned.planned());
  }
}

TEST_CASE("an evaluation before the first step runs under the plan, as later ones do") {
  for (const auto& [name, make] : all_jobs()) {
    CAPTURE(name);
    const scratch_file file;
    torch::manual_seed(1);
    const job it = make();
    it.model->eval();
    save_low(it, file.str());
    lt::planned_region planned{{{"", *it.model}}, file.str()};
    const auto evaluated = [&] {
      const at::NoGradGuard no_gradients;
      const auto on = planned.evaluate();
      return it.loss();
    };
    const at::Tensor first = evaluated();
    for (int i = 0; i < 3; ++i) inside(planned, it.loss);
    CHECK(planned.planned());
    CHECK(at::equal(first, evaluated()));
    CHECK(!at::equal(first, it.loss()));  // FP32's
  }
}

TEST_CASE("a planned region runs as the file says the plan was best run, on such a machine") {
  const scratch_file file;
  torch::manual_seed(1);
  const job it = conv_net();
  program p;
  record(p, it);
  comp::outcome best{.plan = everywhere(p.graph(), precision::bf16), .graph = p.graph(), .hardware = here()};
  best.execution = {{"weights", "keep", {1.1, {1.05, 1.2}}}, {"images", "channels_last", {1.3, {1.2, 1.4}}}};
  comp::save(best, file.str());
  const auto settings_of = [&](lt::planned_settings settings, std::size_t warnings) {
    lt::planned_region planned{{{"", *it.model}}, file.str(), settings};
    for (int i = 0; i < 2; ++i) inside(planned, it.loss);
    CHECK(planned.planned());
    CHECK(planned.warnings().size() == warnings);
    const lt::program_settings used = planned.executor().settings();
    return lt::executor_choice{used.weights, used.images};
  };
  const lt::executor_choice both{lt::weight_casts::keep, lt::memory_format::channels_last};
  CHECK(settings_of({}, 0) == both);
  CHECK(settings_of({.match = lt::plan_match::exact}, 0) == both);
  CHECK(settings_of({.choices = lt::planned_choices::as_set}, 0) == lt::executor_choice{});
  edit(file.str(), [](auto& document) { document["execution"]["weights"]["value"] = "folded"; });
  CHECK(settings_of({}, 1) == lt::executor_choice{lt::weight_casts::cast, lt::memory_format::channels_last});
  edit(file.str(), [](auto& document) { document["hardware"]["threads"] = 1000; });
  CHECK(settings_of({}, 2) == lt::executor_choice{});  // the plan's own warning, and that of its choices
}

TEST_CASE("a planned region measures how its plan is best run in the loop's own steps") {
  const scratch_file file;
  classification user;
  {
    lt::trainer trainer{user.setup, user.batches, user.make_step()};
    comp::save(lowered(trainer.graph(), precision::bf16), trainer.graph(), trainer.hardware(), file.str());
  }
  const auto batch = *user.batches.next();
  lt::planned_region planned{
      {{"net", user.net}}, file.str(), {.choices = lt::planned_choices::measured, .tuning = {.most_rounds = 7}}};
  std::set<std::tuple<int, int, bool>> variants;
  for (int i = 0; i < 1 + 4 * 7 * 2 + 1 + 7 * 3; ++i) {  // weights, images, and kernels: ATen's, two steps of comp's
    CHECK(planned.execution().empty());
    (void)train_step(planned, user.optimizer, [&] { return user.loss(batch); });
    const auto& now = planned.executor().settings();
    variants.emplace(static_cast<int>(now.weights), static_cast<int>(now.images), now.kernels.empty());
  }
  CHECK(variants.size() >= 4);
  (void)planned.enter();
  REQUIRE(planned.execution().size() >= 2);
  CHECK(planned.execution()[0].gain.ratio > 0);
  CHECK(planned.execution()[1].gain.ratio > 0);
}

TEST_CASE("what a file does not have runs as most of its kind, and a warning names the first and what is near it") {
  const scratch_file file;
  torch::nn::Sequential recorded, grown;
  for (int i = 0; i < 4; ++i) {
    if (i < 3) recorded->push_back("block" + std::to_string(i), torch::nn::Linear{8, 8});
    grown->push_back("block" + std::to_string(i), torch::nn::Linear{8, 8});
  }
  const auto x = torch::randn({2, 8});
  save_low({recorded.ptr(), [&] { return recorded->forward(x).sum(); }}, file.str());
  lt::planned_region planned{{{"", grown}}, file.str()};
  for (int i = 0; i < 2; ++i) {
    const auto on = planned.enter();
    CHECK(bool{grown->forward(torch::randn({2 + i, 8})).scalar_type() == at::kBFloat16});
  }
  REQUIRE(planned.warnings().size() == 1);
  CHECK(planned.warnings()[0].find(
            "does not have 1 of the model's 4 operators, first \"block3.addmm\" (aten::addmm; did you "
            "mean \"block") != std::string::npos);
}

TEST_CASE("under a plan of FP32 later steps run without comp, unless each forward is to be compared") {
  const scratch_file file;
  const job it = mlp();
  save_low(it, file.str(), [](comp::plan& all) { all = comp::plan{all.size()}; });
  const auto listens_in_second_step = [&](lt::planned_settings settings) {
    lt::planned_region planned{{{"", *it.model}}, file.str(), std::move(settings)};
    {
      const auto on = planned.enter();
      it.loss();
      CHECK(lt::detail::listening != nullptr);
    }
    const auto on = planned.enter();
    return lt::detail::listening != nullptr;
  };
  CHECK_FALSE(listens_in_second_step({}));
  CHECK(listens_in_second_step({.program = {.otherwise = lt::on_mismatch::error}}));

  lt::planned_region fp32{{{"", *it.model}}, file.str()};
  for (int step = 0; step < 2; ++step) inside(fp32, it.loss);
  program low;
  record(low, it);
  low.set_plan(everywhere(low.graph(), precision::bf16));
  const auto around = low.enter();
  {
    const auto inside = fp32.enter();
    const at::Tensor x = torch::ones({1, 32});
    CHECK(bool{at::matmul(x, x.t()).scalar_type() == at::kFloat});
    CHECK(lt::detail::listening != nullptr);
  }
}

TEST_CASE("several threads may enter a planned region once its first step is known, not before") {
  const scratch_file file;
  torch::manual_seed(1);
  const job it = mlp(6, 64);
  save_low(it, file.str());
  lt::planned_region planned{{{"", *it.model}}, file.str(), {.program = {.weights = lt::weight_casts::keep}}};
  {
    const auto on = planned.enter();
    std::string refused;
    std::thread{[&] {
      try {
        (void)planned.enter();
      } catch (const comp::error& e) {
        refused = e.what();
      }
    }}.join();
    CHECK(refused.find("entered by a second thread while the operators of a first step are recorded") !=
          std::string::npos);
    it.loss();
  }
  const auto run = [&] { return inside(planned, it.loss); };
  const auto expected = run().item<double>();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const at::Tensor loss = run();
        if (loss.item<double>() != expected) ++wrong;
        (void)torch::autograd::grad({loss}, it.model->parameters());
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(wrong == 0);
}
