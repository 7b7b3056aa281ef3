// SPDX-License-Identifier: Apache-2.0
// Says what machine LibTorch computes on, and waits for it. The machine is this CPU or an NVIDIA GPU. The driver
// describes the GPU, so that no header of CUDA is needed. Without a driver less is known, and nothing fails.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <comp/core/cpu.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/precision.hpp>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

namespace comp::libtorch {

namespace detail {

/// Fills in what the driver says of GPU `index`. Source: CUDA Driver API, cuDeviceGetName and cuDeviceGetAttribute (75
/// and 76: COMPUTE_CAPABILITY_MAJOR and _MINOR). LibTorch has loaded and initialised the driver by then.
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

/// Waits until the device has done what was asked of it.
inline void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl{device.type()}.synchronizeDevice(device.index());
}

inline hardware probe(c10::Device device) {
  if (device.is_cpu()) return this_cpu(at::get_num_threads());
  hardware gpu;
  if (device.is_cuda()) {
    gpu.kind = device_kind::cuda;
    detail::read_gpu(std::max<int>(0, device.index()), gpu);
  }
  return gpu;
}

/// Returns: true for a precision that a plan may have. FP16 is one even if it is slow, because the search finds that
/// out and cuts it. On a GPU, BF16, TF32 and the linear layers' E4M3 are there only with units for them. `emulates`:
/// linear layers may have all formats below 16 bits.
inline bool computes_in(precision p, const hardware& machine, bool emulates) {
  if (is_scaled(p))
    return emulates || (p == precision::fp8_e4m3 && machine.kind == device_kind::cuda && has_unit(p, machine));
  const bool everywhere = p == precision::fp64 || p == precision::fp32 || p == precision::fp16;
  return everywhere ||
         (machine.kind == device_kind::cuda ? has_unit(p, machine) : p == precision::bf16 || p == precision::bf16_fp32);
}
/// Returns: whether that device multiplies in `p`, a format below 16 bits, without emulation.
inline bool multiplies_itself(precision p, c10::Device device) {
  if (p != precision::fp8_e4m3 || !device.is_cuda()) return false;
  static std::mutex alone;
  static std::map<c10::DeviceIndex, bool> known;
  const std::lock_guard now{alone};
  if (!known.contains(device.index())) known[device.index()] = computes_in(p, probe(device), false);
  return known[device.index()];
}
inline std::vector<precision> supported_precisions(const hardware& machine, bool emulates) {
  std::vector<precision> all;
  std::ranges::copy_if(all_precisions, std::back_inserter(all),
                       [&](precision p) { return computes_in(p, machine, emulates); });
  return all;
}

}  // namespace comp::libtorch
