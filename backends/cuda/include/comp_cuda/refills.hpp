// SPDX-License-Identifier: Apache-2.0
// Overwrites device memory that a captured graph reads: a graph reads fixed addresses, so each batch's inputs must be
// copied to them, in the order of the stream. Values from the host go through pinned memory, so that the host waits
// only if all blocks of it are still being read, and for values that are larger than a block.
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
  ~refills() { (void)cudaStreamSynchronize(c_->stream().get()); }  // the stream may still read pinned memory
  refills(const refills&) = delete;
  refills& operator=(const refills&) = delete;

  /// Copies `from` to `to`. Returns when `from` may change again, which is before the copy has arrived.
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
  /// Copies what is too large for pinned memory, and waits for it, as detail::brought() does.
  void copy(void* to, std::span<const std::byte> from) {
    check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, c_->stream().get()),
          "copying values to the device");
    c_->stream().synchronize();
  }

  struct slot {
    pinned_block host;
    event copied{cudaEventDisableTiming};  // from then on `host` may be written again
  };
  context* c_;
  std::array<slot, 8> slots_;
  std::size_t next_ = 0;
};

namespace detail {
/// Copies from device to device, in the order of the stream.
inline void copy_within(context& c, void* to, const void* from, std::int64_t bytes) {
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, c.stream().get()),
        "copying values to where captured work reads them");
}
}  // namespace detail

/// Overwrites the values of t, whose address stays.
/// Throws: error for another number of values, and for tensors that are not row-major FP32.
inline void refill(context& c, tensor& t, const tensor& from) {
  const auto like = [](const tensor& x) { return x.precision() == precision::fp32 && x.order() == order::row_major; };
  require<error>(from.size() == t.size() && like(t) && like(from),
                 "refill of {} in {} with {} in {} (values go where they lie, as FP32): give as many", text(t.shape()),
                 name(t.precision()), text(from.shape()), name(from.precision()));
  c.flush();  // pending work was asked for with the values from before
  detail::copy_within(c, t.materialize(), from.materialize(), t.size() * 4);
}
/// Overwrites the indices of t, whose address stays.
/// Throws: error for another number of indices.
inline void refill(context& c, indices& t, const indices& from) {
  require<error>(from.size() == t.size(), "refill of {} indices with {} (they go where they lie): give as many",
                 t.size(), from.size());
  detail::copy_within(c, t.held()->materialize(), from.data(), t.size() * 4);
  t = {t.shape(), t.held(), from.range()};
}

}  // namespace comp::cuda
