// SPDX-License-Identifier: Apache-2.0
// Reads whole files up to a size limit, and writes whole files in such a way that a crash leaves the old one. POSIX.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>

namespace comp::detail {

/// An open file, which its destructor closes.
class file_handle {
 public:
  explicit file_handle(int descriptor = -1) : descriptor_{descriptor} {}
  file_handle(file_handle&& other) noexcept : descriptor_{std::exchange(other.descriptor_, -1)} {}
  file_handle& operator=(file_handle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~file_handle() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

/// Returns the time now, here or in UTC, by strftime's `format`; nothing if this machine does not know it.
inline std::string time_now(const char* format, bool utc) {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  char text[32] = {};
  if ((utc ? ::gmtime_r(&now, &parts) : ::localtime_r(&now, &parts)) != nullptr)
    std::strftime(text, sizeof text, format, &parts);
  return text;
}

/// Returns the reason why the last system call failed, for instance "No space left on device".
inline std::string errno_text(int code = errno) { return std::strerror(code); }

inline bool is_regular(int descriptor) {
  struct stat about = {};
  return ::fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode);
}

/// True if `path` still names this open file. It does not once the file was deleted or replaced by another one.
inline bool is_at(int descriptor, const std::string& path) {
  struct stat open = {}, named = {};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

/// Returns the folder of a path; "." for a path without one.
inline std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

/// Writes all of `text`, in several system calls if one writes only a part.
/// Returns: 0, or the errno of the write that failed; a part of the text may then be in the file.
inline int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : ENOSPC;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

/// Waits until the file is on the disk.
/// Returns: 0 or an errno; 0 also for a pipe or a device, which cannot be flushed.
inline int flush_to_disk(int descriptor) {
  if (::fdatasync(descriptor) == 0 || errno == EINVAL || errno == EROFS || errno == ENOTSUP) return 0;
  return errno;
}

/// Waits until the entries of the folder of `path` are on the disk. Without this a file that was renamed can have its
/// old name again after a power failure.
inline void flush_folder(const std::string& path) {
  if (const file_handle folder{::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)}; folder.is_open()) {
    flush_to_disk(folder.get());
  }
}

/// Returns the contents of an open regular file. Its size is not asked for first, because another process may be
/// appending to the file.
/// Throws: `file_error` if it has more than `limit` bytes or cannot be read.
inline std::string read_all(int descriptor, const std::string& path, std::size_t limit) {
  std::string text;
  for (std::size_t chunk = 1 << 16;; chunk = std::min<std::size_t>(chunk * 2, 1 << 24)) {
    const std::size_t had = text.size();
    text.resize(had + chunk);
    const auto got = ::pread(descriptor, text.data() + had, chunk, static_cast<off_t>(had));
    require<file_error>(got >= 0 || errno == EINTR, "\"{}\" cannot be read ({}): see that it is a readable file", path,
                        errno_text());
    text.resize(had + static_cast<std::size_t>(std::max<decltype(got)>(got, 0)));
    require<file_error>(text.size() <= limit,
                        "\"{}\" is larger than {} bytes (more than comp would ever write): give another file", path,
                        limit);
    if (got == 0) return text;
  }
}

/// Returns the contents of the file at `path`.
/// Throws: `file_error`, naming path and reason, if there is no such file, it is a folder, or is larger than `limit`.
inline std::string read_file(const std::string& path, std::size_t limit) {
  // O_NONBLOCK, because opening a pipe that nobody writes to would otherwise wait for ever.
  const file_handle file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  require<file_error>(file.is_open(), "\"{}\" cannot be opened ({}): check the path", path, errno_text());
  require<file_error>(is_regular(file.get()), "\"{}\" is no regular file (a file is needed): check the path", path);
  return read_all(file.get(), path, limit);
}

/// The first characters of each ledger (observe/ledger.hpp).
inline constexpr std::string_view ledger_start = "{\"comp_ledger\":";

/// True if the file at `path` begins with `text`; false if it cannot be read.
inline bool begins_with(const std::string& path, std::string_view text) {
  const file_handle file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  std::string begin(text.size(), '\0');
  return file.is_open() && ::read(file.get(), begin.data(), begin.size()) == std::ssize(text) && begin == text;
}

/// Writes a file. The text is written to a temporary file beside `path`, flushed to the disk and renamed to `path`, so
/// that `path` is the old or the new file at any moment and never a part of one. A pipe or a device such as /dev/stdout
/// cannot be replaced, so it is written directly.
/// Throws: `file_error`, naming path and reason, and leaves no temporary file; also if the file at `path` is a ledger
/// and `text` is none, because a ledger holds hours of a search and is easily named by mistake.
inline void write_file(const std::string& path, std::string_view text) {
  struct stat about = {};
  const bool exists = ::stat(path.c_str(), &about) == 0;
  const bool direct = exists && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode);
  const std::string target = direct ? path : fmt::format("{}.{}.tmp", path, ::getpid());
  const auto fail = [&](int code) {
    if (!direct) ::unlink(target.c_str());
    throw file_error{
        fmt::format("\"{}\" cannot be written ({}): free some space or give another path", path, errno_text(code))};
  };
  if (exists && S_ISDIR(about.st_mode)) fail(EISDIR);
  require<file_error>(direct || text.starts_with(ledger_start) || !begins_with(path, ledger_start),
                      "\"{}\" is a ledger (the runs in it would be lost): give another path", path);
  {
    const file_handle file{::open(target.c_str(), O_WRONLY | O_CLOEXEC | (direct ? 0 : O_CREAT | O_TRUNC), 0666)};
    if (!file.is_open()) fail(errno);
    if (exists && !direct && ::fchmod(file.get(), about.st_mode & 07777) != 0) fail(errno);
    if (const int code = write_all(file.get(), text)) fail(code);
    if (const int code = flush_to_disk(file.get())) fail(code);
  }
  if (direct) return;
  if (std::rename(target.c_str(), path.c_str()) != 0) fail(errno);
  flush_folder(path);
}

}  // namespace comp::detail
