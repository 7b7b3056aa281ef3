// SPDX-License-Identifier: Apache-2.0
// expect: a Backend needs: const comp::op_graph& graph()
#include "whole.hpp"

struct faulty : whole::backend {
  void graph() = delete;
};
static_assert(comp::expect_backend<faulty>());
