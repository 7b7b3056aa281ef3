// SPDX-License-Identifier: Apache-2.0
// The lines of a ledger. A ledger is a file that records each run of a search, so that a search that was killed goes on
// from it.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/core/trial.hpp>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

inline constexpr std::size_t ledger_limit = std::size_t{4} << 30;       // bytes of a file
inline constexpr std::size_t ledger_line_limit = std::size_t{1} << 28;  // bytes of a line

/// The contents of a ledger.
struct ledger_content {
  std::string signature = {};      // says which search it belongs to: model, settings, trainer
  std::vector<trial> trials = {};  // the runs in the order in which they were made
  bool complete = false;           // true: the search ended by itself
  std::size_t usable_bytes = 0;    // length up to the end of the last whole line; 0: the header itself is not whole
};

/// Returns a text as it would come back from a file, in which bytes that are no UTF-8 are replaced.
COMP_INLINE std::string as_recorded(const std::string& text);

/// Returns the first line of a ledger.
COMP_INLINE std::string ledger_header(const std::string& signature);

/// Returns the line that records a run.
COMP_INLINE std::string ledger_line(const trial& t);

/// Returns the line that says that the search ended, with the plan that it found.
COMP_INLINE std::string ledger_end(const plan& p, std::size_t runs, double speedup);

/// Throws: `file_error` for a text that is neither a ledger nor the beginning of one. The user has then named a file of
/// another kind, which must not be overwritten.
COMP_INLINE void require_ledger(std::string_view text, const std::string& path);

/// Reads the text of a ledger. A last line without a newline was cut off when the search was killed, and is left out.
/// Throws: `file_error`, naming the line, for any other line that comp did not write so.
COMP_INLINE ledger_content parse_ledger(std::string_view text, const std::string& path);

/// Returns the fields in which two signatures differ, each with both values. `trials` are those of the recorded search;
/// they tell how far apart its repeated FP32 losses are, which decides whether two losses count as different.
COMP_INLINE std::map<std::string, std::pair<std::string, std::string>> differing_fields(
    std::string_view recorded, std::string_view now, const std::vector<trial>& trials);

/// Returns the message that a ledger belongs to another search. Long values are cut to the words that differ.
COMP_INLINE std::string signature_difference(const std::string& path,
                                             const std::map<std::string, std::pair<std::string, std::string>>& fields);

}  // namespace comp::detail

#if COMP_HEADER_ONLY
#include <comp/files/ledger_text.hpp>
#endif
