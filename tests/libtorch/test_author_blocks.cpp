// SPDX-License-Identifier: Apache-2.0
// Blocks in which a model's author switched autocast off, or on: every plan leaves the operators in them alone.
#include <comp/comp.hpp>
#include <comp/systems/all_rules.hpp>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::author_choice;
using comp::precision;

namespace {

/// As `with torch.autocast("cpu", enabled=False):`.
struct autocast_off : lt::autocast_guard {
  autocast_off() : lt::autocast_guard{at::kCPU, std::nullopt, false} {}
};

/// Two products with a softmax between them, for which the author switched autocast off, in `blocks` blocks.
struct attention : torch::nn::Module {
  torch::Tensor a = register_parameter("a", torch::randn({16, 16}) / 4),
                b = register_parameter("b", torch::randn({16, 16}) / 4);
  std::optional<at::ScalarType> autocast = {};  // in the block, instead of none
  bool protects = true;
  at::ScalarType got = at::kFloat, gave = at::kFloat, before = at::kFloat;
  torch::Tensor read, output;

  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = torch::mm(x, a);
    before = h.scalar_type();
    torch::Tensor p;
    {
      std::optional<lt::autocast_guard> block;
      if (protects) block.emplace(at::kCPU, autocast, autocast.has_value());
      p = autocast ? torch::relu(torch::mm(h, b)) : torch::softmax(h, -1);
    }
    gave = p.scalar_type();
    read = h.detach();
    output = p.detach();
    return torch::mm(p.to(torch::kFloat), b).pow(2).mean();
  }
};

struct small {
  std::shared_ptr<attention> net = std::make_shared<attention>();
  torch::Tensor x = torch::randn({8, 16});
  job it() const {
    return {net, [net = net, x = x] { return net->forward(x); }};
  }
};

constexpr auto low = at::kBFloat16;

}  // namespace

TEST_CASE("an operator in a block with autocast off is fixed, reads FP32 and is FP32 in every plan") {
  small s;
  program p;
  record(p, s.it());
  const comp::op_info& op = p.graph()[index_of(p.graph(), "softmax")];
  CHECK_FALSE(op.choosable);
  CHECK((op.author == author_choice::autocast_off));
  CHECK(comp::reason(op.author) == "the model's author switched autocast off there");
  p.set_plan(everywhere(p.graph(), precision::bf16));
  for (int i = 0; i < 2; ++i) {
    const torch::Tensor loss = inside(p, [&] { return s.net->forward(s.x); });
    CHECK(bool{s.net->before == low});
    CHECK(bool{s.net->gave == at::kFloat});
    CHECK(same(s.net->output, torch::softmax(s.net->read.to(at::kFloat), -1)));
    loss.backward();
  }
  CHECK(p.problems().first.empty());
  comp::plan wrong{p.graph().size()};
  wrong[index_of(p.graph(), "softmax")] = precision::bf16;
  CHECK_THROWS_AS(p.set_plan(wrong), comp::plan_error);
}

TEST_CASE("rules and uniform plans leave a block alone, and what reads it gets FP32") {
  small s;
  program p;
  record(p, s.it());
  const std::size_t at = index_of(p.graph(), "softmax");
  std::vector<comp::plan> rivals{autocast_plan(p.graph())};
  for (const auto& rules : comp::autocast::all_rules(p.graph(), precision::bf16)) {
    rivals.push_back(rules.types.plan);
    CHECK((rules.types.handed_on[at] == precision::fp32));
  }
  for (const comp::plan& rival : rivals) {
    CHECK((rival[at] == precision::fp32));
    p.set_plan(rival);
    const auto on = p.enter();
    s.net->forward(s.x);
    CHECK(bool{s.net->gave == at::kFloat});
  }
}

