// SPDX-License-Identifier: Apache-2.0
// Streams and events as values that own: work in order, and points in it that can be waited for and timed.
// Destructors wait for nothing and throw nothing.
#pragma once

#include <utility>

#include "errors.hpp"

namespace comp::cuda {

class event {
 public:
  /// cudaEventDisableTiming: one that is only waited for, which is cheaper.
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
  /// The time between two events that have passed. Unit: [s].
  double seconds_since(const event& earlier) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "timing between two events");
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Runs beside the default stream, which it does not wait for.
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

}  // namespace comp::cuda
