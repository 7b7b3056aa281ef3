// SPDX-License-Identifier: Apache-2.0
// What a search does not know of itself, for the report and the summary: who filled in nothing gets neither.
#pragma once

#include <ctime>
#include <string>

namespace comp {

/// Each text may be empty: it is then not told.
struct report_info {
  std::string model = {};               // "mlp of 8 operators"
  std::string data = {};                // "optdigits.csv.gz, 3,823 digits"
  std::string command = {};             // the command line of the search
  std::string date = {};                // when; an html_report puts its own in where there is none
  std::string use_command = {};         // the command line that trains with the plan
  std::string plan_file = "plan.json";  // where comp::save writes the plan
};

/// Date and time here and now: "2026-11-22 13:20:05".
inline std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  char text[32] = {};
  if (::localtime_r(&now, &parts) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

}  // namespace comp
