// SPDX-License-Identifier: Apache-2.0
// expect: a Backend needs: comp::sample run_batch()
#include <comp/comp.hpp>

#include "whole.hpp"

struct faulty : whole::backend {
  void run_batch() = delete;
};
int main() {
  faulty trainer;
  (void)comp::check(trainer);
}
