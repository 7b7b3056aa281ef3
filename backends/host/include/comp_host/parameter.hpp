// SPDX-License-Identifier: Apache-2.0
// Parameters: the FP32 master values with gradient and optimizer slots, all in one layout, and copies for primitives.
// The layout is the one in which the primitive of the weight gradient writes, so that an optimizer's step is one pass
// over equal layouts.
// A copy has a low precision, or the packing that a forward or a backward reads. It is made when it is first needed,
// and again only after the values have changed. A copy that was not used between two changes is dropped, so that plans
// that are no longer tried take no memory.
#pragma once

#include <comp/core/error.hpp>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "context.hpp"
#include "convert.hpp"
#include "transfer.hpp"

namespace comp::host {

class parameter {
 public:
  parameter(shape s, tensor v, bool trains) : extents{std::move(s)}, trainable{trains}, value{std::move(v)} {}
  parameter(const parameter&) = delete;
  parameter& operator=(const parameter&) = delete;
  parameter(parameter&&) noexcept = default;
  parameter& operator=(parameter&&) noexcept = default;

  /// A copy of the values for one primitive.
  struct copy {
    const layout* places;
    comp::precision as;  // the precision that the values were rounded to
    tensor values;
    bool current = true, used = true;  // whether it has the newest values; whether it was used since they changed
    int steps = 0;                     // how many steps in a row before this one used it
  };

  shape extents;
  bool trainable = true;
  bool fresh = true;                      // true: there is no gradient yet, and the next one overwrites
  tensor value, gradient, first, second;  // `first` and `second` are SGD's velocity or Adam's two moments
  native::moment_formats kept = {};       // how the next step keeps them
  std::vector<copy> copies;

  std::size_t stored() const { return value.layout()->stored; }
  /// Must be called whenever the values have changed.
  void changed() {
    std::erase_if(copies, [](const copy& c) { return !c.used; });
    for (copy& c : copies) c.current = c.used = false, ++c.steps;
  }
};

/// The saved state of a parameter. It keeps the layout that the parameter had, so that no bit changes when it is
/// restored.
struct parameter_state {
  tensor value, first, second;
};

/// Returns the FP32 tensor `from` in the layout `places`. Its extents may differ if the elements are the same in
/// row-major order.
inline tensor relaid(context& c, const tensor& from, const layout* places) {
  if (from.layout() == places) return from;
  if (from.layout()->extents == places->extents) return placed(c, from, places);
  return placed(c, reshape(c, from, places->extents), places);
}

inline parameter make_parameter(context& c, std::span<const float> from, const shape& extents, bool trainable) {
  return {extents, upload(c, from, extents, precision::fp32), trainable};
}

/// Moves the master values and the slots to the layout `places`, unless there is a gradient already that more must be
/// added to.
inline void settle(context& c, parameter& p, const layout* places) {
  if (p.value.layout() == places || !p.fresh) return;
  p.gradient = {};
  for (tensor* t : {&p.value, &p.first, &p.second}) {
    if (*t) *t = relaid(c, *t, c.layouts.with(places, t->precision()));
  }
}

/// Returns: the length of the rows if the copy `of` is `p` in BF16 with each two rows interleaved; else 0.
inline std::size_t paired_rows(context& c, const parameter& p, const parameter::copy& of) {
  return of.as == precision::bf16 && c.computes(of.as) ? c.layouts.paired_rows(p.value.layout(), of.places) : 0;
}
/// Writes the newest values of `p` to a copy.
inline void refresh(context& c, parameter& p, parameter::copy& to) {
  const bool one_step = p.value.layout()->extents == to.places->extents;
  if (const std::size_t length = paired_rows(c, p, to)) {
    c.run_kernel([&] { convert_paired(p.value.as<float>(), to.values.data(), p.stored(), length); });
  } else if (one_step) {
    reorder_into(c, p.value, to.values);
  } else {
    reorder_into(c, reshape(c, p.value, to.places->extents), to.values);
  }
  if (!c.computes(to.as)) c.run_kernel([&] { round_all(to.values.as<float>(), to.as, to.places->stored); });
  to.current = true;
}
/// Returns the values of `p` rounded to precision `as`, in the layout of a primitive's argument.
inline void* weights(context& c, parameter& p, const layout* places, precision as) {
  if (places == p.value.layout() && as == precision::fp32) return p.value.data();
  const auto found =
      std::ranges::find_if(p.copies, [&](const auto& known) { return known.places == places && known.as == as; });
  if (found == p.copies.end()) {
    p.copies.push_back({places, as, c.make(places)});
    refresh(c, p, p.copies.back());
    return p.copies.back().values.data();
  }
  if (!found->current) refresh(c, p, *found);
  found->used = true;
  return found->values.data();
}
/// Updates the values; update(from, to) updates those of a range, as a loop. A copy with interleaved rows that this
/// step and the one before used is written in the same pass, since the next step will need it. If steps under different
/// plans take turns no copy is, because the next step will need another one.
void update_values(context& c, parameter& p, const auto& update) {
  const auto along = std::ranges::find_if(
      p.copies, [&](const auto& known) { return known.used && known.steps > 0 && paired_rows(c, p, known) > 0; });
  if (along == p.copies.end()) {
    launch(p.stored(), update);
    return p.changed();
  }
  const std::size_t length = paired_rows(c, p, *along);
  detail::launch_paired(p.stored(), p.value.as<float>(), along->values.data(), length, update);
  const layout* places = along->places;
  p.changed();
  for (auto& known : p.copies) known.current = known.places == places && known.as == precision::bf16;
}
/// Returns the values in FP32, row-major.
inline float* plain_values(context& c, parameter& p) {
  return static_cast<float*>(
      weights(c, p, c.layouts.plain(p.value.layout()->extents, precision::fp32), precision::fp32));
}

/// Returns the tensor in layout `places` to which the next gradient of `p` is to be written, and which is then given to
/// add_gradient. For the first gradient of a step that is the gradient itself, which saves an addition.
inline tensor gradient_target(context& c, parameter& p, const layout* places) {
  if (!p.fresh || !p.trainable) return c.make(places);
  settle(c, p, places);
  if (!p.gradient) p.gradient = c.make(places);
  return p.gradient;
}
inline void add_gradient(context& c, parameter& p, const tensor& gradient) {
  if (!p.trainable) return;
  if (std::exchange(p.fresh, false)) return;  // the first gradient was written to its place
  const tensor same = relaid(c, gradient, p.gradient.layout());
  const auto* from = same.as<float>();
  auto* to = p.gradient.as<float>();
  c.run_kernel([&] {
    launch(p.stored(), [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) to[i] += from[i];
    });
  });
}

