// SPDX-License-Identifier: Apache-2.0
// What unpacks must keep to its limit, whatever the archive claims.
#include <examples/data/file_bytes.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace data_sets;
  constexpr std::size_t limit = 100'000;
  const auto given = fuzz::bytes(data, size);
  fuzz::read_or_refuse([&] {
    const std::vector<std::byte> read = unpacked(fuzz::copy(given), "f", limit);
    fuzz::must(!read.empty() && (read.size() <= limit || !is_gzip(given)));
  });
  return 0;
}
