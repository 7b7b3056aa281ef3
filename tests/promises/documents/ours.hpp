// SPDX-License-Identifier: Apache-2.0
// What the documents' programs have around them.
#pragma once
#include <comp/comp.hpp>

#include "whole.hpp"

struct my_trainer : whole::capable_backend {
  comp::stored_state store_state() { return {}; }
  void load_state(const comp::stored_state&) {}
};
inline my_trainer trainer;
inline const comp::op_graph graph;
inline const comp::outcome best;
inline comp::two_stage search{comp::policy::pytorch{}};

struct batch {};
inline const std::vector<batch> data;
inline struct {
  void set_precision(const comp::plan&) {}
  double train(const batch&) { return 0; }
} model;
