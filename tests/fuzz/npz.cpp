// SPDX-License-Identifier: Apache-2.0
#include <examples/data/graph_npz.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace data_sets;
  fuzz::read_or_refuse([&] {
    const npy_array read = parse_npy(fuzz::bytes(data, size), "f");
    fuzz::must(read.size() * read.item == read.bytes.size());
    (void)read.floats();
  });
  fuzz::read_or_refuse([&] { parse_graph_npz(fuzz::bytes(data, size), "f", std::size_t{1} << 20); });
  return 0;
}
