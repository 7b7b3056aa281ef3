// SPDX-License-Identifier: Apache-2.0
// The moments that LibTorch's own SGD, Adam and AdamW keep, as operators of the graph: "optimizer.moment1" and
// "optimizer.moment2", with several optimizers "optimizer.moment1.1" for the second one's. A plan gives each the format
// that its tensors are kept in: FP32, or BF16 or FP8 in blocks, rounded at random (core/random_rounding.hpp). They stay
// in the optimizer's own state, so that they are saved, restored and stored with it. A moment in blocks is a tensor of
// bytes there, a row for each block: its 256 codes in E4M3, and the 4 bytes of its scale.
// A step widens a piece of them, has ATen's fused kernel update it, and rounds it: no more than a piece is in FP32.
// If these kernels do not fit (fused_optimizer.hpp), all are widened for the optimizer's own step. The random bits
// follow from the number of the step and the element, so that a training is reproducible and ranks agree. Use by
// setup::moments. Other optimizers, classes derived from these and what is not on a CPU keep FP32.
#pragma once

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <comp/core/op_info.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/random_rounding.hpp>
#include <comp_libtorch/kernels/random_rounding.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <comp_libtorch/train/fused_optimizer.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace comp::libtorch {

/// How an optimizer's moments are kept, and the key of their roundings.
struct moment_formats {
  at::ScalarType first = at::kFloat, second = at::kFloat;
  std::uint64_t key = 0;
  bool low() const { return first != at::kFloat || second != at::kFloat; }
};

namespace detail {

/// Returns: the operator of moment `which`, 0 or 1, of so many parameters' elements.
inline op_info moment_operator(int which, const std::string& suffix, std::int64_t elements) {
  const std::string kind = which == 0 ? "moment1" : "moment2";
  return {.name = "optimizer." + kind + suffix,
          .kind = kind,
          .scopes = {"optimizer"},
          .outputs = {{.shape = {elements}}},
          .bytes = 8 * elements,
          .hands_on_fp32 = true,
          .is_state = true};
}

/// Returns: the number of moments of each parameter that may be operators.
inline int moments_of(torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      if (p.defined() && (!p.is_cpu() || p.scalar_type() != at::kFloat)) return 0;
    }
    if (typeid(optimizer) == typeid(SGD) && static_cast<const SGDOptions&>(group.options()).momentum() == 0) return 0;
  }
  return typeid(optimizer) == typeid(SGD)                                          ? 1
         : typeid(optimizer) == typeid(Adam) || typeid(optimizer) == typeid(AdamW) ? 2
                                                                                   : 0;
}

/// Calls f(parameter, tensor, which, number) with each moment that there is; `which`: 0 or 1; `number`: of the
/// parameter.
void each_moment(torch::optim::Optimizer& optimizer, auto f) {
  using namespace torch::optim;
  std::uint64_t number = 0;
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      const auto at = optimizer.state().find(p.unsafeGetTensorImpl());
      if (at != optimizer.state().end()) {
        const auto visit = [&](at::Tensor& moment, int which) {
          if (moment.defined()) f(p, moment, which, number);
        };
        if (auto* sgd = dynamic_cast<SGDParamState*>(at->second.get())) visit(sgd->momentum_buffer(), 0);
        if (auto* adam = dynamic_cast<AdamParamState*>(at->second.get()))
          visit(adam->exp_avg(), 0), visit(adam->exp_avg_sq(), 1);
        if (auto* adamw = dynamic_cast<AdamWParamState*>(at->second.get()))
          visit(adamw->exp_avg(), 0), visit(adamw->exp_avg_sq(), 1);
      }
      ++number;
    }
  }
}

