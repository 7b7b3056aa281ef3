// SPDX-License-Identifier: Apache-2.0
// A model and a data set of your own on the native trainer. docs/how-to/native.md goes through it line by line.
#include <comp/comp.hpp>
#include <comp_host/device.hpp>
#include <comp_native/model_builder.hpp>
#include <comp_native/trainer.hpp>

namespace native = comp::native;

struct rings {  // models native::Dataset: points of the plane, inside of a ring or not
  std::size_t count;
  std::size_t size() const { return count; }
  native::example_layout layout() const { return {.input_shape = {2}}; }
  void write(std::size_t i, const native::example_spans& to) const {
    const float angle = static_cast<float>(i), radius = static_cast<float>(i % 100) / 50;
    to.values[0] = radius * std::cos(angle);
    to.values[1] = radius * std::sin(angle);
    to.labels[0] = radius < 1 ? 1 : 0;
  }
  std::string signature() const { return fmt::format("rings of {}", count); }
};

int main() {
  native::model_builder net{"rings", native::input_kind::values, {64, 2}};  // a batch of 64
  net.input().linear("in", 256).relu("relu1").linear("hidden", 256).relu("relu2").linear("out", 2).cross_entropy_loss("loss");
  comp::host::device device;
  native::trainer trainer{device, net.finish(), rings{6400}, rings{640}, {.optimizer = native::adam_options{}}};
  const comp::outcome found = comp::two_stage{comp::policy::pytorch{}}.run(trainer);
  fmt::print("{} is {:.2f}x as fast as FP32\n", found.plan.str(), found.speedup);
  const comp::training_result trained = comp::post_training{.epochs = 5}.run(trainer, found);
  fmt::print("loss {:.4f} after {} epochs\n", trained.epochs.back().loss, trained.epochs.size());
}
