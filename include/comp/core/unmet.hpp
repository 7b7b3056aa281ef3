// SPDX-License-Identifier: Apache-2.0
// Lets a concept refuse a class in sentences: `requires(...) || unmet<"a Backend needs: ...">()`.
// Keep a sentence on one source line: g++ and nvcc quote the line.
#pragma once

#include <comp/core/cxx20.hpp>
//
#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace comp {

template <std::size_t N>
struct sentence {
  char words[N] = {};
  consteval sentence(const char (&from)[N]) { std::copy(from, from + N, words); }  // NOLINT: implicit on purpose
};

template <sentence Missing>
consteval bool unmet() {
  return false;
}

}  // namespace comp

/// At namespace scope outside comp: defines `comp::detail::names_MEMBER<T>`: T has a member of this name, whatever its
/// signature. So an optional member with a wrong signature is refused instead of ignored. Blind to overloads in final
/// classes.
#define COMP_DETAIL_NAMES(MEMBER)                                     \
  namespace comp::detail {                                            \
  struct has_##MEMBER {                                               \
    int MEMBER;                                                       \
  };                                                                  \
  template <class T>                                                  \
  struct with_##MEMBER : T, has_##MEMBER {};                          \
  template <class T, bool Final = std::is_final_v<T>>                 \
  inline constexpr bool is_named_##MEMBER = !requires {               \
    &with_##MEMBER<T>::MEMBER;                                        \
  };                                                                  \
  template <class T>                                                  \
  inline constexpr bool is_named_##MEMBER<T, true> = requires {       \
    &T::MEMBER;                                                       \
  };                                                                  \
  template <class T>                                                  \
  concept names_##MEMBER = is_named_##MEMBER<std::remove_cvref_t<T>>; \
  }
