// SPDX-License-Identifier: Apache-2.0
// A type's members are listed once, in a function beside the type:
//   void fields(auto& io, later_plan& p) {
//     io("batch", p.batch, 1);
//     io("plan", p.plan);
//     io("reason", p.reason, if_any);
//   }
// Ranks exchange the members in this order (ranks/bytes.hpp), and files have them by these names (files/json.hpp). What
// follows a member limits what is read from a file: of a whole number the least, then the largest; of a real number 0,
// if it is not negative; of an enumeration its last value, then pairs of a former name and its value.
#pragma once

namespace comp {

/// Stands before the limits of a member that a file may lack. It is written unless it is empty, false, NaN, or an
/// integer or enumerator of value 0.
struct may_lack {};
inline constexpr may_lack if_any{};

}  // namespace comp
