// SPDX-License-Identifier: Apache-2.0
// A trainer's state outside its process, on the device that tested_device.hpp names.
#include <doctest/doctest.h>

#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>

#include "../support.hpp"
#include "tested_device.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using device_trainer = trainer<comp::tested::device>;

static_assert(comp::StoresState<device_trainer>);

namespace {

namespace tested = comp::tested;

/// Convolutions, running statistics and dropout; FP16 in the plan, so that losses are scaled.
model some_net() {
  model_builder net{"some", input_kind::values, {8, 1, 8, 8}};
  small_convolutional(net, 6, 4).cross_entropy_loss("loss");
  return net.finish();
}

struct world {
  tested::device device = tested::of_networks();
  device_trainer t;
  explicit world(const optimizer& o, const model& m = some_net())
      : t{device,
          m,
          bars({m.input_shape.begin() + 1, m.input_shape.end()}, 4, 70, 1),
          bars({m.input_shape.begin() + 1, m.input_shape.end()}, 4, 16, 2),
          {.optimizer = o, .clip_norm = 1, .seed = 3, .scaling = {.growth_interval = 3}}} {
    plan low{t.graph().size()};
    for (const std::size_t i : {0, 1, 6}) low[i] = t.graph()[i].choosable ? precision::fp16 : precision::fp32;
    t.set_precision(low);
  }
};

std::string refused(device_trainer& t, const comp::stored_state& s) {
  return words_of<comp::error>([&] { t.load_state(s); });
}

}  // namespace

TEST_CASE("a training goes on in another trainer with the same losses, bit for bit") {
  for (const auto& [o, m] : {std::pair{sgd(0.05, 0.9), some_net()},
                             {adamw(0.01), some_net()},
                             {sgd(0.05), some_net()},
                             {adamw(0.01), small_gan(8)}}) {
    CAPTURE(text(o));
    CAPTURE(m.name);
    world first{o, m};
    (void)first.t.run_epoch();
    for (int i = 0; i < 3; ++i) (void)first.t.run_batch();
    const comp::stored_state stored = first.t.store_state();
    world second{o, m};
    second.t.load_state(stored);
    CHECK(second.t.store_state().tensors == stored.tensors);
    CHECK(second.t.store_state().numbers == stored.numbers);
    CHECK(second.t.validate() == first.t.validate());
    for (int i = 0; i < 12; ++i) CHECK(second.t.run_batch().loss == first.t.run_batch().loss);  // into the next epoch
    CHECK(second.t.run_epoch().curve == first.t.run_epoch().curve);
    CHECK(second.t.store_state().tensors == first.t.store_state().tensors);
    CHECK(second.t.store_state().numbers == first.t.store_state().numbers);
    world fresh{o, m};
    second.t.load_state(fresh.t.store_state());  // from before the first step: no momentum
    CHECK(second.t.store_state().tensors == fresh.t.store_state().tensors);
  }
}

TEST_CASE("the state of a model of several phases has each one's steps and scale, and is no other model's") {
  world w{adamw(0.01), small_gan(8)}, other{adamw(0.01)};
  for (int i = 0; i < 4; ++i) (void)w.t.run_batch();
  comp::stored_state stored = w.t.store_state();
  CHECK(stored.numbers.at("step of make") == 4);
  CHECK(stored.numbers.at("step of judge") == 4);
  CHECK(stored.numbers.at("loss scale of judge") == 2 * 65536);
  CHECK(stored.numbers.at("dropouts") == 4);  // noise is drawn, too
  CHECK(refused(other.t, stored).find("\"step\" is -1") != std::string::npos);
  for (double next = 1; auto& [name, number] : stored.numbers) number = next++;  // each comes back as itself
  w.t.load_state(stored);
  CHECK(w.t.store_state().numbers == stored.numbers);
}

TEST_CASE("a state that is not of this trainer is refused with what differs") {
  world w{sgd(0.05, 0.9)};
  (void)w.t.run_batch();
  const comp::stored_state good = w.t.store_state();
  const auto changed = [&](auto change) {
    comp::stored_state bad = good;
    change(bad);
    return refused(w.t, bad);
  };
  const auto has = [](const std::string& message, const char* part) { return message.find(part) != std::string::npos; };
  CHECK(has(changed([](auto& s) { s.tensors.erase(s.tensors.begin()); }), "no stored tensor \"conv.weight\""));
  CHECK(has(changed([](auto& s) { s.tensors[0].shape = {1}; }), "\"conv.weight\" has shape"));
  CHECK(has(changed([](auto& s) { s.tensors[0].values.pop_back(); }), "and 53 values"));
  CHECK(has(changed([](auto& s) { s.tensors.push_back({"more", {1}, {0}}); }), "it is another model's"));
  CHECK(has(changed([](auto& s) { s.tensors.back().values.clear(); }), "and 0 values"));
  CHECK(has(changed([](auto& s) { s.numbers.erase("step"); }), "\"step\" is -1"));
  CHECK(has(changed([](auto& s) { s.numbers["dropouts"] = 0.5; }), "\"dropouts\" is 0.5"));
  CHECK(has(changed([](auto& s) { s.numbers["step"] = 1e300; }), "\"step\" is 1e+300"));
  CHECK(has(changed([](auto& s) { s.tensors[0].values[0] += 1, s.numbers["batch"] = 1000; }), "it is past the end"));
  CHECK(has(changed([](auto& s) { s.tensors[0].values[0] += 1, s.numbers["loss scale"] = -1; }), "scale -1"));
  CHECK(has(changed([](auto& s) { s.numbers.erase("loss scale"); }), "scale 0"));
  CHECK(has(changed([](auto& s) { s.numbers["batch"] = 2, s.tensors.clear(); }), "no stored tensor"));
  CHECK(w.t.store_state().tensors == good.tensors);
  CHECK(w.t.store_state().numbers == good.numbers);
}
