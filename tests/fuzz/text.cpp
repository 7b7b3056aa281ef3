// SPDX-License-Identifier: Apache-2.0
// The first half makes the vocabulary, all of it is encoded.
#include <examples/data/text.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace data_sets;
  fuzz::read_or_refuse([&] {
    const std::string text = parse_text(fuzz::bytes(data, size), "f");
    const vocabulary own{text};
    fuzz::must(own.size() <= 255 && own.decode(own.encode(text)) == text);
    vocabulary{text.substr(0, text.size() - text.size() / 2)}.encode(text);
  });
  return 0;
}
