// SPDX-License-Identifier: Apache-2.0
// What `train` trains: the model and the data that the command line names, with settings that suit them.
#pragma once

#include <comp_native/data_source.hpp>
#include <comp_native/model.hpp>
#include <comp_native/training.hpp>
#include <string>

#include "options.hpp"

namespace train {

namespace native = comp::native;

struct job {
  native::model model;
  native::data_source train, validation;
  native::training settings;
  std::string description;  // one line: what is trained on what
};

/// Returns: the job that the command line names.
/// Throws: `file_error`, naming the option, for data that cannot be read; `error` if model and data do not fit.
job load_job(const options& chosen);

}  // namespace train
