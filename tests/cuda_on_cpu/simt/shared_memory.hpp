// SPDX-License-Identifier: Apache-2.0
// Shared memory that knows who touched it: races, reads before any write and indices out of range are faults.
// `__shared__ comp::cuda::shared_array<float, 32> sums;` is a plain array under nvcc and this under the shim. A new
// block finds it unwritten, as a device leaves it undefined.
#pragma once

#include <cstddef>
#include <vector>

#include "order.hpp"

namespace simt {

template <class T>
class watched;

/// Stands for an element: reading and assigning it are recorded.
template <class T>
class watched_element {
 public:
  watched_element(watched<T>& in, std::size_t at) : in_{&in}, at_{at} {}
  watched_element(const watched_element&) = default;
  operator T() const { return in_->read(at_); }
  const watched_element& operator=(const T& v) const {
    in_->write(at_, v);
    return *this;
  }
  const watched_element& operator=(const watched_element& other) const { return *this = static_cast<T>(other); }
  const watched_element& operator+=(const T& v) const { return *this = static_cast<T>(*this) + v; }

 private:
  watched<T>* in_;
  std::size_t at_;
};

template <class T>
class watched {
 public:
  explicit watched(std::size_t n) : values_(n), seen_(n), written_(n) {}
  std::size_t size() const { return values_.size(); }
  T read(std::size_t i) {
    check(i, "read");
    if (!written_[i]) fail(name(i) + " is read before this block has written it");
    seen_[i].read([&] { return name(i); });
    return values_[i];
  }
  void write(std::size_t i, const T& v) {
    check(i, "written");
    seen_[i].write([&] { return name(i); });
    values_[i] = v;
    written_[i] = true;
  }

 private:
  static std::string name(std::size_t i) { return "shared element " + std::to_string(i); }
  void check(std::size_t i, const char* what) {
    if (i >= size()) {
      fail("out of bounds: " + name(i) + " of " + std::to_string(size()) + " is " + what);
    }
    if (block_ == state.in->serial) return;
    block_ = state.in->serial;
    written_.assign(size(), false);
    seen_.assign(size(), {});
  }
  std::vector<T> values_;
  std::vector<history> seen_;
  std::vector<bool> written_;
  std::uint64_t block_ = 0;
};

template <class T, std::size_t N>
class shared_array {
 public:
  watched_element<T> operator[](std::size_t i) { return {elements_, i}; }
  static constexpr std::size_t size() { return N; }

 private:
  watched<T> elements_{N};
};

}  // namespace simt
