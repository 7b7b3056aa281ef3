// SPDX-License-Identifier: Apache-2.0
// What the machine is that LibTorch computes on: the CPU by /proc/cpuinfo, an NVIDIA GPU by its driver, so that no
// header of CUDA is needed. Where either is missing, less is known, and nothing fails.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <comp/core/hardware.hpp>
#include <comp/core/precision.hpp>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch {

namespace detail {

/// Sets what `cpuinfo` says of the first processor: its name, and of its flags those that decide which formats are
/// fast.
inline void read_cpu(std::istream& cpuinfo, hardware& to) {
  std::set<std::string> flags;
  for (std::string line; flags.empty() && std::getline(cpuinfo, line);) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("model name")) to.name = line.substr(colon + 2);
    if (!line.starts_with("flags")) continue;
    std::istringstream words{line.substr(colon + 2)};
    for (std::string word; words >> word;) flags.insert(word);
  }
  const auto has = [&](auto... names) { return (flags.contains(names) && ...); };
  const std::pair<bool, const char*> sets[] = {{has("f16c"), "f16c"},
                                               {has("avx2"), "avx2"},
                                               {has("avx512f", "avx512bw", "avx512vl", "avx512dq"), "avx512_core"},
                                               {has("avx512_bf16"), "avx512_bf16"},
                                               {has("avx512_fp16"), "avx512_fp16"},
                                               {has("amx_bf16"), "amx_bf16"},
                                               {has("amx_fp16"), "amx_fp16"}};
  for (const auto& [there, name] : sets) {
    if (there) to.isa.emplace_back(name);
  }
}

/// Sets what the driver says of GPU `index`. Source: CUDA Driver API, cuDeviceGetName and cuDeviceGetAttribute (75 and
/// 76: COMPUTE_CAPABILITY_MAJOR and _MINOR); LibTorch has loaded and initialised the driver by then.
inline void read_gpu(int index, hardware& to) {
  void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return;
  const auto get = reinterpret_cast<int (*)(int*, int)>(::dlsym(driver, "cuDeviceGet"));
  const auto name = reinterpret_cast<int (*)(char*, int, int)>(::dlsym(driver, "cuDeviceGetName"));
  const auto attribute = reinterpret_cast<int (*)(int*, int, int)>(::dlsym(driver, "cuDeviceGetAttribute"));
  int device = 0, major = 0, minor = 0;
  char text[256] = {};
  if (get && name && attribute && get(&device, index) == 0) {
    if (name(text, sizeof text, device) == 0) to.name = text;
    if (attribute(&major, 75, device) == 0 && attribute(&minor, 76, device) == 0)
      to.compute_capability = 10 * major + minor;
  }
  ::dlclose(driver);
}

}  // namespace detail

inline hardware probe(c10::Device device) {
  hardware found;
  if (device.is_cpu()) {
    found.kind = device_kind::cpu;
    found.threads = at::get_num_threads();
    std::ifstream cpuinfo{"/proc/cpuinfo"};
    detail::read_cpu(cpuinfo, found);
  } else if (device.is_cuda()) {
    found.kind = device_kind::cuda;
    detail::read_gpu(std::max<int>(0, device.index()), found);
  }
  return found;
}

/// FP16 on a CPU is there, however slow: the search finds out and cuts it. BF16 and TF32 need compute capability 8.0.
inline std::vector<precision> supported_precisions(const hardware& machine) {
  if (machine.kind != device_kind::cuda) return {precision::fp32, precision::bf16, precision::fp16};
  if (machine.compute_capability != 0 && machine.compute_capability < 80) return {precision::fp32, precision::fp16};
  return {precision::fp32, precision::fp16, precision::bf16, precision::tf32};
}

}  // namespace comp::libtorch