TEST_CASE("an autocast of the model's own runs as it does without a plan, whatever the plan makes of what it reads") {
  for (const auto own : {at::kHalf, at::kBFloat16}) {
    small s;
    s.net->autocast = own;
    program p;
    record(p, s.it());
    CHECK((p.graph()[index_of(p.graph(), "mm_2")].author == author_choice::autocast_on));
    for (const bool lowered : {false, true}) {
      p.set_plan(lowered ? everywhere(p.graph(), precision::bf16) : comp::plan{p.graph().size()});
      const auto plain = s.net->forward(s.x);
      const torch::Tensor planned = inside(p, [&] { return s.net->forward(s.x); });
      CHECK(same(plain, planned) == !lowered);
      CHECK(bool{s.net->before == (lowered ? low : at::kFloat)});
      CHECK(bool{s.net->gave == own});
      const lt::autocast_guard block{at::kCPU, own};
      CHECK(same(s.net->output, torch::relu(torch::mm(s.net->read.to(at::kFloat), s.net->b.detach()))));
    }
  }
}

TEST_CASE("where blocks are freed the plan has their operators, and an autocast of the model's own is an error") {
  small s;
  program p{{.protect_blocks = false}};
  record(p, s.it());
  p.set_plan(everywhere(p.graph(), precision::bf16));
  inside(p, [&] { s.net->forward(s.x); });
  CHECK(bool{s.net->gave == low});
  s.net->autocast = at::kHalf;
  {
    const auto on = p.enter();
    CHECK_THROWS_WITH_AS(s.net->forward(s.x), doctest::Contains("switch it off, the plan alone decides"), comp::error);
  }
  p.record(true);
  const auto on = p.enter();
  CHECK_THROWS_AS(s.net->forward(s.x), comp::error);
}

TEST_CASE("a block that the recorded forward did not have is heeded, and one that it had need not come again") {
  small s;
  program p;
  s.net->protects = false;
  record(p, s.it());
  p.set_plan(everywhere(p.graph(), precision::bf16));
  const auto format_in = [&](bool protects) {
    s.net->protects = protects;
    const auto on = p.enter();
    s.net->forward(s.x);
    return s.net->gave;
  };
  for (const bool protects : {true, false, true}) CHECK(bool{format_in(protects) == (protects ? at::kFloat : low)});

  s.net->protects = true;
  record(p, s.it());
  p.set_plan(everywhere(p.graph(), precision::bf16));
  CHECK(bool{format_in(false) == at::kFloat});  // it was fixed
}

TEST_CASE("operators that were not recorded are FP32 in a block, in a forward and in evaluation") {
  small s;
  program p;
  s.net->protects = false;
  record(p, s.it());
  p.set_plan(everywhere(p.graph(), precision::bf16));
  const auto formats = [&](auto&& region, std::optional<at::ScalarType> own) {
    const auto on = region();
    const auto h = torch::mm(s.x, s.net->a);
    std::optional<lt::autocast_guard> block;
    block.emplace(at::kCPU, own, own.has_value());
    const auto sine = torch::sin(h), again = torch::softmax(h, 0), product = torch::mm(h, s.net->b);
    block.reset();
    return std::vector{h.scalar_type(), sine.scalar_type(), again.scalar_type(), product.scalar_type(),
                       torch::mm(h, s.net->b).scalar_type()};
  };
  const auto f = at::kFloat, half = at::kHalf;
  CHECK(bool{formats([&] { return p.enter(); }, {}) == std::vector{low, f, f, f, low}});
  CHECK(bool{formats([&] { return p.enter(); }, half) == std::vector{low, f, f, half, low}});
  const torch::NoGradGuard no_gradients;
  CHECK(bool{formats([&] { return p.evaluate(); }, {}) == std::vector{low, f, f, f, low}});
  CHECK(bool{formats([&] { return p.evaluate(); }, half) == std::vector{low, f, f, half, low}});
}

