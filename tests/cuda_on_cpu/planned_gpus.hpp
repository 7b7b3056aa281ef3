// SPDX-License-Identifier: Apache-2.0
// GPUs that are not here, for which cuDNN plans graphs (its ahead-of-time compilation, from 9.11 on).
#pragma once

#include <dlfcn.h>

#include <memory>
#include <string>

#include "../../backends/cuda/graphs/planning.hpp"
#include "fmt/format.h"

namespace comp::cuda::graphs {

struct gpu {
  const char* name;
  int version, multiprocessors, shared_bytes;  // version: 890 for 8.9
  long l2_bytes;
};
constexpr gpu turing{"T4", 750, 40, 65536, 4L << 20}, ampere{"A100", 800, 108, 166912, 40L << 20},
    ada{"L40S", 890, 142, 101376, 96L << 20}, hopper{"H100", 900, 132, 232448, 50L << 20},
    blackwell{"B200", 1000, 148, 232448, 126L << 20};
inline const gpu* current = &ampere;

/// As cuDNN writes down what a device is.
inline std::shared_ptr<fe::DeviceProperties> properties(const gpu& of) {
  const std::string text = fmt::format(
      R"({{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
      R"("multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
      R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":40000000000,)"
      R"("smClockRateKHz":1500000,"memClockRateKHz":2000000,"l2CacheSize":{},"cudaDeviceId":0,"deviceVer":{},)"
      R"("driverVer":13000,"deviceName":"{}"}})",
      of.multiprocessors, of.shared_bytes, of.l2_bytes, of.version, of.name);
  auto device_properties = std::make_shared<fe::DeviceProperties>();
  return device_properties->deserialize({text.begin(), text.end()}).is_good() ? device_properties : nullptr;
}
/// Returns: cuDNN's reason if it has no plan for the graph on the GPU; else nothing.
inline std::string planned_on(const gpu& on, fe::graph::Graph& graph, std::int64_t most, bool any_order = false) {
  current = &on;
  graph.set_device_properties(properties(on));
  return planned(
      graph, most, [&] { return graph.build_operation_graph(); }, any_order);
}
/// stub: the toolkit's stub of libcuda, for machines without a driver. Returns: whether cuDNN can plan here.
inline bool can_plan(const char* stub) {
  if (cudnnGetVersion() < 91100 || !properties(ampere)) return fmt::print("cuDNN plans for no device here\n"), false;
  if (!dlopen("libcuda.so.1", RTLD_NOW) && (!stub || !dlopen(stub, RTLD_NOW | RTLD_GLOBAL)))
    return fmt::print("no libcuda, and no stub of it\n"), false;
  return true;
}

}  // namespace comp::cuda::graphs

// The front end asks the runtime what GPU there is. These are found before libcudart's.
extern "C" {
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  const auto& on = *comp::cuda::graphs::current;
  *value = which == cudaDevAttrComputeCapabilityMajor   ? on.version / 100
           : which == cudaDevAttrComputeCapabilityMinor ? on.version / 10 % 10
           : which == cudaDevAttrMultiProcessorCount    ? on.multiprocessors
                                                        : 0;
  return cudaSuccess;
}
}