/// Returns: whether a moment of `p` is in blocks. No tensor of `p`'s own shape has as many rows. After torch's
/// load_state_dict() the bytes may be numbers in FP32.
inline bool in_blocks(const at::Tensor& p, const at::Tensor& moment) {
  return moment.dim() == 2 && moment.size(1) == static_cast<std::int64_t>(bytes_of_block) &&
         moment.size(0) == static_cast<std::int64_t>(blocks_of(static_cast<std::size_t>(p.numel())));
}
/// Returns: whether the elements of a moment of `p`, in whichever format, are in the order of those of `p` in memory.
inline bool is_moment_of(const at::Tensor& p, const at::Tensor& moment) {
  return in_blocks(p, moment) ? moment.is_cpu() && lie_alike(p, p) : lie_alike(p, moment, at::kBFloat16);
}
/// Returns: the format in which a plan that has `wanted` keeps the moments of `p`.
inline at::ScalarType format_for(const at::Tensor& p, at::ScalarType wanted) {
  const bool few = p.numel() < static_cast<std::int64_t>(fewest_values_in_blocks);
  return wanted == at::kFloat8_e4m3fn && (few || !lie_alike(p, p)) ? at::kFloat : wanted;
}
/// Returns: a moment of zeros.
inline at::Tensor new_moment(const at::Tensor& p, at::ScalarType wanted) {
  const at::ScalarType as = format_for(p, wanted);
  if (as != at::kFloat8_e4m3fn) return at::zeros_like(p, p.options().dtype(as).requires_grad(false));
  const auto blocks = static_cast<std::int64_t>(blocks_of(static_cast<std::size_t>(p.numel())));
  return at::zeros({blocks, static_cast<std::int64_t>(bytes_of_block)}, at::kByte);
}

/// The memory of a moment, elements of which are widened to FP32 and rounded.
class low_moment {
 public:
  low_moment(const at::Tensor& whole, std::uint64_t key, int which)
      : data_{whole.mutable_data_ptr()}, blocks_{whole.scalar_type() == at::kByte}, key_{key}, which_{which} {}

  /// Requires: `at` is a multiple of a block's values.
  void widen(std::int64_t at, float* to, std::int64_t n) const {
    blocks_ ? widen_blocks(block(at), to, n) : widen_all(static_cast<std::uint16_t*>(data_) + at, to, n);
  }
  void round(const float* from, std::int64_t at, std::int64_t n) const {
    const unsigned shift = 16U * static_cast<unsigned>(which_);
    blocks_ ? round_blocks_at_random(from, block(at), n, at, key_, shift, which_ == 1)
            : round_at_random(from, static_cast<std::uint16_t*>(data_) + at, n, at, key_, shift);
  }

 private:
  std::uint8_t* block(std::int64_t at) const {
    return static_cast<std::uint8_t*>(data_) + at / std::int64_t{values_of_block} * std::int64_t{bytes_of_block};
  }
  void* data_;
  bool blocks_;
  std::uint64_t key_;
  int which_;
};

/// Returns: a moment of `p` in the format for `wanted`; one in FP64, which no plan keeps otherwise, as it is. Elements
/// are numbered in the order of memory.
inline at::Tensor in_format(const at::Tensor& p, const at::Tensor& from, at::ScalarType wanted, std::uint64_t key,
                            int which) {
  const at::ScalarType as = format_for(p, wanted);
  const bool blocks = in_blocks(p, from);
  if (blocks && from.scalar_type() != at::kByte) return in_format(p, from.to(at::kByte), wanted, key, which);
  if ((blocks ? at::kFloat8_e4m3fn : from.scalar_type()) == as || from.scalar_type() == at::kDouble) return from;
  at::Tensor wide = from;
  if (blocks) {
    wide = at::empty_like(p, p.options().requires_grad(false));
    low_moment{from, key, which}.widen(0, static_cast<float*>(wide.mutable_data_ptr()), wide.numel());
  }
  wide = wide.to(at::kFloat);
  if (as == at::kFloat) return wide;
  if (!lie_alike(p, wide) && lie_alike(p, p)) wide = at::empty_like(p, wide.options()).copy_(wide);
  if (!lie_alike(p, wide)) return wide.to(as);
  const at::Tensor to = new_moment(p, as);
  low_moment{to, key, which}.round(static_cast<const float*>(wide.const_data_ptr()), 0, wide.numel());
  return to;
}

/// A moment of one parameter, whose pieces a kernel updates in FP32.
class piecewise {
 public:
  static constexpr std::int64_t most = 1 << 18;  // elements of a piece

