// SPDX-License-Identifier: Apache-2.0
// What Python names by words: settings of a search, precisions, criteria. An unknown word is refused, with the nearest
// known one.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <comp/comp.hpp>
#include <comp/policy/nearest.hpp>
#include <comp/search/paper_search.hpp>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::python {

namespace py = pybind11;

/// Returns: the value of a word. Throws: `settings_error`, naming the words that there are.
template <class T>
T worded(std::string_view what, const std::string& word, const std::vector<std::pair<std::string_view, T>>& words) {
  policy::nearest_word near{word};
  std::string all;
  for (const auto& [known, value] : words) {
    if (known == word) return value;
    near.offer(known);
    all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", known);
  }
  throw settings_error{
      fmt::format("{} \"{}\" is not known (there are {}): {}", what, word, all,
                  near.word().empty() ? "give one of them" : fmt::format("did you mean \"{}\"?", near.word()))};
}

inline precision precision_named(const std::string& name) {
  std::vector<std::pair<std::string_view, precision>> words;
  for (const precision p : all_precisions) words.emplace_back(comp::name(p), p);
  return worded("precision", name, words);
}

namespace detail {

/// What sets each setting of a search, by its name in C++.
using setters = std::map<std::string, std::function<void(py::handle)>, std::less<>>;

/// Throws: py::cast_error, which says what is wanted, for a value of another type.
template <class T>
T as(py::handle value) {
  try {
    return value.cast<T>();
  } catch (const py::cast_error&) {
    throw py::cast_error{std::is_same_v<T, bool>       ? "True or False"
                         : std::is_integral_v<T>       ? "a whole number that is not negative"
                         : std::is_floating_point_v<T> ? "a number"
                         : std::is_same_v<T, py::dict> ? "a dict of its settings"
                                                       : "a word"};
  }
}
template <class T>
auto into(T& to) {
  return [&to](py::handle value) { to = as<T>(value); };
}

inline void put(const setters& known, const py::dict& given, std::string_view what) {
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    std::vector<std::pair<std::string_view, const std::function<void(py::handle)>*>> words;
    for (const auto& [word, setter] : known) words.emplace_back(word, &setter);
    const auto* setter = worded(what, name, words);
    try {
      (*setter)(value);
    } catch (const py::cast_error& wanted) {
      throw settings_error{fmt::format("{} {} is {} ({} is wanted): see comp.search", what, name,
                                       std::string{py::repr(value)}, wanted.what())};
    }
  }
}

}  // namespace detail

/// Throws: `settings_error` for a name that is no setting, and a value that is none of its.
inline search_settings settings_of(const py::dict& given) {
  search_settings s;
  bool verbatim = false;
  using detail::as, detail::into;
  const auto by_word = [](auto& to, auto... words) {
    return
        [&to, all = std::vector{words...}](py::handle value) { to = worded("setting", as<std::string>(value), all); };
  };
  using criteria = std::pair<std::string_view, comp::criterion>;
  using directions = std::pair<std::string_view, loss_direction>;
  using ties = std::pair<std::string_view, comp::tie>;
  using parts = std::pair<std::string_view, comp::stages>;
  const std::vector<ties> tied{{"kind", tie::kind}, {"scope", tie::scope}, {"none", tie::none}};
  const auto by_tie = [&tied](comp::tie& to) {
    return [&](py::handle value) { to = worded("tie", as<std::string>(value), tied); };
  };
  const detail::setters race{{"min_rounds", into(s.race.min_rounds)},
                             {"max_rounds", into(s.race.max_rounds)},
                             {"fp32_rounds", into(s.race.fp32_rounds)},
                             {"contest_rounds", into(s.race.contest_rounds)},
                             {"hopeless", into(s.race.hopeless)}};
  const detail::setters known{
      {"tolerance", into(s.tolerance)},
      {"floor", into(s.floor)},
      {"level", into(s.level)},
      {"criterion", by_word(s.criterion, criteria{"batch_losses", criterion::batch_losses},
                            criteria{"epoch_losses", criterion::epoch_losses}, criteria{"scores", criterion::scores})},
      {"direction", by_word(s.direction, directions{"lower_is_better", loss_direction::lower_is_better},
                            directions{"higher_is_better", loss_direction::higher_is_better})},
      {"planned_epochs", into(s.planned_epochs)},
      {"budget", into(s.budget)},
      {"memory_limit", into(s.memory_limit)},
      {"slowdown", into(s.slowdown)},
      {"warm_start", [&](py::handle v) { s.warm_start = parse_plan(as<std::string>(v)); }},
      {"precisions",
       [&](py::handle v) {
         for (const py::handle each : v) s.precisions.push_back(precision_named(as<std::string>(each)));
       }},
      {"losses_tie", by_tie(s.losses_tie)},
      {"times_tie", by_tie(s.times_tie)},
      {"stages", by_word(s.stages, parts{"both", stages::both}, parts{"losses_only", stages::losses_only},
                         parts{"times_only", stages::times_only})},
      {"race", [&](py::handle v) { detail::put(race, as<py::dict>(v), "setting of race"); }},
      {"verbatim", into(verbatim)},
      {"self_check", into(s.self_check)}};
  detail::put(known, given, "setting");
  return verbatim ? paper_settings(std::move(s)) : s;
}

}  // namespace comp::python
