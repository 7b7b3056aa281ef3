// SPDX-License-Identifier: Apache-2.0
// Lists the members of a type once, in a function beside the type:
//   void fields(auto& io, later_plan& p) { io("batch", p.batch, 1), io("plan", p.plan), io("reason", p.reason, if_any);
//   }
// Ranks send the members in this order (ranks/bytes.hpp), files have them by these names (files/json.hpp). What follows
// a member is needed to read it from a file: the least, then the largest whole number; the last value of an
// enumeration, then former names of its values; 0 for a number that is not negative.
#pragma once

namespace comp {

/// Comes before the above if a file may lack the member. One that is empty, 0, false or NaN is then left out.
struct may_lack {};
inline constexpr may_lack if_any{};

}  // namespace comp
