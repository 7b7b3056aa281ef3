// SPDX-License-Identifier: Apache-2.0
// Runs another program of the same folder in place of this one, so that no program links the libraries of all.
#pragma once

#include <unistd.h>

#include <comp/core/error.hpp>
#include <filesystem>

namespace train {

/// Replaces this process by the program `name` in the same folder, with the same command line.
/// Throws: `error` with the text `otherwise` if there is no such program.
inline void become(const char* name, char** argv, const char* otherwise) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  execv(program.c_str(), argv);
  comp::require<comp::error>(false, "{}", otherwise);
}

}  // namespace train
