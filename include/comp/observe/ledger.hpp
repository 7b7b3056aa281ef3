// SPDX-License-Identifier: Apache-2.0
// Keeps every run of a search in a file, so that a search that was killed at any moment goes on from there and repeats
// at most the run it was in. JSON lines, each on the disk before the search goes on:
//   {"comp_ledger":2,"signature":"...","started":"2026-01-31T12:00:00Z",...}
//   {"number":0,"stage":"baseline","plan":"111",...}      one per run, everything needed to recall it
//   (files/json.hpp)
//   {"end":true,"plan":"011","runs":42,"speedup":1.25}    the search is complete; later lines are training
// Each line ends with a checksum of its text, "crc32":"1c291ca3": what was edited or damaged is not taken for a result.
// The file doubles as a table of results to simulate searches with: `read_ledger`.
// Not here: what makes recorded runs usable again; the search says so in its signature, "key=value; key=value".
#pragma once

#include <sys/file.h>

#include <comp/core/trial.hpp>
#include <comp/files/file.hpp>
#include <comp/files/ledger_lines.hpp>
#include <comp/search/observers.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace comp {

/// An observer. Trials with the same stage, plan and repeat are the same run; of several the first is recalled: later
/// ones are epochs of a training.
class ledger {
 public:
  enum class mode : std::uint8_t {
    resume_or_start,  // goes on from the file if there is one
    start_new,        // refuses a file that is there
    keep_old,         // renames it: PATH.old
    restart           // overwrites it
  };

  explicit ledger(std::string path, mode how = mode::resume_or_start) : path_{std::move(path)}, mode_{how} {}

  /// Opens, locks and reads the file. A last line that was cut off by a kill is removed.
  /// Throws: `file_error` when the file cannot be used: another search has it, it belongs to a search with another
  /// signature (says which parts differ), a line is corrupt (says which), it is no ledger, the disk is full.
  void search_started(const search_info& info) {
    const std::string signature = detail::as_recorded(info.signature);
    if (file_.is_open() && signature_ == signature) return;  // a training after its search
    signature_ = signature;
    recorded_.clear();
    remark_.clear();
    struct stat about = {};
    const bool was_there = mode_ == mode::resume_or_start && ::stat(path_.c_str(), &about) == 0;
    open();
    lock();
    const bool regular = detail::is_regular(file_.get());
    const std::string text = regular ? detail::read_all(file_.get(), path_, detail::ledger_limit) : "";
    detail::require_ledger(text, path_);
    take(mode_ == mode::restart ? detail::ledger_content{} : detail::parse_ledger(text, path_), text.size());
    if (was_there && regular && text.empty())
      remark_ = fmt::format(
          "ledger \"{}\" is damaged: it is empty (its runs are lost, if it had any): all runs are made anew", path_);
    if (size_ == 0) append(detail::ledger_header(signature_));
    detail::flush_folder(path_);
    if (!remark_.empty() && info.warn) info.warn(remark_);
  }

  /// What is recorded of this stage, plan and repeat.
  std::optional<trial> recall(const trial& wanted) {
    const auto at = recorded_.find(key_of(wanted));
    if (at == recorded_.end()) return std::nullopt;
    recalled_.insert(at->first);
    return at->second;
  }

  /// Returns when the line is on the disk. Throws: `file_error` when it cannot be written: then nothing of it is left.
  void trial_done(const trial& t) {
    const auto key = key_of(t);
    if (recalled_.erase(key) > 0) return;
    append(detail::ledger_line(t));
    recorded_.try_emplace(key, t);
    complete_ = false;
  }

  void search_done(const outcome& result) {
    if (complete_) return;
    append(detail::ledger_end(result.plan, result.trials.size(), result.speedup));
    complete_ = true;
  }

  std::size_t size() const { return recorded_.size(); }  // runs that can be recalled
  bool complete() const { return complete_; }            // the last line is an end marker
  const std::string& path() const { return path_; }
  const std::string& remark() const { return remark_; }  // what was wrong with the file and is mended; empty: nothing

 private:
  static std::string key_of(const trial& t) { return fmt::format("{} {} {}", name(t.stage), t.repeat, t.plan.str()); }

