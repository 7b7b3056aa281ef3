// SPDX-License-Identifier: Apache-2.0
// Reads JSON that comes from outside. A reader knows its value, the fields that lead to it, and the file and line of
// the text. So each error can say
// `"search.jsonl" line 3: field sample.status is "great" (one of ok, diverged, ... is needed): <remedy>`.
// Requires: a reader does not outlive its document, the reader that it came from, or the name that its field was asked
// for by, because it only refers to them.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

using nlohmann::json;

/// The place of a JSON text, for messages.
struct json_place {
  std::string file;    // its path
  std::size_t line;    // its line, counted from 1; 0: the whole file is one text
  std::string remedy;  // what a message tells the user to do: "delete the file and search again"

  std::string str() const {
    return line == 0 ? fmt::format("\"{}\"", file) : fmt::format("\"{}\" line {}", file, line);
  }
};

/// Returns JSON as text for a file. Bytes that are no UTF-8 become U+FFFD. An exception would be worse: an operator's
/// strange name would then end a search of hours when it is written.
inline std::string json_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

/// Returns a text from a file as a message shows it: in quotes, with control characters escaped, which could otherwise
/// control the user's terminal, and cut off after `most` bytes.
inline std::string in_quotes(std::string_view text, std::size_t most = 80) {
  std::string shown = json_text(text.substr(0, most));
  if (text.size() > most) shown.insert(shown.size() - 1, "...");
  return shown;
}

/// A JSON value to be read, with the checks that belong to each type.
class json_reader {
 public:
  json_reader(const json& value, const json_place& place) : value_{value}, place_{place} {}

  /// Throws a `file_error` that says that this field is not what is `needed`.
  [[noreturn]] void fail(std::string_view needed) const {
    std::string value =
        value_.is_structured() ? fmt::format("{} of {}", value_.type_name(), value_.size()) : json_text(value_);
    if (value.size() > 60) value = value.substr(0, 57) + "...";
    const std::string at = path();
    throw file_error{fmt::format("{}: {} is {} ({} is needed): {}", place_.str(),
                                 at.empty() ? "the text" : "field " + at, value, needed, place_.remedy)};
  }

  /// Returns a reader for a field of this object. Throws: `file_error` if there is none.
  json_reader operator[](std::string_view field) const {
    const auto* value = look_up(field);
    if (value == nullptr) fail(fmt::format("an object with field \"{}\"", field));
    return {*value, this, field, 0};
  }

  /// Returns a reader for a field that may be missing.
  std::optional<json_reader> find(std::string_view field) const {
    const auto* value = look_up(field);
    return value == nullptr ? std::nullopt : std::optional{json_reader{*value, this, field, 0}};
  }

  /// Throws: `file_error` if this object has a field of another name.
  void only(const std::vector<std::string_view>& fields) const {
    if (!value_.is_object()) fail("an object");
    for (auto field = value_.begin(); field != value_.end(); ++field) {
      if (std::find(fields.begin(), fields.end(), field.key()) != fields.end()) continue;
      json_reader{field.value(), this, field.key(), 0}.fail(
          fmt::format("no such field, only {}", joined(fields, ", ")));
    }
  }

