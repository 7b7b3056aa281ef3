// SPDX-License-Identifier: Apache-2.0
#include <examples/data/digits.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace data_sets;
  fuzz::read_or_refuse([&] {
    const images read = parse_digits(fuzz::bytes(data, size), "f");
    fuzz::must(read.count > 0 && read.labels.size() == static_cast<std::size_t>(read.count));
    fuzz::must(read.pixels.size() == read.labels.size() * 64);
    for (const std::int32_t label : read.labels) fuzz::must(label >= 0 && label < 10);
  });
  return 0;
}
