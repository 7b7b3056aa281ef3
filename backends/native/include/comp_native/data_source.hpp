// SPDX-License-Identifier: Apache-2.0
// What a data set must offer, and the handle by which loaders keep one. A data set is any class that knows its size and
// its layout, and that writes example i to given memory.
#pragma once

#include <comp/core/fnv1a.hpp>
#include <comp/core/unmet.hpp>
#include <comp_native/model.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp::native {

/// The shapes and kinds of one example, without the batch's axis.
struct example_layout {
  input_kind input = input_kind::values;
  shape input_shape = {};                  // (C,H,W), (K) or, for tokens, (T)
  input_kind target = input_kind::tokens;  // tokens: labels; values: targets of mse_loss
  shape target_shape = {1};                // (1) for a class, (T) for a label at each token
  /// If not empty, (C,256): the data set writes bytes, and the Device turns byte b of channel c (the first axis of
  /// input_shape) into the value of_bytes[256 c + b]. A table gives the same bits on every Device, which arithmetic on
  /// bytes might not.
  std::vector<float> of_bytes = {};
  friend bool operator==(const example_layout&, const example_layout&) = default;
};

/// The memory that one example is written to. Parts that its layout does not have are empty.
struct example_spans {
  std::span<float> values = {};
  std::span<std::uint8_t> bytes = {};  // in place of values
  std::span<std::int32_t> tokens = {};
  std::span<std::int32_t> labels = {};  // a negative label is ignored by the loss
  std::span<float> targets = {};
  std::uint64_t draw = 0;  // fixed by seed, epoch and example; random augmentation draws from mix_seed(draw, n)
};

// clang-format off
/// A data set. What syntax cannot say: write() may be called from several threads at once, and writes the same each
/// time for an example and its draw; signature() differs between two data sets.
template <class S>
concept Dataset =
    (requires(const S& s) { { s.size() } -> std::convertible_to<std::size_t>; }
     || unmet<"a Dataset needs: std::size_t size() const">()) &&
    (requires(const S& s) { { s.layout() } -> std::same_as<example_layout>; }
     || unmet<"a Dataset needs: example_layout layout() const">()) &&
    (requires(const S& s, std::size_t i, const example_spans& to) { s.write(i, to); }
     || unmet<"a Dataset needs: void write(std::size_t example, const example_spans& to) const">()) &&
    (requires(const S& s) { { s.signature() } -> std::convertible_to<std::string>; }
     || unmet<"a Dataset needs: std::string signature() const">());
// clang-format on

/// A handle of any data set. The data set is shared, and does not change any more.
class data_source {
 public:
  template <Dataset S>
  data_source(S set) : set_{std::make_shared<const model<S>>(std::move(set))} {}  // NOLINT: implicit on purpose

  std::size_t size() const { return set_->size(); }
  example_layout layout() const { return set_->layout(); }
  void write(std::size_t i, const example_spans& to) const { set_->write(i, to); }
  std::string signature() const { return set_->signature(); }

 private:
  struct interface {
    virtual ~interface() = default;
    virtual std::size_t size() const = 0;
    virtual example_layout layout() const = 0;
    virtual void write(std::size_t i, const example_spans& to) const = 0;
    virtual std::string signature() const = 0;
  };
  template <class S>
  struct model final : interface {
    explicit model(S from) : set{std::move(from)} {}
    std::size_t size() const override { return set.size(); }
    example_layout layout() const override { return set.layout(); }
    void write(std::size_t i, const example_spans& to) const override { set.write(i, to); }
    std::string signature() const override { return set.signature(); }
    S set;
  };
  std::shared_ptr<const interface> set_;
};

/// Returns the FNV-1a hash of values, for signatures; of floating-point numbers that of their bytes.
template <class T>
std::uint64_t hash_of(std::span<const T> values) {
  comp::detail::fnv1a of;
  for (const T value : values) {
    if constexpr (std::floating_point<T>) {
      of.add_bytes(&value, sizeof value);
    } else {
      of.add(static_cast<std::uint64_t>(value));
    }
  }
  return of.hash;
}

}  // namespace comp::native
