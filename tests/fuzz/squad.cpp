// SPDX-License-Identifier: Apache-2.0
#include <examples/data/squad_windows.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace data_sets;
  static const wordpiece pieces{"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##a\n##b\nb\n.\n"};
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  fuzz::read_or_refuse([&] {
    std::size_t end = 0;
    for (const piece& p : pieces.encode(text)) {
      fuzz::must(p.id >= 0 && p.id < pieces.size() && p.begin < p.end && p.end <= size && p.end >= end);
      end = p.end;
    }
  });
  fuzz::read_or_refuse([&] { (void)wordpiece{text}; });
  fuzz::read_or_refuse([&] {
    const squad read = parse_squad(text, "f");
    for (const squad_window& window : windows(read, pieces, {.length = 12, .stride = 3, .question = 4})) {
      fuzz::must(window.tokens.size() <= 12 && window.first <= window.last);
      fuzz::must(window.last < static_cast<std::int64_t>(window.tokens.size()));
    }
  });
  return 0;
}