  piecewise(const at::Tensor& whole, std::uint64_t key, int which) : whole_{whole}, key_{key}, which_{which} {
    if (low()) wide_ = at::empty({std::min(whole.numel(), most)}, at::kFloat);
  }
  /// Returns: elements [at, at + n) in FP32.
  at::Tensor begin(std::int64_t at, std::int64_t n, bool reads = true) const {
    if (!low()) return view(whole_, at, n);
    if (reads) low_moment{whole_, key_, which_}.widen(at, static_cast<float*>(wide_.mutable_data_ptr()), n);
    return wide_.narrow(0, 0, n);
  }
  /// Keeps what became of them.
  void end(std::int64_t at, std::int64_t n) const {
    if (low()) low_moment{whole_, key_, which_}.round(static_cast<const float*>(wide_.const_data_ptr()), at, n);
  }
  static at::Tensor view(const at::Tensor& t, std::int64_t at, std::int64_t n) {
    return at::from_blob(static_cast<float*>(t.mutable_data_ptr()) + at, {n}, at::kFloat);
  }

 private:
  bool low() const { return whole_.scalar_type() != at::kFloat; }
  at::Tensor whole_, wide_;
  std::uint64_t key_;
  int which_;
};

/// Calls f(at, n) for the pieces of a tensor.
void each_piece(const at::Tensor& of, auto f) {
  for (std::int64_t at = 0; at < of.numel(); at += piecewise::most) f(at, std::min(piecewise::most, of.numel() - at));
}

template <class State, class Options, class Kernel>
void pieces_adam_step(torch::optim::Optimizer& optimizer, const moment_formats& how, Kernel kernel) {
  std::uint64_t number = 0;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    const auto [beta1, beta2] = options.betas();
    for (const at::Tensor& p : group.params()) {
      const std::uint64_t key = mix_key(how.key, number++);
      if (!p.grad().defined()) continue;
      bool is_new = false;
      State& state = state_of<State>(optimizer, p, is_new);
      if (is_new) {
        state.step(0);
        state.exp_avg(new_moment(p, how.first));
        state.exp_avg_sq(new_moment(p, how.second));
        if (options.amsgrad()) state.max_exp_avg_sq(at::zeros_like(p));
      }
      state.step(state.step() + 1);
      const at::Tensor count = at::scalar_tensor(static_cast<double>(state.step()), at::kFloat);
      const piecewise first{state.exp_avg(), key, 0}, second{state.exp_avg_sq(), key, 1};
      each_piece(p, [&](std::int64_t at, std::int64_t n) {
        std::vector<at::Tensor> value{piecewise::view(p, at, n)}, gradient{piecewise::view(p.grad(), at, n)},
            m{first.begin(at, n)}, v{second.begin(at, n)}, largest, steps{count};
        if (options.amsgrad()) largest.push_back(piecewise::view(state.max_exp_avg_sq(), at, n));
        kernel(value, gradient, m, v, largest, steps, options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
               options.amsgrad(), /*maximize=*/false, std::nullopt, std::nullopt);
        first.end(at, n);
        second.end(at, n);
      });
    }
  }
}

inline void pieces_sgd_step(torch::optim::Optimizer& optimizer, const moment_formats& how) {
  std::uint64_t number = 0;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
    for (const at::Tensor& p : group.params()) {
      const std::uint64_t key = mix_key(how.key, number++);
      if (!p.grad().defined()) continue;
      bool is_new = false;
      auto& state = state_of<torch::optim::SGDParamState>(optimizer, p, is_new);
      if (is_new) state.momentum_buffer(new_moment(p, how.first));
      const piecewise velocity{state.momentum_buffer(), key, 0};
      each_piece(p, [&](std::int64_t at, std::int64_t n) {
        std::vector<at::Tensor> value{piecewise::view(p, at, n)}, gradient{piecewise::view(p.grad(), at, n)},
            v{velocity.begin(at, n, !is_new)};
        at::_fused_sgd_(value, gradient, v, options.weight_decay(), options.momentum(), options.lr(),
                        options.dampening(), options.nesterov(), /*maximize=*/false, is_new);
        velocity.end(at, n);
      });
    }
  }
}

}  // namespace detail

