// SPDX-License-Identifier: Apache-2.0
// Compares finished searches. `comp compare A B` prints their summaries side by side. A and B are folders that `train
// --out` wrote, or files that comp::write_summary wrote.
#include <CLI/CLI.hpp>
#include <comp/observe/compare.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  CLI::App app{"Says what searches left. python -m comp has compare for plan files, and show and doctor."};
  app.require_subcommand(1);
  std::vector<std::string> runs;
  CLI::App* compare = app.add_subcommand("compare", "What differs between searches, side by side");
  compare->add_option("RUN", runs, "Folder that train --out wrote, or a summary.json")->required()->expected(2, 64);
  CLI11_PARSE(app, argc, argv);
  try {
    fmt::print("{}", comp::compare_text(runs));
  } catch (const std::exception& failed) {
    fmt::print(stderr, "comp: {}\n", failed.what());
    return 1;
  }
}
