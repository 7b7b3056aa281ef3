// SPDX-License-Identifier: Apache-2.0
// The graphs that attention asks cuDNN for, given to cuDNN itself, without a GPU: it plans for devices that it is told
// about (its ahead-of-time compilation). Up to whether it has a plan; to make code and run it takes the GPU.
// Inert where cuDNN is older than 9.11, which does not plan like that.
#include <dlfcn.h>

#include "../../backends/cuda/graphs/attention_nodes.hpp"

namespace {

using namespace comp::cuda;
namespace fe = graphs::fe;

struct gpu {
  const char* name;
  int version, multiprocessors, shared_bytes;  // version: 890 for 8.9
  long l2_bytes;
};
constexpr gpu turing{"T4", 750, 40, 65536, 4L << 20}, ampere{"A100", 800, 108, 166912, 40L << 20},
    ada{"L40S", 890, 142, 101376, 96L << 20}, hopper{"H100", 900, 132, 232448, 50L << 20},
    blackwell{"B200", 1000, 148, 232448, 126L << 20};
const gpu* current = &ampere;

/// As cuDNN writes down what a device is.
std::shared_ptr<fe::DeviceProperties> properties(const gpu& of) {
  const std::string text = fmt::format(
      R"({{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
      R"("multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
      R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"totalGlobalMem":40000000000,)"
      R"("smClockRateKHz":1500000,"memClockRateKHz":2000000,"l2CacheSize":{},"cudaDeviceId":0,"deviceVer":{},)"
      R"("driverVer":13000,"deviceName":"{}"}})",
      of.multiprocessors, of.shared_bytes, of.l2_bytes, of.version, of.name);
  auto made = std::make_shared<fe::DeviceProperties>();
  return made->deserialize({text.begin(), text.end()}).is_good() ? made : nullptr;
}

int failures = 0;
/// Prints a line; a failure where cuDNN says otherwise than expected: a plan, or these words.
void expect(const gpu& on, const attention_case& of, bool backward, const std::string& refusal) {
  const std::int64_t most = (std::int64_t{256} << 20) + 2 * of.batch * of.heads * (of.queries + 127) * (of.keys + 127);
  current = &on;
  auto graph = graphs::described(of, backward);
  graph->set_device_properties(properties(on));
  const std::string why = graphs::planned(*graph, most, [&] { return graph->build_operation_graph(); });
  const bool good = refusal.empty() ? why.empty() : why.find(refusal) != std::string::npos;
  failures += !good;
  fmt::print("{} {} {}: ({},{},{},{}) to {} {}{}{}: {}\n", good ? "ok" : "FAILED", on.name,
             backward ? "backward" : "forward", of.batch, of.heads, of.queries, of.width, of.keys,
             of.fp16 ? "fp16" : "bf16", of.causal ? ", causal" : "", of.dropout > 0 ? ", dropout" : "",
             why.empty() ? "a plan" : why.substr(0, 160));
}

}  // namespace

// The front end asks the runtime what GPU there is. These are found before libcudart's.
extern "C" {
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = which == cudaDevAttrComputeCapabilityMajor   ? current->version / 100
           : which == cudaDevAttrComputeCapabilityMinor ? current->version / 10 % 10
           : which == cudaDevAttrMultiProcessorCount    ? current->multiprocessors
                                                        : 0;
  return cudaSuccess;
}
}

/// argv[1]: the toolkit's stub of libcuda, for machines without a driver.
int main(int count, char** arguments) {
  if (cudnnGetVersion() < 91100 || !properties(ampere)) return fmt::print("cuDNN plans for no device here\n"), 77;
  if (!dlopen("libcuda.so.1", RTLD_NOW) && (count < 2 || !dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL)))
    return fmt::print("no libcuda, and no stub of it\n"), 77;
  const attention_case gpt{16, 4, 64, 64, 32, false, true, 0.177, 0}, odd{2, 3, 50, 77, 64, true, false, 0.125, 0},
      large{2, 16, 4096, 4096, 64, false, true, 0.125, 0}, bert{16, 12, 384, 384, 64, false, false, 0.125, 0};
  for (const attention_case& one : {gpt, odd, large, bert}) {
    for (const double dropout : {0.0, 0.1}) {
      attention_case of = one;
      of.dropout = dropout;
      for (const gpu& on : {ampere, ada, hopper, blackwell}) {
        expect(on, of, false, "");
        expect(on, of, true, on.version == 1000 && dropout > 0 ? "not supported on blackwell" : "");
      }
    }
  }
  expect(turing, gpt, false, "requires SM80");
  attention_case narrow = gpt;
  narrow.width = 12;
  expect(hopper, narrow, false, "multiple of 8");
  return failures ? 1 : 0;
}
