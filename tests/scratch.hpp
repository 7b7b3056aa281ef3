// SPDX-License-Identifier: Apache-2.0
// A folder for one test, removed with what is in it; and whole files as texts.
#pragma once

#include <stdlib.h>

#include <comp/core/error.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

class scratch {
 public:
  scratch() {
    std::string pattern = std::filesystem::temp_directory_path() / "comp-test-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string operator/(const std::string& file) const { return folder_ + "/" + file; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator{folder_}, {}));
  }

 private:
  std::string folder_;
};
/// A test case's own.
struct with_folder {
  const scratch folder;
};

inline std::string text_of(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{file}, {}};
}

inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream{path, std::ios::binary} << text;
}

/// What `call` throws as `E`; empty when it throws nothing.
template <class E = comp::file_error, class F>
std::string message_of(F&& call) {
  try {
    call();
  } catch (const E& e) {
    return e.what();
  }
  return {};
}
/// How often `part` is in `text`.
inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
