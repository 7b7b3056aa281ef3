// SPDX-License-Identifier: Apache-2.0
// Turns values into bytes, and back, between ranks of one version of comp: packed(value), unpacked<T>(bytes). Each
// type's `fields` name its members once for both directions.
// Numbers have this machine's layout, which all machines that comp runs on share.
#pragma once

#include <array>
#include <comp/core/concepts.hpp>
#include <comp/core/error.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::ranks::detail {

template <class T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class packer {
 public:
  void operator()(std::string_view /* name */, const auto& member, const auto&...) { put(member); }
  void all(const auto&... values) { (put(values), ...); }
  std::string take() { return std::move(bytes_); }

 private:
  template <Plain T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  void put(const plan& p) { put(p.str()); }
  template <class A, class B>
  void put(const std::pair<A, B>& both) {
    all(both.first, both.second);
  }
  template <class T>
  void put(const std::vector<T>& all) {
    put(all.size());
    for (const T& each : all) put(each);
  }
  template <class T, std::size_t N>
  void put(const std::array<T, N>& all) {
    for (const T& each : all) put(each);
  }
  template <class T>
  void put(const std::optional<T>& some) {
    put(some.has_value());
    if (some) put(*some);
  }
  template <class T>
  void put(const T& value) {
    fields(*this, const_cast<T&>(value));  // a packer only reads it
  }

  std::string bytes_;
};

class unpacker {
 public:
  explicit unpacker(std::string_view bytes) : left_{bytes} {}
  void operator()(std::string_view /* name */, auto& member, const auto&...) { get(member); }
  void all(auto&... values) { (get(values), ...); }

 private:
  std::string_view taken(std::size_t size) {
    require<rank_error>(
        size <= left_.size(),
        "a rank's message ends {} bytes too early (ranks of one training speak by one version of comp): "
        "start the same program on all ranks",
        size - left_.size());
    const std::string_view part = left_.substr(0, size);
    left_.remove_prefix(size);
    return part;
  }
  std::size_t size_read() {
    std::size_t size = 0;
    get(size);
    require<rank_error>(size <= left_.size(),
                        "a rank's message names {} values where {} bytes are left (ranks of one "
                        "training speak by one version of comp): start the same program on all ranks",
                        size, left_.size());
    return size;
  }
  template <Plain T>
  void get(T& value) {
    std::memcpy(&value, taken(sizeof value).data(), sizeof value);
  }
  void get(std::string& text) { text = taken(size_read()); }
  void get(plan& p) {
    std::string text;
    get(text);
    p = parse_plan(text);
  }
  template <class A, class B>
  void get(std::pair<A, B>& both) {
    all(both.first, both.second);
  }
  template <class T>
  void get(std::vector<T>& all) {
    all.resize(size_read());
    for (T& each : all) get(each);
  }
  template <class T, std::size_t N>
  void get(std::array<T, N>& all) {
    for (T& each : all) get(each);
  }
  template <class T>
  void get(std::optional<T>& some) {
    bool has = false;
    get(has);
    if (has) get(some.emplace());
  }
  template <class T>
  void get(T& value) {
    fields(*this, value);
  }

  std::string_view left_;
};

template <class... T>
std::string packed(const T&... values) {
  packer to;
  to.all(values...);
  return to.take();
}
/// Throws: `rank_error` for bytes that are no T.
template <class T>
T unpacked(std::string_view bytes) {
  T value{};
  unpacker{bytes}.all(value);
  return value;
}

void fields(auto& io, op_time& t) { io.all(t.forward, t.backward); }
void fields(auto& io, op_error& e) { io.all(e.output, e.gradient); }
void fields(auto& io, interval& i) { io.all(i.low, i.high); }
void fields(auto& io, paired_speedup& s) { io.all(s.ratio, s.bounds); }
void fields(auto& io, execution_choice& c) { io.all(c.name, c.value, c.gain); }
void fields(auto& io, loss_verdict& v) { io.all(v.answer, v.difference, v.radius, v.line, v.at_end); }
void fields(auto& io, contestant& c) {
  io.all(c.label, c.plan, c.seconds, c.over_fp32, c.peak_bytes, c.epoch, c.loss, c.loss_batches, c.lost, c.tie,
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
         o.memory_limit, o.later, o.compiled);
}

}  // namespace comp::ranks::detail
