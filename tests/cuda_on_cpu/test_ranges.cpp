// SPDX-License-Identifier: Apache-2.0
// What a profiler sees of a step: its phases, and in them each operator by name. Nothing unless it is asked for.
#include <comp_cuda/comp_cuda.hpp>
#include <comp_native/model_builder.hpp>
#include <comp_native/trainer.hpp>

#include "../native/support.hpp"
#include "fresh.hpp"

namespace comp::cuda::test {
namespace {

using namespace native::testing;

native::trainer<cuda::device> trainer_on(cuda::device& device) {
  native::model_builder net{"small", native::input_kind::values, {2, 6}};
  net.input().linear("hidden", 8).relu("relu").linear("head", 2).mse_loss("loss");
  return {device, net.finish(), regression_data{4}, regression_data{2}, {.optimizer = native::sgd(0.1)}};
}
/// "a(b()c())", since the last time.
std::string new_ranges() {
  std::string all;
  for (const std::string& one : std::exchange(simt::ranges, {})) all += one == "/" ? ")" : one + "(";
  return all;
}

}  // namespace

TEST_CASE_FIXTURE(fresh_for_training, "a step's phases and operators are ranges by name, where they are asked for") {
  cuda::device device{{.measure_algorithms = false, .ranges = true}};
  auto t = trainer_on(device);
  (void)new_ranges();
  (void)t.run_batch();
  CHECK(new_ranges() == "forward(hidden()relu()head()loss())backward(loss()head()relu()hidden())update()");
  (void)t.validate();
  CHECK(new_ranges() == "evaluation(hidden()relu()head()loss())");
  CHECK(simt::open_ranges == 0);
}

TEST_CASE_FIXTURE(fresh_for_training, "a step that fails leaves no range open") {
  cuda::device device{{.measure_algorithms = false, .ranges = true}};
  auto t = trainer_on(device);
  (void)t.run_batch();
  simt::device.fail_launch = 1;
  (void)new_ranges();
  CHECK_THROWS_AS((void)t.run_batch(), error);
  CHECK_FALSE(new_ranges().empty());
  CHECK(simt::open_ranges == 0);
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "nothing is told to a profiler unless it is asked for, and the numbers are the same") {
  cuda::device quiet{{.measure_algorithms = false}}, telling{{.measure_algorithms = false, .ranges = true}};
  auto without = trainer_on(quiet), with = trainer_on(telling);
  (void)new_ranges();
  const double loss = without.run_epoch().loss;
  CHECK(new_ranges().empty());
  CHECK(with.run_epoch().loss == loss);
  CHECK_FALSE(new_ranges().empty());
}

}  // namespace comp::cuda::test
