// SPDX-License-Identifier: Apache-2.0
// Whole ledgers: what is read is written again and reads the same.
#include <comp/files/ledger_lines.hpp>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text;  // lines with their checksums, or no random line would be read
  for (std::string_view left{reinterpret_cast<const char*>(data), size}; !left.empty();) {
    const std::size_t end = left.find('\n');
    const std::string_view line = left.substr(0, end);
    text += end == std::string_view::npos || line.empty() ? std::string{line} : comp::detail::sealed(std::string{line});
    left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
  }
  fuzz::read_or_refuse([&] {
    const auto read = comp::detail::parse_ledger(text, "f");
    fuzz::must(read.usable_bytes <= text.size());
    fuzz::must(read.usable_bytes > 0 || read.trials.empty());
    if (read.usable_bytes == 0) return;
    std::string again = comp::detail::ledger_header(read.signature);
    for (const comp::trial& t : read.trials) again += comp::detail::ledger_line(t);
    const auto back = comp::detail::parse_ledger(again, "f");
    fuzz::must(back.usable_bytes == again.size() && back.trials.size() == read.trials.size());
    fuzz::must(back.signature == read.signature);
    std::string third = comp::detail::ledger_header(back.signature);
    for (const comp::trial& t : back.trials) third += comp::detail::ledger_line(t);
    fuzz::must(third.substr(third.find('\n')) == again.substr(again.find('\n')));
  });
  return 0;
}
