// SPDX-License-Identifier: Apache-2.0
// The plan that rule_plan derives from PyTorch's lists computes what LibTorch's own autocast computes: on every model
// of the examples, operator by operator, as the dispatcher sees it, and so do the losses and the gradients.
#include <comp/autocast/rule_plan.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <libtorch/jobs.hpp>

#include "observer.hpp"

// clang-format off
#include <doctest/doctest.h>  // last: LibTorch has a CHECK of its own, which ends the program
// clang-format on

namespace {
using torch_models::columns;
using torch_models::job;

constexpr double noise = 0x1p-8;  // of a loss in BF16, relative: half a unit in the last place

/// Sizes at which each model runs in well under a second.
torch_models::job_options small(std::string_view name) {
  if (name == "bert") return {.size = "tiny", .batch = 2, .limit = 4};
  if (name == "simplenet") return {.batch = 8, .limit = 16, .width = 64};
  if (name == "gcn" || name == "gat") return {};
  return {.batch = 4, .limit = 8};
}

/// The losses of a step's forwards, one phase after the other, each within what `around` holds while it runs.
std::vector<torch::Tensor> losses_of(const job& of, const columns& batch, auto around) {
  torch::manual_seed(5);  // of dropout
  std::vector<torch::Tensor> losses;
  for (const auto& phase : of.phases) {
    const auto on = around(phase.name);
    losses.push_back(phase.loss(batch));
  }
  return losses;
}

std::vector<torch::Tensor> gradients_of(const job& of, const std::vector<torch::Tensor>& losses) {
  std::vector<torch::Tensor> found;
  for (const auto& [name, module] : of.modules) module->zero_grad();
  for (const torch::Tensor& loss : losses) loss.backward();
  for (const auto& [name, module] : of.modules) {
    for (const torch::Tensor& p : module->parameters()) {
      if (p.grad().defined()) found.push_back(p.grad().clone());
    }
  }
  return found;
}

/// What an operator computes in: its inputs' types; if it promotes mixed inputs, the widest of them.
observe::dtypes computes_in(const observe::call& c) {
  const std::string kind = c.name.ends_with('_') ? c.name.substr(0, c.name.size() - 1) : c.name;
  if (!comp::autocast::promotes(kind) || c.read.empty()) return c.read;
  at::ScalarType widest = c.read.front();
  for (const at::ScalarType t : c.read) widest = c10::promoteTypes(widest, t);
  return observe::dtypes(c.read.size(), widest);
}

std::string text(const observe::call& c) {
  std::string all = c.name + ":";
  for (const at::ScalarType t : computes_in(c)) all += fmt::format(" {}", c10::toString(t));
  all += " ->";
  for (const at::ScalarType t : c.given) all += fmt::format(" {}", c10::toString(t));
  return all;
}

std::vector<std::string> texts(const std::vector<observe::call>& calls) {
  std::vector<std::string> all;
  for (const observe::call& c : calls) all.push_back(text(c));
  return all;
}

/// A view of a parameter computes nothing: whether the weight is cast before it or after is the same.
bool is_view_of_parameter(const comp::op_info& op) {
  return !op.choosable && !op.inputs.empty() && std::ranges::all_of(op.inputs, &comp::tensor_info::parameter);
}

struct seen {
  std::vector<observe::call> calls;
  std::vector<torch::Tensor> losses, gradients;
};

seen observed(const job& of, const columns& batch, auto around) {
  seen found;
  found.calls = observe::calls_of([&] { found.losses = losses_of(of, batch, around); });
  found.gradients = gradients_of(of, found.losses);
  return found;
}

TEST_CASE("on every model the plan of PyTorch's lists computes what LibTorch's autocast computes") {
  for (const auto& [name, make] : torch_models::jobs) {
    CAPTURE(name);
    const job of = make(small(name));
    const columns batch = torch_models::pick(of, of.train, torch::arange(std::min(of.batch, of.examples())));
    comp::libtorch::program program;
    for (const auto& [prefix, module] : of.modules) program.name_parameters(*module, prefix);
    const auto planned = [&](const std::string& phase) { return program.enter(phase); };
    program.record(true);
    losses_of(of, batch, planned);
    program.record(false);
    const comp::policy::pytorch lists{.list = comp::policy::pytorch_list::cpu, .low = comp::precision::bf16};
    program.set_plan(comp::autocast::rule_plan(lists, program.graph(), comp::precision::bf16));

    const seen theirs = observed(of, batch, [](const std::string&) {
      return comp::libtorch::autocast_guard{at::kCPU, at::kBFloat16};
    });
    const seen ours = observed(of, batch, planned);

    const auto expected = texts(theirs.calls), got = texts(ours.calls);
    REQUIRE(got.size() == expected.size());
    REQUIRE(program.graph().size() == expected.size());
    std::size_t low = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      if (!is_view_of_parameter(program.graph()[i])) CHECK(got[i] == expected[i]);
      low += std::ranges::count(theirs.calls[i].read, at::kBFloat16) > 0;
    }
    CHECK(low > 0);
    REQUIRE(ours.losses.size() == theirs.losses.size());
    for (std::size_t i = 0; i < ours.losses.size(); ++i) {
      const double a = ours.losses[i].item<double>(), b = theirs.losses[i].item<double>();
      CHECK(std::abs(a - b) <= noise * std::abs(b));
    }
    REQUIRE(ours.gradients.size() == theirs.gradients.size());
    double all = 0, worst = 0;
    for (const torch::Tensor& gradient : theirs.gradients) all = std::hypot(all, gradient.norm().item<double>());
    for (std::size_t i = 0; i < ours.gradients.size(); ++i) {
      CHECK((ours.gradients[i].scalar_type() == theirs.gradients[i].scalar_type()));
      // Not below a thousandth of the whole: attention's key bias has a gradient of 0 and rounding.
      const double size = std::max(theirs.gradients[i].norm().item<double>(), all / 1000);
      worst = std::max(worst, (ours.gradients[i] - theirs.gradients[i]).norm().item<double>() / size);
    }
    MESSAGE(name, ": ", low, " of ", expected.size(), " operators read BF16; gradients differ by ", worst, " at most");
    CHECK(worst <= noise);
  }
}
}  // namespace
