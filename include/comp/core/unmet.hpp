// SPDX-License-Identifier: Apache-2.0
// Refusals in sentences. A concept's conditions are those of a function, expect_backend() for Backend: aloud each is a
// static_assert, whose first line is the sentence under g++, clang and nvcc; else the function answers whether all
// hold, for the concept. An assertion is written out, because a macro around it doubles the lines of each error.
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
#define COMP_DETAIL_NAMES(MEMBER)                                            \
  namespace comp::detail {                                                   \
  struct has_##MEMBER {                                                      \
    int MEMBER;                                                              \
  };                                                                         \
  template <class T>                                                         \
  struct with_##MEMBER : T, has_##MEMBER {};                                 \
  template <class T, bool Final = std::is_final_v<T> || !std::is_class_v<T>> \
  inline constexpr bool is_named_##MEMBER = !requires {                      \
    &with_##MEMBER<T>::MEMBER;                                               \
  };                                                                         \
  template <class T>                                                         \
  inline constexpr bool is_named_##MEMBER<T, true> = requires {              \
    &T::MEMBER;                                                              \
  };                                                                         \
  template <class T>                                                         \
  concept names_##MEMBER = is_named_##MEMBER<std::remove_cvref_t<T>>;        \
  }

/// At namespace scope outside comp: `names_MEMBER` as above; `comp::detail::CONCEPT<B>`: B has it in this form;
/// `comp::detail::fits_MEMBER<B>`: B has it in this form or not at all.
#define COMP_DETAIL_CAPABILITY(MEMBER, CONCEPT, ...)                      \
  COMP_DETAIL_NAMES(MEMBER)                                               \
  namespace comp::detail {                                                \
  template <class B>                                                      \
  concept CONCEPT = __VA_ARGS__;                                          \
  template <class B>                                                      \
  inline constexpr bool fits_##MEMBER = !names_##MEMBER<B> || CONCEPT<B>; \
  }
