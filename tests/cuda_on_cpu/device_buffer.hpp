// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU for tests, with what simt::buffer offers. Each is an allocation of its own and ends with its last
// element, so that compute-sanitizer sees what goes beyond.
#pragma once

#include <comp_cuda/errors.hpp>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace comp::cuda::test {

template <class T>
class buffer {
 public:
  /// shift: how many elements it lies from a 256-byte boundary. Filled with bytes that no test expects.
  explicit buffer(std::size_t n, std::size_t shift = 0) : n_{n} {
    const std::size_t bytes = (n + shift) * sizeof(T);
    if (bytes) check(cudaMalloc(&start_, bytes), "allocating a test's memory");
    if (bytes) check(cudaMemset(start_, 0xA5, bytes), "filling a test's memory");
    settle();
    first_ = static_cast<T*>(start_) + shift;
  }
  explicit buffer(std::span<const T> values, std::size_t shift = 0) : buffer(values.size(), shift) {
    if (n_) check(cudaMemcpy(first_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice), "filling memory");
    settle();
  }
  explicit buffer(const std::vector<T>& values, std::size_t shift = 0) : buffer(std::span<const T>{values}, shift) {}
  buffer(buffer&& other) noexcept : n_{other.n_}, start_{std::exchange(other.start_, nullptr)}, first_{other.first_} {}
  buffer& operator=(buffer&&) = delete;
  ~buffer() { (void)cudaFree(start_); }

  T* data() const { return first_; }
  std::size_t size() const { return n_; }
  /// Waits for all work, and throws what went wrong in it.
  std::vector<T> values() const {
    check(cudaDeviceSynchronize(), "running a kernel");
    std::vector<T> all(n_);
    if (n_) check(cudaMemcpy(all.data(), first_, n_ * sizeof(T), cudaMemcpyDeviceToHost), "reading memory");
    return all;
  }

 private:
  /// Filling returns before it is done, and the streams of a device do not wait for the default one.
  static void settle() { check(cudaStreamSynchronize(nullptr), "filling a test's memory"); }

  std::size_t n_;
  void* start_ = nullptr;
  T* first_ = nullptr;
};

}  // namespace comp::cuda::test
