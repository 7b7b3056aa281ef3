// SPDX-License-Identifier: Apache-2.0
// Layouts: how the elements of a tensor lie in memory. Equal layouts are one object (they are interned), so that two
// can be compared by their pointers. A layout is a oneDNN descriptor and the precision of the stored values. The
// descriptor's own type differs from that precision only if oneDNN has no arithmetic for it (FP16; BF16 on an old CPU):
// then it says FP32, and the tensor is widened before a primitive reads it.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <comp/core/precision.hpp>
#include <comp_native/arguments.hpp>
#include <comp_native/device.hpp>
#include <comp_native/storage.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "onednn.hpp"

namespace comp::host {

using native::elements;
using native::shape;

using native::bytes_of;
using native::storage;
using native::storage_of;
using native::text;

/// The key of a cached object: its operation, and every number that it depends on.
struct key {
  static constexpr std::size_t capacity = 24;
  std::array<std::int64_t, capacity> words{};
  std::size_t count = 0;

  template <class... Parts>
  explicit key(const Parts&... parts) {
    (put(parts), ...);
  }
  friend bool operator==(const key& a, const key& b) {
    return a.count == b.count &&
           std::equal(a.words.begin(), a.words.begin() + static_cast<std::ptrdiff_t>(a.count), b.words.begin());
  }

  struct hash {
    std::size_t operator()(const key& k) const {
      std::uint64_t h = k.count;
      for (std::size_t i = 0; i < k.count; ++i)
        h = (h ^ static_cast<std::uint64_t>(k.words[i])) * 0x9E3779B97F4A7C15ULL, h ^= h >> 29;
      return h;
    }
  };

 private:
  void put(std::int64_t word) {
    require<error>(count < capacity, "an operation on more than {} sizes (keys hold no more): use fewer axes",
                   capacity);
    words[count++] = word;
  }
  template <class Range>
  requires requires(const Range& r) { r.begin(); }
  void put(const Range& range) {
    put(static_cast<std::int64_t>(std::size(range)));
    for (const auto word : range) put(static_cast<std::int64_t>(word));
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void put(Enum e) { put(static_cast<std::int64_t>(e)); }
};

/// One layout.
struct layout {
  dnnl::memory::desc desc;
  comp::precision precision = comp::precision::fp32;
  std::int64_t id = 0;
  shape extents;
  std::size_t stored = 0;  // elements in memory, padding included
  std::size_t bytes = 0;
  bool plain = false;   // row-major without gaps
  bool padded = false;  // some stored elements belong to no index; they are zeros
  /// True if each stored element belongs to the tensor or is zero padding, so that an element-wise loop may run over
  /// all.
  bool dense = false;
};

/// All layouts that are in use, and the remembered answers to questions about pairs of them.
class layout_table {
 public:
  using data_type = dnnl::memory::data_type;

  /// `low` is the data type in which oneDNN computes BF16 on this CPU: BF16 or FP32.
  explicit layout_table(data_type low) : bf16_type_{low} {}

  data_type type_of(precision p) const { return storage_of(p) == storage::bf16 ? bf16_type_ : data_type::f32; }
  bool computes(precision p) const {
    return p == precision::fp32 || (storage_of(p) == storage::bf16 && bf16_type_ == data_type::bf16);
  }

  const layout* intern(const dnnl::memory::desc& desc, precision p) {
    auto& same = by_extents_[key{p, onednn::extents_of(desc)}];
    const auto found = std::ranges::find_if(same, [&](const layout* known) { return known->desc == desc; });
    if (found != same.end()) return *found;
    same.push_back(&all_.emplace_back(described(desc, p)));
    return same.back();
  }
  /// Interns the layout of a primitive's argument. Arguments of other types than FP32 and BF16 (workspaces) keep their
  /// size in bytes.
  const layout* intern(const dnnl::memory::desc& desc) {
    return intern(desc, onednn::type_of(desc) == data_type::bf16 ? precision::bf16 : precision::fp32);
  }
  const layout* plain(const shape& s, precision p) {
    const auto [at, is_new] = plain_.try_emplace(key{p, s}, nullptr);
    if (is_new) at->second = intern({s, type_of(p), strides(s)}, p);
    return at->second;
  }
  const layout* strided(const shape& s, const shape& steps, precision p) {
    const auto [at, is_new] = strided_.try_emplace(key{p, s, steps}, nullptr);
    if (is_new) at->second = intern({s, type_of(p), steps}, p);
    return at->second;
  }
  /// Returns: the layout with the same places in another precision; null if oneDNN has no descriptor for it.
  const layout* with(const layout* from, precision p) {
    if (from->precision == p) return from;
    const auto [at, is_new] = recast_.try_emplace(key{from->id, p}, nullptr);
    if (is_new) {
      if (const auto desc = onednn::with_type(from->desc, type_of(p))) at->second = intern(*desc, p);
    }
    return at->second;
  }

