// SPDX-License-Identifier: Apache-2.0
// MNIST's idx files: a magic number, the sizes of the axes, the values. Only unsigned bytes (type 0x08) are read, which
// all published sets of images have.
// Source: LeCun, Cortes and Burges, "The MNIST database", section "File formats"
#pragma once

#include <algorithm>
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

/// An array of any number of axes. `values` points into the bytes that were parsed.
struct idx_array {
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> values = {};
};

namespace detail {

inline std::uint32_t big_endian_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[at + i]);
  return value;
}

}  // namespace detail

/// Throws: `file_error`, with the offset, for a wrong magic number, an axis of size 0, and more or fewer values than
/// the sizes say. No memory is allocated by the sizes, which a damaged file may have wrong.
inline idx_array parse_idx(std::span<const std::byte> bytes, std::string_view name) {
  require<file_error>(bytes.size() >= 4,
                      "{} has {} bytes (an idx file begins with a magic number of 4): fetch it again", name,
                      bytes.size());
  const std::uint32_t magic = detail::big_endian_at(bytes, 0);
  const std::size_t axes = magic & 0xff;
  require<file_error>(magic >> 8 == 8 && axes >= 1 && axes <= 4,
                      "{} begins with 0x{:08x} at 0 (idx of unsigned bytes begins with 0x00000801 to 0x00000804): "
                      "check that it is an idx file",
                      name, magic);
  const std::size_t header = 4 + 4 * axes;
  require<file_error>(bytes.size() >= header,
                      "{} ends at {} inside its header of {} bytes (it is truncated): fetch it again", name,
                      bytes.size(), header);
  const std::size_t given = bytes.size() - header;
  std::size_t wanted = 1;
  idx_array parsed{.values = bytes.subspan(header)};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const std::size_t at = 4 + 4 * axis;
    const std::uint32_t extent = detail::big_endian_at(bytes, at);
    require<file_error>(extent > 0, "{} has size 0 for axis {}, at {} (there are no values): use a file with data",
                        name, axis, at);
    require<file_error>(wanted <= given / extent,
                        "{} is truncated: {} bytes of values follow the header at {} "
                        "(its first {} sizes ask for more): fetch it again",
                        name, given, header, axis + 1);
    wanted *= extent;
    parsed.shape.push_back(extent);
  }
  require<file_error>(wanted == given,
                      "{} has {} bytes behind its {} values, at {} (nothing may follow): fetch it again", name,
                      given - wanted, wanted, header + wanted);
  return parsed;
}

/// Returns: the images of an idx array (N,H,W) or (N,C,H,W) with the labels of another one, (N). Their `classes` is the
/// largest label + 1. Throws: `file_error` if an array has other axes, or the two differ in N.
inline images parse_idx_images(std::span<const std::byte> image_bytes, std::string_view image_name,
                               std::span<const std::byte> label_bytes, std::string_view label_name) {
  const idx_array pixels = parse_idx(image_bytes, image_name);
  const idx_array labels = parse_idx(label_bytes, label_name);
  require<file_error>(pixels.shape.size() >= 3, "{} has {} axes (images have 3 or 4): give the file of images",
                      image_name, pixels.shape.size());
  require<file_error>(labels.shape.size() == 1, "{} has {} axes (labels have one): give the file of labels", label_name,
                      labels.shape.size());
  require<file_error>(pixels.shape[0] == labels.shape[0],
                      "{} has {} images, {} has {} labels (each image has one): "
                      "give files of the same part",
                      image_name, pixels.shape[0], label_name, labels.shape[0]);
  images data{.count = pixels.shape[0],
              .channels = pixels.shape.size() == 4 ? pixels.shape[1] : 1,
              .height = pixels.shape[pixels.shape.size() - 2],
              .width = pixels.shape.back()};
  data.pixels.resize(pixels.values.size());
  std::ranges::transform(pixels.values, data.pixels.begin(), std::to_integer<std::uint8_t>);
  data.labels.resize(labels.values.size());
  std::ranges::transform(labels.values, data.labels.begin(), std::to_integer<std::int32_t>);
  data.classes = std::ranges::max(data.labels) + 1;
  return data;
}

/// Reads two idx files, plain or gzip.
inline images read_idx(const std::filesystem::path& image_file, const std::filesystem::path& label_file,
                       std::size_t limit = default_limit) {
  const std::vector<std::byte> pixels = file_bytes(image_file, limit);
  const std::vector<std::byte> labels = file_bytes(label_file, limit);
  return parse_idx_images(pixels, fmt::format("\"{}\"", image_file.string()), labels,
                          fmt::format("\"{}\"", label_file.string()));
}

/// Reads a folder with MNIST's four files under their own names, plain or gzip. Fashion-MNIST and KMNIST have the same
/// names.
inline images read_mnist(const std::filesystem::path& folder, part which, std::size_t limit = default_limit) {
  const std::string_view stem = which == part::train ? "train" : "t10k";
  return read_idx(plain_or_gz(folder, fmt::format("{}-images-idx3-ubyte", stem)),
                  plain_or_gz(folder, fmt::format("{}-labels-idx1-ubyte", stem)), limit);
}

/// True for a folder in which read_mnist finds training images.
inline bool is_mnist(const std::filesystem::path& folder) {
  std::error_code why;
  const std::filesystem::path images = folder / "train-images-idx3-ubyte";
  return std::filesystem::exists(images, why) || std::filesystem::exists(images.string() + ".gz", why);
}

}  // namespace data_sets
