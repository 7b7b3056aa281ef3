// SPDX-License-Identifier: Apache-2.0
// BERT's uncased tokenizer: cuts a text into pieces of a vocabulary, each with the bytes of the text that it came from.
// utf8proc does Unicode's categories, lower case and decomposition.
// Source: Devlin et al. 2019, google-research/bert, tokenization.py (BasicTokenizer with do_lower_case, then
// WordpieceTokenizer)
#pragma once

#include <utf8proc.h>

#include <array>
#include <examples/data/lines.hpp>
#include <examples/data/text.hpp>
#include <functional>
#include <unordered_map>
#include <utility>

namespace data_sets {

/// A token and the bytes [begin, end) of the text that it stands for.
struct piece {
  std::int32_t id = 0;
  std::size_t begin = 0, end = 0;
  friend bool operator==(const piece&, const piece&) = default;
};

namespace detail {

/// A word in lower case without accents. `at` and `from` have an element for each character.
struct plain_word {
  std::string text = {};
  std::vector<std::size_t> at = {};                            // the character's first byte in `text`
  std::vector<std::pair<std::size_t, std::size_t>> from = {};  // the bytes [begin, end) of the original text

  void add(utf8proc_int32_t character, std::size_t begin, std::size_t end) {
    std::array<utf8proc_uint8_t, 4> bytes = {};
    const auto length = utf8proc_encode_char(character, bytes.data());
    at.push_back(text.size());
    from.emplace_back(begin, end);
    text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(length));
  }
  void clear() {
    text.clear();
    at.clear();
    from.clear();
  }
};

inline bool is_space(utf8proc_int32_t c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || utf8proc_category(c) == UTF8PROC_CATEGORY_ZS;
}
/// True for control and format characters, and for the character that replaces unreadable ones.
inline bool is_dropped(utf8proc_int32_t c) {
  const auto category = utf8proc_category(c);
  return c == 0 || c == 0xfffd || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF;
}
inline bool is_punctuation(utf8proc_int32_t c) {
  if ((c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126)) return true;
  const auto category = utf8proc_category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}
/// True for ideographs, which are words of one character.
inline bool is_ideograph(utf8proc_int32_t c) {
  constexpr std::array<std::pair<utf8proc_int32_t, utf8proc_int32_t>, 8> blocks = {{{0x4e00, 0x9fff},
                                                                                    {0x3400, 0x4dbf},
                                                                                    {0x20000, 0x2a6df},
                                                                                    {0x2a700, 0x2b73f},
                                                                                    {0x2b740, 0x2b81f},
                                                                                    {0x2b820, 0x2ceaf},
                                                                                    {0xf900, 0xfaff},
                                                                                    {0x2f800, 0x2fa1f}}};
  return std::ranges::any_of(blocks, [c](const auto& block) { return c >= block.first && c <= block.second; });
}

/// Calls f(word) for each word of `text`. Each punctuation mark and each ideograph is a word.
/// Throws: `error`, with the offset, for bytes that are not UTF-8.
void for_each_word(std::string_view text, auto&& f) {
  plain_word word;
  const auto finish = [&] {
    if (!word.at.empty()) f(std::as_const(word));
    word.clear();
  };
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (std::size_t at = 0; at < text.size();) {
    utf8proc_int32_t character = -1;
    const auto length = utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
    require<error>(length > 0, "byte 0x{:02x} at {} is no UTF-8 (text is read as UTF-8): convert the text", bytes[at],
                   at);
    const std::size_t end = at + static_cast<std::size_t>(length);
    if (is_space(character)) finish();
    const bool alone = is_ideograph(character);
    if (alone) finish();
    if (!is_space(character) && !is_dropped(character)) {
      std::array<utf8proc_int32_t, 32> parts = {};
      int boundary = 0;
      const auto count = utf8proc_decompose_char(utf8proc_tolower(character), parts.data(), std::ssize(parts),
                                                 UTF8PROC_DECOMPOSE, &boundary);
      for (utf8proc_ssize_t i = 0; i < std::min(count, std::ssize(parts)); ++i) {
        const utf8proc_int32_t part = parts[static_cast<std::size_t>(i)];
        if (utf8proc_category(part) == UTF8PROC_CATEGORY_MN) continue;
        if (is_punctuation(part)) finish();
        word.add(part, at, end);
        if (is_punctuation(part)) finish();
      }
    }
    if (alone) finish();
    at = end;
  }
  finish();
}

struct text_hash : std::hash<std::string_view> {
  using is_transparent = void;
};

}  // namespace detail