  /// True if both layouts put each element in the same place and only differ in their descriptors, as "channels first"
  /// and "channels last" do for a single channel. Then no reorder is needed.
  bool same_places(const layout* from, const layout* to) {
    const auto [at, is_new] = same_.try_emplace(key{from->id, to->id}, false);
    if (is_new) {
      at->second = from->dense && to->dense && !from->padded && !to->padded && from->precision == to->precision &&
                   from->extents == to->extents && onednn::order_of(from->desc) == onednn::order_of(to->desc);
    }
    return at->second;
  }
  /// Returns: the length of the rows if `to` is `from` with each two rows interleaved, as oneDNN's products of BF16
  /// read their weights; 0 if it is not. Such a copy can be written by a plain loop, which is faster than oneDNN's
  /// reorder and can be part of the optimizer's pass.
  std::size_t paired_rows(const layout* from, const layout* to) {
    const auto [at, is_new] = paired_.try_emplace(key{from->id, to->id}, 0);
    if (is_new) at->second = paired(*from, *to);
    return at->second;
  }

  static shape strides(const shape& s) {
    shape steps(s.size(), 1);
    for (std::size_t i = s.size(); i-- > 1;) steps[i - 1] = steps[i] * std::max<std::int64_t>(s[i], 1);
    return steps;
  }

 private:
  layout described(const dnnl::memory::desc& desc, precision p) const {
    layout result{.desc = desc,
                  .precision = p,
                  .id = static_cast<std::int64_t>(all_.size()),
                  .extents = onednn::extents_of(desc)};
    const std::size_t type_bytes = dnnl::memory::data_type_size(onednn::type_of(desc));
    result.stored = desc.get_size() / std::max<std::size_t>(type_bytes, 1);
    result.bytes = onednn::type_of(desc) == type_of(p)
                       ? result.stored * static_cast<std::size_t>(bytes_of(storage_of(p)))
                       : desc.get_size();
    const bool blocked = onednn::is_blocked(desc);
    result.padded = blocked && onednn::padded_extents_of(desc) != result.extents;
    result.dense = blocked && elements(onednn::padded_extents_of(desc)) == static_cast<std::int64_t>(result.stored);
    result.plain =
        result.dense && desc == dnnl::memory::desc{result.extents, onednn::type_of(desc), strides(result.extents)};
    return result;
  }

  static std::size_t paired(const layout& from, const layout& to) {
    if (!from.dense || !to.dense || from.stored != to.stored || from.extents != to.extents) return 0;
    auto rows = onednn::order_of(from.desc);
    const auto pairs = onednn::order_of(to.desc);
    if (rows.size() < 2 || rows[1].steps % 2 != 0) return 0;
    const std::size_t length = static_cast<std::size_t>(rows[0].steps);
    rows[1].steps /= 2;
    rows.insert(rows.begin(), {rows[1].axis, 2});
    if (rows[2].steps == 1) rows.erase(rows.begin() + 2);
    return rows == pairs ? length : 0;
  }

  data_type bf16_type_;
  std::deque<layout> all_;
  std::unordered_map<key, std::vector<const layout*>, key::hash> by_extents_;
  std::unordered_map<key, const layout*, key::hash> plain_, strided_, recast_;
  std::unordered_map<key, bool, key::hash> same_;
  std::unordered_map<key, std::size_t, key::hash> paired_;
};

}  // namespace comp::host
