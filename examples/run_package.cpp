// SPDX-License-Identifier: Apache-2.0
// Runs a model that Python has compiled with a plan's precisions in it, without Python and without comp:
//   torch._inductor.aoti_compile_and_package(comp.export(plan, net, (x,)), package_path="net.pt2")
// Usage: run_package net.pt2 INPUT.pt OUTPUT.pt      (the tensors: files as torch.save() writes them)
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/serialize.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

int main(int count, char** given) {
  if (count != 4) {
    std::cerr << "usage: run_package PACKAGE INPUT OUTPUT (" << count - 1 << " arguments were given)\n";
    return 2;
  }
  try {
    std::ifstream in{given[2], std::ios::binary};
    const std::vector<char> bytes{std::istreambuf_iterator<char>{in}, {}};
    torch::inductor::AOTIModelPackageLoader package{given[1]};
    const std::vector<at::Tensor> results = package.run({torch::pickle_load(bytes).toTensor()});
    const std::vector<char> saved = torch::pickle_save(results.at(0));
    std::ofstream{given[3], std::ios::binary}.write(saved.data(), static_cast<std::streamsize>(saved.size()));
    std::cout << "result of " << results.at(0).sizes() << '\n';
  } catch (const std::exception& e) {
    std::cerr << "run_package: " << e.what() << '\n';
    return 1;
  }
}
