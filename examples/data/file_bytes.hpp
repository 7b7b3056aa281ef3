// SPDX-License-Identifier: Apache-2.0
// Reads a whole file, plain or gzip, up to a limit: a small archive that unpacks to terabytes is refused while it
// unpacks.
// The first bytes of a file say whether it is gzip, not its name. Needs zlib.
// Not here: what the bytes mean (the readers in this folder).
#pragma once

#include <zlib.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace data_sets {

using comp::file_error;
using comp::require;

inline constexpr std::size_t default_limit = std::size_t{1} << 30;  // [bytes], unpacked

inline bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

namespace detail {

class inflater {
 public:
  inflater(std::span<const std::byte> packed, std::string_view name) : packed_{packed}, name_{name} {
    require<file_error>(inflateInit2(&stream_, 15 + 16) == Z_OK,  // 15: largest window; 16: gzip header
                        "{}: zlib cannot start (out of memory): free some memory", name_);
  }
  ~inflater() { inflateEnd(&stream_); }
  inflater(const inflater&) = delete;
  inflater& operator=(const inflater&) = delete;

  /// Returns: all members of the archive, one after the other, as gunzip does.
  std::vector<std::byte> unpack(std::size_t limit) {
    std::vector<std::byte> chunk(std::size_t{1} << 16);
    std::vector<std::byte> unpacked;
    for (;;) {
      const int code = step(chunk);
      const std::size_t gained = chunk.size() - stream_.avail_out;
      require<file_error>(
          gained <= limit - unpacked.size(),
          "{} unpacks to more than {} bytes (the limit of this reader): check that it is the right file, "
          "or raise the limit",
          name_, limit);
      unpacked.insert(unpacked.end(), chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(gained));
      if (code != Z_STREAM_END) continue;
      if (used_ == packed_.size()) return unpacked;
      require<file_error>(is_gzip(packed_.subspan(used_)),
                          "{} has {} bytes behind its gzip data, at {} (nothing or another gzip member may follow): "
                          "fetch the file again",
                          name_, packed_.size() - used_, used_);
      inflateReset(&stream_);
    }
  }

 private:
  int step(std::vector<std::byte>& chunk) {
    // zlib counts in 32 bits, a file may be larger.
    const auto offered = static_cast<uInt>(std::min<std::size_t>(packed_.size() - used_, std::size_t{1} << 30));
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed_.data() + used_));
    stream_.avail_in = offered;
    stream_.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream_.avail_out = static_cast<uInt>(chunk.size());
    const int code = inflate(&stream_, Z_NO_FLUSH);
    used_ += offered - stream_.avail_in;
    require<file_error>(code == Z_OK || code == Z_STREAM_END || code == Z_BUF_ERROR,
                        "{} is corrupt gzip data at {} ({}): fetch the file again", name_, used_,
                        stream_.msg != nullptr ? stream_.msg : "not decodable");
    require<file_error>(
        code != Z_BUF_ERROR && (code == Z_STREAM_END || used_ < packed_.size() || stream_.avail_out == 0),
        "{} ends inside its gzip data, at {} (the end mark is missing): fetch the file again", name_, used_);
    return code;
  }

  std::span<const std::byte> packed_;
  std::string_view name_;
  std::size_t used_ = 0;
  z_stream stream_ = {};
};

}  // namespace detail

/// Returns: `contents`, unpacked if it is gzip. name: what messages call it.
/// Throws: `file_error` for data that is empty, larger than `limit`, corrupt, cut off, or followed by other bytes.
inline std::vector<std::byte> unpacked(std::vector<std::byte> contents, std::string_view name,
                                       std::size_t limit = default_limit) {
  if (is_gzip(contents)) contents = detail::inflater{contents, name}.unpack(limit);
  require<file_error>(!contents.empty(), "{} is empty (data is expected): fetch the file again", name);
  return contents;
}

/// Returns: the file at `path`, unpacked if it is gzip.
/// Throws: `file_error`, naming the file, if it is missing, not a regular file, not readable, or refused by unpacked().
inline std::vector<std::byte> file_bytes(const std::filesystem::path& path, std::size_t limit = default_limit) {
  const std::string name = fmt::format("\"{}\"", path.string());
  std::error_code why;
  const auto status = std::filesystem::status(path, why);
  require<file_error>(std::filesystem::exists(status), "{} does not exist (a data file is expected): check the path",
                      name);
  require<file_error>(!std::filesystem::is_directory(status),
                      "{} is a directory (a data file is expected): name a file in it", name);
  require<file_error>(std::filesystem::is_regular_file(status),
                      "{} is no regular file (its size must be known): copy it to one", name);
  const std::uintmax_t size = std::filesystem::file_size(path, why);
  require<file_error>(
      !why && size <= limit,
      "{} has {} bytes (the limit of this reader is {}): check that it is the right file, or raise the limit", name,
      size, limit);
  std::vector<std::byte> contents(static_cast<std::size_t>(size));
  std::ifstream in{path, std::ios::binary};
  in.read(reinterpret_cast<char*>(contents.data()), static_cast<std::streamsize>(size));
  require<file_error>(in.good(), "{} cannot be read at {} of {} bytes ({}): check its permissions and the disk", name,
                      in.is_open() ? in.gcount() : 0, size, in.is_open() ? "it ended early" : "it cannot be opened");
  return unpacked(std::move(contents), name, limit);
}

/// Returns: the path of `folder/stem`, or of `folder/stem.gz`.
/// Throws: `file_error` if neither exists, or `folder` is not a folder.
inline std::filesystem::path plain_or_gz(const std::filesystem::path& folder, std::string_view stem) {
  std::error_code why;
  require<file_error>(std::filesystem::is_directory(folder, why),
                      "\"{}\" is no folder (it is to hold {}): check the path", folder.string(), stem);
  for (const std::string_view ending : {"", ".gz"}) {
    std::filesystem::path path = folder / fmt::format("{}{}", stem, ending);
    if (std::filesystem::exists(path, why)) return path;
  }
  throw file_error{
      fmt::format("\"{}\" has neither {} nor {}.gz (the standard layout has one of them): "
                  "unpack the whole data set there",
                  folder.string(), stem, stem)};
}

}  // namespace data_sets