  void open() {
    if (mode_ == mode::keep_old) set_aside();
    const int create = O_CREAT | (mode_ == mode::start_new ? O_EXCL : 0);
    file_ = detail::file_handle{::open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | create, 0666)};
    if (file_.is_open()) return;
    require<file_error>(errno != EEXIST,
                        "ledger \"{}\" exists (start_new keeps what is there): give another file, or "
                        "ledger::mode::resume_or_start to go on from it, or ledger::mode::restart to overwrite it",
                        path_);
    throw file_error{fmt::format("ledger \"{}\" cannot be opened ({}): give the path of a file that can be written",
                                 path_, detail::errno_text())};
  }

  // What another search writes to is not taken from under it.
  void set_aside() {
    file_ = detail::file_handle{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (!file_.is_open() || !detail::is_regular(file_.get())) return;
    lock();
    const int code = std::rename(path_.c_str(), (path_ + ".old").c_str()) == 0 ? 0 : errno;
    require<file_error>(code == 0, "ledger \"{}\" cannot be renamed to \"{}.old\" ({}): move it away", path_, path_,
                        detail::errno_text(code));
  }

  void lock() {
    int code = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (code == 0 && !detail::is_at(file_.get(), path_)) code = EWOULDBLOCK;  // renamed meanwhile, by another search
    if (code == 0) return;
    file_ = detail::file_handle{};
    require<file_error>(
        code != EWOULDBLOCK,
        "ledger \"{}\" is in use (another search writes to it): wait for it to end, or give another file", path_);
    throw file_error{fmt::format("ledger \"{}\" cannot be locked ({}): give a file on a local disk", path_,
                                 detail::errno_text(code))};
  }

  // Makes what was read the state of this ledger, and cuts off what cannot be used.
  void take(detail::ledger_content content, std::size_t bytes_in_file) {
    if (content.usable_bytes > 0) {
      const auto other = detail::differing_fields(content.signature, signature_, content.trials);
      if (!other.empty()) {
        file_ = detail::file_handle{};
        throw file_error{detail::signature_difference(path_, other)};
      }
    }
    size_ = content.usable_bytes;
    complete_ = content.complete;
    if (size_ < bytes_in_file) {
      cut_to_size("a line that a kill cut off");
      if (mode_ != mode::restart)
        remark_ = fmt::format(
            "ledger \"{}\" is damaged: it ended within a line (its last {} bytes, as after a kill): that run "
            "is made again",
            path_, bytes_in_file - size_);
    }
    for (trial& t : content.trials) {
      const auto key = key_of(t);
      recorded_.try_emplace(key, std::move(t));
    }
  }

  void cut_to_size(std::string_view what) {
    const int code = ::ftruncate(file_.get(), static_cast<off_t>(size_)) == 0 ? 0 : errno;
    require<file_error>(code == 0, "ledger \"{}\" keeps {} ({}): delete what follows byte {} of the file", path_, what,
                        detail::errno_text(code), size_);
  }

  void append(const std::string& line) {
    require<file_error>(file_.is_open(), "ledger \"{}\" is not open (search_started opens it): pass it to a search",
                        path_);
    int code = detail::write_all(file_.get(), line);
    if (code == 0) code = detail::flush_to_disk(file_.get());
    if (code == 0) {
      size_ += line.size();
      return;
    }
    if (detail::is_regular(file_.get())) cut_to_size("half of a line");
    throw file_error{
        fmt::format("ledger \"{}\" cannot be written ({}): free some space and start the search again with "
                    "the same file, it goes on after {} runs",
                    path_, detail::errno_text(code), recorded_.size())};
  }

  std::string path_;
  mode mode_;
  std::string signature_ = {}, remark_ = {};
  detail::file_handle file_{};
  std::size_t size_ = 0;  // bytes of whole lines
  bool complete_ = false;
  std::unordered_map<std::string, trial> recorded_ = {};
  std::set<std::string> recalled_ = {};  // handed out, so not to be written again
};

/// Every run in a ledger file, in the order of the file: a table of results. A cut off last line is left out.
/// Throws: `file_error` when it cannot be read, is no ledger, or a line is corrupt.
inline std::vector<trial> read_ledger(const std::string& path) {
  return detail::parse_ledger(detail::read_file(path, detail::ledger_limit), path).trials;
}

}  // namespace comp
