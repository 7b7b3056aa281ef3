// SPDX-License-Identifier: Apache-2.0
// All models of the native trainer.
#pragma once

#include <comp_native/models/alexnet.hpp>
#include <comp_native/models/gpt.hpp>
#include <comp_native/models/lenet5.hpp>
#include <comp_native/models/mlp.hpp>
#include <comp_native/models/vgg16.hpp>
