// SPDX-License-Identifier: Apache-2.0
// Files that a test writes for itself, in a folder that goes when the test ends.
#pragma once

#include <doctest/doctest.h>
#include <zlib.h>

#include <atomic>
#include <chrono>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_data {

inline std::vector<std::byte> bytes(std::string_view text) {
  std::vector<std::byte> made;
  for (const char c : text) made.push_back(static_cast<std::byte>(c));
  return made;
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

class folder {
 public:
  folder() {
    static std::atomic<int> count = 0;
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    path_ =
        std::filesystem::temp_directory_path() / ("comp_data_" + std::to_string(now) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;

  std::filesystem::path write(const std::string& name, std::string_view contents) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file, std::ios::binary}.write(contents.data(), static_cast<std::streamsize>(contents.size()));
    return file;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The message of the error that `call` throws; "" when it throws none.
template <class E = comp::file_error, class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const E& e) {
    return e.what();
  }
  return {};
}

/// "aaaa" n times over, for contents of a given size.
inline std::string repeated(std::string_view part, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += part;
  return all;
}

}  // namespace test_data
