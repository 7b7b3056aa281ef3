// SPDX-License-Identifier: Apache-2.0
// What a training leaves, for tests of captured steps beside plain ones.
#pragma once

#include <comp_native/trainer.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace comp::cuda::test {

template <class D>
std::vector<std::vector<float>> values(D& device, native::trainer<D>& t) {
  std::vector<std::vector<float>> all;
  for (const auto& p : t.network().parameters()) all.push_back(device.values(p));
  return all;
}
/// What a training leaves: everything that has to be the same.
struct course {
  std::vector<std::vector<double>> curves;
  std::vector<std::string> messages;
  std::vector<std::vector<float>> values;
  comp::scaling::state scale;
  std::uint64_t draws = 0;
  std::int64_t steps = 0;
  double score = 0;
  friend bool operator==(const course&, const course&) = default;
};
/// `plans` one after the other, two epochs each, a validation between them and a batch in the end.
template <class D>
course trained(D& device, native::trainer<D>& t, const std::vector<plan>& plans) {
  course got;
  const auto note = [&](const sample& s) {
    got.curves.push_back(s.curve);
    got.messages.push_back(s.message);
  };
  for (const plan& p : plans) {
    t.set_precision(p);
    note(t.run_epoch());
    got.score += t.validate();
    note(t.run_epoch());
  }
  note(t.run_batch());
  const auto state = t.save();
  got.values = values(device, t);
  got.scale = state.updates[0].scale;
  got.draws = state.draws;
  got.steps = state.updates[0].taken;
  return got;
}

}  // namespace comp::cuda::test
