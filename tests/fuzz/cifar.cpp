// SPDX-License-Identifier: Apache-2.0
#include <examples/data/cifar.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace data_sets;
  for (const cifar kind : {cifar::ten, cifar::hundred}) {
    fuzz::read_or_refuse([&] {
      const images read = parse_cifar(fuzz::bytes(data, size), kind, "f");
      fuzz::must(read.count > 0 && read.labels.size() == static_cast<std::size_t>(read.count));
      fuzz::must(read.pixels.size() == read.labels.size() * 3072);
      for (const std::int32_t label : read.labels) fuzz::must(label >= 0 && label < read.classes);
    });
  }
  fuzz::read_or_refuse([&] { kind_of(fuzz::bytes(data, size), "f"); });
  return 0;
}
