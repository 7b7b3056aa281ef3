// SPDX-License-Identifier: Apache-2.0
// Files that a test writes for itself, in a folder that goes when the test ends.
#pragma once

#include <doctest/doctest.h>
#include <zlib.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "../scratch.hpp"

namespace test_data {

inline std::vector<std::byte> bytes(std::string_view text) {
  std::vector<std::byte> result;
  for (const char c : text) result.push_back(static_cast<std::byte>(c));
  return result;
}

/// `text` as gzip, header and checksum included.
inline std::string gzip(std::string_view text) {
  z_stream stream = {};
  REQUIRE(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

struct folder : scratch {
  std::filesystem::path write(const std::string& name, std::string_view contents) const {
    const std::filesystem::path file = *this / name;
    std::filesystem::create_directories(file.parent_path());
    write_text(file, contents);
    return file;
  }
  std::filesystem::path path() const { return *this / ""; }
};
/// A test case's own.
struct in_folder {
  const folder in;
};

/// "aaaa" n times over, for contents of a given size.
inline std::string repeated(std::string_view part, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += part;
  return all;
}

}  // namespace test_data
