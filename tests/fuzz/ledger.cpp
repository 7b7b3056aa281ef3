// SPDX-License-Identifier: Apache-2.0
// Whole ledgers: what is read is written again and reads the same.
#include <comp/observe/ledger_lines.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  fuzz::read_or_refuse([&] {
    const auto read = comp::detail::parse_ledger(text, "f");
    fuzz::must(read.usable_bytes <= size);
    fuzz::must(read.usable_bytes > 0 || read.trials.empty());
    if (read.usable_bytes == 0) return;
    std::string again = comp::detail::ledger_header(read.signature) + "\n";
    for (const comp::trial& t : read.trials) again += comp::json_text(comp::json_of(t)) + "\n";
    const auto back = comp::detail::parse_ledger(again, "f");
    fuzz::must(back.usable_bytes == again.size() && back.trials.size() == read.trials.size());
    fuzz::must(back.signature == read.signature);
    std::string third = comp::detail::ledger_header(back.signature) + "\n";
    for (const comp::trial& t : back.trials) third += comp::json_text(comp::json_of(t)) + "\n";
    fuzz::must(third.substr(third.find('\n')) == again.substr(again.find('\n')));
  });
  return 0;
}
