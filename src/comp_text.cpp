// SPDX-License-Identifier: Apache-2.0
// Definitions of what the headers of files and reports declare, for programs that link to libcomp (core/linkage.hpp).
#include <comp/files/ledger_text.hpp>
#include <comp/files/plan_text.hpp>
#include <comp/observe/progress_display.hpp>
#include <comp/observe/report_text.hpp>

static_assert(!COMP_HEADER_ONLY, "libcomp is compiled with -DCOMP_HEADER_ONLY=0");