TEST_CASE("blocks in loops, in blocks, of another device, around a region and beside it are each what they are") {
  small s;
  program p;
  const auto forward = [&](int protects) {
    std::vector<at::ScalarType> formats;
    for (int i = 0; i < 3; ++i) {
      std::optional<autocast_off> block;
      if (i == protects) block.emplace();
      formats.push_back(torch::softmax(torch::mm(s.x, s.net->a), -1).scalar_type());
    }
    return formats;
  };
  p.name_parameters(*s.net);
  recorded(p, [&] { forward(1); });
  p.set_plan(everywhere(p.graph(), precision::bf16));
  const auto f = at::kFloat;
  const auto run = [&](int protects) {
    const auto on = p.enter();
    return forward(protects);
  };
  CHECK(bool{run(1) == std::vector{low, f, low}});
  CHECK(bool{run(0) == std::vector{f, f, low}});
  SUBCASE("around a region: it is that of whoever entered it") {
    const autocast_off around;
    CHECK(bool{run(1) == std::vector{low, f, low}});
  }
  SUBCASE("left in a region that began in it") {
    std::optional<autocast_off> around;
    around.emplace();
    const auto on = p.enter();
    around.reset();
    CHECK(bool{forward(1) == std::vector{low, f, low}});
  }
  SUBCASE("entered in a region and left after it") {
    std::optional<autocast_off> late;
    {
      const auto on = p.enter();
      late.emplace();
      CHECK(bool{forward(-1) == std::vector{f, f, f}});
    }
    CHECK(bool{run(1) == std::vector{low, f, low}});
    late.reset();
    CHECK(bool{run(1) == std::vector{low, f, low}});
  }
  SUBCASE("a region in a block of another") {
    const auto on = p.enter();
    const autocast_off around;
    CHECK(bool{forward(1) == std::vector{f, f, f}});
    {
      const auto inner = p.enter();
      CHECK(bool{forward(1) == std::vector{low, f, low}});
    }
    CHECK(bool{forward(1) == std::vector{f, f, f}});
  }
  SUBCASE("in one another, off in on and on in off") {
    const auto on = p.enter();
    const lt::autocast_guard own{at::kCPU, at::kHalf};
    CHECK(bool{torch::mm(s.x, s.net->a).scalar_type() == at::kHalf});
    {
      const autocast_off inner;
      CHECK(bool{forward(1) == std::vector{f, f, f}});
      const lt::autocast_guard innermost{at::kCPU, at::kBFloat16};
      CHECK(bool{torch::mm(s.x, s.net->b).scalar_type() == low});
    }
    CHECK(bool{torch::mm(s.x, s.net->a).scalar_type() == at::kHalf});
  }
  SUBCASE("an autocast of another device says nothing of this one; switched off in it, this one is off") {
    const auto on = p.enter();
    const lt::autocast_guard other{at::kCUDA, at::kHalf};
    CHECK(bool{forward(1) == std::vector{low, f, low}});
    const autocast_off inner;
    CHECK(bool{forward(1) == std::vector{f, f, f}});
  }
}

