// SPDX-License-Identifier: Apache-2.0
// expect: Gradients need: double norm()
#include <comp/scaling/grad_scaler.hpp>

struct faulty {
  bool unscale(double factor);
  void multiply(double factor);
  std::vector<std::string> not_finite();
};
static_assert(comp::scaling::expect_gradients<faulty>());
