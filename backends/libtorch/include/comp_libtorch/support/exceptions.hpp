// SPDX-License-Identifier: Apache-2.0
// Turns LibTorch's exceptions into comp's. Missing memory gets a type of its own, because it is a property of a plan.
// Anything else becomes an error with a message of one line; LibTorch's messages carry a stack trace.
#pragma once

#include <c10/util/Exception.h>

#include <comp/core/error.hpp>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace comp::libtorch {

namespace detail {

inline std::string first_line(std::string_view text) { return std::string{text.substr(0, text.find('\n'))}; }

/// The CPU allocator throws a plain c10::Error, so only its words tell that memory is missing.
inline bool says_out_of_memory(std::string_view text) {
  return text.find("not enough memory") != std::string_view::npos ||
         text.find("can't allocate memory") != std::string_view::npos;
}

/// Runs `work`. LibTorch's exceptions out of it name the operator, because the format that a plan gives it may be their
/// reason.
inline void naming(const std::string& kind, const std::string& name, auto&& work) {
  try {
    work();
  } catch (c10::Error& e) {
    e.add_context(fmt::format("operator {} (\"{}\") of the plan", kind, name));
    throw;
  }
}

/// Runs `work`, then `last`, even if `work` throws. Returns: what `work` returns. Throws: what `last` throws, else
/// what `work` throws.
template <class F, class Last>
std::invoke_result_t<F&> and_always(F&& work, Last last) {
  std::optional<std::invoke_result_t<F&>> result;
  std::exception_ptr failure;
  try {
    result = work();
  } catch (...) {
    failure = std::current_exception();
  }
  last();
  if (failure) std::rethrow_exception(failure);
  return *std::move(result);
}

}  // namespace detail

/// Runs `work`. Throws: `out_of_memory` or `error` in place of LibTorch's exceptions; other exceptions pass as they
/// are.
template <class F>
decltype(auto) translated(F&& work) {
  try {
    return std::forward<F>(work)();
  } catch (const c10::OutOfMemoryError& e) {
    throw out_of_memory{detail::first_line(e.what_without_backtrace())};
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    if (detail::says_out_of_memory(text)) throw out_of_memory{detail::first_line(text)};
    throw error{detail::first_line(text)};
  }
}

}  // namespace comp::libtorch
