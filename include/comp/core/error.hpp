// SPDX-License-Identifier: Apache-2.0
// The exceptions of comp, and `require`, the check that throws them.
// Use `require` for values from outside (users, files, backends), because it is on in every build; use assert for
// mistakes of comp's own.
// Each message follows one grammar: <problem, with the value> (<why>): <what to do>.
#pragma once

#include <comp/core/cxx20.hpp>
//
#include <fmt/core.h>

#include <concepts>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace comp {

/// The base of everything that comp throws on purpose.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A plan that is malformed or does not belong to the graph it is used with.
struct plan_error : error {
  using error::error;
};
/// An operator graph that is not a DAG in execution order, or whose fields contradict each other.
struct graph_error : error {
  using error::error;
};
/// A setting of a policy, strategy or search that cannot be used.
struct settings_error : error {
  using error::error;
};
/// A search space with more plans than the user allowed.
struct space_error : error {
  using error::error;
};
/// A file (plan, ledger, data set, report) that cannot be read, written or understood.
struct file_error : error {
  using error::error;
};
/// Thrown by a backend that has no memory for what a plan asks; the search records it and goes on.
struct out_of_memory : error {
  using error::error;
};
/// The user asked to stop (a signal, or an observer): what was measured so far is in the ledger.
struct interrupted : error {
  using error::error;
};
/// One of several ranks that train as one is gone or does not answer in time, and training cannot go on without it.
struct rank_error : interrupted {
  using interrupted::interrupted;
};

/// Throws an `E` with the formatted text if `holds` is false.
template <std::derived_from<error> E, class... Args>
constexpr void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw E{fmt::format(text, std::forward<Args>(args)...)};
}

/// The language in which the reader of messages calls comp. Its Python package sets it.
enum class language : unsigned char { cpp, python };
inline language reader_language = language::cpp;

/// Returns what the reader has to write or look at, by its name in the reader's language.
constexpr std::string_view by_language(std::string_view cpp, std::string_view python) {
  return std::is_constant_evaluated() || reader_language == language::cpp ? cpp : python;
}
/// Returns a setting of a search as the reader writes it: "settings.budget", in Python "budget".
inline std::string setting(std::string_view name) { return fmt::format("{}{}", by_language("settings.", ""), name); }

/// Returns the texts that `shown` makes of `values`, with `separator` between them.
template <class Values, class Shown = std::identity>
std::string joined(const Values& values, std::string_view separator, Shown shown = {}) {
  std::string text;
  bool first = true;
  for (const auto& value : values)
    text += fmt::format("{}{}", std::exchange(first, false) ? "" : separator, shown(value));
  return text;
}

}  // namespace comp
