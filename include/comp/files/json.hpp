// SPDX-License-Identifier: Apache-2.0
// Converts values to JSON and back, of a type by the members that its `fields` list (core/fields.hpp). Numbers come
// back bit for bit; those that JSON lacks are the texts "nan", "inf" and "-inf". Files come from outside, so type,
// range and size of each field are checked. An error names the file, the line, the field, the value found, the value
// needed and the remedy. An unknown field is refused, because it may be a known one that was misspelt by hand.
#pragma once

#include <cmath>
#include <comp/core/execution.hpp>
#include <comp/core/fields.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/later_plan.hpp>
#include <comp/core/trial.hpp>
#include <comp/files/json_reader.hpp>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp {

/// Returns a number as JSON; see above for those that JSON lacks.
inline json json_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

inline json json_of(const interval& bounds) { return {json_of(bounds.low), json_of(bounds.high)}; }
inline json json_of(const plan& p) { return p.str(); }
json json_of(const execution& how);
template <class T>
json json_of(const T& value);

/// Writes the members that a type's `fields` list (core/fields.hpp).
class member_writer {
 public:
  template <class T>
  static json written(const T& value) {
    member_writer members;
    fields(members, const_cast<T&>(value));  // it only reads it
    return std::move(members.to_);
  }
  void operator()(std::string_view name, const auto& member, const auto&...) {
    to_[std::string{name}] = json_of(member);
  }
  void operator()(std::string_view name, const auto& member, may_lack, const auto&...) {
    if (!is_absent(member)) (*this)(name, member);
  }

 private:
  template <class T>
  static bool is_absent(const T& member) {
    if constexpr (std::floating_point<T>) {
      return std::isnan(member);
    } else if constexpr (requires { member.empty(); }) {
      return member.empty();
    } else {
      return !static_cast<bool>(member);
    }
  }

  json to_;
};

/// Returns a list, an enumeration's name, or an object with the members that the type's `fields` list.
template <class T>
json json_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return name(value);
  } else if constexpr (std::same_as<T, float>) {
    return json_of(double{value});
  } else if constexpr (std::is_arithmetic_v<T> || std::same_as<T, std::string>) {
    return value;
  } else if constexpr (requires { value.has_value(); }) {
    return json_of(*value);
  } else if constexpr (std::ranges::range<T>) {
    json list = json::array();
    for (const auto& each : value) list.push_back(json_of(each));
    return list;
  } else {
    return member_writer::written(value);
  }
}

/// Returns {"images": {"value": "channels_last", "speedup": 1.12, "speedup_bounds": [1.08, 1.15]}}, without speedup and
/// speedup_bounds for a choice that was not measured.
inline json json_of(const execution& how) {
  json to = json::object();
  for (const execution_choice& choice : how) {
    json& field = to[choice.name];
    field["value"] = choice.value;
    if (std::isnan(choice.gain.ratio)) continue;
    field["speedup"] = json_of(choice.gain.ratio);
    field["speedup_bounds"] = json_of(choice.gain.bounds);
  }
  return to;
}

void read_json(const json_reader& from, execution& to);
void read_json(const json_reader& from, std::vector<later_plan>& to);
void read_json(const json_reader& from, trial& to);
template <class T, class... Rules>
void read_json(const json_reader& from, T& to, const Rules&... rules);
template <class T>
T read_json(const json_reader& from) {
  T value{};
  read_json(from, value);
  return value;
}

/// Reads [low, high], which may be infinite, as for a plan that was not timed. The comparison also refuses NaN.
inline void read_json(const json_reader& from, interval& to) {
  const auto ends = read_json<std::vector<double>>(from);
  if (ends.size() != 2 || !(ends[0] <= ends[1])) from.fail("two numbers, the lower one first");
  to = {ends[0], ends[1]};
}
/// Reads a plan string. Its letters are checked here, since an error of parse_plan() would not name file and field.
inline void read_json(const json_reader& from, plan& to) {
  const std::string_view text = from.text();
  if (letters_of(text).find_first_not_of(precision_letters) != std::string_view::npos) {
    from.fail(fmt::format("one letter of {} for each operator", precision_letters));
  }
  to = parse_plan(text);
}
inline void read_json(const json_reader& from, precision& to) { to = from.one_of(all_precisions.back()); }

