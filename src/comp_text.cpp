// SPDX-License-Identifier: Apache-2.0
// What comp's headers of files and reports declare where they are not used alone (core/linkage.hpp).
#include <comp/files/ledger_text.hpp>
#include <comp/files/plan_text.hpp>
#include <comp/observe/report_text.hpp>

static_assert(!COMP_HEADER_ONLY, "libcomp is compiled with -DCOMP_HEADER_ONLY=0");
