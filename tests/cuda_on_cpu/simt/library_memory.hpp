// SPDX-License-Identifier: Apache-2.0
// What the stand-ins of cuBLASLt, cuDNN and cuSPARSE ask of memory when their work runs: all of an operand lies in one
// allocation of the device, and what is read has been written. A real library would read or write elsewhere, silently.
#pragma once

#include "runtime_memory.hpp"

namespace simt {

namespace detail {
inline allocation& of_library(const char* what, const void* p, std::size_t bytes) {
  allocation* a = memory_map::common().find(p);
  if (!a) throw fault{std::string{"a library "} + what + " memory that is not the device's"};
  if (!a->lives()) throw fault{std::string{"a library "} + what + " memory of a graph that is not allocated now"};
  const auto* at = static_cast<const unsigned char*>(p);
  if (at + bytes > a->data() + a->bytes()) {
    throw fault{std::string{"a library "} + what + " " + std::to_string(bytes) + " bytes where " +
                std::to_string(a->data() + a->bytes() - at) + " are left of an allocation"};
  }
  return *a;
}
}  // namespace detail

/// Notes how much scratch memory a library is given for a call.
inline void note_workspace(std::size_t bytes) { device.counts.workspace = std::max(device.counts.workspace, bytes); }

/// `count` neighbours that a library reads. Throws: fault.
template <class T>
const T* library_reads(const void* p, std::size_t count) {
  if (count == 0) return static_cast<const T*>(p);
  allocation& a = detail::of_library("reads", p, count * sizeof(T));
  a.touch(now_runs, false);
  if (!a.written(static_cast<const unsigned char*>(p) - a.data(), count * sizeof(T))) {
    throw fault{"a library reads memory that nobody has written"};
  }
  traffic += count * sizeof(T);
  return static_cast<const T*>(p);
}
/// `count` neighbours that a library writes; they count as written from now on. Throws: fault.
template <class T>
T* library_writes(void* p, std::size_t count) {
  if (count == 0) return static_cast<T*>(p);
  allocation& a = detail::of_library("writes", p, count * sizeof(T));
  a.touch(now_runs, true);
  a.mark_written(static_cast<unsigned char*>(p) - a.data(), count * sizeof(T));
  traffic += count * sizeof(T);
  return static_cast<T*>(p);
}

}  // namespace simt
