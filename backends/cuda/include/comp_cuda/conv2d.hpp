// SPDX-License-Identifier: Apache-2.0
// Convolution by cuDNN. In BF16, FP16 and TF32 the tensors are channels_last, which tensor cores read fastest, or
// row-major for a shape that cuDNN only has so. In FP32 they are row-major and no operand is rounded. FP8 is stored and
// computed as BF16.
// cuDNN sums a gradient of low weights in FP32, rounds it once to the low precision, and this header adds it to the
// FP32 gradient.
// The bias is added in FP32 to the rounded product. In channels_last this is pending work with an epilogue
// (epilogue.hpp): where a ReLU asks for the result, one pass adds the bias and applies the ReLU, which keeps NaN.
#pragma once

#include <comp_native/op/conv2d.hpp>
#include <memory>
#include <utility>

#include "convolution_passes.hpp"
#include "epilogue.hpp"

namespace comp::cuda {

namespace detail {

inline shape convolved(const shape& x, const parameter& w, const parameter* b, const conv2d_options& o) {
  return native::convolved(x, w.extents, b ? &b->extents : nullptr, o);
}

/// Brings the weights, and their gradient, into the order `places`. A gradient that the next backward overwrites is
/// dropped instead.
inline void settle_weights(context& c, parameter& w, order places) {
  if (w.fresh && w.value.order() != places) w.gradient = {};
  settle(c, w, places);
}
inline std::int64_t bytes_in(const tensor& t) { return t.size() * cuda::bytes_of(storage_of(t.precision())); }

/// The pending addition of a bias to a convolution's result, which is channels_last.
class pending_channel_bias final : public work_with_epilogue {
 public:
  /// Requires: nobody else holds y, since the bias may be added in place.
  pending_channel_bias(tensor y, const parameter& b) : y_{std::move(y)}, bias_{b.value} {}

  bool makes(const pending_step& s) const override { return s.kind == step_kind::relu; }
  void write(memory& into, const pending_step* then) const override {
    lifeline& life = into.life();
    check(cudaSetDevice(life.card.device), "choosing a GPU");
    with_storage(y_.precision(), [&]<class T>(std::type_identity<T>) {
      T *from = y_.materialize_as<T>(), *to = then ? static_cast<T*>(into.take_place()) : from;
      add_bias(life.stream.get(), from, bias_.materialize_as<float>(), to, y_.size() / bias_.size(), bias_.size(),
               then != nullptr);
    });
    if (!then) into.take_place_of(*y_.held());
  }

 private:
  tensor y_, bias_;
};

/// Returns: y with the bias added. Requires: nobody but the caller holds y.
inline tensor with_channel_bias(context& c, const convolution& of, tensor y, parameter& b) {
  if (y.order() == order::row_major) {
    const void* values = weights(c, b, y.precision());
    check(
        cudnnAddTensor(c.part<dnn>().handle(), &dnn_one, of.bias.get(), values, &dnn_one, of.y.get(), y.materialize()),
        "adding a convolution's bias");
    return y;
  }
  const shape extents = y.shape();
  const precision p = y.precision();
  const order places = y.order();
  const std::int64_t bytes = bytes_in(y);
  const tensor biased{extents, p, places, c.promise(bytes, std::make_unique<pending_channel_bias>(std::move(y), b))};
  if (!c.chosen().fuse) (void)biased.materialize();
  return biased;
}
/// Requires: dy has the order of the convolution.
inline void channel_bias_gradient(context& c, const convolution& of, const tensor& dy, parameter& b) {
  const gradient_place to = gradient_of(c, b);
  if (dy.order() == order::channels_last || storage_of(dy.precision()) != storage::fp32)
    return channel_sums(c, in_order(c, dy, order::channels_last), to);
  check(cudnnConvolutionBackwardBias(c.part<dnn>().handle(), &dnn_one, of.y.get(), dy.materialize(),
                                     to.adds ? &dnn_one : &dnn_zero, of.bias.get(), to.at),
        "the gradient of a convolution's bias");
}

inline void weight_gradient(context& c, convolution& of, tensor& dy, const tensor& x, parameter& w) {
  const bool fresh = w.fresh;
  of.run("the gradient of weights", c.workspace_limit(), [&] {
    w.fresh = fresh;  // as before the first try, where cuDNN refused that
    settle_weights(c, w, of.places());
    dy = in_order(c, dy, of.places());
    const tensor in = in_order(c, x, of.places());
    pass_runner<conv_pass::weights> run{c, of};
    if (storage_of(dy.precision()) == storage::fp32) {
      const gradient_place to = gradient_of(c, w);
      return run({in.materialize(), dy.materialize(), to.at, elements(w.extents) * 4, to.adds});
    }
    const tensor low = c.make(w.extents, dy.precision(), of.places());
    const cudnnStatus_t s = run({in.materialize(), dy.materialize(), low.materialize(), bytes_in(low)});
    if (s == CUDNN_STATUS_SUCCESS) add_to(c, gradient_of(c, w), low);
    return s;
  });
}

}  // namespace detail

/// x is (B,C,H,W), w is (O,C/groups,R,S), b is (O) or null. Returns: (B,O,H',W').
/// Throws: unsupported where cuDNN has no deterministic algorithm within the context's workspace limit.
inline tensor conv2d(context& c, const tensor& x, parameter& w, parameter* b, const conv2d_options& o) {
  const shape to = detail::convolved(x.shape(), w, b, o);
  convolution& of = c.part<convolutions>().of(x.shape(), w.extents, to, o, x.precision());
  tensor y;
  of.run("conv2d", c.workspace_limit(), [&] {
    detail::settle_weights(c, w, of.places());
    const tensor in = in_order(c, x, of.places());
    y = c.make(to, x.precision(), of.places());
    const void* kernel = weights(c, w, x.precision());
    return pass_runner<conv_pass::forward>{c, of}({in.materialize(), kernel, y.materialize(), detail::bytes_in(y)});
  });
  return b ? detail::with_channel_bias(c, of, std::move(y), *b) : y;
}

/// Adds the gradients of w and b. Returns: the gradient of x in the precision of dy; empty unless `need_dx`.
inline tensor conv2d_backward(context& c, const tensor& dy, const tensor& x, parameter& w, parameter* b,
                              const conv2d_options& o, bool need_dx) {
  const shape from = detail::convolved(x.shape(), w, b, o);
  require_same("conv2d_backward", dy.shape(), from);
  convolution& of = c.part<convolutions>().of(x.shape(), w.extents, from, o, dy.precision());
  tensor g = in_order(c, dy, of.places());
  if (w.trainable) detail::weight_gradient(c, of, g, cast(c, x, dy.precision()), w);
  if (b && b->trainable) detail::channel_bias_gradient(c, of, g, *b);
  if (!need_dx) return {};
  tensor dx;
  of.run("the gradient of x", c.workspace_limit(), [&] {
    detail::settle_weights(c, w, of.places());
    g = in_order(c, g, of.places());
    dx = c.make(x.shape(), dy.precision(), of.places());
    const void* kernel = weights(c, w, dy.precision());
    return pass_runner<conv_pass::data>{c, of}({kernel, g.materialize(), dx.materialize(), detail::bytes_in(dx)});
  });
  return dx;
}

}  // namespace comp::cuda
