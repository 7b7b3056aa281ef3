// SPDX-License-Identifier: Apache-2.0
// The moments that optimizers keep, as operators of the graph: "optimizer.moment1" and "optimizer.moment2", of a model
// with several phases "optimizer.moment1.PHASE". A plan gives each the format that it is kept in, FP32 or BF16 rounded
// at random; AdamW then keeps 8 or 12 bytes of each weight in place of 16. A search times them, races them and judges
// them by losses as any operator, and takes them only after a long test (op_info::is_state). Rule-based plans keep
// FP32. Use by `training::moments`. It is off unless it is asked for, so that graphs and plan files stay as they were.
#pragma once

#include <comp/core/error.hpp>
#include <comp_native/device.hpp>
#include <comp_native/model.hpp>
#include <comp_native/training.hpp>
#include <cstddef>
#include <utility>
#include <variant>

namespace comp::native {

/// Returns the model, with the moments that its optimizers keep if `training::moments` says so.
/// Throws: `settings_error` if the Device keeps moments in FP32 alone.
template <Device D>
model with_moments(model m, const training& chosen) {
  require<settings_error>(!chosen.moments || KeepsMoments<D>,
                          "moments = true (this device keeps an optimizer's moments in FP32 alone): leave it out");
  m.moments.clear();
  for (std::size_t k = 0; chosen.moments && k < m.phases.size(); ++k) {
    const optimizer& o = optimizer_of(chosen, m.phases[k].name);
    const auto* s = std::get_if<sgd_options>(&o);
    if (s == nullptr || s->momentum != 0) m.moments.push_back({k});
    if (s == nullptr) m.moments.push_back({k, true});
  }
  return m;
}

}  // namespace comp::native
