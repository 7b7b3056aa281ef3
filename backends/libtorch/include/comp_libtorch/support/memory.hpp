// SPDX-License-Identifier: Apache-2.0
// Measures the largest memory in use during a run. On a device that is the peak which its caching allocator counts. On
// a CPU it is what LibTorch's allocator had given out at most, to all threads, counted from what the training holds
// when the run begins. (LibTorch reports CPU memory to its profiler, too, but to one thread only, and warns on stderr
// of each block that is older than the profile.) Not seen on a CPU: memory of libraries (oneDNN's scratchpads) and of
// the user's own containers.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <comp/core/random_rounding.hpp>
#include <comp_libtorch/support/freed_memory.hpp>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <vector>

namespace comp::libtorch {

/// Returns: the bytes of the distinct storages behind `tensors`; undefined ones count nothing.
inline std::int64_t bytes_held(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const void*> storages;
  std::int64_t bytes = 0;
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || !t.has_storage() || !storages.insert(t.storage().unsafeGetStorageImpl()).second) continue;
    bytes += static_cast<std::int64_t>(t.storage().nbytes());
  }
  return bytes;
}

/// Returns: how many values of `tensors` are NaN, infinite or above 1e7, which no sound weight or moment is. Of a
/// moment in blocks (train/kept_moments.hpp) scales are counted. Formats of 8 bits, and layouts that are neither
/// strided nor sparse, count nothing.
inline std::int64_t count_extreme(const std::vector<at::Tensor>& tensors) {
  constexpr double huge = 1e7;
  const at::NoGradGuard no_grad;
  std::int64_t count = 0;
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || t.is_meta() || (t.layout() != at::kStrided && !t.is_sparse())) continue;
    constexpr std::int64_t codes = values_of_block, row = bytes_of_block;
    const bool blocks = t.scalar_type() == at::kByte && t.dim() == 2 && t.size(1) == row && t.is_contiguous();
    const at::Tensor values = t.is_sparse() ? t._values() : blocks ? t.view(at::kFloat).select(1, codes / 4) * 448 : t;
    if (values.numel() == 0 || values.element_size() == 1 || !(values.is_floating_point() || values.is_complex()))
      continue;
    const at::Tensor real = values.is_complex() ? at::view_as_real(values.resolve_conj()) : values;
    const auto [least, most] = real.aminmax();  // one pass, which passes NaN on
    if (least.item<double>() >= -huge && most.item<double>() <= huge) continue;
    count += at::isfinite(real).logical_and_(real.abs().le(huge)).logical_not_().sum().item<std::int64_t>();
  }
  return count;
}

namespace detail {

/// LibTorch's own CPU allocator, with a count of its bytes and a keeper of large blocks before it. It is installed once
/// per process and never taken away, because tensors outlive everything. While pages are kept, a thread looks once a
/// second for those that no step uses any more.
class counting_allocator final : public c10::Allocator {
 public:
  /// Returns: the allocator, which the first call installs; null if the process has one of its own, whose blocks cannot
  /// be measured.
  static counting_allocator* installed() {
    static counting_allocator* const one = install();
    return one;
  }
  /// Returns: null if none was installed before.
  static counting_allocator* if_installed() { return ours_; }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (keeps_.load(std::memory_order_relaxed)) {
      if (void* kept = pages_.allocate(bytes); kept != nullptr) {
        count(kept, 1);
        return {kept, kept, &give_back, c10::Device{c10::kCPU}};
      }
    }
    c10::DataPtr block = below_.allocate(bytes);
    if (block && block.compare_exchange_deleter(below_.raw_deleter(), &give_back)) count(block.get(), 1);
    return block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { below_.copy_data(to, from, bytes); }

  std::int64_t current() const { return current_.load(std::memory_order_relaxed); }
  std::int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  void reset_peak() { peak_.store(current(), std::memory_order_relaxed); }
  void keep(bool on) { keeps_.store(on, std::memory_order_relaxed); }
  void release() { pages_.release(); }

 private:
  explicit counting_allocator(c10::Allocator& below) : below_{below}, pages_{half_of_memory()} {}

  /// Returns: half of the machine's memory [bytes], or of what this process may have or address if that is less; 0 if
  /// the system counts reserved addresses as memory (overcommitting is off).
  static std::size_t half_of_memory() {
    int overcommits = 0;
    std::ifstream{"/proc/sys/vm/overcommit_memory"} >> overcommits;
    if (overcommits == 2) return 0;
    const auto pages = static_cast<std::size_t>(std::max(::sysconf(_SC_PHYS_PAGES), 0L));
    std::size_t all = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    rlimit addresses{};
    if (::getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY)
      all = std::min<std::size_t>(all, addresses.rlim_cur);
    return std::min(all, control_group_limit()) / 2;
  }

