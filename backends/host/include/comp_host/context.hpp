// SPDX-License-Identifier: Apache-2.0
// What every operator needs: oneDNN's engine and stream, the memory pool, the table of layouts, and a cache of
// primitives. Making a oneDNN primitive takes longer than many operators run, so one is made for each operation, set of
// sizes and precision, and found again by a small key. A primitive keeps its oneDNN memory objects; a call only points
// them at other memory.
#pragma once

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel.hpp"
#include "layout.hpp"
#include "onednn.hpp"
#include "own_symbols.hpp"
#include "pool.hpp"
#include "tensor.hpp"

namespace comp::host {

/// The seconds of a step by kind of work. Counted only while profile() is on.
struct time_shares {
  double primitives = 0;  // [s] in oneDNN's primitives other than reorders
  double reorders = 0;    // [s] in oneDNN's changes of layout and precision
  double kernels = 0;     // [s] in this backend's own loops
};

/// A oneDNN primitive with the memory objects of its arguments.
class primitive {
 public:
  struct argument {
    int index;
    void* data;
  };

  template <class Description>
  primitive(const dnnl::engine& engine, layout_table& layouts, const Description& description,
            const std::vector<std::pair<int, dnnl::memory::desc>>& arguments)
      : run_{description.get()}, scratch_{description.scratchpad_desc().get_size()} {
    const auto add = [&](int index, const dnnl::memory::desc& desc) {
      slots_.push_back({layouts.intern(desc), {{nullptr, dnnl::memory{desc, engine, nullptr}}}});
      arguments_.push_back({index, slots_.back().known[0].second.get()});
    };
    for (const auto& [index, desc] : arguments) add(index, desc);
    if (scratch_ > 0) add(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
  }

  /// Returns the layout that the argument must have.
  const layout* places(int index) const { return slots_[at(index)].places; }
  std::size_t scratch_bytes() const { return scratch_; }

  void execute(const dnnl::stream& stream, const std::initializer_list<argument>& arguments, void* scratch) {
    for (const auto& [index, data] : arguments) point(index, data);
    if (scratch_ > 0) point(DNNL_ARG_SCRATCHPAD, scratch);
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(run_.get(), stream.get(), static_cast<int>(arguments_.size()), arguments_.data()),
        "a oneDNN primitive failed");
  }

 private:
  /// The memory objects of an argument, by the address that they point at. oneDNN 2 writes zeros into the padding of a
  /// tensor each time that an object is pointed at it, although the primitive that wrote the tensor has done so. So an
  /// argument with padding keeps an object for each of the few addresses that it has had.
  struct slot {
    const layout* places;
    std::vector<std::pair<void*, dnnl::memory>> known;
    std::size_t oldest = 0;
  };
  static constexpr std::size_t most_known = 8;

  std::size_t at(int index) const {
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      if (arguments_[i].arg == index) return i;
    }
    throw error{
        fmt::format("argument {} asked of a primitive that has none such (an error of comp): please report it", index)};
  }
  void point(int index, void* data) {
    const std::size_t i = at(index);
    slot& s = slots_[i];
    auto found = std::ranges::find(s.known, data, &std::pair<void*, dnnl::memory>::first);
    if (found == s.known.end()) {
      if (s.places->padded && s.known.size() < most_known) {
        s.known.emplace_back(nullptr, dnnl::memory{s.places->desc, s.known[0].second.get_engine(), nullptr});
        found = std::prev(s.known.end());
      } else {
        found = s.known.begin() + static_cast<std::ptrdiff_t>(s.oldest++ % s.known.size());
      }
      dnnl::error::wrap_c_api(dnnl_memory_set_data_handle(found->second.get(), data),
                              "memory could not be handed to oneDNN");
      found->first = data;
    }
    arguments_[i].memory = found->second.get();
  }

  dnnl::primitive run_;
  std::size_t scratch_;
  std::vector<slot> slots_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

/// The part of host::settings that operators need.
struct context_settings {
  std::size_t memory_limit = 0;     // [bytes] live at once; 0: no limit
  bool native_bf16 = true;          // false: BF16 is computed in FP32 and rounded, as on a CPU without AVX-512
  std::int64_t attention_from = 0;  // the least number of keys for attention as one operator
};

class context {
 public:
  explicit context(const context_settings& chosen)
      : engine{dnnl::engine::kind::cpu, 0},
        stream{engine},
        memory{std::make_shared<pool>(chosen.memory_limit)},
        layouts{chosen.native_bf16 && has_bf16() ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32},
        attention_from_{chosen.attention_from} {
    bind_own_symbols();
    user_scratch.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  }
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  bool computes(precision p) const { return layouts.computes(p); }
  std::int64_t attention_from() const { return attention_from_; }
  dnnl::memory::data_type type_of(precision p) const { return layouts.type_of(p); }

