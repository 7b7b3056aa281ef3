// SPDX-License-Identifier: Apache-2.0
#include <examples/data/resize.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace data_sets;
  fuzz::read_or_refuse([&] {
    const picture read = decode_jpeg(fuzz::bytes(data, size), "f", 1 << 16);
    fuzz::must(read.pixels.size() == static_cast<std::size_t>(read.height * read.width * 3));
    fuzz::must(middle(read, 4).size() == 48);
  });
  return 0;
}
