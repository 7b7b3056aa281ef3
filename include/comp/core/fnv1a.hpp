// SPDX-License-Identifier: Apache-2.0
// The FNV-1a hash, 64 bit (draft-eastlake-fnv): of fingerprints, checksums and signatures, the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace comp::detail {

struct fnv1a {
  std::uint64_t hash = 0xcbf29ce484222325ULL;

  /// Takes a byte, or a value of more bits as one.
  void add(std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3ULL; }
  void add_bytes(const void* bytes, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) add(static_cast<const unsigned char*>(bytes)[i]);
  }
};

}  // namespace comp::detail
