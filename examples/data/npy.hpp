// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy: one array with its type and shape. Only little-endian numbers and text in C order are read. Nothing is
// unpickled, since that would run code of the file.
// Source: "NEP 1, a simple file format for NumPy arrays", versions 1 to 3
#pragma once

#include <algorithm>
#include <charconv>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <examples/data/printable.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace data_sets {

using comp::file_error;
using comp::require;

/// The bytes of an array, with its shape. kind: NumPy's letter f, i, u, b (bool) or U (text, 4 bytes for a character).
struct npy_array {
  char kind = 'f';
  std::size_t item = 4;  // the size of an element [bytes]
  std::vector<std::int64_t> shape = {};
  std::vector<std::byte> bytes = {};
  std::string name = {};  // what messages call it

  std::size_t size() const { return item == 0 ? 0 : bytes.size() / item; }

  /// Returns: the elements as whole numbers. Throws: `file_error` for another kind, or an element outside [least,
  /// most].
  std::vector<std::int64_t> integers(std::int64_t least, std::int64_t most) const {
    require<file_error>(kind == 'i' || kind == 'u' || kind == 'b',
                        "{} holds elements of kind '{}' (whole numbers are needed): check that it is the right file",
                        name, kind);
    std::vector<std::int64_t> values(size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = integer(i);
      require<file_error>(values[i] >= least && values[i] <= most,
                          "{} has {} at {} (it must lie from {} to {}): fetch the file again", name, values[i], i,
                          least, most);
    }
    return values;
  }

  /// Returns: the elements as FP32. Throws: `file_error` for text, and for numbers that are not finite.
  std::vector<float> floats() const {
    require<file_error>(
        kind != 'U' && (kind != 'f' || item == 4 || item == 8),
        "{} holds elements of kind '{}' of {} bytes (numbers are needed, of 4 or 8 bytes where they are "
        "not whole): check that it is the right file",
        name, kind, item);
    std::vector<float> values(size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double value = kind == 'f' ? real(i) : static_cast<double>(integer(i));
      require<file_error>(value >= -3e38 && value <= 3e38,
                          "{} has {} at {} (a finite FP32 number is needed): fetch it again", name, value, i);
      values[i] = static_cast<float>(value);
    }
    return values;
  }

 private:
  template <class T>
  T at(std::size_t i) const {
    T value;
    std::memcpy(&value, bytes.data() + i * item, sizeof value);
    return value;
  }
  double real(std::size_t i) const { return item == 4 ? static_cast<double>(at<float>(i)) : at<double>(i); }
  std::int64_t integer(std::size_t i) const {
    const bool is_signed = kind == 'i';
    switch (item) {
      case 1:
        return is_signed ? at<std::int8_t>(i) : at<std::uint8_t>(i);
      case 2:
        return is_signed ? at<std::int16_t>(i) : at<std::uint16_t>(i);
      case 4:
        return is_signed ? at<std::int32_t>(i) : static_cast<std::int64_t>(at<std::uint32_t>(i));
      default:
        if (is_signed) return at<std::int64_t>(i);
        return static_cast<std::int64_t>(std::min<std::uint64_t>(at<std::uint64_t>(i), INT64_MAX));
    }
  }
};

namespace detail {

/// Returns: what follows `'key':` in the header, which is a Python dictionary, up to the end of the value.
inline std::string_view npy_value(std::string_view header, std::string_view key, std::string_view name) {
  const std::string quoted = fmt::format("'{}':", key);
  const std::size_t found = header.find(quoted);
  require<file_error>(found != std::string_view::npos, "{} has no {} in its header (every .npy has): fetch it again",
                      name, key);
  std::string_view value = header.substr(found + quoted.size());
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  const std::size_t end = value.find(value.starts_with('(') ? ')' : ',');
  return value.substr(0, end);
}

inline std::vector<std::int64_t> npy_shape(std::string_view text, std::string_view name) {
  std::vector<std::int64_t> shape;
  text.remove_prefix(std::min<std::size_t>(text.starts_with('('), text.size()));
  while (!text.empty()) {
    text.remove_prefix(std::min(text.find_first_not_of(" ,"), text.size()));
    if (text.empty()) break;
    std::int64_t extent = -1;
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), extent);
    require<file_error>(
        wrong == std::errc{} && extent >= 0 && shape.size() < 8,
        "{} has a shape that cannot be read, at \"{}\" (whole numbers are needed, at most 8): fetch it again", name,
        printable(text, 20));
    shape.push_back(extent);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  return shape;
}

inline void set_npy_type(npy_array& array, std::string_view type) {
  const auto quoted = type.size() >= 4 && type.front() == '\'' && type.back() == '\'';
  if (quoted) type = type.substr(1, type.size() - 2);
  std::size_t item = 0;
  if (quoted) std::from_chars(type.data() + 2, type.data() + type.size(), item);
  const bool number = type.size() == 3 && std::string_view{"fiub"}.find(type[1]) != std::string_view::npos &&
                      (item == 1 || item == 2 || item == 4 || item == 8);
  const bool words = quoted && type[1] == 'U' && item > 0 && item < 100'000;
  require<file_error>(quoted && (type[0] == '<' || type[0] == '|') && (number || words),
                      "{} has elements of type {} (numbers in little-endian order or text are read, objects never): "
                      "save the array with another dtype",
                      array.name, printable(type));
  array.kind = type[1];
  array.item = words ? 4 * item : item;
}

}  // namespace detail

/// Throws: `file_error` for anything but a .npy, for pickled objects, for Fortran order, and for a size that differs
/// from the header's.
inline npy_array parse_npy(std::span<const std::byte> bytes, std::string_view name) {
  constexpr std::string_view magic = "\x93NUMPY";
  const std::string_view text{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  require<file_error>(text.starts_with(magic) && text.size() >= 12,
                      "{} is no .npy (it does not begin as one): fetch it again", name);
  const auto byte = [&](std::size_t at) { return static_cast<std::size_t>(static_cast<unsigned char>(text[at])); };
  const bool long_form = byte(6) >= 2;
  const std::size_t begin = long_form ? 12 : 10;
  const std::size_t length = byte(8) | byte(9) << 8 | (long_form ? byte(10) << 16 | byte(11) << 24 : 0);
  require<file_error>(byte(6) >= 1 && byte(6) <= 3 && length <= text.size() - begin,
                      "{} has a header of version {} and {} bytes (versions 1 to 3, within the file): fetch it again",
                      name, byte(6), length);
  const std::string_view header = text.substr(begin, length);
  npy_array array{.name = std::string{name}};
  detail::set_npy_type(array, detail::npy_value(header, "descr", name));
  require<file_error>(detail::npy_value(header, "fortran_order", name) == "False",
                      "{} is in Fortran order (C order is read): save it with numpy.ascontiguousarray", name);
  array.shape = detail::npy_shape(detail::npy_value(header, "shape", name), name);
  const std::size_t held = text.size() - begin - length;
  std::size_t needed = array.item;
  for (const std::int64_t extent : array.shape) {
    const auto factor = static_cast<std::size_t>(extent);
    require<file_error>(factor == 0 || needed <= held / factor || needed == 0,
                        "{} says more elements than its {} bytes hold (it is cut off): fetch it again", name, held);
    needed *= factor;
  }
  require<file_error>(needed == held, "{} holds {} bytes of elements ({} are needed): fetch it again", name, held,
                      needed);
  array.bytes.assign(bytes.end() - static_cast<std::ptrdiff_t>(held), bytes.end());
  return array;
}

}  // namespace data_sets
