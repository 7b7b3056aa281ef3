// SPDX-License-Identifier: Apache-2.0
// Fibres for the CUDA threads of a block: what one runs, where it waits, and the switch between it and the scheduler.
// AddressSanitizer is told of every switch, so the same kernels run under it.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define COMP_SIMT_ASAN 1
#else
#define COMP_SIMT_ASAN 0
#endif

namespace simt {

namespace context = boost::context;

/// Thrown inside a fibre to end it early, after another one has failed.
struct abandoned {};

/// A stack on which one body runs after another: making one costs more than most bodies do.
class fibre {
 public:
  fibre() {
    const auto stack = stacks_.allocate();
    bottom_ = static_cast<char*>(stack.sp) - stack.size;
    thread_ = context::fiber{std::allocator_arg, context::preallocated{stack.sp, stack.size, stack}, stacks_,
                             [this](context::fiber&& scheduler) { return run(std::move(scheduler)); }};
  }
  fibre(const fibre&) = delete;
  fibre& operator=(const fibre&) = delete;
  ~fibre() {
    body_ = nullptr;
    resume();
  }

  /// Scheduler: `body`, which has to outlive its run, starts at the next resume(). An exception derived from
  /// std::exception ends it and is kept.
  void start(const std::function<void()>& body) {
    body_ = &body;
    abandon_ = false;
    failure_ = nullptr;
  }
  bool ended() const { return !body_; }
  std::exception_ptr failure() const { return failure_; }
  /// Scheduler: runs the body until it waits or ends.
  void resume() {
    enter(&scheduler_stack_, bottom_, bytes);
    thread_ = std::move(thread_).resume();
    leave(scheduler_stack_, nullptr, nullptr);
  }
  /// Body: back to the scheduler, until the next resume().
  void wait() {
    to_scheduler();
    if (abandon_) throw abandoned{};
  }
  void abandon() {
    abandon_ = true;
    if (!ended()) resume();
  }

 private:
  static constexpr std::size_t bytes = COMP_SIMT_ASAN ? 512 * 1024 : 128 * 1024;

  context::fiber run(context::fiber&& scheduler) {
    leave(nullptr, &scheduler_bottom_, &scheduler_bytes_);
    scheduler_ = std::move(scheduler);
    while (body_) {
      try {
        if (!abandon_) (*body_)();
      } catch (const std::exception&) {
        failure_ = std::current_exception();
      } catch (const abandoned&) {  // nothing to tell: the one that failed does
      }
      body_ = nullptr;
      to_scheduler();
    }
    enter(nullptr, scheduler_bottom_, scheduler_bytes_);
    return std::move(scheduler_);
  }
  void to_scheduler() {
    enter(&thread_stack_, scheduler_bottom_, scheduler_bytes_);
    scheduler_ = std::move(scheduler_).resume();
    leave(thread_stack_, &scheduler_bottom_, &scheduler_bytes_);
  }
#if COMP_SIMT_ASAN
  static void enter(void** keep, const void* bottom, std::size_t size) {
    __sanitizer_start_switch_fiber(keep, bottom, size);
  }
  static void leave(void* kept, const void** bottom, std::size_t* size) {
    __sanitizer_finish_switch_fiber(kept, bottom, size);
  }
#else
  static void enter(void**, const void*, std::size_t) {}
  static void leave(void*, const void**, std::size_t*) {}
#endif

  context::fixedsize_stack stacks_{bytes};
  context::fiber thread_, scheduler_;
  const std::function<void()>* body_ = nullptr;
  const void *bottom_ = nullptr, *scheduler_bottom_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
  void *scheduler_stack_ = nullptr, *thread_stack_ = nullptr;
  bool abandon_ = false;
  std::exception_ptr failure_;
};

/// Fibres that wait for a body. A kernel without barriers needs one, whatever its grid.
class fibre_pool {
 public:
  std::unique_ptr<fibre> take() {
    if (free_.empty()) return std::make_unique<fibre>();
    auto one = std::move(free_.back());
    free_.pop_back();
    return one;
  }
  void give(std::unique_ptr<fibre> one) { free_.push_back(std::move(one)); }
  static fibre_pool& common() {
    static fibre_pool pool;
    return pool;
  }

 private:
  std::vector<std::unique_ptr<fibre>> free_;
};

}  // namespace simt
