// SPDX-License-Identifier: Apache-2.0
// The two texts of LINQS, with a NUL byte between them.
#include <examples/data/read_graph.hpp>

#include "fuzz.hpp"

namespace {
void must_be_sound(const data_sets::graph& read) {
  fuzz::must(read.source.size() == read.target.size());
  for (std::size_t i = 0; i < read.source.size(); ++i) {
    fuzz::must(read.source[i] >= 0 && read.source[i] < read.nodes && read.target[i] >= 0 &&
               read.target[i] < read.nodes);
    fuzz::must(read.source[i] != read.target[i]);
  }
  for (const std::int32_t column : read.feature_column) fuzz::must(column >= 0 && column < read.features);
  for (const std::int32_t label : read.labels) fuzz::must(label >= 0 && label < read.classes);
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace data_sets;
  const auto parts = fields({reinterpret_cast<const char*>(data), size}, '\0');
  if (parts.size() == 2) fuzz::read_or_refuse([&] { must_be_sound(parse_citations(parts[0], parts[1], "c", "d")); });
  return 0;
}
