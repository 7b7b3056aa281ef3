// SPDX-License-Identifier: Apache-2.0
// The state of a training in a form that can leave its process: tensors by name, and numbers. Backend::save() may
// return any type, which only the same process can restore; this one can be written to a file and read by any program.
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
  std::map<std::string, double> numbers = {};  // steps, data positions, counters of random generators, loss scales
};

/// A trainer whose state can be kept in a file. After load_state(s) with an s that store_state() returned, here or in
/// another process, training goes on with the same losses. load_state throws `comp::error` for another trainer's state.
template <class T>
concept StoresState = requires(T& t, const stored_state& s) {
  { t.store_state() } -> std::same_as<stored_state>;
  t.load_state(s);
};

}  // namespace comp
