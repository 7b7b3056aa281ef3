// SPDX-License-Identifier: Apache-2.0
// What steps in another language need: regions that an exception of its own ends, parts of a forward that are run again
// in the backward, losses that were differentiated elsewhere, profilers' marks that are no operators.
#include <ATen/record_function.h>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

namespace {

/// Two linear layers under a plan of BF16.
struct two_layers {
  torch::nn::Linear first{8, 8}, second{8, 8};
  torch::Tensor x = torch::ones({4, 8});
  program p;

  two_layers() {
    p.name_parameters(*first, "first");
    p.name_parameters(*second, "second");
    recorded(p, [&] { (void)b(a(x)); });
    p.set_settings({.otherwise = comp::libtorch::on_mismatch::error});
    p.set_plan(comp::plan{{precision::bf16, precision::bf16}});
  }
  torch::Tensor a(const torch::Tensor& from) { return torch::linear(from, first->weight, first->bias); }
  torch::Tensor b(const torch::Tensor& from) { return torch::linear(from, second->weight, second->bias); }
};

}  // namespace

TEST_CASE("a region that is abandoned may end anywhere") {
  two_layers it;
  for (const bool abandoned : {true, false}) {
    it.p.clear_problems();
    {
      auto on = it.p.enter();
      (void)it.a(it.x);
      if (abandoned) on.abandon();
    }
    CHECK(it.p.problems().ended_early == (abandoned ? 0 : 1));
  }
}

TEST_CASE("a part of a forward is run again in the precisions that it had, from its place to anywhere") {
  two_layers it;
  comp::libtorch::detail::resumption place;
  torch::Tensor middle, first, again;
  {
    const auto on = it.p.enter();
    middle = it.a(it.x);
    place = on.from_here();
    first = it.b(middle);
  }
  {
    const comp::libtorch::region on{place()};
    again = it.b(middle);
  }
  CHECK(again.dtype() == torch::kBFloat16);
  CHECK(same(first, again));
  { const comp::libtorch::region on{place()}; }
  CHECK(it.p.problems().ended_early == 0);
}

TEST_CASE("a profiler's marks are no operators of a model") {
  two_layers it;
  const auto mark = c10::Dispatcher::singleton().findSchemaOrThrow("profiler::_record_function_enter_new", "");
  torch::Tensor out;
  {
    const auto on = it.p.enter();
    torch::jit::Stack stack{std::string{"a mark"}, c10::IValue{}};
    mark.callBoxed(stack);
    out = it.b(it.a(it.x));
  }
  CHECK(out.dtype() == torch::kBFloat16);
  CHECK(it.p.problems().mismatches == 0);
}

TEST_CASE("a loss that was differentiated elsewhere is judged, and memory held elsewhere counts as held") {
  using namespace libtorch_tests;
  classification it;
  const auto held = torch::zeros({1 << 20});
  it.setup.extra.tensors = [&] { return std::vector{held}; };
  classification_trainer trainer{it.setup, it.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   const auto loss = s.forward([&] { return it.loss(batch); });
                                   loss.backward();
                                   s.report("mine", loss);
                                   it.optimizer.step();
                                   it.optimizer.zero_grad();
                                 }};
  const comp::sample got = trainer.run_batch();
  CHECK(got.ok());
  CHECK(std::isfinite(got.loss));
  CHECK(got.peak_bytes > static_cast<std::int64_t>(held.nbytes()));
}
