// SPDX-License-Identifier: Apache-2.0
// Records every run of a search in a file, the ledger. A search that was killed at any moment goes on from its ledger
// and repeats at most the run that it was in. The file has a line of JSON for each run, which is on the disk before the
// search goes on:
//   {"comp_ledger":2,"signature":"...","started":"2026-01-31T12:00:00Z",...}
//   {"number":0,"stage":"baseline","plan":"111",...}      one line per run, with all of the trial (files/json.hpp)
//   {"end":true,"plan":"011","runs":42,"speedup":1.25}    the search is complete; lines behind it are of its training
// Each line ends with a checksum of its text, "crc32":"1c291ca3", so that an edited or damaged line is not taken for a
// result. `read_ledger` gives its runs back. The search puts all that its runs depend on into its signature,
// "key=value; key=value", and a ledger of another signature is refused.
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

/// An observer that keeps a ledger. Trials that agree in is_same_run() are the same run. If several lines have
/// these, the first is the search's run and is recalled; later ones are epochs of a training.
class ledger {
 public:
  enum class mode : std::uint8_t {
    resume_or_start,  // goes on from the file if there is one
    keep_old,         // renames a file that is there to PATH.old
    restart           // overwrites a file that is there
  };

  explicit ledger(std::string path, mode how = mode::resume_or_start) : path_{std::move(path)}, mode_{how} {}

  /// Opens, locks and reads the file. A last line that was cut off when a search was killed is removed.
  /// Throws: `file_error` if the file cannot be used: another search is using it, it belongs to a search with another
  /// signature (with the parts that differ), a line is corrupt (with its number), it is no ledger, or the disk is full.
  void search_started(const search_info& info) {
    const std::string signature = detail::as_recorded(info.signature);
    if (file_.is_open() && signature_ == signature) return;  // a post-training goes on in the ledger of its search
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

  /// Returns the recorded run that is the same (is_same_run()). The search takes it in place of running it.
  std::optional<trial> recall(const trial& run) {
    const auto at = recorded_.find(key_of(run));
    if (at == recorded_.end()) return std::nullopt;
    recalled_.insert(at->first);
    return at->second;
  }

  /// Appends a line, and returns when it is on the disk.
  /// Throws: `file_error` if it cannot be written; no part of it is then left in the file.
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
  bool complete() const { return complete_; }            // whether the search ended by itself
  const std::string& path() const { return path_; }
  const std::string& remark() const {
    return remark_;
  }  // what was wrong with the file and was repaired; empty: nothing

 private:
  // A run's number is not in its key, because the search numbers a run only when it is done.
  static std::string key_of(const trial& t) {
    return fmt::format("{} {} {} {}", name(t.stage), name(t.purpose), t.repeat, t.plan.str());
  }

  void open() {
    if (mode_ == mode::keep_old) set_aside();
    file_ = detail::file_handle{::open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | O_CREAT, 0666)};
    if (file_.is_open()) return;
    throw file_error{fmt::format("ledger \"{}\" cannot be opened ({}): give the path of a file that can be written",
                                 path_, detail::errno_text())};
  }

  // Renames an old file. The lock is taken before, because a search that writes to the file must not lose it.
  void set_aside() {
    file_ = detail::file_handle{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (!file_.is_open() || !detail::is_regular(file_.get())) return;
    lock();
    const int code = std::rename(path_.c_str(), (path_ + ".old").c_str()) == 0 ? 0 : errno;
    require<file_error>(code == 0, "ledger \"{}\" cannot be renamed to \"{}.old\" ({}): move it away", path_, path_,
                        detail::errno_text(code));
  }

  // Locks the file for this process. The lock goes with the process, so that a killed search leaves none behind.
  void lock() {
    int code = ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    // Between open() and flock() another search may have renamed the file. The lock would then be on the wrong file.
    if (code == 0 && !detail::is_at(file_.get(), path_)) code = EWOULDBLOCK;
    if (code == 0) return;
    file_ = detail::file_handle{};
    require<file_error>(
        code != EWOULDBLOCK,
        "ledger \"{}\" is in use (another search writes to it): wait for it to end, or give another file", path_);
    throw file_error{fmt::format("ledger \"{}\" cannot be locked ({}): give a file on a local disk", path_,
                                 detail::errno_text(code))};
  }

  // Takes over the contents of the file, and cuts off a last line that is not whole.
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

  // Writes a line and waits until it is on the disk. If the disk is full, half a line is taken back, since the next
  // line would be joined to it.
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
  std::size_t size_ = 0;  // bytes of the file's whole lines
  bool complete_ = false;
  std::unordered_map<std::string, trial> recorded_ = {};
  std::set<std::string> recalled_ = {};  // runs that were recalled, which must not be written a second time
};

/// Returns every run in a ledger file, in the order of the file. A last line that was cut off is left out.
/// Throws: `file_error` if the file cannot be read, is no ledger, or has a corrupt line.
inline std::vector<trial> read_ledger(const std::string& path) {
  return detail::parse_ledger(detail::read_file(path, detail::ledger_limit), path).trials;
}

}  // namespace comp
