// SPDX-License-Identifier: Apache-2.0
// What a stranger links with comp-host's flags alone: oneDNN and OpenMP.
#include <omp.h>

#include <comp_host/device.hpp>

int main() {
  const comp::host::device device{{.threads = 1}};
  fmt::print("{} with {} threads at most\n", device.hardware().name, omp_get_max_threads());
}
