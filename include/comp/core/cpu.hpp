// SPDX-License-Identifier: Apache-2.0
// Finds the name, the number of threads and the vector instruction sets of this CPU by its CPUID instruction. A CPU
// that is not x86 gets the name "unknown" and no instruction sets.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/hardware.hpp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define COMP_X86 1
#else
#define COMP_X86 0
#endif

namespace comp {

namespace detail {

/// The registers EAX to EDX after CPUID; zeros if the CPU does not have the leaf that was asked for.
struct cpuid_registers {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
};

inline cpuid_registers cpuid([[maybe_unused]] std::uint32_t leaf, [[maybe_unused]] std::uint32_t subleaf = 0) {
  cpuid_registers r;
#if COMP_X86
  if (!__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d)) return {};
#endif
  return r;
}

/// Returns the register states that the operating system saves when it switches threads (XCR0). A CPU can have AVX-512
/// or AMX that the system does not save; using it would then corrupt registers. 0 if the CPU has no XSAVE.
inline std::uint64_t saved_states() {
#if COMP_X86
  if (!(cpuid(1).c >> 27 & 1)) return 0;
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
#else
  return 0;
#endif
}

inline std::string brand() {
  if (cpuid(0x80000000U).a < 0x80000004U) return "unknown";
  std::array<char, 49> text{};
  for (std::uint32_t i = 0; i < 3; ++i) {
    const cpuid_registers r = cpuid(0x80000002U + i);
    std::memcpy(text.data() + 16 * i, &r, sizeof r);
  }
  std::string name = text.data();
  while (!name.empty() && name.back() == ' ') name.pop_back();
  while (!name.empty() && name.front() == ' ') name.erase(name.begin());
  return name.empty() ? "unknown" : name;
}

}  // namespace detail

/// Returns: whether the environment variable COMP_WITHOUT_AVX512 is set. comp then does what it does on a CPU that has
/// AVX2 alone.
inline bool without_avx512() {
  static const bool is_set = std::getenv("COMP_WITHOUT_AVX512") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  return is_set;
}

/// Returns the instruction sets that matter for low precision and that both the CPU and the operating system offer.
/// Source: Intel SDM volume 2, CPUID leaves 1 and 7; bits 1-2, 5-7 and 17-18 of XCR0 for AVX, AVX-512 and AMX state.
inline std::vector<std::string> instruction_sets() {
  const auto bit = [](std::uint32_t word, int at) { return (word >> at & 1) != 0; };
  const std::uint64_t states = detail::saved_states();
  const bool wide = !without_avx512(), avx = (states & 0x6) == 0x6;
  const bool avx512 = wide && (states & 0xe6) == 0xe6, amx = wide && (states & 0x60000) == 0x60000;
  const auto one = detail::cpuid(1), seven = detail::cpuid(7), seven_one = detail::cpuid(7, 1);
  // oneDNN's name for what its AVX-512 kernels need together: F, DQ, BW and VL.
  const bool core = avx512 && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);
  std::vector<std::string> sets;
  const auto add = [&](bool there, const char* name) {
    if (there) sets.emplace_back(name);
  };
  add(avx && bit(one.c, 29), "f16c");
  add(avx && bit(seven.b, 5), "avx2");
  add(core, "avx512_core");
  add(core && bit(seven_one.a, 5), "avx512_bf16");
  add(core && bit(seven.d, 23), "avx512_fp16");
  add(amx && bit(seven.d, 22), "amx_bf16");
  add(amx && bit(seven_one.a, 21), "amx_fp16");
  return sets;
}

/// Describes this machine. `threads` says how many threads will compute; 0 stands for every hardware thread.
inline hardware this_cpu(int threads = 0) {
  const int all = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return {.name = detail::brand(),
          .kind = device_kind::cpu,
          .isa = instruction_sets(),
          .threads = threads > 0 ? threads : all};
}

}  // namespace comp
