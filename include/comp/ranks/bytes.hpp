// SPDX-License-Identifier: Apache-2.0
// Turns values into bytes, and back, between ranks of one version of comp: packed(value), unpacked<T>(bytes). Each
// type's `fields` name its members once, and one class goes through them in both directions.
// Numbers have this machine's layout, which all machines that comp runs on share.
#pragma once

#include <array>
#include <comp/core/concepts.hpp>
#include <comp/core/error.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::ranks::detail {

template <class T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// Writes values as bytes, or reads them, in the order in which they are given. Made of bytes it reads.
class archive {
 public:
  archive() = default;
  explicit archive(std::string_view bytes) : left_{bytes}, reads_{true} {}
  void operator()(std::string_view /* name */, auto& member, const auto&...) { pass(member); }
  void all(auto&... values) { (pass(values), ...); }
  std::string take() { return std::move(written_); }

 private:
  void pass_bytes(void* at, std::size_t size) {
    if (!reads_) {
      written_.append(static_cast<const char*>(at), size);
      return;
    }
    require<rank_error>(
        size <= left_.size(),
        "a rank's message ends {} bytes too early (ranks of one training speak by one version of comp): "
        "start the same program on all ranks",
        size - left_.size());
    left_.copy(static_cast<char*>(at), size);
    left_.remove_prefix(size);
  }
  /// Passes the number of values that follow, and gives `values` so many if it reads.
  void pass_size(auto& values) {
    std::size_t size = values.size();
    pass(size);
    if (!reads_) return;
    require<rank_error>(size <= left_.size(),
                        "a rank's message names {} values where {} bytes are left (ranks of one "
                        "training speak by one version of comp): start the same program on all ranks",
                        size, left_.size());
    values.resize(size);
  }
  template <Plain T>
  void pass(T& value) {
    pass_bytes(&value, sizeof value);
  }
  void pass(std::string& text) {
    pass_size(text);
    pass_bytes(text.data(), text.size());
  }
  void pass(plan& p) {
    std::string text = p.str();
    pass(text);
    if (reads_) p = parse_plan(text);
  }
  template <class T>
  void pass(std::vector<T>& all) {
    pass_size(all);
    for (T& each : all) pass(each);
  }
  template <class T, std::size_t N>
  void pass(std::array<T, N>& all) {
    for (T& each : all) pass(each);
  }
  template <class T>
  void pass(std::optional<T>& some) {
    bool has = some.has_value();
    pass(has);
    if (!has) return;
    if (reads_) some.emplace();
    pass(*some);
  }
  template <class T>
  void pass(T& value) {
    fields(*this, value);
  }

  std::string written_ = {};
  std::string_view left_ = {};
  bool reads_ = false;
};

template <class... T>
std::string packed(const T&... values) {
  archive to;
  to.all(const_cast<T&>(values)...);  // it only reads them
  return to.take();
}
/// Throws: `rank_error` for bytes that are no T.
template <class T>
T unpacked(std::string_view bytes) {
  T value{};
  archive{bytes}.all(value);
  return value;
}

void fields(auto& io, op_time& t) { io.all(t.forward, t.backward); }
void fields(auto& io, op_error& e) { io.all(e.output, e.gradient); }
void fields(auto& io, interval& i) { io.all(i.low, i.high); }
void fields(auto& io, paired_speedup& s) { io.all(s.ratio, s.bounds); }
void fields(auto& io, execution_choice& c) { io.all(c.name, c.value, c.gain); }
void fields(auto& io, loss_verdict& v) { io.all(v.answer, v.difference, v.radius, v.line, v.at_end); }
void fields(auto& io, contestant& c) {
  io.all(c.label, c.plan, c.seconds, c.over_fp32, c.peak_bytes, c.loss, c.loss_batches, c.lost, c.tie,
         c.status, c.rule_based);
}
void fields(auto& io, op_evidence& e) { io.all(e.what, e.low, e.others_low, e.difference, e.saves, e.casts); }
void fields(auto& io, op_reason& r) { io.all(r.category, r.decided_by_losses, r.text); }
void fields(auto& io, stage_cost& c) { io.all(c.runs, c.batches, c.seconds); }
/// All but the graph, which each rank has.
void fields(auto& io, outcome& o) {
  io.all(o.plan, o.speedup, o.speedup_bounds, o.execution, o.hardware, o.precisions, o.baseline, o.trained_batches,
         o.batches_per_epoch, o.trained, o.contest, o.trials, o.recalled, o.evidence, o.reasons, o.fallbacks, o.costs,
         o.run_seconds, o.batch_seconds, o.warnings, o.criterion, o.tolerance, o.floor, o.higher_is_better,
         o.memory_limit, o.later, o.compiled, o.damaged_since);
}

}  // namespace comp::ranks::detail
