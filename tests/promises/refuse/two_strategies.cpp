// SPDX-License-Identifier: Apache-2.0
// expect: strategy::guided does both stages: leave the second strategy out, or give another first one
#include <comp/comp.hpp>

int main() {
  const comp::two_stage search{comp::policy::pytorch{}, comp::strategy::guided{}, comp::strategy::exhaustive{}};
  return search.settings.self_check ? 0 : 1;
}
