// SPDX-License-Identifier: Apache-2.0
// What the report and the summary show and a search cannot know, such as the name of the data. The user fills in what
// is to be shown.
#pragma once

#include <ctime>
#include <string>

namespace comp {

/// A text that is empty is not shown.
struct report_info {
  std::string model = {};               // "mlp of 8 operators"
  std::string data = {};                // "optdigits.csv.gz, 3,823 digits"
  std::string command = {};             // the command line of the search
  std::string date = {};                // when the search was made; html_report fills in its own if it is empty
  std::string use_command = {};         // the command line that trains with the plan
  std::string plan_file = "plan.json";  // where comp::save writes the plan
};

/// Returns the local date and time: "2026-11-22 13:20:05".
inline std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  char text[32] = {};
  if (::localtime_r(&now, &parts) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

}  // namespace comp
