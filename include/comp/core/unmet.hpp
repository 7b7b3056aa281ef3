// SPDX-License-Identifier: Apache-2.0
// The means to refuse a class in sentences. A compiler's own error for an unmet concept lists expressions whose meaning
// a user has to guess. So each concept here has a function with its conditions, expect_backend() for Backend. The
// concept asks the function for the answer alone; called by itself the function has a static_assert for each condition,
// and g++, clang and nvcc print its sentence first. The assertions are written out, because a macro around them would
// double the lines of each error.
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

/// Defines `comp::detail::names_MEMBER<T>`, true if T has a member of this name with whatever signature: a class that
/// inherits the name from T and from a second base cannot take its address. Used at namespace scope outside comp.
/// Nothing can inherit from a final class, so its overloaded members go unnoticed.
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

/// Defines what is known of an optional member: `names_MEMBER<B>` as above; `CONCEPT<B>`, true if B has it with the
/// given signature; and `fits_MEMBER<B>`, true if B has it with that signature or not at all. All in comp::detail.
#define COMP_DETAIL_CAPABILITY(MEMBER, CONCEPT, ...)                      \
  COMP_DETAIL_NAMES(MEMBER)                                               \
  namespace comp::detail {                                                \
  template <class B>                                                      \
  concept CONCEPT = __VA_ARGS__;                                          \
  template <class B>                                                      \
  inline constexpr bool fits_##MEMBER = !names_##MEMBER<B> || CONCEPT<B>; \
  }

/// Defines `comp::detail::misnames_MEMBER<B>`, true if B has no member of this name, and the condition holds: it has one
/// with the signature under a similar name. That would never be called, and nothing would tell its author.
#define COMP_DETAIL_MISNOMER(MEMBER, ...)                                        \
  namespace comp::detail {                                                       \
  template <class B>                                                             \
  inline constexpr bool misnames_##MEMBER = !names_##MEMBER<B> && (__VA_ARGS__); \
  }
