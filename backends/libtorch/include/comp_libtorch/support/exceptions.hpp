// SPDX-License-Identifier: Apache-2.0
// LibTorch's exceptions as comp's: memory that is not there is a property of a plan, anything else an error with a
// message of one line (LibTorch's own carry a stack trace).
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

/// The CPU allocator throws a plain c10::Error; its words are all there is to tell by.
inline bool says_out_of_memory(std::string_view text) {
  return text.find("not enough memory") != std::string_view::npos ||
         text.find("can't allocate memory") != std::string_view::npos;
}

/// Runs `work`, then `last`, also where `work` throws. Returns: what `work` does. Throws: what `last` does, else
/// `work`.
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

/// Runs `work`. Throws: `out_of_memory` and `error` for LibTorch's exceptions, everything else as it is.
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