/// Converts the moments that there are.
inline void keep_moments(torch::optim::Optimizer& optimizer, const moment_formats& how) {
  const at::NoGradGuard no_gradients;
  detail::each_moment(optimizer, [&](const at::Tensor& p, at::Tensor& moment, int which, std::uint64_t number) {
    moment = detail::in_format(p, moment, which == 0 ? how.first : how.second, mix_key(how.key, number), which);
  });
}

/// Steps the optimizer and keeps its moments so. Returns: whether it was in pieces; false if all moments were widened.
inline bool step_keeping(torch::optim::Optimizer& optimizer, const moment_formats& how) {
  const at::NoGradGuard no_gradients;
  keep_moments(optimizer, how);
  const bool in_pieces = detail::step_fused(
      optimizer, detail::is_moment_of,
      [&]<class State, class Options>(auto kernel) {
        detail::pieces_adam_step<State, Options>(optimizer, how, kernel);
      },
      [&] {
        const bool has_moments = detail::moments_of(optimizer) == 1;
        if (has_moments) detail::pieces_sgd_step(optimizer, how);
        return has_moments;
      });
  if (in_pieces) return true;
  keep_moments(optimizer, {.key = how.key});
  optimizer.step();
  keep_moments(optimizer, how);
  return false;
}

/// The moments of a training's optimizers as operators.
class kept_moments {
 public:
  /// Throws: `settings_error` if setup::moments asks for them and no optimizer has any.
  explicit kept_moments(const setup& of) {
    if (!of.moments) return;
    for (std::size_t i = 0; i < of.optimizers.size(); ++i) {
      const std::string suffix = of.optimizers.size() > 1 ? fmt::format(".{}", i) : "";
      for (int which = 0; which < detail::moments_of(*of.optimizers[i]); ++which)
        all_.push_back({of.optimizers[i], which, moment_op(*of.optimizers[i], which, suffix)});
    }
    require<settings_error>(!all_.empty(),
                            "moments = true (no optimizer is LibTorch's own Adam, AdamW or SGD with momentum, with "
                            "parameters in FP32 on the CPU): leave it out");
  }

  std::vector<op_info> operators() const {
    std::vector<op_info> all;
    for (const kept& each : all_) all.push_back(each.op);
    return all;
  }
  /// Returns: the formats that plan `p` of `graph` gives an optimizer's moments. `step`: its number in the training.
  moment_formats formats(const torch::optim::Optimizer& optimizer, const plan& p, const op_graph& graph,
                         std::uint64_t step) const {
    moment_formats how{.key = mix_key(0, step)};
    for (std::size_t k = 0; k < all_.size(); ++k) {
      if (all_[k].optimizer != &optimizer) continue;
      how.key = mix_key(how.key, k);
      const std::size_t at = place(graph, k);
      if (at < p.size())
        (all_[k].which == 0 ? how.first : how.second) = detail::type_of_state(p[at]).value_or(at::kFloat);
    }
    return how;
  }
  /// Returns: the operator that an optimizer's update is timed as; 0 if it has none.
  std::size_t timed(const torch::optim::Optimizer& optimizer, const op_graph& graph) const {
    const auto at = std::ranges::find(all_, &optimizer, &kept::optimizer);
    return at == all_.end() ? 0 : place(graph, static_cast<std::size_t>(at - all_.begin()));
  }

 private:
  struct kept {
    const torch::optim::Optimizer* optimizer;
    int which;
    op_info op;
  };
  static op_info moment_op(torch::optim::Optimizer& optimizer, int which, const std::string& suffix) {
    std::int64_t elements = 0;
    for (auto& group : optimizer.param_groups()) {
      for (const at::Tensor& p : group.params()) elements += p.defined() ? p.numel() : 0;
    }
    return detail::moment_operator(which, suffix, elements);
  }
  /// The states stand together, in the order of `all_`.
  std::size_t place(const op_graph& graph, std::size_t k) const {
    const auto first = std::ranges::find_if(graph, [](const op_info& op) { return op.is_state; });
    return first == graph.end() ? graph.size() : static_cast<std::size_t>(first - graph.begin()) + k;
  }

  std::vector<kept> all_;
};

}  // namespace comp::libtorch
