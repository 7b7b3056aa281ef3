// SPDX-License-Identifier: Apache-2.0
// Checks before anything is computed that `train` can write its files: a search of hours must not end at a mistyped
// path.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <comp/core/error.hpp>
#include <comp/files/file.hpp>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "options.hpp"

namespace train {

/// Returns: what `work` returns. Errors of the file system are thrown again with the option that named the path.
template <class F>
auto naming(const char* option, F&& work) {
  try {
    return std::forward<F>(work)();
  } catch (const comp::file_error& e) {
    throw comp::file_error{fmt::format("{}: {}", option, e.what())};
  } catch (const std::filesystem::filesystem_error& e) {
    throw comp::file_error{fmt::format("{}: \"{}\" cannot be used ({}): give another path", option, e.path1().string(),
                                       e.code().message())};
  }
}

/// Throws: `file_error` if printed text did not arrive, as with a full disk or a closed pipe.
inline void require_printed() {
  const int fault = std::fflush(stdout) != 0 ? errno : std::ferror(stdout) != 0 ? EIO : 0;
  comp::require<comp::file_error>(fault == 0, "the output cannot be printed ({}): see where stdout goes",
                                  comp::detail::errno_text(fault));
}

/// Throws: `file_error`, naming the option, if no file can be written at `path`. It tries with another file, which it
/// removes, so that a file at `path` does not change.
inline void require_writable(const char* option, const std::filesystem::path& path) {
  struct stat about = {};
  const bool exists = ::stat(path.c_str(), &about) == 0, direct = exists && !S_ISREG(about.st_mode);
  if (direct && S_ISFIFO(about.st_mode)) return;  // opening a pipe would wait for its reader
  const std::string probe = direct ? path.string() : fmt::format("{}.{}.try", path.string(), ::getpid());
  const comp::detail::file_handle file{
      path.empty() ? -1 : ::open(probe.c_str(), O_WRONLY | O_CLOEXEC | (direct ? 0 : O_CREAT | O_TRUNC), 0666)};
  int fault = file.is_open() ? comp::detail::write_all(file.get(), "\n") : errno;  // a newline is harmless in JSON
  if (!direct && file.is_open()) ::unlink(probe.c_str());
  comp::require<comp::file_error>(fault == 0, "{} \"{}\" cannot be written ({}): give another path, or make room",
                                  option, path.string(), comp::detail::errno_text(fault));
}

/// A file or a folder, and the option that names it.
struct named_path {
  const char* option;
  std::filesystem::path path;
};

/// Returns: what `train` reads.
inline std::vector<named_path> inputs_of(const options& chosen) {
  return {{"--data", chosen.data},
          {"--weights", chosen.weights},
          {"--plan", chosen.plan},
          {"--warm-start", chosen.warm_start}};
}

/// Returns: what `train` writes.
inline std::vector<named_path> outputs_of(const options& chosen) {
  std::vector<named_path> all{{"--weights-out", chosen.weights_out}};
  for (const char* name : {"training.json", "checkpoint.safetensors", "checkpoint.previous.safetensors"})
    all.push_back({"--out", chosen.out / name});
  for (const char* name : {"checkpoint.safetensors.old", "checkpoint.previous.safetensors.old", "search.jsonl.old"})
    all.push_back({"--out", chosen.out / name});  // older files are kept under these names
  if (!chosen.plan.empty()) return all;
  for (const char* name : {"plan.json", "search.jsonl", "summary.json", "report.html"})
    all.push_back({"--out", chosen.out / name});
  return all;
}

/// True if both paths name one file, through links too. Devices as /dev/null do not count: anybody may write to
/// them.
inline bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code none;
  if (std::filesystem::equivalent(a, b, none)) return !std::filesystem::is_character_file(a, none);
  return std::filesystem::weakly_canonical(a, none) == std::filesystem::weakly_canonical(b, none);
}

/// Throws: `file_error` if a file that is written is also read, or is written twice.
inline void require_apart(const options& chosen) {
  const std::vector<named_path> inputs = inputs_of(chosen), outputs = outputs_of(chosen);
  const auto require = [](const named_path& output, const named_path& other, const char* does) {
    if (output.path.empty() || other.path.empty()) return;
    comp::require<comp::file_error>(!same_file(output.path, other.path),
                                    "{} would overwrite \"{}\" ({} {} it): give another path", output.option,
                                    output.path.string(), other.option, does);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const named_path& input : inputs) require(outputs[i], input, "reads");
    for (std::size_t k = i + 1; k < outputs.size(); ++k) require(outputs[i], outputs[k], "writes");
    if (outputs[i].option == std::string_view{"--out"}) continue;  // no data set has files of these names
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator{chosen.data, none})
      require(outputs[i], {"--data", file.path()}, "reads");
  }
}

/// Makes the folder --out, locks it, and checks all paths that are written.
/// Returns: the lock's handle; no other `train` uses the folder while it lives. Throws: `file_error`, naming the
/// option.
[[nodiscard]] inline comp::detail::file_handle require_outputs(const options& chosen) {
  require_apart(chosen);
  naming("--out", [&] { std::filesystem::create_directories(chosen.out); });
  comp::detail::file_handle folder{::open(chosen.out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  comp::require<comp::file_error>(
      ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
      "--out \"{}\" is in use (another process trains there): wait for it to end, or give another folder",
      chosen.out.string());
  require_writable("--out", chosen.out / "plan.json");
  if (!chosen.weights_out.empty()) require_writable("--weights-out", chosen.weights_out);
  return folder;
}

}  // namespace train
