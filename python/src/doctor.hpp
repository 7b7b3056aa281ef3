// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace comp::python {

/// Puts the doctor (docs/python.md) into the module.
void add_doctor(pybind11::module_& m);

}  // namespace comp::python
