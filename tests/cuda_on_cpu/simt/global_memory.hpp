// SPDX-License-Identifier: Apache-2.0
// Global memory: what was allocated, and who touched it in the running launch. Pointers of kernels ask it at each
// access. Code that goes around them with raw pointers is caught late: by the guard zones, when a launch or the
// allocation ends, or by AddressSanitizer.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "order.hpp"
#include "stream_order.hpp"

#if COMP_SIMT_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace simt {

/// False: global memory is not watched for races, which takes 48 times its size. All other checks remain. For whole
/// models, whose kernels have their own tests.
inline bool watch_races = true;
/// Bytes that kernels and libraries have read and written: what a clock that has to give the same twice can count.
inline std::uint64_t traffic = 0;

/// Of a location in global memory only the last write and two readers are kept: inputs are read by whole grids.
class global_history {
 public:
  void read(const auto& name) {
    if (written_.launch && !ordered(written_)) race(name, "read", "written", written_);
    access& keep = one_.launch && !ordered(one_) ? another_ : one_;
    keep = this_access();
  }
  void write(const auto& name, bool atomic = false) {
    if (written_.launch && !(atomic && written_.atomic) && !ordered(written_))
      race(name, "written", "written", written_);
    if (one_.launch && !ordered(one_)) race(name, "written", "read", one_);
    if (another_.launch && !ordered(another_)) race(name, "written", "read", another_);
    written_ = this_access(atomic);
  }

