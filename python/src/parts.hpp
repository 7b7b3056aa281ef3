// SPDX-License-Identifier: Apache-2.0
// The parts of the module comp._comp that have files of their own.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace comp::python {

void add_choices(pybind11::module_& m);
void add_results(pybind11::module_& m);
void add_doctor(pybind11::module_& m);

}  // namespace comp::python
