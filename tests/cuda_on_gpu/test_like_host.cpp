// SPDX-License-Identifier: Apache-2.0
// Trainings on a GPU beside the same on this CPU, in FP32.
#include <doctest/doctest.h>

#include <cmath>
#include <comp_cuda/device.hpp>
#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>

#include "../native/graphs.hpp"
#include "../native/support.hpp"

namespace comp::cuda::test {
namespace {

using namespace native::testing;

template <class D>
std::vector<double> losses(D& d, const native::model& m, const native::data_source& data, const native::optimizer& o,
                           int batches) {
  native::trainer<D> t{d, m, data, data, {.optimizer = o}};
  std::vector<double> all;
  for (int i = 0; i < batches; ++i) all.push_back(t.run_batch().loss);
  return all;
}
/// Sums in another order, and functions whose last digit differs: so many roundings of a loss for each batch so far.
void check_alike(const native::model& m, const native::data_source& data, const native::optimizer& o, int batches,
                 int roundings) {
  CAPTURE(m.name);
  device here{{.measure_algorithms = false}};
  host::device there{{.threads = 1}};
  const auto got = losses(here, m, data, o, batches), want = losses(there, m, data, o, batches);
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - want[i]) <= roundings * 0x1p-24 * static_cast<double>(i + 1) * std::abs(want[i]));
  }
  if (batches > 2) CHECK(want.back() < want.front());
}

}  // namespace

TEST_CASE("one step of each model gives the host's losses, before and behind it") {
  const auto check = [](const native::model& m, const native::data_source& data, const native::optimizer& o) {
    check_alike(m, data, o, 2, 1024);  // batch norms and many layers make more of a rounding
  };
  check(native_models::mlp({.batch = 8, .input = {1, 28, 28}, .hidden = {64, 64}}), bars({1, 28, 28}, 4, 16, 1),
        native::sgd(0.01, 0.9));
  check(native_models::lenet5({.batch = 8}), bars({1, 28, 28}, 4, 16, 1), native::sgd(0.01, 0.9));
  check(native_models::alexnet({.batch = 4}), bars({3, 32, 32}, 4, 8, 1), native::sgd(0.01, 0.9));
  check(native_models::vgg16({.batch = 4}), bars({3, 32, 32}, 4, 8, 1), native::sgd(0.01, 0.9));
  check(native_models::gpt({.batch = 4, .vocabulary = 11, .context = 16, .layers = 2, .width = 32, .heads = 2}),
        counting_tokens(11, 200, 16), native::adamw(1e-3));
  const auto graph = community_set();
  for (const bool attends : {false, true})
    check(attends ? small_gat(graph) : small_gcn(graph), graph.train, native::adam(0.01, 5e-4));
}

TEST_CASE("in FP32 LeNet-5 and the transformer have the host's losses, step by step") {
  check_alike(native_models::lenet5({.batch = 16, .classes = 4}), bars({1, 28, 28}, 4, 64, 1), native::sgd(0.02, 0.9),
              12, 16);
  check_alike(native_models::gpt({.batch = 8, .vocabulary = 11, .context = 16, .layers = 2, .width = 32, .heads = 2}),
              counting_tokens(11, 600, 16), native::adamw(1e-3), 12, 16);
}

}  // namespace comp::cuda::test
