// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets of the readers share: any bytes must be read or be refused with comp::error, and a refusal
// follows the grammar of messages.
#pragma once

#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

namespace fuzz {

inline void must(bool holds) {
  if (!holds) std::abort();
}

/// `read` returns or throws a comp::error with a cause and a remedy; anything else is a finding.
void read_or_refuse(auto&& read) {
  try {
    read();
  } catch (const comp::error& refused) {
    const std::string_view message = refused.what();
    must(message.find('(') != std::string_view::npos && message.find("): ") != std::string_view::npos);
  }
}

inline std::span<const std::byte> bytes(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

inline std::vector<std::byte> copy(std::span<const std::byte> from) { return {from.begin(), from.end()}; }

}  // namespace fuzz
