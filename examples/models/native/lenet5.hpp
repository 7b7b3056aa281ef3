// SPDX-License-Identifier: Apache-2.0
// LeNet-5 in its common form: tanh, average pooling, padded 28 x 28 images, 61,706 parameters.
// Source: LeCun, Bottou, Bengio and Haffner 1998, with full connections in the second convolution
#pragma once

#include <comp_native/model_builder.hpp>
#include <cstdint>

namespace native_models {

using namespace comp::native;

struct lenet5_options {
  std::int64_t batch = 64;
  std::int64_t classes = 10;
};

/// Reads (batch,1,28,28).
inline model lenet5(const lenet5_options& o) {
  model_builder net{"lenet5", input_kind::values, {o.batch, 1, 28, 28}};
  net.input()
      .conv2d("features.conv1", 6, {.kernel = 5, .padding = 2})
      .tanh("features.tanh1")
      .avg_pool2d("features.pool1")
      .conv2d("features.conv2", 16, {.kernel = 5})
      .tanh("features.tanh2")
      .avg_pool2d("features.pool2")
      .flatten("flatten")
      .linear("classifier.linear1", 120)
      .tanh("classifier.tanh1")
      .linear("classifier.linear2", 84)
      .tanh("classifier.tanh2")
      .linear("classifier.linear3", o.classes)
      .cross_entropy_loss("loss");
  return net.finish();
}

}  // namespace native_models
