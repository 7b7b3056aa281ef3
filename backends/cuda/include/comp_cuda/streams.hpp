// SPDX-License-Identifier: Apache-2.0
// Streams and events that free themselves. A stream runs its work in order; an event is a point in that order, which
// can be waited for and timed. Destructors do not wait and do not throw.
#pragma once

#include <algorithm>
#include <utility>

#include "errors.hpp"

namespace comp::cuda {

class event {
 public:
  /// flags: cudaEventDisableTiming for an event that is only waited for, which costs the device less.
  explicit event(unsigned flags = cudaEventDefault) {
    check(cudaEventCreateWithFlags(&event_, flags), "making an event");
  }
  event(event&& other) noexcept : event_{std::exchange(other.event_, nullptr)} {}
  event& operator=(event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~event() {
    if (event_) (void)cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }
  void wait() const { check(cudaEventSynchronize(event_), "waiting for an event"); }
  bool passed() const {
    const cudaError_t code = cudaEventQuery(event_);
    if (code == cudaErrorNotReady) return (void)cudaGetLastError(), false;
    check(code, "asking for an event");
    return true;
  }
  /// Requires: both events have passed.
  /// Returns: the time from `earlier` to this one. Unit: [s].
  double seconds_since(const event& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "timing between two events");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream that neither waits for the default stream nor makes it wait.
class owned_stream {
 public:
  owned_stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  owned_stream(owned_stream&& other) noexcept : stream_{std::exchange(other.stream_, nullptr)} {}
  owned_stream& operator=(owned_stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~owned_stream() {
    if (stream_) (void)cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }
  void record(const event& at) const { check(cudaEventRecord(at.get(), stream_), "recording an event"); }
  void wait_for(const event& at) const {
    check(cudaStreamWaitEvent(stream_, at.get(), 0), "waiting on another stream");
  }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "waiting for a stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Returns: the time of one call of `run`, which gives the stream work. Waits for the stream. Unit: [s].
double time_of(const owned_stream& on, int repeats, auto run) {
  const event begin, end;
  on.record(begin);
  for (int i = 0; i < repeats; ++i) run();
  on.record(end);
  end.wait();
  return end.seconds_since(begin) / std::max(repeats, 1);
}

}  // namespace comp::cuda
