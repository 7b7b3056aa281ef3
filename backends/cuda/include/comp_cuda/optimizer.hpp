// SPDX-License-Identifier: Apache-2.0
// SGD, Adam and AdamW over all parameters in few launches, and the questions of a loss scaler about gradients. The pass
// that updates a parameter also writes the copy in low precision that the next forward reads. A copy that nothing has
// read since the last step is dropped instead. A parameter that is not trainable, or that has had no gradient since the
// last zero_gradient, does not change.
#pragma once

#include <span>
#include <vector>

#include "parameter.hpp"

namespace comp::cuda {

using native::adam_options;
using native::sgd_options;

namespace detail {

/// Returns: the address of the slot. A new slot is made with zeros.
inline float* slot_of(context& c, const parameter& p, tensor& slot) {
  if (!slot) {
    slot = c.make_like(p.value);
    c.clear(slot.materialize(), slot.size() * static_cast<std::int64_t>(sizeof(float)));
  }
  return slot.materialize_as<float>();
}

/// The parameters to update, by the type of their copy in low precision; those without a copy are in to_bf16.
struct update_jobs {
  std::vector<update_job<bf16>> to_bf16;
  std::vector<update_job<fp16>> to_fp16;
};
/// slots: how many slots the optimizer has for each parameter.
inline update_jobs jobs_of(context& c, std::span<parameter* const> all, int slots) {
  c.finish_reads();
  update_jobs jobs;
  for (parameter* p : all) {
    if (!p->has_gradient()) continue;
    if (!p->low_read || !p->low_current) p->low = {};
    float* first = slots > 0 ? slot_of(c, *p, p->first) : nullptr;
    float* second = slots > 1 ? slot_of(c, *p, p->second) : nullptr;
    float *value = p->value.materialize_as<float>(), *gradient = p->gradient.materialize_as<float>();
    if (p->low && storage_of(p->low.precision()) == storage::fp16) {
      jobs.to_fp16.push_back({value, gradient, first, second, p->low.materialize_as<fp16>(), p->value.size()});
    } else {
      jobs.to_bf16.push_back({value, gradient, first, second, p->low.materialize_as<bf16>(), p->value.size()});
    }
  }
  return jobs;
}
inline void mark_updated(std::span<parameter* const> all) {
  for (parameter* p : all) {
    if (!p->has_gradient()) continue;
    p->changed(true);
    p->low_read = false;
  }
}
inline std::vector<gradient_job> gradients_of(std::span<parameter* const> all) {
  std::vector<gradient_job> jobs;
  for (const parameter* p : all) {
    if (p->has_gradient()) jobs.push_back({p->gradient.materialize_as<float>(), p->gradient.size()});
  }
  return jobs;
}

}  // namespace detail

inline void sgd_step(context& c, std::span<parameter* const> all, const sgd_options& o,
                     const step_control& control = {}) {
  const detail::update_jobs jobs = detail::jobs_of(c, all, o.momentum == 0 ? 0 : 1);
  sgd_step<bf16>(c.stream().get(), jobs.to_bf16, o, control);
  sgd_step<fp16>(c.stream().get(), jobs.to_fp16, o, control);
  detail::mark_updated(all);
}
inline void adam_step(context& c, std::span<parameter* const> all, const adam_options& o, std::int64_t step,
                      const step_control& control = {}) {
  require<error>(step >= 1, "adam_step number {} (steps count from 1): start at 1", step);
  const detail::update_jobs jobs = detail::jobs_of(c, all, 2);
  adam_step<bf16>(c.stream().get(), jobs.to_bf16, o, step, control);
  adam_step<fp16>(c.stream().get(), jobs.to_fp16, o, step, control);
  detail::mark_updated(all);
}

inline std::int64_t count_not_finite(context& c, std::span<parameter* const> all) {
  const auto jobs = detail::gradients_of(all);
  if (jobs.empty()) return 0;
  auto* count = c.scratch_of<unsigned long long>(1);
  c.clear(count, sizeof *count);
  count_not_finite(c.stream().get(), jobs, count);
  return static_cast<std::int64_t>(c.read_one(count));
}
inline double gradient_norm(context& c, std::span<parameter* const> all) {
  const auto jobs = detail::gradients_of(all);
  if (jobs.empty()) return 0;
  const auto ahead = static_cast<std::int64_t>(sizeof(double) / sizeof(float));
  float* scratch = c.scratch_of<float>(ahead + norm_scratch(jobs));
  auto* norm = reinterpret_cast<double*>(scratch);
  gradient_norm(c.stream().get(), jobs, norm, scratch + ahead);
  return c.read_one(norm);
}
inline void scale_gradients(context& c, std::span<parameter* const> all, double factor) {
  scale_gradients(c.stream().get(), detail::gradients_of(all), factor);
}

}  // namespace comp::cuda
