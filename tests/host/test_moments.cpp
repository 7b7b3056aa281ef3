// SPDX-License-Identifier: Apache-2.0
// An optimizer's moments as operators of a plan: what they are called, what they keep, and that a training with them in
// BF16 is reproducible.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <comp/autocast/rule_plan.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/systems/all_rules.hpp>
#include <comp_native/trainer.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "../native/reference_device.hpp"
#include "../native/support.hpp"
#include "../scratch.hpp"
#include "tested_device.hpp"

namespace moments_test {

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using host_trainer = trainer<comp::host::device>;

namespace {

/// A convolution, and linear layers whose weights in BF16 are copies with interleaved rows.
model some_net() {
  model_builder net{"some", input_kind::values, {8, 1, 8, 8}};
  net.input()
      .conv2d("conv", 6, {.padding = 1})
      .relu("relu")
      .flatten("flatten")
      .linear("hidden", 64)
      .relu("relu2")
      .linear("head", 4)
      .cross_entropy_loss("loss");
  return net.finish();
}

struct world {
  comp::host::device device;
  host_trainer t;
  explicit world(const optimizer& o, std::uint64_t seed = 3, bool moments = true, const model& m = some_net(),
                 int threads = 0)
      : device{{.threads = threads}},
        t{device,
          m,
          bars({m.input_shape.begin() + 1, m.input_shape.end()}, 4, 70, 1),
          bars({m.input_shape.begin() + 1, m.input_shape.end()}, 4, 16, 2),
          {.optimizer = o, .seed = seed, .moments = moments}} {}