 private:
  [[noreturn]] static void race(const auto& name, const char* now, const char* then, const access& other) {
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
  allocation(std::size_t bytes, std::size_t unit, std::size_t shift = 0)
      : bytes_{bytes}, unit_{unit}, written_((bytes + unit - 1) / unit) {
    memory_.reset(static_cast<unsigned char*>(::operator new (bytes + shift + 2 * guard, std::align_val_t{guard})));
    std::fill_n(memory_.get(), bytes + shift + 2 * guard, canary);
    data_ = memory_.get() + guard + shift;
    poison();
  }
  /// Memory that somebody else owns, as one unit: watched for its bounds only.
  explicit allocation(std::span<unsigned char> of)
      : bytes_{of.size()}, unit_{of.size()}, data_{of.data()}, written_{1} {}
  allocation(const allocation&) = delete;
  allocation& operator=(const allocation&) = delete;
#if COMP_SIMT_ASAN  // it watches the guard zones itself
  ~allocation() {
    if (memory_) __asan_unpoison_memory_region(data_ - guard, bytes_ + 2 * guard);
  }
  bool intact() const { return true; }
#else
  bool intact() const {
    if (!memory_) return true;
    static const std::vector<unsigned char> untouched(guard, canary);
    return std::memcmp(data_ - guard, untouched.data(), guard) == 0 &&
           std::memcmp(data_ + bytes_, untouched.data(), guard) == 0;
  }
#endif
  unsigned char* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  std::size_t unit() const { return unit_; }
  /// Memory of a graph is there between two of its nodes only, and holds nothing of the launch before.
  bool lives() const { return lives_; }
  void begin_life() {
    lives_ = true;
    std::fill_n(data_, bytes_, canary);
    std::fill(written_.begin(), written_.end(), 0);
  }
  void end_life() { lives_ = false; }
  /// Of a copy or a library, or of what allocates and frees.
  void touch(const work_point& by, bool writes) { streams_.touch(by, writes); }
  void mark_written() { written_.assign(written_.size(), 1); }
  void mark_written(std::ptrdiff_t from, std::size_t bytes) {
    const auto [first, count] = units(from, bytes);
    std::fill_n(written_.begin() + first, count, 1);
  }
  bool written(std::ptrdiff_t from, std::size_t bytes) const {
    const auto [first, count] = units(from, bytes);
    return count == 0 || !std::memchr(written_.data() + first, 0, static_cast<std::size_t>(count));
  }
  void read(std::ptrdiff_t from, std::size_t bytes) {
    check_bounds("read", from, bytes);
    streams_.touch(now_runs, false);
    traffic += bytes;
    const auto [first, count] = units(from, bytes);
    for (std::ptrdiff_t i = first; i < first + count; ++i) {
      if (!written_[index(i)]) fail(name(i) + " is read, but nobody has written it");
      if (watch_races && memory_) history(i).read([&] { return name(i); });
    }
  }
  void write(std::ptrdiff_t from, std::size_t bytes, bool atomic = false) {
    check_bounds("written", from, bytes);
    streams_.touch(now_runs, true);
    traffic += bytes;
    const auto [first, count] = units(from, bytes);
    for (std::ptrdiff_t i = first; i < first + count; ++i) {
      if (atomic && !written_[index(i)]) fail(name(i) + " is updated, but nobody has written it");
      if (watch_races && memory_) history(i).write([&] { return name(i); }, atomic);
      written_[index(i)] = 1;
    }
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
  static std::size_t index(std::ptrdiff_t i) { return static_cast<std::size_t>(i); }
  /// The first unit of some bytes, and how many they touch.
  std::pair<std::ptrdiff_t, std::ptrdiff_t> units(std::ptrdiff_t from, std::size_t bytes) const {
    const auto unit = static_cast<std::ptrdiff_t>(unit_), end = from + static_cast<std::ptrdiff_t>(bytes);
    return {from / unit, (end + unit - 1) / unit - from / unit};
  }
  void check_bounds(const char* what, std::ptrdiff_t from, std::size_t bytes) const {
    if (!lives_) fail(std::string{"memory of a graph is "} + what + " where the graph has not allocated it");
    const auto unit = static_cast<std::ptrdiff_t>(unit_), size = static_cast<std::ptrdiff_t>(bytes_);
    if (from >= 0 && from + static_cast<std::ptrdiff_t>(bytes) <= size) return;
    const std::ptrdiff_t first = from < 0 ? (from - unit + 1) / unit : std::max(from, size) / unit;
    fail("out of bounds: " + name(first) + " of " + std::to_string(size / unit) + " is " + what);
  }
  /// Made when a kernel first comes here: copies and libraries race with nobody.
  global_history& history(std::ptrdiff_t i) {
    if (seen_.empty()) seen_.resize(written_.size());
    return seen_[index(i)];
  }
  std::size_t bytes_, unit_;
  bool lives_ = true;
  std::unique_ptr<unsigned char, give_back> memory_;
  unsigned char* data_ = nullptr;
  std::vector<unsigned char> written_;
  std::vector<global_history> seen_;
  stream_history streams_;
};

/// All that is allocated now, by address.
class memory_map {
 public:
  static memory_map& common() {
    static memory_map map;
    return map;
  }
  /// As the constructors of allocation say.
  template <class... How>
  allocation& make(How... how) {
    auto block = std::make_unique<allocation>(how...);
    allocation& a = *block;
    all_.emplace(a.data(), std::move(block));
    return a;
  }
  /// Throws: fault for an address that is not the start of an allocation, or for guard zones written over.
  void free(void* p) {
    const auto found = all_.find(static_cast<unsigned char*>(p));
    if (found == all_.end()) throw fault{"memory is freed that is not allocated"};
    const bool intact = found->second->intact();
    asked_ = {};
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
  /// What starts at `p`. Null if nothing does, any longer.
  allocation* at(const void* p) const {
    allocation*& known = asked_[reinterpret_cast<std::uintptr_t>(p) / allocation::guard % asked_.size()];
    if (known && known->data() == p) return known;
    allocation* a = find(p);
    return a && a->data() == p ? known = a : nullptr;
  }
  void check_guards() const {
    for (const auto& [at, a] : all_) {
      if (!a->intact())
        fail("the guard zone of a global allocation of " + std::to_string(a->bytes()) + " bytes was written over");
    }
  }

 private:
  std::map<unsigned char*, std::unique_ptr<allocation>> all_;
  mutable std::array<allocation*, 64> asked_{};  // what at() found since the last free()
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

/// Device memory of more elements than there is memory for: zeros, which take memory only when they are written.
template <class T>
class vast_buffer {
 public:
  explicit vast_buffer(std::size_t n) : bytes_{n * sizeof(T)} {
    void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc{};
    data_ = static_cast<T*>(at);
    memory_map::common().make(std::span{static_cast<unsigned char*>(at), bytes_});
  }
  vast_buffer(const vast_buffer&) = delete;
  vast_buffer& operator=(const vast_buffer&) = delete;
  ~vast_buffer() {
    memory_map::common().free(data_);
    ::munmap(data_, bytes_);
  }
  T* data() const { return data_; }

 private:
  std::size_t bytes_;
  T* data_;
};

}  // namespace simt