inline std::vector<float> values(context& c, const parameter& p) { return download(c, p.value); }
/// Returns the gradient, row-major; zeros if there was no backward since the last zero_gradient.
inline std::vector<float> gradient(context& c, const parameter& p) {
  if (p.fresh) return std::vector<float>(static_cast<std::size_t>(elements(p.extents)));
  return download(c, p.gradient);
}
inline void set_values(context& c, parameter& p, std::span<const float> from) {
  tensor plain = upload(c, from, p.value.layout()->extents, precision::fp32);
  p.value = placed(c, plain, p.value.layout());
  p.changed();
}

inline native::parameter_slots slots(context& c, const parameter& p) {
  return {download(c, p.first), download(c, p.second)};
}
inline void set_slots(context& c, parameter& p, const native::parameter_slots& from) {
  const auto slot = [&](const std::vector<float>& values) {
    return values.empty() ? tensor{} : relaid(c, upload(c, values, p.extents, precision::fp32), p.value.layout());
  };
  p.first = slot(from.first);
  p.second = slot(from.second);
}

namespace detail {
inline tensor duplicate(context& c, const tensor& t) {
  if (!t) return {};
  tensor out = c.make(t.shape(), t.layout());
  std::memcpy(out.data(), t.data(), t.layout()->bytes);
  return out;
}
}  // namespace detail

inline parameter_state snapshot(context& c, const parameter& p) {
  return {detail::duplicate(c, p.value), detail::duplicate(c, p.first), detail::duplicate(c, p.second)};
}
/// Puts a state back.
/// Throws: error, with both sizes, for the state of another parameter.
inline void restore(context& c, parameter& p, const parameter_state& s) {
  require<error>(
      s.value && elements(s.value.shape()) == elements(p.extents),
      "a state of shape {} restored into a parameter of {} (they must agree): restore what this parameter saved",
      text(s.value.shape()), text(p.extents));
  if (p.gradient && p.gradient.layout() != s.value.layout()) p.gradient = {}, p.fresh = true;
  p.value = detail::duplicate(c, s.value);
  p.first = detail::duplicate(c, s.first);
  p.second = detail::duplicate(c, s.second);
  p.changed();
}

/// Runs the primitive of a linear layer or a convolution on `in`, with weights in precision `as`. Returns: its result.
inline tensor run_forward(context& c, primitive& run, const tensor& in, parameter& w, parameter* b, precision as) {
  const tensor y = c.make(run.places(DNNL_ARG_DST));
  void* packed = weights(c, w, run.places(DNNL_ARG_WEIGHTS), as);
  if (b) {
    c.run(run, {{DNNL_ARG_SRC, in.data()},
                {DNNL_ARG_WEIGHTS, packed},
                {DNNL_ARG_BIAS, plain_values(c, *b)},
                {DNNL_ARG_DST, y.data()}});
  } else {
    c.run(run, {{DNNL_ARG_SRC, in.data()}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, y.data()}});
  }
  return y;
}
/// The same of the gradient of what it read. Returns: that gradient.
inline tensor run_data_gradient(context& c, primitive& run, const tensor& dy, parameter& w, precision as) {
  const tensor dx = c.make(run.places(DNNL_ARG_DIFF_SRC));
  void* packed = weights(c, w, run.places(DNNL_ARG_WEIGHTS), as);
  c.run(run, {{DNNL_ARG_DIFF_SRC, dx.data()}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DIFF_DST, dy.data()}});
  return dx;
}
/// Runs the primitive of a linear layer's or a convolution's weight gradients, and adds the gradients of `w` and, if it
/// is not null, of `b`.
inline void run_weight_gradients(context& c, primitive& run, const tensor& x, const tensor& dy, parameter& w,
                                 parameter* b) {
  const tensor dw = gradient_target(c, w, run.places(DNNL_ARG_DIFF_WEIGHTS));
  if (!b) {
    c.run(run, {{DNNL_ARG_SRC, x.data()}, {DNNL_ARG_DIFF_WEIGHTS, dw.data()}, {DNNL_ARG_DIFF_DST, dy.data()}});
    return add_gradient(c, w, dw);
  }
  const tensor db = gradient_target(c, *b, run.places(DNNL_ARG_DIFF_BIAS));
  c.run(run, {{DNNL_ARG_SRC, x.data()},
              {DNNL_ARG_DIFF_WEIGHTS, dw.data()},
              {DNNL_ARG_DIFF_BIAS, db.data()},
              {DNNL_ARG_DIFF_DST, dy.data()}});
  add_gradient(c, w, dw);
  add_gradient(c, *b, db);
}

}  // namespace comp::host
