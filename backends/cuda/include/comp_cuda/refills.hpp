// SPDX-License-Identifier: Apache-2.0
// Other values at a place on the device that work given later reads: through pinned memory, in the order of the stream.
// Nothing waits but for pinned memory that is still being read (with two batches under way, for neither), and for what
// is larger than settings::pinned_limit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "prefetch.hpp"
#include "transfer.hpp"

namespace comp::cuda {

class refills {
 public:
  explicit refills(context& c) : c_{&c} {}
  ~refills() { (void)cudaStreamSynchronize(c_->stream().get()); }  // pinned memory is being read until then
  refills(const refills&) = delete;
  refills& operator=(const refills&) = delete;

  /// Returns when `from` has been read.
  void put(void* to, std::span<const std::byte> from) {
    if (std::ssize(from) > c_->chosen().pinned_limit) return copy(to, from);
    slot& s = slots_[next_++ % slots_.size()];
    s.copied.wait();
    if (s.host.bytes() < from.size()) s.host = pinned_block{from.size()};
    std::memcpy(s.host.data(), from.data(), from.size());
    check(cudaMemcpyAsync(to, s.host.data(), from.size(), cudaMemcpyHostToDevice, c_->stream().get()),
          "copying values to the device");
    c_->stream().record(s.copied);
  }

 private:
  /// What is too large for pinned memory, as detail::brought() does.
  void copy(void* to, std::span<const std::byte> from) {
    check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, c_->stream().get()),
          "copying values to the device");
    c_->stream().synchronize();
  }

  struct slot {
    pinned_block host;
    event copied{cudaEventDisableTiming};
  };
  context* c_;
  std::array<slot, 8> slots_;
  std::size_t next_ = 0;
};

/// Throws: error for another number of values.
inline void refill(context& c, tensor& t, std::span<const float> from) {
  require<error>(std::ssize(from) == t.size() && t.precision() == precision::fp32 && t.order() == order::row_major,
                 "refill of {} in {} with {} values (they go where they lie, as FP32): upload them", text(t.shape()),
                 name(t.precision()), from.size());
  c.flush();  // what waits to read the values of before
  c.part<refills>().put(t.materialize(), std::as_bytes(from));
}
inline void refill(context& c, indices& t, std::span<const std::int32_t> from) {
  require<error>(std::ssize(from) == t.size(), "refill of {} indices with {} (they go where they lie): upload them",
                 t.size(), from.size());
  c.part<refills>().put(t.held()->materialize(), std::as_bytes(from));
  t = {t.shape(), t.held(), detail::range_of(from)};
}

}  // namespace comp::cuda
