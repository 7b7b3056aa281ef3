// SPDX-License-Identifier: Apache-2.0
// expect: the trainer is given by a pointer (a trainer itself is needed): write *trainer
#include <comp/comp.hpp>
#include <memory>

#include "whole.hpp"

int main() {
  const auto trainer = std::make_unique<whole::backend>();
  (void)comp::check(trainer);
}
