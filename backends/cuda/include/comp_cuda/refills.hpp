// SPDX-License-Identifier: Apache-2.0
// Other values at a place on the device that captured work reads, in the order of the stream: of the host's through
// pinned memory (what is small; nothing waits but for pinned memory that is still being read), of tensors as they are.
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

namespace detail {
/// In the order of the stream.
inline void copy_within(context& c, void* to, const void* from, std::int64_t bytes) {
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, c.stream().get()),
        "copying values to where captured work reads them");
}
}  // namespace detail

/// Throws: error for another number of values, or values that lie elsewhere.
inline void refill(context& c, tensor& t, const tensor& from) {
  const auto like = [](const tensor& x) { return x.precision() == precision::fp32 && x.order() == order::row_major; };
  require<error>(from.size() == t.size() && like(t) && like(from),
                 "refill of {} in {} with {} in {} (values go where they lie, as FP32): give as many", text(t.shape()),
                 name(t.precision()), text(from.shape()), name(from.precision()));
  c.flush();  // what waits to read the values of before
  detail::copy_within(c, t.materialize(), from.materialize(), t.size() * 4);
}
inline void refill(context& c, indices& t, const indices& from) {
  require<error>(from.size() == t.size(), "refill of {} indices with {} (they go where they lie): give as many",
                 t.size(), from.size());
  detail::copy_within(c, t.held()->materialize(), from.data(), t.size() * 4);
  t = {t.shape(), t.held(), from.range()};
}

}  // namespace comp::cuda
