// SPDX-License-Identifier: Apache-2.0
// Memory of the FP64 reference device: tensors, parameters, and the Philox words of a dropout mask.
// Everything is double whatever its precision says: the precision is carried as a tag, so that a plan can be followed
// without rounding. Use it as an oracle; it is slow on purpose.
#pragma once

#include <array>
#include <comp/core/error.hpp>
#include <comp_native/device.hpp>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace comp::native::reference {

struct tensor {
  tensor() = default;
  tensor(native::shape extents, comp::precision tag)
      : extents_{std::move(extents)},
        tag_{tag},
        values_{std::make_shared<std::vector<double>>(static_cast<std::size_t>(elements(extents_)), 0.0)},
        first_{values_->data()} {}
  tensor(native::shape extents, comp::precision tag, std::vector<double> values)
      : extents_{std::move(extents)},
        tag_{tag},
        values_{std::make_shared<std::vector<double>>(std::move(values))},
        first_{values_->data()} {
    require<error>(std::ssize(*values_) == elements(extents_),
                   "{} values for {} elements (they must agree): fix the test", values_->size(), elements(extents_));
  }

  const native::shape& shape() const { return extents_; }
  comp::precision precision() const { return tag_; }
  explicit operator bool() const { return values_ != nullptr; }
  std::int64_t axis(std::ptrdiff_t i) const {
    return extents_[static_cast<std::size_t>(i < 0 ? i + std::ssize(extents_) : i)];
  }
  // What loops ask is inlined in tests that are compiled without optimisation, too.
  [[gnu::always_inline]] std::int64_t size() const { return size_; }
  [[gnu::always_inline]] double& operator[](std::int64_t i) { return first_[i]; }
  [[gnu::always_inline]] double operator[](std::int64_t i) const { return first_[i]; }
  const std::vector<double>& values() const { return *values_; }
  std::vector<double>& values() { return *values_; }
  /// The same values, in the same memory.
  tensor viewed(native::shape extents, comp::precision tag) const {
    tensor other = *this;
    other.extents_ = std::move(extents);
    other.size_ = elements(other.extents_);
    other.tag_ = tag;
    return other;
  }

 private:
  native::shape extents_;
  comp::precision tag_ = comp::precision::fp32;
  std::shared_ptr<std::vector<double>> values_;
  double* first_ = nullptr;
  std::int64_t size_ = elements(extents_);
};

struct index_tensor {
  native::shape extents;
  std::vector<std::int32_t> values;
  const native::shape& shape() const { return extents; }
};

struct parameter_state {
  std::vector<double> value, first, second;
};

struct parameter {
  native::shape extents;
  std::vector<double> value, gradient, first, second;  // slots: momentum, or Adam's two moments
  bool trainable = true;
  bool fresh = true;  // the next gradient overwrites
  std::vector<double> ignored = {};

  parameter(native::shape s, std::vector<double> v, bool trains)
      : extents{std::move(s)}, value{std::move(v)}, gradient(value.size()), trainable{trains} {}
  parameter(parameter&&) = default;
  parameter& operator=(parameter&&) = default;

  [[gnu::always_inline]] double operator[](std::int64_t i) const { return value.data()[i]; }
  /// The gradient to add to, made zero when it is to be overwritten.
  std::vector<double>& to_add() {
    if (!trainable) return ignored.assign(value.size(), 0.0), ignored;
    if (std::exchange(fresh, false)) gradient.assign(value.size(), 0.0);
    return gradient;
  }
};

/// One block of Philox 4x32-10. Source: Salmon et al. 2011.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ULL * counter[0];
    const std::uint64_t b = 0xCD9E8D57ULL * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9U, key[1] + 0xBB67AE85U};
  }
  return counter;
}

/// True if a dropout of probability `p` keeps element `i`.
inline bool keeps(double p, const dropout_key& key, std::uint64_t i) {
  const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  const auto high = [](std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); };
  const auto words = philox({low(i / 4), high(i / 4), low(key.draw), high(key.draw)}, {low(key.seed), high(key.seed)});
  return static_cast<double>(words[i % 4]) >= p * 0x1p32;
}

}  // namespace comp::native::reference