  /// Lowers the moments, and with `all` everything else, too.
  void lower(bool all = false) {
    plan p{t.graph().size()};
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (t.graph()[i].choosable && (all || t.graph()[i].is_state)) p[i] = precision::bf16;
    }
    t.set_precision(p);
  }
};

std::vector<std::string> moments_of(const comp::op_graph& graph) {
  std::vector<std::string> names;
  for (const comp::op_info& op : graph) {
    if (op.is_state) names.push_back(op.name);
  }
  return names;
}

std::vector<float> slots_of(const comp::stored_state& from, const std::string& which) {
  std::vector<float> all;
  for (const auto& tensor : from.tensors) {
    if (tensor.name.starts_with("optimizer." + which))
      all.insert(all.end(), tensor.values.begin(), tensor.values.end());
  }
  return all;
}
bool is_bf16(float x) { return (std::bit_cast<std::uint32_t>(x) & 0xffffU) == 0; }

TEST_CASE("an optimizer's moments are operators if they are asked for, and no others change") {
  using names = std::vector<std::string>;
  CHECK(moments_of(world{adamw(), 3, false}.t.graph()) == names{});
  CHECK(moments_of(world{adamw()}.t.graph()) == names{"optimizer.moment1", "optimizer.moment2"});
  CHECK(moments_of(world{sgd(0.1, 0.9)}.t.graph()) == names{"optimizer.moment1"});
  CHECK(moments_of(world{sgd(0.1)}.t.graph()) == names{});
  CHECK(
      moments_of(world{adam(), 3, true, small_gan(8)}.t.graph()) ==
      names{"optimizer.moment1.make", "optimizer.moment2.make", "optimizer.moment1.judge", "optimizer.moment2.judge"});
  const world without{adamw(), 3, false}, with{adamw()};
  CHECK(with.t.signature() != without.t.signature());
  CHECK(with.t.graph().size() == without.t.graph().size() + 2);
  for (std::size_t i = 0; i < without.t.graph().size(); ++i) {
    CHECK(with.t.graph()[i].name == without.t.graph()[i].name);
    CHECK(with.t.graph()[i].producers == without.t.graph()[i].producers);
  }
}

TEST_CASE("moments run in FP32 and BF16 alone, and a device that keeps FP32 alone refuses them") {
  world w{adamw()};
  for (const precision p : comp::all_precisions) {
    CHECK(w.t.supports(w.t.graph()[w.t.graph().size() - 1], p) == (p == precision::fp32 || p == precision::bf16));
  }
  plan fp16{w.t.graph().size()};
  fp16[fp16.size() - 1] = precision::fp16;
  CHECK_THROWS_AS(w.t.set_precision(fp16), comp::plan_error);
  reference::device other;
  const auto images = bars({1, 8, 8}, 4, 16, 1);
  CHECK_THROWS_WITH_AS(
      (trainer<reference::device>{other, some_net(), images, images, {.optimizer = adamw(), .moments = true}}),
      "moments = true (this device keeps an optimizer's moments in FP32 alone): leave it out", comp::settings_error);
}

TEST_CASE("rule-based plans keep moments in FP32") {
  const world w{adamw()};
  const comp::op_graph& graph = w.t.graph();
  CHECK(
      comp::autocast::rule_plan(comp::policy::pytorch{.list = comp::policy::pytorch_list::cpu}, graph, precision::bf16)
          .str()
          .ends_with("11"));
  for (const precision low : {precision::bf16, precision::fp16}) {
    const auto all = comp::autocast::all_rules(graph, low);
    CHECK(all.size() >= 5);
    for (const auto& [name, types] : all) {
      CAPTURE(name);
      CHECK(types.plan.str().ends_with("11"));
    }
  }
}

TEST_CASE("with FP32 moments a training has the bits that it has without the setting") {
  for (const optimizer& o : {adamw(0.01), sgd(0.05, 0.9, 1e-3, true)}) {
    world with{o}, without{o, 3, false};
    CHECK(with.t.run_epoch().curve == without.t.run_epoch().curve);
    CHECK(with.t.store_state().tensors == without.t.store_state().tensors);
  }
}

TEST_CASE("moments in BF16 take half the memory, and the training that they give is near FP32's") {
  for (const bool all : {false, true}) {
    CAPTURE(all);
    for (const optimizer& o : {adamw(0.01), sgd(0.05, 0.9)}) {
      CAPTURE(text(o));
      world fp32{o}, low{o};
      low.lower(all);
      if (all) {  // beside the same plan with moments in FP32
        plan p = low.t.network().precisions();
        for (std::size_t i = 0; i < p.size(); ++i) p[i] = low.t.graph()[i].is_state ? precision::fp32 : p[i];
        fp32.t.set_precision(p);
      }
      const comp::sample exact = fp32.t.run_epoch(), rounded = low.t.run_epoch();
      const std::int64_t slots = std::holds_alternative<adam_options>(o) ? 2 : 1;
      const std::int64_t spared = 2 * slots * low.t.model().parameter_count();
      // Layouts pad the convolution's weights.
      CHECK(fp32.device.live_bytes() - low.device.live_bytes() == doctest::Approx(spared).epsilon(0.05));
      CHECK(exact.peak_bytes - rounded.peak_bytes == doctest::Approx(spared).epsilon(0.2));
      CHECK(rounded.loss == doctest::Approx(exact.loss).epsilon(0.01));
      CHECK(rounded.curve != exact.curve);
      const comp::stored_state kept = low.t.store_state();
      for (const char* which : {"first", "second"}) CHECK(std::ranges::all_of(slots_of(kept, which), is_bf16));
      CHECK_FALSE(std::ranges::all_of(slots_of(fp32.t.store_state(), "first"), is_bf16));
    }
  }
}

TEST_CASE("each moment has the format that the plan gives it, from the next batch on") {
  world w{adamw(0.01)};
  const auto rounded = [&](const char* which) {
    (void)w.t.run_batch();
    return std::ranges::all_of(slots_of(w.t.store_state(), which), is_bf16);
  };
  plan p{w.t.graph().size()};
  CHECK_FALSE(rounded("first"));
  p[p.size() - 1] = precision::bf16;
  w.t.set_precision(p);
  CHECK(rounded("second"));
  CHECK_FALSE(rounded("first"));
  std::swap(p[p.size() - 1], p[p.size() - 2]);
  w.t.set_precision(p);
  CHECK(rounded("first"));
  CHECK_FALSE(rounded("second"));
  const std::int64_t before = w.device.live_bytes();
  w.t.set_precision(plan{p.size()});
  CHECK_FALSE(rounded("first"));
  CHECK(w.device.live_bytes() > before);
}

TEST_CASE("roundings follow from the seed, the step and the element alone") {
  for (const optimizer& o : {adamw(0.01), sgd(0.05, 0.9)}) {
    const auto bits = [&](std::uint64_t seed, int threads) {
      world w{o, seed, true, some_net(), threads};
      w.lower(true);
      (void)w.t.run_epoch();
      return slots_of(w.t.store_state(), "first");
    };
    const auto first = bits(3, 1);
    CHECK(bits(3, 1) == first);
    CHECK(bits(3, 2) == first);
    CHECK(bits(4, 1) != first);
  }
}

TEST_CASE("a restored or loaded training with moments in BF16 goes on with the same bits") {
  for (const model& m : {some_net(), small_gan(8)}) {
    CAPTURE(m.name);
    world w{adamw(0.01), 3, true, m};
    w.lower(true);
    (void)w.t.run_epoch();
    (void)w.t.run_batch();
    const auto saved = w.t.save();
    const comp::stored_state stored = w.t.store_state();
    const auto curve = w.t.run_epoch().curve;
    const comp::stored_state after = w.t.store_state();
    w.t.restore(saved);
    CHECK(w.t.run_epoch().curve == curve);
    CHECK(w.t.store_state().tensors == after.tensors);
    world other{adamw(0.01), 3, true, m};
    other.lower(true);
    other.t.load_state(stored);
    CHECK(other.t.store_state().tensors == stored.tensors);
    CHECK(other.t.run_epoch().curve == curve);
    CHECK(other.t.store_state().tensors == after.tensors);
  }
}

TEST_CASE("small changes move a moment in BF16 on average as they move it in FP32") {
  constexpr std::int64_t n = 4099;
  comp::host::device d;
  auto p = d.make_parameter(std::vector<float>(n, 0), {1, n});
  const std::vector all{&p};
  const auto with_gradient = [&](float g) {
    d.zero_gradient(p);
    (void)d.linear_backward(d.upload(std::vector{g}, {1, 1}, precision::fp32),
                            d.upload(std::vector<float>(n, 1), {1, n}, precision::fp32), p, nullptr, false);
  };
  for (std::uint64_t step = 0; step < 300; ++step) {
    with_gradient(step == 0 ? 1 : 0);
    d.keep_moments(all, {.first = precision::bf16, .key = step});
    d.sgd_step(all, {.learning_rate = 0, .momentum = 0.999});
  }
  const std::vector<float> velocity = d.slots(p).first;
  double mean = 0;
  for (const float v : velocity) mean += v / static_cast<double>(n);
  CHECK(mean == doctest::Approx(std::pow(0.999, 299)).epsilon(0.003));  // rounded to nearest all would still be 1
  CHECK(std::ranges::count(velocity, velocity.front()) < n / 4);        // elements are rounded apart
}

TEST_CASE("the update's time is that of the moments") {
  for (const optimizer& o : {adamw(0.01), sgd(0.05, 0.9)}) {
    world w{o};
    const auto times = w.t.profile();
    for (std::size_t i = 0; i < times.size(); ++i) {
      if (w.t.graph()[i].is_state) CHECK(times[i].backward > 0);
    }
    CHECK(w.t.sensitivity(precision::bf16).back().gradient > 0);
  }
}

TEST_CASE("a plan file has the moments, and one from before fits a trainer without them") {
  const scratch folder;
  const std::string path = folder / "plan.json";
  world with{adamw()}, without{adamw(), 3, false};
  with.lower(true);
  const plan low = with.t.network().precisions();
  comp::save(low, with.t.graph(), with.t.hardware(), path);
  CHECK(comp::load_plan(path, with.t).plan == low);
  CHECK_THROWS_AS(comp::load_plan(path, without.t), comp::plan_error);
  comp::save(plan{without.t.graph().size()}, without.t.graph(), without.t.hardware(), path);
  CHECK(comp::load_plan(path, without.t).plan == plan{without.t.graph().size()});
}

}  // namespace

}  // namespace moments_test
