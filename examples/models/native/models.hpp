// SPDX-License-Identifier: Apache-2.0
// All models of the native trainer.
#pragma once

#include <examples/models/native/alexnet.hpp>
#include <examples/models/native/bert.hpp>
#include <examples/models/native/gan.hpp>
#include <examples/models/native/gat.hpp>
#include <examples/models/native/gcn.hpp>
#include <examples/models/native/gpt.hpp>
#include <examples/models/native/lenet5.hpp>
#include <examples/models/native/mlp.hpp>
#include <examples/models/native/simple_net.hpp>
#include <examples/models/native/vgg16.hpp>
