// SPDX-License-Identifier: Apache-2.0
// Says what comp's files say, and trains: `comp show`, `comp compare`, `comp doctor`, `comp train`. python -m comp has
// the same verbs and prints the same words.
#include <CLI/CLI.hpp>
#include <comp/doctor/difference.hpp>
#include <comp/doctor/examination_file.hpp>
#include <comp/doctor/examination_text.hpp>
#include <comp/observe/compare.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "train/become.hpp"

namespace {

/// `comp train` becomes the program `train` beside it, which is called as the user called this one.
void train_instead(char** argv) {
  std::string program = std::filesystem::path{argv[0]}.replace_filename("train").string();
  argv[1] = program.data();
  train::become("train", argv + 1,
                "no program \"train\" is beside this one (this build has no host backend, or no data "
                "sets): configure with -Dhost=enabled -Ddata=enabled");
}

int run(int argc, char** argv) {
  if (argc > 1 && std::string_view{argv[1]} == "train") train_instead(argv);
  CLI::App app{"Says what comp's files say, and trains. python -m comp has the same verbs, but for train."};
  app.require_subcommand(1);
  std::string plan;
  std::vector<std::string> runs, steps;
  auto* show = app.add_subcommand("show", "What a plan file says");
  show->add_option("PLAN", plan, "A plan file")->required();
  auto* compare = app.add_subcommand("compare", "What differs between two plan files, or between searches");
  compare->add_option("RUN", runs, "Two plan files, or folders that train --out wrote, or files of write_summary")
      ->required()
      ->expected(2, 64);
  auto* doctor = app.add_subcommand("doctor", "What is wrong in a saved step of comp.doctor, or where two part");
  doctor->add_option("STEP", steps, "One file of comp.doctor, or two")->required()->expected(1, 2);
  app.add_subcommand("train", "Trains a model of the examples and finds its plan: train --help");
  CLI11_PARSE(app, argc, argv);
  if (*show) fmt::print("{}", comp::listing_text(comp::load_listing(plan)));
  if (*compare) fmt::print("{}", comp::compare_text(runs));
  if (!*doctor) return 0;
  const comp::examination first = comp::load_examination(steps.front());
  fmt::print("{}", steps.size() == 1 ? comp::table(first)
                                     : comp::table(comp::compared(first, comp::load_examination(steps.back()))));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& failed) {
    fmt::print(stderr, "comp: {}\n", failed.what());
    return 1;
  }
}
