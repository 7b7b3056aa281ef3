// SPDX-License-Identifier: Apache-2.0
// A text file and the vocabulary of its letters, for models that read and write letter by letter. A letter is a byte:
// an ASCII character is one letter, another character of UTF-8 is two to four.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <examples/data/file_bytes.hpp>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace data_sets {

using comp::error;
using comp::file_error;
using comp::require;

/// Throws: `file_error`, with the offset, for a NUL byte, which a text does not have.
inline std::string parse_text(std::span<const std::byte> bytes, std::string_view name) {
  require<file_error>(!bytes.empty(), "{} is empty (a text is expected): use a file with text", name);
  const auto nul = std::ranges::find(bytes, std::byte{0});
  require<file_error>(nul == bytes.end(), "{} has a NUL byte at {} (a text has none): check that it is a text file",
                      name, nul - bytes.begin());
  std::string text(bytes.size(), ' ');
  std::ranges::transform(bytes, text.begin(), [](std::byte b) { return static_cast<char>(b); });
  return text;
}

/// Reads a text file, plain or gzip.
inline std::string read_text(const std::filesystem::path& path, std::size_t limit = default_limit) {
  return parse_text(file_bytes(path, limit), fmt::format("\"{}\"", path.string()));
}

/// The letters that occur in a text, numbered from 0 in the order of their bytes.
class vocabulary {
 public:
  explicit vocabulary(std::string_view text) {
    std::array<bool, 256> occurs = {};
    for (const char letter : text) occurs[static_cast<unsigned char>(letter)] = true;
    token_of_.fill(-1);
    for (std::size_t letter = 0; letter < occurs.size(); ++letter) {
      if (!occurs[letter]) continue;
      token_of_[letter] = static_cast<std::int32_t>(letters_.size());
      letters_ += static_cast<char>(letter);
    }
    require<error>(!letters_.empty(), "a vocabulary of an empty text (it has no letters): give it the training text");
  }

  std::size_t size() const { return letters_.size(); }
  const std::string& letters() const { return letters_; }

  /// Throws: `error`, with the position, for a letter that the vocabulary lacks.
  std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<std::int32_t> tokens(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto letter = static_cast<unsigned char>(text[i]);
      tokens[i] = token_of_[letter];
      require<error>(
          tokens[i] >= 0,
          "letter {} at {} is not in the vocabulary of {} letters (it did not occur in the text that made it): "
          "make the vocabulary from both texts, or leave the letter out",
          shown(letter), i, size());
    }
    return tokens;
  }

  /// Throws: `error`, with the position, for a number that is not a token.
  std::string decode(std::span<const std::int32_t> tokens) const {
    std::string text;
    text.reserve(tokens.size());
    for (const std::int32_t token : tokens) {
      require<error>(
          token >= 0 && static_cast<std::size_t>(token) < size(),
          "token {} at {} is out of range (the vocabulary has {} letters): decode what this vocabulary encoded", token,
          text.size(), size());
      text += letters_[static_cast<std::size_t>(token)];
    }
    return text;
  }

 private:
  static std::string shown(unsigned char letter) {
    return letter > 32 && letter < 127 ? fmt::format("'{}'", static_cast<char>(letter))
                                       : fmt::format("0x{:02x}", letter);
  }

  std::string letters_;
  std::array<std::int32_t, 256> token_of_;
};

}  // namespace data_sets
