// SPDX-License-Identifier: Apache-2.0
// What the script of a page draws (draw_page.js), where a JavaScript engine is found (COMP_TEST_NODE is its command).
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "scratch.hpp"

#ifdef COMP_TEST_NODE
inline constexpr bool can_draw = true;
#else
#define COMP_TEST_NODE ""
inline constexpr bool can_draw = false;
#endif

/// The tags, attributes and texts of a drawn page; `filter` goes into its tables' filters, and heads called `head` are
/// clicked.
inline std::string drawn(const std::string& html, const std::string& filter = "", const std::string& head = "") {
  const scratch folder;
  write_text(folder / "page.html", html);
  const std::string command = COMP_TEST_NODE " '" + folder / "page.html" + "' '" + filter + "' '" + head + "' 2>&1";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe{::popen(command.c_str(), "r"), ::pclose};
  std::string text;
  for (int c; pipe && (c = std::fgetc(pipe.get())) != EOF;) text += static_cast<char>(c);
  return text;
}

inline std::string section_of(const std::string& page, const std::string& title) {
  const auto from = page.find("<h2>[" + title);
  return from == std::string::npos ? "" : page.substr(from, page.find("</section>", from) - from);
}