  /// Returns: the memory limit of the container; the largest number if there is none ("max", or no such file). A
  /// process in a container does not see the limits of the groups above its own.
  static std::size_t control_group_limit() {
    std::size_t least = std::numeric_limits<std::size_t>::max();
    for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
      std::size_t limit = 0;
      if (std::ifstream{file} >> limit && limit > 0) least = std::min(least, limit);
    }
    return least;
  }

  static counting_allocator* install() {
    if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator() || c10::GetCPUAllocator()->raw_deleter() == nullptr)
      return nullptr;
    ours_ = new counting_allocator{*c10::GetCPUAllocator()};  // NOLINT: lives as long as the process
    c10::SetCPUAllocator(ours_);
    ::pthread_atfork([] { if_installed()->pages_.before_fork(); }, [] { if_installed()->pages_.after_fork(); },
                     [] {
                       if_installed()->pages_.after_fork();
                       if_installed()->watched_ = false;  // the child has no such thread
                     });
    return ours_;
  }
  static void give_back(void* block) {
    if (block == nullptr) return;
    counting_allocator& all = *installed();
    all.count(block, -1);
    if (all.pages_.owns(block)) {
      all.pages_.give_back(block);
      if (!all.watched_) all.watch();
    } else {
      all.below_.raw_deleter()(block);
    }
  }
  /// Starts the thread that gives pages back when no block has used them for a while. It ends when nothing is kept.
  void watch() {
    if (watched_.exchange(true)) return;
    sigset_t all{}, before{};
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    try {
      std::thread{[this] {
        do {
          std::this_thread::sleep_for(std::chrono::seconds{1});
          pages_.release_unused(unused_seconds);
          // a block that is freed before watched_ is false starts no thread, so this one then looks once more
          if (!pages_.keeps()) watched_ = false;
        } while (watched_ || (pages_.keeps() && !watched_.exchange(true)));
      }}.detach();
    } catch (const std::system_error&) {  // no thread can be had: the next block that is freed tries again
      watched_ = false;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  void count(void* block, std::int64_t sign) {
    const std::size_t size = pages_.owns(block) ? pages_.size_of(block) : ::malloc_usable_size(block);
    const std::int64_t change = sign * static_cast<std::int64_t>(size);
    const std::int64_t now = current_.fetch_add(change, std::memory_order_relaxed) + change;
    std::int64_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) continue;
  }

  static constexpr std::uint32_t unused_seconds = 5;  // a step that takes longer has its pages faulted in anew
  static inline std::atomic<counting_allocator*> ours_ = nullptr;

  c10::Allocator& below_;
  page_keeper pages_;
  std::atomic<bool> keeps_ = false, watched_ = false;
  std::atomic<std::int64_t> current_ = 0, peak_ = 0;
};

}  // namespace detail

/// Sets what becomes of the CPU memory that LibTorch frees from now on, in the whole process. On: large blocks keep
/// their pages, for 5 seconds and up to half of the machine's memory. Off: their pages go back to the system. Nothing
/// changes if a program has set its own allocator. If it was never on, LibTorch's allocator stays as it is.
inline void keep_freed_memory(bool on) {
  using detail::counting_allocator;
  if (auto* cpu = on ? counting_allocator::installed() : counting_allocator::if_installed()) cpu->keep(on);
}
/// Gives the kept pages that no block uses back to the system.
inline void release_freed_memory() {
  if (auto* cpu = detail::counting_allocator::if_installed()) cpu->release();
}

/// Measures one run, from the meter's construction on. A device has one peak only: of two meters at a time, the older
/// one sees what happened since the younger one was made.
class memory_meter {
 public:
  /// `held`: what the training keeps from step to step [bytes]; on a CPU the peak is counted from there.
  memory_meter(c10::Device device, std::int64_t held) : device_{device}, held_{held} {
    if (device_.is_cpu()) {
      if (auto* cpu = detail::counting_allocator::installed()) {
        start_ = cpu->current();
        cpu->reset_peak();
      }
    } else if (allocator() != nullptr) {
      allocator()->resetPeakStats(device_.index());
    }
  }

  /// Returns: bytes; 0 if the device does not tell.
  std::int64_t peak() const {
    if (device_.is_cpu()) {
      const auto* cpu = detail::counting_allocator::installed();
      return cpu == nullptr ? 0 : held_ + cpu->peak() - start_;
    }
    if (allocator() == nullptr) return 0;
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return allocator()->getDeviceStats(device_.index()).allocated_bytes[all].peak;
  }

 private:
  c10::DeviceAllocator* allocator() const {
    auto* caching = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device_.type()));
    return caching != nullptr && caching->initialized() ? caching : nullptr;
  }

  c10::Device device_;
  std::int64_t held_;
  std::int64_t start_ = 0;
};

}  // namespace comp::libtorch
