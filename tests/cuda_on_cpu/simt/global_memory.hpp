// SPDX-License-Identifier: Apache-2.0
// Global memory: what was allocated, and who touched it in the running launch. Pointers of kernels ask it at each
// access. Code that goes around them with raw pointers is caught late: by the guard zones, when a launch or the
// allocation ends, or by AddressSanitizer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "order.hpp"

#if COMP_SIMT_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace simt {

/// Of a location in global memory only the last write and two readers are kept: inputs are read by whole grids.
class global_history {
 public:
  template <class Name>
  void read(const Name& name) {
    if (written_.launch && !ordered(written_)) race(name, "read", "written", written_);
    access& keep = one_.launch && !ordered(one_) ? another_ : one_;
    keep = this_access();
  }
  template <class Name>
  void write(const Name& name, bool atomic = false) {
    if (written_.launch && !(atomic && written_.atomic) && !ordered(written_))
      race(name, "written", "written", written_);
    if (one_.launch && !ordered(one_)) race(name, "written", "read", one_);
    if (another_.launch && !ordered(another_)) race(name, "written", "read", another_);
    written_ = this_access(atomic);
  }

 private:
  template <class Name>
  [[noreturn]] static void race(const Name& name, const char* now, const char* then, const access& other) {
    fail("race: " + name() + " is " + now + " here and " + then + " by " + text(other) + " with no barrier between");
  }
  access written_, one_, another_;
};

/// Bytes between guard zones, watched in units of one element.
class allocation {
 public:
  static constexpr std::size_t guard = 256;
  static constexpr unsigned char canary = 0xA5;

  /// `shift`: how far, in bytes, it lies from a 256-byte boundary.
  allocation(std::size_t bytes, std::size_t unit, std::size_t shift)
      : bytes_{bytes}, unit_{unit}, seen_((bytes + unit - 1) / unit), written_((bytes + unit - 1) / unit) {
    memory_.reset(static_cast<unsigned char*>(::operator new (bytes + shift + 2 * guard, std::align_val_t{guard})));
    std::fill_n(memory_.get(), bytes + shift + 2 * guard, canary);
    data_ = memory_.get() + guard + shift;
    poison();
  }
  allocation(const allocation&) = delete;
  allocation& operator=(const allocation&) = delete;
#if COMP_SIMT_ASAN  // it watches the guard zones itself
  ~allocation() { __asan_unpoison_memory_region(data_ - guard, bytes_ + 2 * guard); }
  bool intact() const { return true; }
#else
  bool intact() const {
    const auto kept = [](unsigned char c) { return c == canary; };
    return std::all_of(data_ - guard, data_, kept) && std::all_of(data_ + bytes_, data_ + bytes_ + guard, kept);
  }
#endif
  unsigned char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  std::size_t unit() const { return unit_; }
  void mark_written() { written_.assign(written_.size(), true); }
  void mark_written(std::ptrdiff_t from, std::size_t bytes) {
    const auto end = static_cast<std::size_t>(from) + bytes;
    for (std::size_t i = static_cast<std::size_t>(from) / unit_; i * unit_ < end && i < written_.size(); ++i)
      written_[i] = true;
  }
  bool written(std::ptrdiff_t from, std::size_t bytes) const {
    const auto end = static_cast<std::size_t>(from) + bytes;
    for (std::size_t i = static_cast<std::size_t>(from) / unit_; i * unit_ < end && i < written_.size(); ++i) {
      if (!written_[i]) return false;
    }
    return true;
  }
  void read(std::ptrdiff_t from, std::size_t bytes) {
    for_units("read", from, bytes, [&](std::size_t i) {
      if (!written_[i]) fail(name(static_cast<std::ptrdiff_t>(i)) + " is read, but nobody has written it");
      seen_[i].read([&] { return name(static_cast<std::ptrdiff_t>(i)); });
    });
  }
  void write(std::ptrdiff_t from, std::size_t bytes, bool atomic = false) {
    for_units("written", from, bytes, [&](std::size_t i) {
      if (atomic && !written_[i]) fail(name(static_cast<std::ptrdiff_t>(i)) + " is updated, but nobody has written it");
      seen_[i].write([&] { return name(static_cast<std::ptrdiff_t>(i)); }, atomic);
      written_[i] = true;
    });
  }