  tensor make(shape extents, const layout* places) {
    return {std::move(extents), places, std::make_shared<block>(memory, places->bytes)};
  }
  tensor make(const layout* places) { return make(places->extents, places); }
  tensor make_plain(const shape& extents, precision p) { return make(extents, layouts.plain(extents, p)); }
  tensor make_plain(const shape& extents) { return make_plain(extents, precision::fp32); }

  /// Returns the primitive of key `k`, which `make` makes the first time.
  primitive& cached(const key& k, auto make) {
    const auto found = primitives_.find(k);
    if (found != primitives_.end()) return *found->second;
    try {
      return *primitives_.emplace(k, std::make_unique<primitive>(make())).first->second;
    } catch (const dnnl::error& failure) {
      refuse(failure);
    }
  }
  /// Returns the description from which a primitive of `Op` is made (onednn.hpp). Its scratchpad is memory of the pool,
  /// so that it counts as memory of the step.
  template <class Op, class... Arguments>
  auto described(const Arguments&... arguments) const {
    return onednn::described<Op>(engine, user_scratch, arguments...);
  }
  template <class Op, class Forward, class... Arguments>
  auto described_backward(const Forward& forward, const Arguments&... arguments) const {
    return onednn::described_backward<Op>(engine, user_scratch, forward, arguments...);
  }
  primitive make_primitive(const auto& description, const std::vector<std::pair<int, dnnl::memory::desc>>& arguments) {
    return {engine, layouts, description, arguments};
  }

  void run(primitive& p, std::initializer_list<primitive::argument> arguments) {
    timed(shares_.primitives, p, arguments);
  }
  void run_reorder(primitive& p, std::initializer_list<primitive::argument> arguments) {
    timed(shares_.reorders, p, arguments);
  }
  /// Runs a primitive on stream `on` with a scratchpad of the caller's, and is not timed: for threads that have
  /// primitives of their own.
  void run_on(const dnnl::stream& on, primitive& p, std::initializer_list<primitive::argument> arguments,
              void* scratch) const {
    try {
      p.execute(on, arguments, scratch);
    } catch (const dnnl::error& failure) {
      refuse(failure);
    }
  }
  /// Runs a loop of this backend, `f`; its time counts as time_shares::kernels.
  void run_kernel(auto f) { clocked(shares_.kernels, f); }

  void profile(bool on) {
    profiling_ = on;
    shares_ = {};
  }
  const time_shares& shares() const { return shares_; }
  std::size_t primitives_made() const { return primitives_.size(); }

  dnnl::engine engine;
  dnnl::stream stream;
  dnnl::primitive_attr user_scratch;
  std::shared_ptr<pool> memory;
  layout_table layouts;
  native::dropout_key roundings;  // of the next operator that rounds at random

 private:
  static bool has_bf16() {
    const auto isa = dnnl::get_effective_cpu_isa();
    return (static_cast<unsigned>(isa) & static_cast<unsigned>(dnnl::cpu_isa::avx512_core)) ==
           static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  }
  void timed(double& share, primitive& p, std::initializer_list<primitive::argument> arguments) {
    const auto scratch = p.scratch_bytes() ? std::make_unique<block>(memory, p.scratch_bytes()) : nullptr;
    void* const space = scratch ? scratch->data() : nullptr;
    clocked(share, [&] {
      run_on(stream, p, arguments, space);
      stream.wait();
    });
  }
  /// Turns a oneDNN exception into one of comp's, so that a search can tell a lack of memory from an operator that does
  /// not run.
  [[noreturn]] static void refuse(const dnnl::error& failure) {
    require<out_of_memory>(failure.status != dnnl_out_of_memory, "oneDNN had no memory ({}): use a smaller batch",
                           failure.what());
    throw error{fmt::format("oneDNN refused an operator ({}, status {}): use other sizes or another precision",
                            failure.what(), static_cast<int>(failure.status))};
  }
  void clocked(double& share, auto f) {
    if (!profiling_) return f();
    const comp::detail::stopwatch watch;
    f();
    share += watch.seconds();
  }

  std::unordered_map<key, std::unique_ptr<primitive>, key::hash> primitives_;
  std::int64_t attention_from_;
  bool profiling_ = false;
  time_shares shares_;
};

}  // namespace comp::host
