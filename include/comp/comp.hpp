// SPDX-License-Identifier: Apache-2.0
// What a trainer includes to find its precision plan: the search with its default policy and strategies, and what
// watches it. Left out for their compile time, included one by one: the other strategies (strategy/), other systems'
// rules (systems/), loss scaling (scaling/), casts (autocast/casts.hpp), the doctor (doctor/), files for other programs
// (files/, observe/summary.hpp, observe/compare.hpp). Backends come with their
// own libraries.
#pragma once

#include <comp/core/cxx20.hpp>
//
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/decision.hpp>
#include <comp/core/error.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/op_info.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/search_space.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/observe/ledger.hpp>
#include <comp/observe/progress_bar.hpp>
#include <comp/observe/report.hpp>
#include <comp/observe/stop_on_signal.hpp>
#include <comp/policy/all_fp32.hpp>
#include <comp/policy/custom.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/policy/tensor_core.hpp>
#include <comp/search/check.hpp>
#include <comp/search/online.hpp>
#include <comp/search/paper_search.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/two_stage.hpp>
#include <comp/strategy/exhaustive.hpp>
#include <comp/strategy/greedy.hpp>