/// Reads the members that a type's `fields` list. An unknown field is refused first: it may be one that lacks.
class member_reader {
 public:
  /// `others`: fields that the caller reads.
  template <class T>
  static void read(const json_reader& from, T& to, std::initializer_list<std::string_view> others = {}) {
    member_names names{others};
    fields(names, to);
    from.only(names.all);
    member_reader members{from};
    fields(members, to);
  }
  void operator()(std::string_view name, auto& member, const auto&... rules) {
    read_json(from_[name], member, rules...);
  }
  void operator()(std::string_view name, auto& member, may_lack, const auto&... rules) {
    if (const auto field = from_.find(name)) read_json(*field, member, rules...);
  }

 private:
  struct member_names {
    std::vector<std::string_view> all = {};
    void operator()(std::string_view name, const auto&...) { all.push_back(name); }
  };
  explicit member_reader(const json_reader& from) : from_{from} {}

  const json_reader& from_;
};

/// Reads what the template json_of() wrote.
template <class T, class... Rules>
void read_json(const json_reader& from, T& to, const Rules&... rules) {
  if constexpr (std::is_enum_v<T>) {
    to = [&](T last, const auto&... former) {
      return from.one_of<T>(last, {{former.first, former.second}...});
    }(rules...);
  } else if constexpr (std::floating_point<T>) {
    to = static_cast<T>(sizeof...(rules) > 0 ? from.seconds() : from.number());
  } else if constexpr (std::same_as<T, bool>) {
    to = from.boolean();
  } else if constexpr (std::integral<T>) {
    to = static_cast<T>(from.integer(rules...));
  } else if constexpr (std::same_as<T, std::string>) {
    to = from.text();
  } else if constexpr (requires { to.has_value(); }) {
    read_json(from, to.emplace(), rules...);
  } else if constexpr (std::ranges::range<T>) {
    to.clear();
    from.each([&](const json_reader& each) { read_json(each, to.emplace_back()); });
  } else {
    member_reader::read(from, to);
  }
}

/// Reads a backend's choices. Their names are not checked, because only the backend that runs the plan knows which
/// exist.
inline void read_json(const json_reader& from, execution& to) {
  to.clear();
  from.each_field([&](const std::string& name, const json_reader& field) {
    field.only({"value", "speedup", "speedup_bounds"});
    execution_choice& choice = to.emplace_back(execution_choice{.name = name, .value = field["value"].text()});
    const auto speedup = field.find("speedup"), bounds = field.find("speedup_bounds");
    if (speedup.has_value() != bounds.has_value()) field.fail("both speedup and speedup_bounds, or neither");
    if (!speedup) return;
    choice.gain = {speedup->number(), read_json<interval>(*bounds)};
    if (!(choice.gain.ratio > 0)) speedup->fail("a number above 0");
  });
}

/// Reads the plans that a training changes to, whose batches have to rise.
inline void read_json(const json_reader& from, std::vector<later_plan>& to) {
  to.clear();
  from.each([&](const json_reader& next) {
    const std::int64_t before = to.empty() ? 0 : static_cast<std::int64_t>(to.back().batch);
    read_json(next, to.emplace_back());
    next["batch"].integer(before + 1);
  });
}

/// Sets the purpose of a run that comp 0.2 recorded: it counted runs that judge from 0, other ones from a million on.
inline void take_purpose_from_repeat(trial& t) {
  constexpr std::pair<std::size_t, purpose> first_of[] = {
      {4'000'000, purpose::compile}, {3'000'001, purpose::sensitivity}, {3'000'000, purpose::profile},
      {2'500'000, purpose::check},   {2'000'000, purpose::first_look},  {1'000'000, purpose::perturbed}};
  for (const auto& [first, what] : first_of) {
    if (t.repeat < first) continue;
    t.purpose = what;
    t.repeat -= first;
    return;
  }
}

/// Reads a trial, also one that comp 0.2 recorded.
inline void read_json(const json_reader& from, trial& to) {
  member_reader::read(from, to);
  if (!from.find("purpose")) take_purpose_from_repeat(to);
}

}  // namespace comp
