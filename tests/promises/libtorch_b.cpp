// SPDX-License-Identifier: Apache-2.0
#include <comp_libtorch/comp_libtorch.hpp>
#include <comp_libtorch/doctor/doctor.hpp>
