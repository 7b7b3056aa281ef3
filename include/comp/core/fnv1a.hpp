// SPDX-License-Identifier: Apache-2.0
// The FNV-1a hash of 64 bits (draft-eastlake-fnv). Fingerprints, checksums and signatures in files are made of it,
// since std::hash may differ from one standard library to the next and this one is the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace comp::detail {

struct fnv1a {
  std::uint64_t hash = 0xcbf29ce484222325ULL;

  /// Adds a byte. FNV-1a is defined for bytes; a wider value is mixed in as if it were one, which is faster.
  void add(std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3ULL; }
  void add_bytes(const void* bytes, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) add(static_cast<const unsigned char*>(bytes)[i]);
  }
};

}  // namespace comp::detail