 private:
  struct give_back {
    void operator()(unsigned char* p) const { ::operator delete (p, std::align_val_t{guard}); }
  };
  void poison() {
#if COMP_SIMT_ASAN
    __asan_poison_memory_region(data_ - guard, guard);
    __asan_poison_memory_region(data_ + bytes_, guard);
#endif
  }
  static std::string name(std::ptrdiff_t i) { return "global element " + std::to_string(i); }
  template <class F>
  void for_units(const char* what, std::ptrdiff_t from, std::size_t bytes, F f) {
    const auto unit = static_cast<std::ptrdiff_t>(unit_), size = static_cast<std::ptrdiff_t>(bytes_);
    if (from < 0 || from + static_cast<std::ptrdiff_t>(bytes) > size) {
      const std::ptrdiff_t first = from < 0 ? (from - unit + 1) / unit : std::max(from, size) / unit;
      fail("out of bounds: " + name(first) + " of " + std::to_string(size / unit) + " is " + what);
    }
    const auto end = static_cast<std::size_t>(from) + bytes;
    for (std::size_t i = static_cast<std::size_t>(from) / unit_; i * unit_ < end && i < seen_.size(); ++i) f(i);
  }
  std::size_t bytes_, unit_;
  std::unique_ptr<unsigned char, give_back> memory_;
  unsigned char* data_ = nullptr;
  std::vector<global_history> seen_;
  std::vector<bool> written_;
};

/// All that is allocated now, by address.
class memory_map {
 public:
  static memory_map& common() {
    static memory_map map;
    return map;
  }
  allocation& make(std::size_t bytes, std::size_t unit, std::size_t shift = 0) {
    auto made = std::make_unique<allocation>(bytes, unit, shift);
    allocation& a = *made;
    all_.emplace(a.data(), std::move(made));
    return a;
  }
  /// Throws: fault for an address that is not the start of an allocation, or for guard zones written over.
  void free(void* p) {
    const auto found = all_.find(static_cast<unsigned char*>(p));
    if (found == all_.end()) throw fault{"memory is freed that is not allocated"};
    const bool intact = found->second->intact();
    all_.erase(found);
    if (!intact) throw fault{"the guard zone of a global allocation was written over"};
  }
  allocation* find(const void* p) const {
    const auto* at = static_cast<const unsigned char*>(p);
    auto after = all_.upper_bound(const_cast<unsigned char*>(at));
    if (after == all_.begin()) return nullptr;
    allocation* a = std::prev(after)->second.get();
    return at <= a->data() + a->bytes() ? a : nullptr;
  }
  void check_guards() const {
    for (const auto& [at, a] : all_) {
      if (!a->intact())
        fail("the guard zone of a global allocation of " + std::to_string(a->bytes()) + " bytes was written over");
    }
  }

 private:
  std::map<unsigned char*, std::unique_ptr<allocation>> all_;
};

/// Device memory of a test. Made from values it counts as written; made from a size it does not.
template <class T>
class buffer {
 public:
  explicit buffer(std::size_t n, std::size_t shift = 0)
      : n_{n}, in_{&memory_map::common().make(n * sizeof(T), sizeof(T), shift * sizeof(T))} {}
  explicit buffer(std::span<const T> values, std::size_t shift = 0) : buffer(values.size(), shift) {
    if (n_) std::memcpy(in_->data(), values.data(), values.size_bytes());
    in_->mark_written();
  }
  explicit buffer(const std::vector<T>& values, std::size_t shift = 0) : buffer(std::span<const T>{values}, shift) {}
  buffer(buffer&& other) noexcept : n_{other.n_}, in_{std::exchange(other.in_, nullptr)} {}
  buffer& operator=(buffer&&) = delete;
  ~buffer() {
    if (in_) memory_map::common().free(in_->data());
  }
  T* data() const { return reinterpret_cast<T*>(in_->data()); }
  std::size_t size() const { return n_; }
  std::vector<T> values() const { return {data(), data() + n_}; }

 private:
  std::size_t n_;
  allocation* in_;
};

}  // namespace simt
