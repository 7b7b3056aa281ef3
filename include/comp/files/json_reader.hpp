// SPDX-License-Identifier: Apache-2.0
// Reads JSON that comes from outside: a value, the way to it and where its text stands, so that each error can say
// `"search.jsonl" line 3: field sample.status is "great" (one of ok, diverged, ... is needed): <remedy>`.
// Readers live no longer than the document they read; a field's reader no longer than the reader it came from.
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
#include <vector>

namespace comp {

using nlohmann::json;

/// Where a JSON text stands, for messages.
struct json_place {
  std::string file;    // path
  std::size_t line;    // from 1; 0: the whole file is one text
  std::string remedy;  // "delete the file and search again"

  std::string str() const {
    return line == 0 ? fmt::format("\"{}\"", file) : fmt::format("\"{}\" line {}", file, line);
  }
};

/// As text for a file: bytes that are no UTF-8 become U+FFFD instead of an exception.
inline std::string json_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

/// A text from a file as a message shows it: in quotes, control characters escaped, and not too long.
inline std::string in_quotes(std::string_view text, std::size_t most = 80) {
  std::string shown = json_text(text.substr(0, most));
  if (text.size() > most) shown.insert(shown.size() - 1, "...");
  return shown;
}

class json_reader {
 public:
  json_reader(const json& value, const json_place& place) : value_{value}, place_{place} {}

  /// Throws: `file_error`: this field is not what is `needed`.
  [[noreturn]] void fail(std::string_view needed) const {
    std::string value =
        value_.is_structured() ? fmt::format("{} of {}", value_.type_name(), value_.size()) : json_text(value_);
    if (value.size() > 60) value = value.substr(0, 57) + "...";
    const std::string at = path();
    throw file_error{fmt::format("{}: {} is {} ({} is needed): {}", place_.str(),
                                 at.empty() ? "the text" : "field " + at, value, needed, place_.remedy)};
  }

  json_reader operator[](std::string_view field) const {
    const auto* value = look_up(field);
    if (value == nullptr) fail(fmt::format("an object with field \"{}\"", field));
    return {*value, this, field, 0};
  }

  /// A field that need not be there.
  std::optional<json_reader> find(std::string_view field) const {
    const auto* value = look_up(field);
    return value == nullptr ? std::nullopt : std::optional{json_reader{*value, this, field, 0}};
  }

  /// Refuses fields of other names.
  void only(std::initializer_list<std::string_view> fields) const {
    if (!value_.is_object()) fail("an object");
    for (auto field = value_.begin(); field != value_.end(); ++field) {
      if (std::find(fields.begin(), fields.end(), field.key()) != fields.end()) continue;
      json_reader{field.value(), this, field.key(), 0}.fail(
          fmt::format("no such field, only {}", joined(fields, ", ")));
    }
  }

  /// A number, "nan", "inf" or "-inf".
  double number() const {
    if (value_.is_number()) return value_.get<double>();
    if (value_ == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (value_ == "inf") return std::numeric_limits<double>::infinity();
    if (value_ == "-inf") return -std::numeric_limits<double>::infinity();
    fail("a number, \"nan\", \"inf\" or \"-inf\"");
  }

  /// A number from 0 to "inf".
  double seconds() const {
    const double value = number();
    if (!(value >= 0)) fail("a number of seconds, 0 or more");
    return value;
  }

  std::int64_t integer(std::int64_t least, std::int64_t most) const {
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
  template <class F>
  void each(F&& f) const {
    if (!value_.is_array()) fail("a list");
    std::size_t index = 0;
    for (const json& element : value_) f(json_reader{element, this, {}, index++});
  }

  /// Calls `f` with the name of each field of an object and a reader for it.
  template <class F>
  void each_field(F&& f) const {
    if (!value_.is_object()) fail("an object");
    for (auto field = value_.begin(); field != value_.end(); ++field)
      f(field.key(), json_reader{field.value(), this, field.key(), 0});
  }

  std::vector<double> numbers() const {
    std::vector<double> values;
    each([&](const json_reader& element) { values.push_back(element.number()); });
    return values;
  }

  /// A value of an enumeration that counts from 0 to `last` and has names: comp::name(E).
  template <class E>
  E one_of(E last) const {
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

/// The document of a JSON text from outside.
/// Throws: `file_error` where it is no JSON, nested more than 16 deep, or gives a field twice.
inline json parse_json(std::string_view text, const json_place& place) {
  constexpr int deepest = 16;
  std::array<std::set<std::string>, deepest + 2> fields;  // of the objects that are open, by their depth
  const auto sound = [&](int depth, typename json::parse_event_t event, json& value) {
    require<file_error>(depth <= deepest, "{}: lists nested more than {} deep (comp never writes that): {}", place.str(),
                        deepest, place.remedy);
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