TEST_CASE("an exception out of a block leaves nothing of it, and threads have blocks of their own") {
  small s;
  program p;
  record(p, s.it());
  p.set_plan(everywhere(p.graph(), precision::bf16));
  const auto formats = [&] {
    const auto on = p.enter();
    s.net->forward(s.x);
    return std::pair{s.net->before, s.net->gave};
  };
  for (int i = 0; i < 3; ++i) {
    try {
      const auto on = p.enter();
      torch::mm(s.x, s.net->a);
      const autocast_off block;
      throw std::runtime_error{"the user's"};
    } catch (const std::runtime_error&) {
    }
    CHECK(bool{formats() == std::pair{low, at::kFloat}});
  }
  CHECK(at::autocast::increment_nesting() == 1);
  at::autocast::decrement_nesting();
  const autocast_off here;
  std::vector<int> wrong(3);
  std::vector<std::thread> threads;
  for (int& each : wrong) {
    threads.emplace_back([&] {
      small own;
      program q;
      record(q, own.it());
      q.set_plan(everywhere(q.graph(), precision::bf16));
      for (int i = 0; i < 50; ++i) {
        const auto on = q.enter();
        own.net->forward(own.x);
        if (own.net->before != low || own.net->gave != at::kFloat) ++each;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(3));
}

TEST_CASE("what is run again in the backward stands in the block that it stood in, and in blocks of its own") {
  small s;
  const scratch_file file;
  for (const bool around : {false, true}) {
    std::vector<at::ScalarType> formats;
    const job it{s.net, [&] {
                   const auto part = [&](const at::Tensor& h) {
                     std::optional<autocast_off> block;
                     if (!around) block.emplace();
                     const auto y = torch::softmax(h, -1);
                     formats.push_back(y.scalar_type());
                     return torch::mm(torch::tanh(y), s.net->b);
                   };
                   const auto h = torch::mm(s.x, s.net->a);
                   std::optional<autocast_off> block;
                   if (around) block.emplace();
                   return lt::checkpoint(part, h).pow(2).mean();
                 }};
    program p;
    record(p, it);
    comp::save(everywhere(p.graph(), precision::bf16), p.graph(), lt::probe(at::kCPU), file.str());
    lt::planned_region planned{{{"", *s.net}}, file.str()};
    for (int i = 0; i < 3; ++i) {
      formats.clear();
      const at::Tensor loss = inside(planned, it.loss);
      loss.backward();
      CHECK(bool{formats == std::vector{at::kFloat, at::kFloat}});
    }
    p.set_plan(everywhere(p.graph(), precision::bf16));
    at::Tensor loss;
    {
      const auto on = p.enter();
      const autocast_off not_recorded;
      loss = it.loss();
    }
    formats.clear();
    loss.backward();
    CHECK(bool{formats == std::vector{at::kFloat}});
  }
}

TEST_CASE("a plan file that lowers what stands in a block is taken for the rest, by name and exactly, with a warning") {
  small s;
  const scratch_file file;
  {
    program p{{.protect_blocks = false}};
    record(p, s.it());
    comp::save(everywhere(p.graph(), precision::bf16), p.graph(), lt::probe(at::kCPU), file.str());
  }
  for (const auto match : {lt::plan_match::by_name, lt::plan_match::exact}) {
    for (const bool protects : {true, false}) {
      lt::planned_region planned{{{"", *s.net}}, file.str(), {.match = match, .program = {.protect_blocks = protects}}};
      {
        const torch::NoGradGuard no_gradients;
        const auto on = planned.evaluate();
        s.net->forward(s.x);
        CHECK(bool{s.net->before == low});
        CHECK(bool{s.net->gave == (protects ? at::kFloat : low)});
      }
      for (int i = 0; i < 3; ++i) {
        const auto on = planned.enter();
        s.net->forward(s.x);
        CHECK(bool{s.net->before == low});
        CHECK(bool{s.net->gave == (protects ? at::kFloat : low)});
      }
      CHECK(planned.planned());
      REQUIRE(planned.warnings().size() == (protects ? 1 : 0));
      if (protects) {
        CHECK(planned.warnings()[0] ==
              "\"" + file.str() +
                  "\" lowers 1 operators that no plan changes, first \"softmax\" (the model's author switched "
                  "autocast off there): they run as the model's author wrote them; where a plan is to have them, "
                  "set protect_blocks to false");
      }
    }
  }
  const auto listing = [&] {
    program p;
    record(p, s.it());
    comp::save(everywhere(p.graph(), precision::bf16), p.graph(), lt::probe(at::kCPU), file.str());
    return comp::load_listing(file.str());
  }();
  CHECK(((*listing.operators)[1].author == author_choice::autocast_off));
}

TEST_CASE("a step whose every operator is in a block is refused, naming the first") {
  classification user;
  classification_trainer nothing{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   const auto l = s.forward([&] {
                                     const lt::autocast_guard everything{at::kCPU};
                                     return user.loss(batch);
                                   });
                                   s.backward(l);
                                   s.update(user.optimizer);
                                 }};
  CHECK_THROWS_WITH_AS((void)nothing.graph(),
                       "every operator of the step is in an autocast block of its own, first \"net.0.conv2d\" (the "
                       "model's author runs an autocast there, which decides; a plan leaves those alone): put the plan "
                       "where that autocast is, or set protect_blocks to false",
                       comp::graph_error);
}
