// SPDX-License-Identifier: Apache-2.0
// CIFAR-10 and CIFAR-100 in their binary form: records of one or two label bytes and 3072 pixels, without a header.
// Source: Krizhevsky, "The CIFAR-10 and CIFAR-100 datasets", section "Binary version".
#pragma once

#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <examples/data/file_bytes.hpp>
#include <examples/data/images.hpp>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <vector>

namespace data_sets {

using comp::file_error;
using comp::require;

enum class cifar : std::uint8_t { ten, hundred };

namespace detail {

struct cifar_layout {
  std::string_view name;
  std::size_t label_bytes;  // the last one is the class; in CIFAR-100 the superclass comes before it
  std::int32_t classes;
  std::int32_t superclasses;
  std::string_view subfolder;  // the folder that the archive unpacks to
};

constexpr cifar_layout layout_of(cifar kind) {
  return kind == cifar::ten ? cifar_layout{"CIFAR-10", 1, 10, 0, "cifar-10-batches-bin"}
                            : cifar_layout{"CIFAR-100", 2, 100, 20, "cifar-100-binary"};
}

inline constexpr std::size_t cifar_pixels = 3 * 32 * 32;

inline void check_label(std::span<const std::byte> bytes, std::size_t at, std::int32_t bound, std::string_view name,
                        std::string_view set) {
  const auto label = std::to_integer<std::int32_t>(bytes[at]);
  require<file_error>(label < bound, "{} has label {} at {} ({} has {} here): check that it is a {} file", name, label,
                      at, set, bound, set);
}

}  // namespace detail

/// Throws: `file_error` for no bytes, for a part of a record, and for a label out of range, which also shows that the
/// file is of the other CIFAR.
inline images parse_cifar(std::span<const std::byte> bytes, cifar kind, std::string_view name) {
  const detail::cifar_layout layout = detail::layout_of(kind);
  const std::size_t record = layout.label_bytes + detail::cifar_pixels;
  require<file_error>(!bytes.empty() && bytes.size() % record == 0,
                      "{} has {} bytes, {} behind the last whole record (a {} file is a positive multiple of {}): "
                      "fetch it again, or check that it is a {} file",
                      name, bytes.size(), bytes.size() % record, layout.name, record, layout.name);
  const std::size_t count = bytes.size() / record;
  images data{
      .count = static_cast<std::int64_t>(count), .channels = 3, .height = 32, .width = 32, .classes = layout.classes};
  data.pixels.reserve(count * detail::cifar_pixels);
  data.labels.reserve(count);
  for (std::size_t at = 0; at < bytes.size(); at += record) {
    if (layout.label_bytes == 2) detail::check_label(bytes, at, layout.superclasses, name, layout.name);
    const std::size_t label = at + layout.label_bytes - 1;
    detail::check_label(bytes, label, layout.classes, name, layout.name);
    data.labels.push_back(std::to_integer<std::int32_t>(bytes[label]));
    for (const std::byte pixel : bytes.subspan(label + 1, detail::cifar_pixels)) {
      data.pixels.push_back(std::to_integer<std::uint8_t>(pixel));
    }
  }
  return data;
}

/// Returns: the files of one part: `path` itself if it is a file, else the standard files in it or in the archive's
/// own subfolder. These are data_batch_1.bin to data_batch_5.bin and test_batch.bin, or train.bin and test.bin; each
/// may end in ".gz". Throws: `file_error`, naming the first file that is missing.
inline std::vector<std::filesystem::path> cifar_files(const std::filesystem::path& path, cifar kind, part which) {
  std::error_code why;
  if (!std::filesystem::is_directory(path, why)) return {path};
  const std::filesystem::path inner = path / detail::layout_of(kind).subfolder;
  const std::filesystem::path& folder = std::filesystem::is_directory(inner, why) ? inner : path;
  if (kind == cifar::hundred) return {plain_or_gz(folder, which == part::train ? "train.bin" : "test.bin")};
  if (which == part::test) return {plain_or_gz(folder, "test_batch.bin")};
  std::vector<std::filesystem::path> files;
  for (int batch = 1; batch <= 5; ++batch)
    files.push_back(plain_or_gz(folder, fmt::format("data_batch_{}.bin", batch)));
  return files;
}

/// Returns: which CIFAR the records are of, by their size.
/// Throws: `file_error` if the size fits neither, or both.
inline cifar kind_of(std::span<const std::byte> bytes, std::string_view name) {
  const bool ten = bytes.size() % 3073 == 0, hundred = bytes.size() % 3074 == 0;
  require<file_error>(ten != hundred && !bytes.empty(),
                      "{} has {} bytes ({} of CIFAR-10's records of 3073 and CIFAR-100's of 3074 fit): {}", name,
                      bytes.size(), ten ? "both" : "none",
                      ten ? "say which it is" : "fetch it again, or check that it is a CIFAR file");
  return ten ? cifar::ten : cifar::hundred;
}

/// Returns: which CIFAR a folder holds, by the names of its files, or a file, by its size.
/// Throws: `file_error` for a folder that holds neither.
inline cifar kind_of(const std::filesystem::path& path, std::size_t limit = default_limit) {
  std::error_code why;
  if (!std::filesystem::is_directory(path, why)) {
    return kind_of(file_bytes(path, limit), fmt::format("\"{}\"", path.string()));
  }
  const auto has = [&](std::string_view file) {
    return std::filesystem::exists(path / file, why) || std::filesystem::exists(path / fmt::format("{}.gz", file), why);
  };
  if (has("cifar-10-batches-bin") || has("data_batch_1.bin") || has("test_batch.bin")) return cifar::ten;
  require<file_error>(has("cifar-100-binary") || has("train.bin") || has("test.bin"),
                      "\"{}\" has no file of CIFAR's binary version (data_batch_1.bin for CIFAR-10, train.bin for "
                      "CIFAR-100): unpack the data set there",
                      path.string());
  return cifar::hundred;
}

/// Reads a file or a folder as cifar_files() finds them. limit: the most bytes that each file may have unpacked.
inline images read_cifar(const std::filesystem::path& path, cifar kind, part which, std::size_t limit = default_limit) {
  images all;
  for (const std::filesystem::path& file : cifar_files(path, kind, which)) {
    all.append(parse_cifar(file_bytes(file, limit), kind, fmt::format("\"{}\"", file.string())));
  }
  return all;
}

/// The same; kind_of() finds out which CIFAR it is.
inline images read_cifar(const std::filesystem::path& path, part which, std::size_t limit = default_limit) {
  return read_cifar(path, kind_of(path, limit), which, limit);
}

}  // namespace data_sets
