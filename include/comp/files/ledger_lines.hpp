// SPDX-License-Identifier: Apache-2.0
// The lines of a ledger and what they say: see observe/ledger.hpp, which keeps the file.
// Not here: their text (files/ledger_text.hpp).
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/core/trial.hpp>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

inline constexpr std::size_t ledger_limit = std::size_t{4} << 30;       // bytes of a file
inline constexpr std::size_t ledger_line_limit = std::size_t{1} << 28;  // bytes of a line

struct ledger_content {
  std::string signature = {};
  std::vector<trial> trials = {};
  bool complete = false;         // the last line is an end marker
  std::size_t usable_bytes = 0;  // up to the end of the last whole line; 0: not even the header is whole
};

/// Now, as 2026-01-31T12:00:00Z.
COMP_INLINE std::string utc_now();

/// A text as it comes back from a file: bytes that are no UTF-8 are replaced.
COMP_INLINE std::string as_recorded(const std::string& text);

/// The first line of a ledger.
COMP_INLINE std::string ledger_header(const std::string& signature);

/// A run as a line.
COMP_INLINE std::string ledger_line(const trial& t);

/// The line that ends a search's runs.
COMP_INLINE std::string ledger_end(const plan& p, std::size_t runs, double speedup);

/// Throws: `file_error` for a text that is neither a ledger nor the beginning of one: not ours to overwrite.
COMP_INLINE void require_ledger(std::string_view text, const std::string& path);

/// Reads the text of a ledger. A last line without its newline was cut off by a kill and is not counted as usable.
/// Throws: `file_error`, naming the line, for any other line that is not as comp writes it.
COMP_INLINE ledger_content parse_ledger(std::string_view text, const std::string& path);

/// The "key=value" parts of a signature.
COMP_INLINE std::set<std::string> signature_parts(std::string_view signature);

/// The fields, each with what both have, in which two signatures differ. `trials`: that the first one recorded.
COMP_INLINE std::map<std::string, std::pair<std::string, std::string>> differing_fields(
    std::string_view recorded, std::string_view now, const std::vector<trial>& trials);

/// What to tell when a ledger belongs to another search: of long values only the words that differ.
COMP_INLINE std::string signature_difference(const std::string& path,
                                             const std::map<std::string, std::pair<std::string, std::string>>& fields);

}  // namespace comp::detail

#if COMP_HEADER_ONLY
#include <comp/files/ledger_text.hpp>
#endif
