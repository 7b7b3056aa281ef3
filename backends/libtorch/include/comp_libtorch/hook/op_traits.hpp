// SPDX-License-Identifier: Apache-2.0
// What an operator's schema says of it: its kind, which arguments it writes, whether it returns a view. The schema's
// alias annotations decide if it has any. Names decide only what no schema says.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <atomic>
#include <comp/core/names.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace comp::libtorch::detail {

/// What a plan may do with an argument.
enum class argument_use : std::uint8_t {
  read,    // may be replaced by a cast copy
  kept,    // batch norm's running statistics: never cast
  affine,  // a norm's weight and bias: kept in FP32 if ATen takes mixed inputs
  written  // in-place self, out=: must be this very tensor
};

struct op_traits {
  std::string kind;  // "aten::add.Tensor"
  std::string word;  // "add": what names are made of
  bool aten = true;
  bool is_in_place = false;  // in-place or out=
  bool is_view = false;     // by its schema the result is, or may be, a view of an argument that it takes in any format
  bool is_copy = false;     // reads no more than shape and dtype of its arguments, or copies them
  bool only_fp32 = false;   // has no low-precision kernels
  bool pointwise = false;   // promotes inputs of mixed formats itself
  bool arithmetic = false;  // takes a number without dimensions in another format than the values beside it
  bool is_convolution = false;  // has a channels-last form
  bool is_aten_view = false;    // aten::view alone: fails if the strides do not fit the new shape
  bool is_reshape = false;      // reshape and the like: a view if the strides allow it, else a copy
  bool is_random = false;       // gives random numbers, in the order in which its tensors lie in memory
  std::vector<argument_use> arguments = {};
  std::vector<std::string> argument_names = {};
};

namespace by_name {

inline bool is_norm(std::string_view word) {
  constexpr std::string_view norms = R"(batch_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm
instance_norm layer_norm native_layer_norm group_norm native_group_norm miopen_batch_norm _batch_norm_impl_index
rms_norm)";
  return has_name(norms, word);
}

/// Returns: true for operators that read only shape and dtype of their tensors, or copy them.
inline bool is_copy(std::string_view word) {
  constexpr std::string_view copies = R"(_to_copy to clone contiguous detach detach_copy lift lift_fresh
lift_fresh_copy type_as empty_strided alias_copy _to_dense to_dense to_sparse _to_sparse set_data zeros_like _coalesce
coalesce)";
  return word.ends_with("_like") || word.starts_with("new_") || has_name(copies, word);
}

/// Returns: true for decompositions, transforms, order statistics, conversions to quantized tensors and the rarer
/// special functions, which ATen has in FP32 and FP64 only, or without a low backward.
inline bool only_fp32(std::string_view word) {
  constexpr std::string_view products = R"(linalg_norm linalg_vector_norm linalg_matmul linalg_vecdot linalg_cross
linalg_multi_dot linalg_diagonal)";
  if (word.starts_with("linalg_")) return !has_name(products, word);
  constexpr std::string_view others = R"(cholesky cholesky_solve cholesky_inverse inverse svd qr lu_solve lu_unpack
_lu_with_info geqrf orgqr ormqr pinverse triangular_solve det logdet slogdet matrix_exp ctc_loss stft istft quantile
nanquantile polar complex view_as_complex histc _ctc_loss symeig trapezoid _upsample_bilinear2d_aa
_upsample_bicubic2d_aa special_airy_ai special_erfcx special_i1 special_i1e special_log_ndtr special_ndtri
special_zeta)";
  const bool series = word.find("bessel") != word.npos || word.find("polynomial") != word.npos;
  return word.starts_with("fft_") || word.starts_with("quantize_per_") || (word.starts_with("special_") && series) ||
         has_name(others, word);
}

/// Returns: true for products of matrices and vectors, convolutions, attention and recurrent layers.
inline bool is_product(std::string_view word) {
  constexpr std::string_view products = R"(mm bmm addmm addbmm baddbmm matmul linalg_matmul linalg_vecdot linear
scaled_dot_product_attention mv addmv dot vdot mkldnn_rnn_layer)";
  return word.starts_with("conv") || word.ends_with("_cell") || word == "_cudnn_rnn" || has_name(products, word);
}

