// SPDX-License-Identifier: Apache-2.0
// The command line of `train`. Options are checked before anything is loaded.
#pragma once

#include <comp/core/hardware.hpp>
#include <comp/core/rival.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace train {

/// What the command line chooses; describe() explains each option to the user.
struct options {
  std::string model = "transformer";
  std::filesystem::path data = {};
  std::string backend = "host";
  std::string policy = "auto";
  std::string rules = "none";   // systems joined by commas, whose rule-based plans are compared with the found one
  std::string search = "comp";  // comp or paper
  std::string stage1 = "guided", stage2 = "greedy";
  std::uint64_t plans = 1024;  // of a stage that exhaustive tries
  std::string tie = "kind";
  std::string precisions = "auto";
  std::string products = "auto";  // of linear layers: auto, together or separate
  bool moments = false;           // the optimizer's moments are operators of the plan
  std::string target = {};        // the GPU whose times are modelled; empty: this machine's are measured
  std::size_t epochs = 3;
  double finish = 0;                      // part of the training, at its end, that may have a higher precision
  std::size_t batch = 0;                  // 0: the model's own default
  std::size_t limit = 0;                  // training examples per epoch; 0: all
  double learning_rate = 0;               // 0: the model's own default
  std::string scaling = "pytorch";        // loss scaling for FP16, in the host and cuda backends
  std::size_t accumulate = 1;             // micro-batches of a step, in the host and cuda backends
  double tolerance = 0.01;                // how much a plan's loss may exceed FP32's, as a part of FP32's
  double level = 0.05;                    // chance of a wrong answer about a loss
  double budget = 0.01;                   // part of the training that the search may cost
  std::uint64_t memory_limit = 0;         // [bytes]; 0: none
  double slowdown = 0;                    // how much slower than the fastest a plan with less memory may be
  std::filesystem::path warm_start = {};  // a plan file
  std::string judge_by = "batches";       // batches, epochs or scores
  std::filesystem::path out = "out";
  bool resume = false;
  std::filesystem::path plan = {};
  std::filesystem::path weights_out = {};
  std::filesystem::path weights = {};  // bert's pre-trained ones, for libtorch
  std::string size = {};               // which bert, gan or vgg16; empty: the model's own default
  std::int64_t side = 0;               // [pixels] that libtorch scales pictures to; 0: 64
  std::uint64_t seed = 1;
  int threads = 0;                                        // 0: all cores
  int gpu = 0;                                            // the number of the cuda backend's GPU
  std::string command = {};                               // the whole command line
  std::string training_command = {};                      // the command line without options of a search
  std::string captured = "measured";                      // steps as CUDA graphs, in the cuda backend
  int layers = 2, width = 256, heads = 4, context = 128;  // the transformer's sizes
  std::string attention = "auto";                         // for the transformer and bert: parts, one, or auto
};

/// The models of the native trainer, which the backends host and cuda train.
inline const std::vector<std::string> native_models{"mlp", "lenet5", "alexnet", "vgg16", "transformer",
                                                    "gan", "gcn",    "gat",     "bert",  "simplenet"};
inline const std::vector<std::string> libtorch_models{"alexnet", "vgg16", "gan", "gcn", "gat", "bert", "simplenet"};

/// Throws: `error` if the chosen backend lacks the model. Its text names the models that the backend has.
void require_model_of(const options& chosen, const std::vector<std::string>& models);
/// Returns: --threads, but not more than this process may run at once, since more threads only wait for each other. 0:
/// all.
int threads_of(const options& chosen);
/// Warns if other programs use the cores too: OpenMP's threads spin while they wait for each other, and they wait
/// for the thread whose core is taken.
void tell_of_busy_cores();
/// Throws: `error` if no data is named and the model has no made-up data. libtorch's jobs all have some, but the
/// backends host and cuda only for few models.
void require_data(const options& chosen);
/// Returns whether the products of linear layers have precisions of their own.
bool separates_products(const options& chosen);
/// Returns whether the optimizer's moments are operators of the plan.
bool keeps_moments(const options& chosen);
/// Returns: the parts of a text that commas separate.
std::vector<std::string> split(const std::string& text);
/// Returns: the rival plans that --rules names: "none", "all", or systems joined by commas.
/// Throws: `settings_error` for an unknown system.
comp::rival_source rivals_of(const std::string& rules, const comp::hardware& on = {});
/// Reads the command line. Returns: the program's exit status if it is to end, as after --help.
/// Throws: `settings_error` or `error` for options that do not go together.
std::optional<int> read_options(int argc, char** argv, options& chosen);
/// Returns: a word of a command line, quoted if a shell needs it.
std::string in_shell(const std::string& word);

}  // namespace train
