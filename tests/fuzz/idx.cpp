// SPDX-License-Identifier: Apache-2.0
// The first two bytes say where the images end and the labels begin.
#include <examples/data/idx.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace data_sets;
  const auto all = fuzz::bytes(data, size);
  fuzz::read_or_refuse([&] {
    const idx_array read = parse_idx(all, "f");
    std::size_t values = 1;
    for (const auto extent : read.shape) values *= static_cast<std::size_t>(extent);
    fuzz::must(values == read.values.size() && values + 4 + 4 * read.shape.size() == size);
  });
  if (size < 2) return 0;
  const std::size_t cut = std::min<std::size_t>(data[0] * std::size_t{256} + data[1], size - 2);
  fuzz::read_or_refuse([&] {
    const images read = parse_idx_images(all.subspan(2, cut), "i", all.subspan(2 + cut), "l");
    fuzz::must(read.labels.size() == static_cast<std::size_t>(read.count));
    fuzz::must(read.pixels.size() == static_cast<std::size_t>(read.count * read.pixels_each()));
    for (const std::int32_t label : read.labels) fuzz::must(label >= 0 && label < read.classes);
  });
  return 0;
}
