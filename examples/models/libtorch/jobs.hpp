// SPDX-License-Identifier: Apache-2.0
// The seven jobs by name.
#pragma once

#include <array>
#include <libtorch/bert_job.hpp>
#include <libtorch/gan_job.hpp>
#include <libtorch/graph_jobs.hpp>
#include <libtorch/image_jobs.hpp>
#include <libtorch/simple_net_job.hpp>
#include <string_view>

namespace torch_models {

struct named_job {
  std::string_view name;
  job (*make)(const job_options&);
};

inline constexpr std::array jobs = {named_job{"alexnet", alexnet_job},
                                    named_job{"vgg16", vgg16_job},
                                    named_job{"gan", gan_job},
                                    named_job{"gcn", gcn_job},
                                    named_job{"gat", gat_job},
                                    named_job{"bert", bert_job},
                                    named_job{"simplenet", simple_net_job}};

/// Throws: `comp::error` for an unknown name, `comp::file_error` for data that cannot be read.
inline job make_job(std::string_view name, const job_options& o) {
  std::string known;
  for (const named_job& each : jobs) {
    if (each.name == name) return each.make(o);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", each.name);
  }
  throw comp::error{fmt::format("\"{}\" is no job (there are {}): use one of those", name, known)};
}

}  // namespace torch_models
