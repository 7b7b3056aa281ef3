// SPDX-License-Identifier: Apache-2.0
// Pointers into global memory that check each access: `comp::cuda::pointer<T>` is T* under nvcc and this under the
// shim. Out of bounds, misaligned vectors, reads of what nobody wrote, use after free and races between threads are
// faults.
#pragma once

#include <cstring>
#include <type_traits>

#include "global_memory.hpp"

namespace simt {

template <class T>
class element;

/// A pointer into global memory; arithmetic keeps the allocation, so running off its end is seen.
template <class T>
class pointer {
 public:
  using value = std::remove_const_t<T>;
  pointer(std::nullptr_t = nullptr) {}
  pointer(T* p) : p_{p} {
    if (!p) return;
    const allocation* a = memory_map::common().find(p);
    if (!a) throw fault{"a kernel is given a pointer that is not device memory"};
    base_ = a->data();
  }
  template <class U>
  requires(std::is_same_v<const U, T>) pointer(const pointer<U>& other) : p_{other.raw()}, base_{other.base()} {}

  T* raw() const { return p_; }
  unsigned char* base() const { return base_; }
  explicit operator bool() const { return p_ != nullptr; }
  pointer operator+(std::ptrdiff_t i) const {
    pointer moved = *this;
    moved.p_ += i;
    return moved;
  }
  auto operator[](std::ptrdiff_t i) const {
    if constexpr (std::is_const_v<T>) {
      return (*this + i).read();
    } else {
      return element<T>{*this + i};
    }
  }
  auto operator*() const { return (*this)[0]; }

  value read() const {
    value v;
    read_to(&v, 1, alignof(value));
    return v;
  }
  /// n elements at once, as one load of an address that is a multiple of `alignment`.
  void read_to(value* to, std::size_t n, std::size_t alignment) const {
    in("read", alignment).read(offset(), n * sizeof(T));
    std::memcpy(to, p_, n * sizeof(T));
  }
  void write_from(const value* from, std::size_t n, std::size_t alignment) const {
    in("written", alignment).write(offset(), n * sizeof(T));
    std::memcpy(p_, from, n * sizeof(T));
  }
  value update(auto f) const {
    in("updated", alignof(value)).write(offset(), sizeof(T), true);
    const value old = *p_;
    *p_ = f(old);
    return old;
  }

 private:
  std::ptrdiff_t offset() const { return reinterpret_cast<const unsigned char*>(p_) - base_; }
  allocation& in(const char* what, std::size_t alignment) const {
    if (!p_) fail(std::string{"a null pointer is "} + what);
    allocation* a = memory_map::common().at(base_);
    if (!a) fail(std::string{"memory is "} + what + " after it was freed");
    if (reinterpret_cast<std::uintptr_t>(p_) % alignment) {
      fail(std::string{"misaligned: an address is "} + what + " that is no multiple of " + std::to_string(alignment));
    }
    return *a;
  }
  T* p_ = nullptr;
  unsigned char* base_ = nullptr;
};

/// Stands for *p of a pointer that may be written.
template <class T>
class element {
 public:
  explicit element(pointer<T> at) : at_{at} {}
  element(const element&) = default;
  operator T() const { return at_.read(); }
  const element& operator=(const T& v) const {
    at_.write_from(&v, 1, alignof(T));
    return *this;
  }
  const element& operator=(const element& other) const { return *this = static_cast<T>(other); }
  const element& operator+=(const T& v) const { return *this = static_cast<T>(*this) + v; }
  const element& operator*=(const T& v) const { return *this = static_cast<T>(*this) * v; }
  pointer<T> operator&() const { return at_; }

 private:
  pointer<T> at_;
};

}  // namespace simt