/// Returns: true for composites whose products depend on their arguments: an einsum may be no more than a sum.
inline bool is_composed_product(std::string_view word) {
  return has_name(R"(einsum inner tensordot chain_matmul linalg_multi_dot linalg_matrix_power matrix_power cov
corrcoef)",
                  word);
}

}  // namespace by_name

namespace traits_of {

inline argument_use use(const c10::Argument& argument, bool norm) {
  if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return argument_use::written;
  if (argument.name() == "running_mean" || argument.name() == "running_var") return argument_use::kept;
  const bool is_affine = norm && (argument.name() == "weight" || argument.name() == "bias");
  return is_affine ? argument_use::affine : argument_use::read;
}

/// "aten::add_" -> "add".
inline std::string word(std::string_view name) {
  if (const auto colons = name.rfind("::"); colons != std::string_view::npos) name.remove_prefix(colons + 2);
  while (name.size() > 1 && name.ends_with('_')) name.remove_suffix(1);
  return std::string{name};
}

inline op_traits read(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string& overload = schema.overload_name();
  op_traits t{.kind = overload.empty() ? schema.name() : schema.name() + "." + overload, .word = word(schema.name())};
  t.aten = schema.name().starts_with("aten::");
  const bool norm = t.aten && by_name::is_norm(t.word);
  for (const c10::Argument& argument : schema.arguments()) {
    t.arguments.push_back(use(argument, norm));
    t.argument_names.push_back(argument.name());
  }
  t.is_in_place = std::ranges::find(t.arguments, argument_use::written) != t.arguments.end();
  t.only_fp32 = t.aten && by_name::only_fp32(t.word);
  t.is_view = !t.is_in_place && !t.only_fp32 &&
              std::ranges::any_of(schema.returns(),
                                  [](const c10::Argument& returned) { return returned.alias_info() != nullptr; });
  t.is_copy = t.aten && by_name::is_copy(t.word);
  t.pointwise = op.hasTag(at::Tag::pointwise) && t.word != "lerp";  // which has the tag, and refuses them
  t.arithmetic = t.aten && has_name("add sub rsub mul div subtract multiply divide true_divide", t.word);
  t.is_convolution = t.aten && (t.word == "conv2d" || t.word == "conv3d");
  t.is_aten_view = schema.name() == "aten::view" && overload.empty();
  t.is_reshape = t.aten && has_name("reshape reshape_as flatten ravel view_as unflatten as_strided", t.word);
  t.is_random = !t.is_in_place && op.hasTag(at::Tag::nondeterministic_seeded);
  return t;
}

}  // namespace traits_of

/// Returns: how many operators were taken from the dispatcher. Another may then stand in the place of one in memory, as
/// in a notebook whose cell registers an operator once more.
inline std::uint64_t removed_operators() {
  static std::atomic<std::uint64_t> count = 0;
  struct counter final : c10::OpRegistrationListener {
    void onOperatorRegistered(const c10::OperatorHandle&) override {}
    void onOperatorDeregistered(const c10::OperatorHandle&) override { ++count; }
  };
  [[maybe_unused]] static const auto& as_long_as_the_process =
      *new auto{c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<counter>())};
  return count.load(std::memory_order_relaxed);
}

struct known_traits {
  op_traits schema;
  std::uint64_t removed = 0;  // removed_operators() when it was read
};
inline known_traits& known_traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, known_traits> cache;
  const auto [at, is_new] = cache.try_emplace(op);
  if (is_new) at->second = {traits_of::read(op), removed_operators()};
  return at->second;
}

/// Returns: what the schema of `op` says. Each thread reads it once, so no lock is needed. An operator that was
/// recorded may be removed since: nothing is read of it again.
inline const op_traits& traits(const c10::OperatorHandle& op) { return known_traits_of(op).schema; }

/// Reads the schema of an operator that is called again if it might be another one than before.
inline void refresh_traits(const c10::OperatorHandle& op) {
  const std::uint64_t removed = removed_operators();
  if (removed == 0) return;
  known_traits& known = known_traits_of(op);
  if (known.removed != removed) known = {traits_of::read(op), removed};
}

}  // namespace comp::libtorch::detail
