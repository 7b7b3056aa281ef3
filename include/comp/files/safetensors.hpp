// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files of FP32 tensors, and reads those of FP32, FP16 and BF16 as FP32. Python's safetensors and
// other libraries read the format, too:
//   8 bytes  length of the header, little-endian
//   header   {"__metadata__":{"key":"text"},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}
//   data     the tensors' values, little-endian, row-major, without gaps
// Other dtypes are refused or left out. Reading it runs no code, unlike pickles, and needs no library.
// Source: github.com/huggingface/safetensors, README.md.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <comp/core/error.hpp>
#include <comp/core/half.hpp>
#include <comp/core/stored_state.hpp>
#include <comp/files/file.hpp>
#include <comp/files/json_reader.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

/// What a reader does with tensors that are not FP32, FP16 or BF16, as the tables of integers that models have.
enum class other_dtypes { refused, left_out };

/// The contents of a safetensors file.
struct tensor_file {
  std::vector<named_tensor> tensors = {};
  std::map<std::string, std::string> metadata = {};
};

namespace detail {

static_assert(std::endian::native == std::endian::little,
              "safetensors files are written as the values stand in memory");

inline constexpr std::size_t tensor_file_limit = std::size_t{1} << 40;      // bytes of a file
inline constexpr std::size_t tensor_header_limit = std::size_t{100} << 20;  // as in the format's own reader
inline constexpr std::string_view metadata_field = "__metadata__";

/// Reads the values of a tensor, each of `width` bytes.
inline std::vector<float> values_of(std::string_view bytes, std::size_t width, bool fp16) {
  std::vector<float> values(bytes.size() / width);
  if (width == sizeof(float) && !bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  for (std::size_t i = 0; width == 2 && i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    values[i] = fp16 ? fp16_value(bits) : std::bit_cast<float>(std::uint32_t{bits} << 16);
  }
  return values;
}

/// Reads a shape, and returns how many values a tensor of that shape has.
/// Throws: `file_error` if those are more than any file has. Each product is checked before it is made: an overflow
/// would let a huge shape pass for a small one.
inline std::size_t count_of(const json_reader& shape, std::vector<std::int64_t>& extents) {
  std::size_t count = 1;
  shape.each([&](const json_reader& extent) {
    extents.push_back(extent.integer(0, static_cast<std::int64_t>(tensor_file_limit)));
    const auto by = static_cast<std::size_t>(extents.back());
    if (by > 0 && count > tensor_file_limit / by) shape.fail("a shape that fits into a file");
    count *= by;
  });
  return count;
}

/// Reads one tensor of a header with its values from `data`; nothing if its dtype is another one and `others` are left
/// out. Appends the values' begin and end in `data` to `places`.
inline std::optional<named_tensor> tensor_from(const std::string& name, const json_reader& from, std::string_view data,
                                               std::vector<std::pair<std::size_t, std::size_t>>& places,
                                               other_dtypes others) {
  from.only({"dtype", "shape", "data_offsets"});
  const std::string& dtype = from["dtype"].text();
  const std::size_t width = dtype == "F32" ? 4 : dtype == "F16" || dtype == "BF16" ? 2 : 0;
  if (width == 0 && others == other_dtypes::refused) from["dtype"].fail("\"F32\", \"F16\" or \"BF16\"");
  named_tensor tensor{.name = name};
  const std::size_t bytes = width * count_of(from["shape"], tensor.shape);
  std::vector<std::size_t> ends;
  from["data_offsets"].each([&](const json_reader& at) {
    ends.push_back(static_cast<std::size_t>(at.integer(0, static_cast<std::int64_t>(data.size()))));
  });
  if (ends.size() != 2 || ends[0] > ends[1] || (width > 0 && ends[1] - ends[0] != bytes)) {
    from["data_offsets"].fail(
        fmt::format("a begin and an end within the file's {} bytes of data, {} bytes apart", data.size(), bytes));
  }
  places.emplace_back(ends[0], ends[1]);
  if (width == 0) return std::nullopt;
  tensor.values = values_of(data.substr(ends[0], bytes), width, dtype == "F16");
  return tensor;
}

}  // namespace detail

/// Returns the text of a safetensors file.
/// Throws: `file_error` for a name that is there twice or that is the format's own.
inline std::string safetensors_text(const std::vector<named_tensor>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[std::string{detail::metadata_field}] = metadata;
  std::size_t at = 0;
  for (const named_tensor& t : tensors) {
    require<file_error>(!header.contains(t.name) && t.name != detail::metadata_field,
                        "two tensors named \"{}\" for one file (names tell them apart): give each its own", t.name);
    const std::size_t end = at + t.values.size() * sizeof(float);
    header[t.name] = {{"dtype", "F32"}, {"shape", t.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = json_text(header);
  text.append((8 - text.size() % 8) % 8, ' ');  // the format aligns the values to 8 bytes, so that they can be mapped
  const auto length = std::bit_cast<std::array<char, 8>>(static_cast<std::uint64_t>(text.size()));
  text.insert(0, length.data(), length.size());
  text.reserve(text.size() + at);
  for (const named_tensor& t : tensors) {
    text.append(reinterpret_cast<const char*>(t.values.data()), t.values.size() * sizeof(float));
  }
  return text;
}

/// Writes tensors to a file. A crash leaves the old file whole.
/// Throws: `file_error`, naming path and reason.
inline void write_safetensors(const std::string& path, const std::vector<named_tensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {}) {
  detail::write_file(path, safetensors_text(tensors, metadata));
}

/// Returns the tensors of a safetensors text, in the order of their names; `path` is the file's name in errors.
/// Throws: `file_error` unless it is a whole file: lengths, types and shapes are checked, and that the tensors' values
/// lie one behind the other without gaps and overlaps.
inline tensor_file parse_safetensors(std::string_view text, const std::string& path,
                                     other_dtypes others = other_dtypes::refused) {
  const json_place place{path, 0, "write the file again"};
  std::uint64_t length = 0;
  if (text.size() >= sizeof length) std::memcpy(&length, text.data(), sizeof length);
  require<file_error>(
      text.size() >= sizeof length && length <= text.size() - sizeof length && length <= detail::tensor_header_limit,
      "\"{}\" is no whole safetensors file ({} bytes, with a header of {}): {}", path, text.size(), length,
      place.remedy);
  const json header = parse_json(text.substr(sizeof length, length), place);
  const std::string_view data = text.substr(sizeof length + length);
  tensor_file file;
  std::vector<std::pair<std::size_t, std::size_t>> places;
  json_reader{header, place}.each_field([&](const std::string& name, const json_reader& from) {
    if (name == detail::metadata_field) {
      from.each_field([&](const std::string& key, const json_reader& text) { file.metadata[key] = text.text(); });
    } else if (auto tensor = detail::tensor_from(name, from, data, places, others)) {
      file.tensors.push_back(*std::move(tensor));
    }
  });
  std::sort(places.begin(), places.end());
  std::size_t end = 0;
  for (const auto& [first, last] : places) {
    require<file_error>(first == end, "\"{}\": a tensor's data begin at byte {}, those before end at {} ({}): {}", path,
                        first, end, first < end ? "they overlap" : "nothing is between", place.remedy);
    end = last;
  }
  require<file_error>(end == data.size(), "\"{}\" has {} bytes after its last tensor (there is nothing else): {}", path,
                      data.size() - end, place.remedy);
  return file;
}

/// Reads a safetensors file of comp's or of another program's. Throws: `file_error`.
inline tensor_file read_safetensors(const std::string& path, other_dtypes others = other_dtypes::refused) {
  return parse_safetensors(detail::read_file(path, detail::tensor_file_limit), path, others);
}

}  // namespace comp
