// SPDX-License-Identifier: Apache-2.0
// Folders of JPEG pictures by class: ImageNet's train/<class>/*.JPEG and val/<class>/*.JPEG, and Tiny ImageNet's
// train/<class>/images/*.JPEG and val/images/*.JPEG with val/val_annotations.txt. The user unpacks the archives.
#pragma once

#include <comp/files/json_reader.hpp>
#include <examples/data/file_bytes.hpp>
#include <examples/data/images.hpp>
#include <examples/data/lines.hpp>
#include <examples/data/resize.hpp>
#include <examples/data/text.hpp>
#include <map>

namespace data_sets {

using comp::file_error;
using comp::in_quotes;
using comp::require;

struct picture_files {
  std::vector<std::filesystem::path> files = {};
  std::vector<std::int32_t> labels = {};  // each in [0, classes)
  std::vector<std::string> class_names = {};

  std::int32_t classes() const { return static_cast<std::int32_t>(class_names.size()); }
};

namespace detail {

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

/// Returns: the folder itself, or the one folder in it that has a train/, as in an unpacked archive.
inline std::filesystem::path with_train(const std::filesystem::path& folder) {
  std::error_code why;
  if (std::filesystem::is_directory(folder / "train", why)) return folder;
  for (const auto& inner : in_order(folder, true)) {
    if (std::filesystem::is_directory(inner / "train", why)) return inner;
  }
  throw file_error{
      fmt::format("\"{}\" has no folder train (train/<class>/*.JPEG is ImageNet's layout): unpack the data set there",
                  folder.string())};
}

inline std::map<std::string, std::int32_t, std::less<>> class_numbers(const std::filesystem::path& root) {
  std::map<std::string, std::int32_t, std::less<>> numbers;
  for (const auto& each : in_order(root / "train", true)) {
    numbers.emplace(each.filename().string(), static_cast<std::int32_t>(numbers.size()));
  }
  require<file_error>(!numbers.empty(),
                      "\"{}\" has no folders (one for each class is needed): unpack the data set there",
                      (root / "train").string());
  return numbers;
}

inline void add_class(picture_files& to, const std::filesystem::path& folder, std::int32_t label) {
  std::error_code why;
  const std::filesystem::path inner = folder / "images";
  for (const auto& file : in_order(std::filesystem::is_directory(inner, why) ? inner : folder, false)) {
    to.files.push_back(file);
    to.labels.push_back(label);
  }
}

inline void add_annotated(picture_files& to, const std::filesystem::path& folder,
                          const std::map<std::string, std::int32_t, std::less<>>& numbers) {
  const std::filesystem::path list = folder / "val_annotations.txt";
  const std::string text = read_text(list), name = fmt::format("\"{}\"", list.string());
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    const auto parts = fields(line, '\t');
    const auto known = numbers.find(parts.size() < 2 ? std::string_view{} : parts[1]);
    require<file_error>(known != numbers.end(),
                        "{} line {} has {} (a file and a class of train/ are needed): unpack the data set again", name,
                        number, in_quotes(line));
    const std::filesystem::path file{parts[0]};
    require<file_error>(file == file.filename() && !file.empty() && file != ".." && file != ".",
                        "{} line {} names file {} (one in images/ is needed): unpack the data set again", name, number,
                        in_quotes(parts[0]));
    to.files.push_back(folder / "images" / file);
    to.labels.push_back(known->second);
  });
}

}  // namespace detail

/// Lists the pictures without decoding them. Classes are numbered by the order of their folders' names in train/.
/// Throws: `file_error` for a folder in neither layout, and for a class that only the validation part has.
inline picture_files list_pictures(const std::filesystem::path& folder, part which) {
  const std::filesystem::path root = detail::with_train(folder);
  const auto numbers = detail::class_numbers(root);
  picture_files listing;
  for (const auto& [name, label] : numbers) listing.class_names.push_back(name);
  const std::filesystem::path at = root / (which == part::train ? "train" : "val");
  std::error_code why;
  if (which == part::test && std::filesystem::exists(at / "val_annotations.txt", why)) {
    detail::add_annotated(listing, at, numbers);
  } else {
    for (const auto& each : detail::in_order(at, true)) {
      const auto known = numbers.find(each.filename().string());
      require<file_error>(known != numbers.end(),
                          "\"{}\" is a class that train/ lacks (validation has the same ones): "
                          "unpack the data set again",
                          each.string());
      detail::add_class(listing, each, known->second);
    }
  }
  require<file_error>(!listing.files.empty(),
                      "\"{}\" has no pictures by class (<class>/*.JPEG, or images/ with "
                      "val_annotations.txt): unpack the data set there",
                      at.string());
  return listing;
}

/// True for a folder that list_pictures can read.
inline bool is_picture_folder(const std::filesystem::path& folder) {
  std::error_code why;
  if (std::filesystem::is_directory(folder / "train", why)) return true;
  const auto inner = detail::in_order(folder, true);
  return std::any_of(inner.begin(), inner.end(),
                     [&](const auto& each) { return std::filesystem::is_directory(each / "train", why); });
}

/// Returns: the middle of a picture, (3, side, side). Throws: `file_error`, naming the file.
inline std::vector<std::uint8_t> read_picture(const std::filesystem::path& file, std::int64_t side,
                                              std::int64_t scale_to = 0) {
  return middle(decode_jpeg(file_bytes(file), fmt::format("\"{}\"", file.string())), side, scale_to);
}

}  // namespace data_sets