class wordpiece {
 public:
  /// vocabulary: a piece in each line, whose number is the line's. A piece that continues a word begins with "##".
  /// Throws: `file_error`, naming the line, for a repeated or empty piece, and if [PAD], [UNK], [CLS] or [SEP] is
  /// missing.
  explicit wordpiece(std::string_view vocabulary, std::string_view name = "the vocabulary") {
    std::string_view rest = vocabulary;
    for (std::int32_t id = 0; !rest.empty(); ++id) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      if (line.ends_with('\r')) line.remove_suffix(1);
      require<file_error>(!line.empty() && line.size() < 1000,
                          "{} line {} has {} bytes (a piece of 1 to 999 is needed): fetch the file again", name, id + 1,
                          line.size());
      const bool inner = line.size() > 2 && line.starts_with("##");
      require<file_error>((inner ? inner_ : first_).try_emplace(std::string{line.substr(inner ? 2 : 0)}, id).second,
                          "{} line {} repeats a piece (each has one number): fetch the file again", name, id + 1);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      size_ = id + 1;
    }
    pad = special("[PAD]", name);
    unknown = special("[UNK]", name);
    begin = special("[CLS]", name);
    separator = special("[SEP]", name);
  }

  std::int32_t pad = 0, unknown = 0, begin = 0, separator = 0;
  std::int32_t size() const { return size_; }

  /// Returns: the pieces of a text. Throws: `error` for text that is not UTF-8.
  std::vector<piece> encode(std::string_view text) const {
    std::vector<piece> pieces;
    detail::for_each_word(text, [&](const detail::plain_word& word) { add(pieces, word); });
    return pieces;
  }

 private:
  using table = std::unordered_map<std::string, std::int32_t, detail::text_hash, std::equal_to<>>;

  std::int32_t special(std::string_view piece, std::string_view name) const {
    const auto found = first_.find(piece);
    require<file_error>(found != first_.end(), "{} has no {} (a BERT vocabulary has): use its vocab.txt", name, piece);
    return found->second;
  }

  /// Appends the pieces of a word: the longest piece that it begins with, then the longest that continues it, and so
  /// on; one unknown piece if the vocabulary cannot make up the word.
  void add(std::vector<piece>& to, const detail::plain_word& word) const {
    constexpr std::size_t longest_word = 100;  // [characters], as BERT
    const std::size_t before = to.size(), characters = word.at.size();
    std::size_t at = characters > longest_word ? characters + 1 : 0;
    while (at < characters) {
      const std::size_t start = at;
      for (std::size_t end = characters; end > start && at == start; --end) {
        const std::size_t stop = end == characters ? word.text.size() : word.at[end];
        const table& pieces = start == 0 ? first_ : inner_;
        const auto found = pieces.find(std::string_view{word.text}.substr(word.at[start], stop - word.at[start]));
        if (found == pieces.end()) continue;
        to.push_back({found->second, word.from[start].first, word.from[end - 1].second});
        at = end;
      }
      if (at == start) at = characters + 1;
    }
    if (at == characters) return;
    to.resize(before);
    to.push_back({unknown, word.from.front().first, word.from.back().second});
  }

  table first_, inner_;
  std::int32_t size_ = 0;
};

}  // namespace data_sets
