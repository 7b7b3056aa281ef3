// SPDX-License-Identifier: Apache-2.0
// A training's state outside its process: tensors by name and numbers, as any program can read them.
// Not here: the file (files/training_file.hpp).
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace comp {

struct named_tensor {
  std::string name = {};
  std::vector<std::int64_t> shape = {};
  std::vector<float> values = {};  // row-major
  friend bool operator==(const named_tensor&, const named_tensor&) = default;
};

struct stored_state {
  std::vector<named_tensor> tensors = {};
  std::map<std::string, double> numbers = {};  // steps, positions, counters of random generators, loss scales
};

/// A trainer whose state can be kept in a file. load_state(store_state()) changes nothing, also in another process: the
/// losses that follow are the same. load_state throws `comp::error` for a state that is not of such a trainer.
template <class T>
concept StoresState = requires(T& t, const stored_state& s) {
  { t.store_state() } -> std::same_as<stored_state>;
  t.load_state(s);
};

}  // namespace comp
