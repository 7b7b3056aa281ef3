// SPDX-License-Identifier: Apache-2.0
// Folders of JPEG pictures by class, as ImageNet's train/<class>/*.JPEG and val/<class>/*.JPEG. The user unpacks the
// archives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <examples/data/file_bytes.hpp>
#include <examples/data/images.hpp>
#include <examples/data/jpeg.hpp>
#include <examples/data/resize.hpp>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace data_sets {

using comp::file_error;
using comp::require;

struct picture_files {
  std::vector<std::filesystem::path> files = {};
  std::vector<std::int32_t> labels = {};  // each in [0, classes)
  std::int32_t classes = 0;
};

namespace detail {

/// Returns the folders, or the pictures, in a folder by their names.
inline std::vector<std::filesystem::path> in_order(const std::filesystem::path& folder, bool folders) {
  std::vector<std::filesystem::path> found;
  std::error_code why;
  for (const auto& entry : std::filesystem::directory_iterator{folder, why}) {
    std::string ending = entry.path().extension().string();
    for (char& c : ending) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    const bool wanted = folders ? entry.is_directory(why) : ending == ".jpeg" || ending == ".jpg";
    if (wanted) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace detail

/// Lists the pictures without decoding them. Classes are numbered by the order of their folders' names in train/.
/// Throws: `file_error` for a folder in another layout, and for a class that only the validation part has.
inline picture_files list_pictures(const std::filesystem::path& folder, part which) {
  const std::filesystem::path at = folder / (which == part::train ? "train" : "val");
  const auto classes = detail::in_order(folder / "train", true);
  picture_files made{.classes = static_cast<std::int32_t>(classes.size())};
  for (const auto& each : detail::in_order(at, true)) {
    const auto known = std::lower_bound(classes.begin(), classes.end(), folder / "train" / each.filename());
    require<file_error>(known != classes.end() && known->filename() == each.filename(),
                        "\"{}\" is a class that train/ lacks (validation has the same ones): unpack the data set again",
                        each.string());
    for (auto& file : detail::in_order(each, false)) {
      made.files.push_back(std::move(file));
      made.labels.push_back(static_cast<std::int32_t>(known - classes.begin()));
    }
  }
  require<file_error>(!made.files.empty(),
                      "\"{}\" has no pictures by class (<class>/*.JPEG): unpack the data set there", at.string());
  return made;
}

/// True for a folder that list_pictures can read.
inline bool is_picture_folder(const std::filesystem::path& folder) {
  std::error_code why;
  return std::filesystem::is_directory(folder / "train", why);
}

/// Returns: the middle of a picture, (3, side, side). Throws: `file_error`, naming the file.
inline std::vector<std::uint8_t> read_picture(const std::filesystem::path& file, std::int64_t side,
                                              std::int64_t scale_to = 0) {
  return middle(decode_jpeg(file_bytes(file), fmt::format("\"{}\"", file.string())), side, scale_to);
}

}  // namespace data_sets
