// SPDX-License-Identifier: Apache-2.0
// Trainings on a GPU beside the same on this CPU, in FP32.
#include <doctest/doctest.h>

#include <cmath>
#include <comp_cuda/device.hpp>
#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>

#include "../native/support.hpp"

namespace comp::cuda::test {
namespace {

using namespace native::testing;

template <class D>
std::vector<double> losses(D& d, const native::model& m, const native::data_source& data, const native::optimizer& o) {
  native::trainer<D> t{d, m, data, data, {.optimizer = o}};
  std::vector<double> all;
  for (int i = 0; i < 12; ++i) all.push_back(t.run_batch().loss);
  return all;
}
void check_alike(const native::model& m, const native::data_source& data, const native::optimizer& o) {
  CAPTURE(m.name);
  device here{{.measure_algorithms = false}};
  host::device there{{.threads = 1}};
  const auto got = losses(here, m, data, o), want = losses(there, m, data, o);
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    // Sums in another order, and functions whose last digit differs: 16 roundings of a loss for each step so far.
    CHECK(std::abs(got[i] - want[i]) <= 16 * 0x1p-24 * static_cast<double>(i + 1) * std::abs(want[i]));
  }
  CHECK(want.back() < want.front());
}

}  // namespace

TEST_CASE("in FP32 LeNet-5 and the transformer have the host's losses, step by step") {
  check_alike(native_models::lenet5({.batch = 16, .classes = 4}), bars({1, 28, 28}, 4, 64, 1), native::sgd(0.02, 0.9));
  check_alike(native_models::gpt({.batch = 8, .vocabulary = 11, .context = 16, .layers = 2, .width = 32, .heads = 2}),
              counting_tokens(11, 600, 16), native::adamw(1e-3));
}

}  // namespace comp::cuda::test