  /// Reads a number, "nan", "inf" or "-inf".
  double number() const {
    if (value_.is_number()) return value_.get<double>();
    if (value_ == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (value_ == "inf") return std::numeric_limits<double>::infinity();
    if (value_ == "-inf") return -std::numeric_limits<double>::infinity();
    fail("a number, \"nan\", \"inf\" or \"-inf\"");
  }

  /// Reads a number from 0 to "inf".
  double seconds() const {
    const double value = number();
    if (!(value >= 0)) fail("a number of seconds, 0 or more");
    return value;
  }

  /// Reads a whole number from `least` to `most`; those above 2^53 are no exact doubles, which other readers use.
  std::int64_t integer(std::int64_t least = 0, std::int64_t most = std::int64_t{1} << 53) const {
    // nlohmann-json keeps numbers without a sign as uint64, and turns those above the largest int64 into negative ones.
    const bool fits =
        value_.is_number_unsigned()
            ? value_.get<std::uint64_t>() <= static_cast<std::uint64_t>(most) && value_.get<std::int64_t>() >= least
            : value_.is_number_integer() && value_.get<std::int64_t>() >= least && value_.get<std::int64_t>() <= most;
    if (!fits) fail(fmt::format("a whole number from {} to {}", least, most));
    return value_.get<std::int64_t>();
  }

  bool boolean() const {
    if (!value_.is_boolean()) fail("true or false");
    return value_.get<bool>();
  }

  const std::string& text() const {
    if (!value_.is_string()) fail("a text");
    return value_.template get_ref<const std::string&>();
  }

  /// Calls `f` with a reader for each element of a list.
  void each(auto&& f) const {
    if (!value_.is_array()) fail("a list");
    std::size_t index = 0;
    for (const json& element : value_) f(json_reader{element, this, {}, index++});
  }

  /// Calls `f` with the name of each field of an object and a reader for it.
  void each_field(auto&& f) const {
    if (!value_.is_object()) fail("an object");
    for (auto field = value_.begin(); field != value_.end(); ++field)
      f(field.key(), json_reader{field.value(), this, field.key(), 0});
  }

  /// Reads a value of an enumeration by its name, comp::name(E), or by one of `former` names. Requires: the values are
  /// 0 to `last`.
  template <class E>
  E one_of(E last, std::initializer_list<std::pair<std::string_view, E>> former = {}) const {
    for (const auto& [word, value] : former) {
      if (value_.is_string() && text() == word) return value;
    }
    std::vector<std::string_view> names;
    for (unsigned i = 0; i <= static_cast<unsigned>(last); ++i) {
      names.push_back(name(static_cast<E>(i)));
      if (value_.is_string() && text() == names.back()) return static_cast<E>(i);
    }
    fail("one of " + joined(names, ", "));
  }

 private:
  json_reader(const json& value, const json_reader* parent, std::string_view field, std::size_t index)
      : value_{value}, place_{parent->place_}, parent_{parent}, field_{field}, index_{index} {}

  const json* look_up(std::string_view field) const {
    if (!value_.is_object()) fail("an object");
    const auto value = value_.find(std::string{field});
    return value == value_.end() ? nullptr : &*value;
  }

  /// Returns the fields that lead here: "sample.curve[3]".
  std::string path() const {
    if (parent_ == nullptr) return {};
    const std::string before = parent_->path();
    if (field_.empty()) return fmt::format("{}[{}]", before, index_);
    const bool plain = std::ranges::all_of(field_, [](char c) { return c > ' ' && c <= '~'; }) && field_.size() < 80;
    return fmt::format("{}{}{}", before, before.empty() ? "" : ".", plain ? std::string{field_} : in_quotes(field_));
  }

  const json& value_;
  const json_place& place_;
  const json_reader* parent_ = nullptr;
  std::string_view field_ = {};
  std::size_t index_ = 0;
};

/// Parses a JSON text from outside. Depth is limited, because a text of opening brackets alone would otherwise overflow
/// the stack. A field that is there twice is refused, because nlohmann-json would silently take one of them.
/// Throws: `file_error` if it is no JSON, nested more than 16 deep, or gives a field twice.
inline json parse_json(std::string_view text, const json_place& place) {
  constexpr int deepest = 16;
  std::array<std::set<std::string>, deepest + 2> fields;  // the fields seen so far of each open object, by its depth
  const auto sound = [&](int depth, typename json::parse_event_t event, json& value) {
    require<file_error>(depth <= deepest, "{}: lists nested more than {} deep (comp never writes that): {}",
                        place.str(), deepest, place.remedy);
    auto& known = fields[static_cast<std::size_t>(depth) + (event == json::parse_event_t::object_start ? 1 : 0)];
    if (event == json::parse_event_t::object_start) known.clear();
    if (event != json::parse_event_t::key) return true;
    const auto& field = value.template get_ref<const std::string&>();
    require<file_error>(known.insert(field).second, "{}: field {} is there twice (one must count): {}", place.str(),
                        in_quotes(field), place.remedy);
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), sound);
  } catch (const typename json::exception& e) {
    throw file_error{
        fmt::format("{}: no JSON ({}): {}", place.str(), std::string_view{e.what()}.substr(0, 160), place.remedy)};
  }
}

}  // namespace comp
