// SPDX-License-Identifier: Apache-2.0
// Convolution by cuDNN. In BF16, FP16 and TF32 the tensors are channels_last, which tensor cores read fastest, and a
// pass is a graph of cuDNN (convolution_graphs.hpp) or, if there is none, a call (convolution_passes.hpp). Shapes that
// cuDNN only computes row-major are row-major. In FP32 they are row-major, there are only calls, and no operand is
// rounded. FP8 is stored and computed as BF16.
// cuDNN sums a gradient of low weights in FP32, rounds it once to the low precision, and this header adds it to the
// FP32 gradient.
// If a graph with the bias is as fast as one without, it adds the bias in FP32 before the result is rounded. With
// settings::fuse_relu it is pending work with an epilogue (epilogue.hpp): it also computes the ReLU that reads its
// result. Else the bias is added in FP32 to the rounded product. In channels_last this is pending work, too: if a ReLU
// reads the result, one pass adds the bias and applies the ReLU, which keeps NaN.
#pragma once

#include <comp_native/op/conv2d.hpp>
#include <memory>
#include <utility>

#include "convolution_graphs.hpp"
#include "convolution_passes.hpp"
#include "pending_product.hpp"

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

/// If the convolution may be graphs, brings its weights into their order. Returns: whether it may be.
inline bool settled_for_graphs(context& c, const convolution& of, parameter& w) {
  if (of.exact() || of.places() != order::channels_last || !c.chosen().graph_convolutions) return false;
  settle_weights(c, w, order::channels_last);
  return true;
}

/// Returns: the convolution by a graph, which may be pending; empty if cuDNN has none. Its bias is in the graph if that
/// takes no longer than the graph without.
inline tensor convolved_by_graph(context& c, const convolution& of, const tensor& x, parameter& w, parameter* b,
                                 const shape& to) {
  if (!settled_for_graphs(c, of, w)) return {};
  const precision p = x.precision();
  const tensor in = in_order(c, x, order::channels_last), kernel = weight_tensor(c, w, p),
               bias = b ? b->value : tensor{};
  const convolution_case bare = of.case_of(conv_pass::forward), whole = of.case_of(conv_pass::forward, b != nullptr);
  convolution_places at{in.materialize(), kernel.materialize(), bias.materialize_as<float>()};
  auto& plans = c.part<convolution_plans>();
  if (!plans.as_fast(c, whole, bare, at)) {
    if (!plans.has(c, bare, at)) return {};
    tensor y = c.make(to, p, order::channels_last);
    at.to = y.materialize();
    (void)plans.run(c, bare, at);
    return b ? with_channel_bias(c, of, std::move(y), *b) : y;
  }
  const auto give = [=, count = elements(to)](context& on, void* y, bool relu) {
    auto& known = on.part<convolution_plans>();
    const convolution_places all{in.materialize(), kernel.materialize(), bias.materialize_as<float>(), y};
    convolution_case with_relu = whole;
    with_relu.relu = relu;
    if (known.run(on, with_relu, all) || !relu) return;
    (void)known.run(on, whole, all);
    with_storage(p, [&]<class T>(std::type_identity<T>) {
      const chain_step<T> step{.kind = step_kind::relu};
      run_chain<T>(on.stream().get(), static_cast<T*>(y), static_cast<T*>(y), count, {&step, 1});
    });
  };
  return product(c, to, p, give, order::channels_last);
}

/// Returns: false if cuDNN has no graph for the gradient of the weights.
inline bool weight_gradient_by_graph(context& c, const convolution& of, const tensor& dy, const tensor& x,
                                     parameter& w) {
  if (!settled_for_graphs(c, of, w)) return false;
  const tensor in = in_order(c, x, order::channels_last);
  convolution_places at{in.materialize(), dy.materialize()};
  auto& plans = c.part<convolution_plans>();
  const convolution_case pass = of.case_of(conv_pass::weights);
  if (!plans.has(c, pass, at)) return false;
  const bool direct = w.fresh && storage_of(dy.precision()) == storage::fp32;  // a graph overwrites its result
  const tensor apart = direct ? tensor{} : c.make(w.extents, dy.precision(), order::channels_last);
  at.to = direct ? gradient_of(c, w).at : apart.materialize();
  (void)plans.run(c, pass, at);
  if (!direct) add_to(c, gradient_of(c, w), apart);
  return true;
}

/// Requires: dy has the order of the convolution. Returns: the gradient of x; empty if cuDNN has no graph for it.
inline tensor data_gradient_by_graph(context& c, const convolution& of, const tensor& dy, const shape& x,
                                     parameter& w) {
  if (!settled_for_graphs(c, of, w)) return {};
  convolution_places at{weights(c, w, dy.precision()), dy.materialize()};
  auto& plans = c.part<convolution_plans>();
  const convolution_case pass = of.case_of(conv_pass::data);
  if (!plans.has(c, pass, at)) return {};
  const tensor dx = c.make(x, dy.precision(), order::channels_last);
  at.to = dx.materialize();
  (void)plans.run(c, pass, at);
  return dx;
}

inline void weight_gradient(context& c, convolution& of, tensor& dy, const tensor& x, parameter& w) {
  if (weight_gradient_by_graph(c, of, dy, x, w)) return;
  const bool fresh = w.fresh;
  of.run("the gradient of weights", c.workspace_limit(), [&] {
    w.fresh = fresh;  // as before the first try, if cuDNN refused that
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
/// Throws: unsupported if cuDNN has no deterministic algorithm within the context's workspace limit.
inline tensor conv2d(context& c, const tensor& x, parameter& w, parameter* b, const conv2d_options& o) {
  const shape to = detail::convolved(x.shape(), w, b, o);
  convolution& of = c.part<convolutions>().of(x.shape(), w.extents, to, o, x.precision());
  tensor y = detail::convolved_by_graph(c, of, x, w, b, to);
  if (y) return y;
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
  g = in_order(c, g, of.places());
  tensor dx = detail::data_gradient_by_graph(c, of, g, x.shape(), w);
  if (dx) return dx;
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
