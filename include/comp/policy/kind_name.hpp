// SPDX-License-Identifier: Apache-2.0
// Takes apart the names that ATen gives kinds of operators: "aten::softmax.int" is a namespace, an operator and an
// overload.
#pragma once

#include <string_view>

namespace comp::policy {

/// "aten::softmax.int" -> "softmax.int". The overload "default" is dropped, since the bare name means the same.
constexpr std::string_view without_namespace(std::string_view kind) {
  constexpr std::string_view prefix = "aten::";
  constexpr std::string_view bare = ".default";
  if (kind.starts_with(prefix)) kind.remove_prefix(prefix.size());
  if (kind.ends_with(bare)) kind.remove_suffix(bare.size());
  return kind;
}

/// "aten::softmax.int" -> "softmax".
constexpr std::string_view without_overload(std::string_view kind) {
  kind = without_namespace(kind);
  return kind.substr(0, kind.find('.'));
}

/// True when both name the same operator. An overload counts only if both name one: "softmax" is the same as
/// "softmax.int", and "softmax.int" is not "softmax.Dimname".
constexpr bool same_operator(std::string_view kind, std::string_view listed) {
  kind = without_namespace(kind);
  listed = without_namespace(listed);
  const auto overload_of = [](std::string_view full, std::string_view base) {
    return full.size() > base.size() && full.starts_with(base) && full[base.size()] == '.';
  };
  return kind == listed || overload_of(kind, listed) || overload_of(listed, kind);
}

}  // namespace comp::policy
