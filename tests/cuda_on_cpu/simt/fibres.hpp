// SPDX-License-Identifier: Apache-2.0
// One fibre for each CUDA thread of a block: what it runs, where it waits, and the switch between it and the scheduler.
// AddressSanitizer is told of every switch, so the same kernels run under it.
#pragma once

#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <exception>
#include <functional>
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

/// Stacks are kept: a grid of a thousand blocks makes as many as one block has threads.
class stack_pool {
 public:
  static constexpr std::size_t bytes = COMP_SIMT_ASAN ? 512 * 1024 : 128 * 1024;
  stack_pool() = default;
  stack_pool(const stack_pool&) = delete;
  stack_pool& operator=(const stack_pool&) = delete;
  ~stack_pool() {
    for (auto& stack : free_) make_.deallocate(stack);
  }
  context::stack_context take() {
    if (free_.empty()) return make_.allocate();
    const auto stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void give(const context::stack_context& stack) { free_.push_back(stack); }
  static stack_pool& common() {
    static stack_pool pool;
    return pool;
  }

 private:
  context::fixedsize_stack make_{bytes};
  std::vector<context::stack_context> free_;
};
/// What Boost.Context calls an allocator: it gives one stack, back to the pool in the end.
struct one_stack {
  context::stack_context stack;
  context::stack_context allocate() { return stack; }
  void deallocate(context::stack_context& s) { stack_pool::common().give(s); }
};

/// Thrown inside a fibre to end it early, after another one has failed.
struct abandoned {};

class fibre {
 public:
  /// `body` runs at the first resume(). An exception derived from std::exception ends the fibre and is kept.
  explicit fibre(std::function<void()> body) : body_{std::move(body)} {
    const auto stack = stack_pool::common().take();
    bottom_ = static_cast<char*>(stack.sp) - stack.size;
    thread_ = context::fiber{std::allocator_arg, context::preallocated{stack.sp, stack.size, stack}, one_stack{stack},
                             [this](context::fiber&& scheduler) { return run(std::move(scheduler)); }};
  }
  fibre(const fibre&) = delete;
  fibre& operator=(const fibre&) = delete;

  bool ended() const { return !thread_; }
  std::exception_ptr failure() const { return failure_; }
  /// Scheduler: runs the thread until it waits or ends.
  void resume() {
    enter(&scheduler_stack_, bottom_, stack_pool::bytes);
    thread_ = std::move(thread_).resume();
    leave(scheduler_stack_, nullptr, nullptr);
  }
  /// Thread: back to the scheduler, until the next resume().
  void wait() {
    enter(&thread_stack_, scheduler_bottom_, scheduler_bytes_);
    scheduler_ = std::move(scheduler_).resume();
    leave(thread_stack_, &scheduler_bottom_, &scheduler_bytes_);
    if (abandon_) throw abandoned{};
  }
  void abandon() {
    abandon_ = true;
    if (!ended()) resume();
  }

 private:
  context::fiber run(context::fiber&& scheduler) {
    leave(nullptr, &scheduler_bottom_, &scheduler_bytes_);
    scheduler_ = std::move(scheduler);
    try {
      if (!abandon_) body_();
    } catch (const std::exception&) {
      failure_ = std::current_exception();
    } catch (const abandoned&) {  // nothing to tell: the one that failed does
    }
    enter(nullptr, scheduler_bottom_, scheduler_bytes_);
    return std::move(scheduler_);
  }
#if COMP_SIMT_ASAN
  static void enter(void** keep, const void* bottom, std::size_t bytes) {
    __sanitizer_start_switch_fiber(keep, bottom, bytes);
  }
  static void leave(void* kept, const void** bottom, std::size_t* bytes) {
    __sanitizer_finish_switch_fiber(kept, bottom, bytes);
  }
#else
  static void enter(void**, const void*, std::size_t) {}
  static void leave(void*, const void**, std::size_t*) {}
#endif

  std::function<void()> body_;
  context::fiber thread_, scheduler_;
  const void *bottom_ = nullptr, *scheduler_bottom_ = nullptr;
  std::size_t scheduler_bytes_ = 0;
  void *scheduler_stack_ = nullptr, *thread_stack_ = nullptr;
  bool abandon_ = false;
  std::exception_ptr failure_;
};

}  // namespace simt
