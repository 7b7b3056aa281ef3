// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/summary.hpp>
#include <comp/policy/all_fp32.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/systems/system_rules.hpp>

#include "fake_search.hpp"

using comp::op_graph;
using comp::parse_plan;
using comp::plan;
using comp::precision;
using comp::rival;
using fake::search_with;

namespace {

comp::search_settings against(std::vector<rival> rivals) {
  comp::search_settings settings;
  settings.rivals = [rivals](const op_graph&, std::span<const precision>) { return rivals; };
  return settings;
}

std::vector<std::string> labels_of(const comp::outcome& found) {
  std::vector<std::string> labels;
  for (const auto& c : found.contest) labels.push_back(c.label);
  return labels;
}

/// A perceptron with a softmax, in PyTorch's names.
op_graph perceptron() {
  std::vector<comp::op_info> ops;
  for (const char* kind : {"linear", "relu", "linear", "softmax"}) {
    comp::op_info op{.name = kind, .kind = kind};
    op.inputs = {{.shape = {8, 64}}};
    op.outputs = {{.shape = {8, 64}}};
    if (!ops.empty()) op.producers = {static_cast<std::uint32_t>(ops.size() - 1)};
    ops.push_back(op);
  }
  return {std::move(ops)};
}

TEST_CASE("a rival is timed in the contest, and equal plans share a row and are timed once") {
  fake::trainer trainer{fake::typical()};
  // The policy's own plan lowers the two allow-operators; the found one is 1bbb.
  const auto found = search_with(trainer, against({{"mine", parse_plan("11b1")},
                                                   {"yours", parse_plan("11b1")},
                                                   {"rule-based tvm bf16", parse_plan("11bb")},
                                                   {"rule-based paddle OD bf16", parse_plan("1111"), true},
                                                   {"my best", parse_plan("1bbb")}}));
  CHECK(found.plan.str() == "1bbb");
  CHECK(labels_of(found) == std::vector<std::string>{"fp32 = rule-based paddle OD bf16",
                                                     "rule-based bf16 = tvm bf16 = comp: all but 0 and 1 in bf16",
                                                     "mine = yours", "my best = comp: all but 0 in bf16"});
  CHECK(found.contest[0].rule_based);  // as the rival that shares its row
  CHECK(found.contest[1].rule_based);
  CHECK_FALSE(found.contest[2].rule_based);
  for (const auto& c : found.contest) {
    CAPTURE(c.label);
    CHECK(c.seconds.size() >= 6);
    CHECK(c.seconds.size() <= comp::race_settings{}.contest_rounds);
  }
  const auto json = comp::summary(found);
  CHECK(json["contest"].size() == 4);
  CHECK(json["contest"][2]["label"] == "mine = yours");
  CHECK(json["contest"][2]["over_fp32"]["ratio"].get<double>() == doctest::Approx(7 / 5.5));
  CHECK(comp::table(found).find("mine = yours") != std::string::npos);
}

TEST_CASE("plans that the search made have different labels where their names are equal, and a plan is entered once") {
  std::vector<comp::racer> racers;
  comp::add_racer(racers, parse_plan("111"), "fp32");
  comp::add_racer(racers, parse_plan("1bb"), "rule-based bf16", true);
  for (const char* letters : {"111", "b1b", "bb1", "1bb", "b1b", "bb1", "1bb"}) {
    const plan p = parse_plan(letters);
    comp::add_found_plan(racers, p, {});
  }
  REQUIRE(racers.size() == 4);
  CHECK(racers[0].label == "fp32");
  CHECK(racers[1].label == "rule-based bf16 = comp: all but 1 in bf16 (3)");
  CHECK(racers[2].label == "comp: all but 1 in bf16");
  CHECK(racers[3].label == "comp: all but 1 in bf16 (2)");
}

TEST_CASE_FIXTURE(fake::in_typical, "a rival that is faster than what was found wins, if its own losses are accepted") {
  const auto only_one_way = [](const plan& p) { return p.str() == "bb11" ? 1.0 : p.count_low() > 0 ? 5.0 : 7.0; };
  world.seconds = only_one_way;  // FP32 for what the policy fixes to BF16: no search tries that
  SUBCASE("accepted") {
    world.harm = [](const plan&) { return 0.0; };
    fake::trainer trainer{world};
    const auto found = search_with(trainer, against({{"a computed guess", parse_plan("bb11")}}));
    CHECK(found.plan.str() == "bb11");
    CHECK(trainer.weights().steps == found.trained_batches);
    CHECK(found.reasons[0].text == "\"a computed guess\" has it in bf16, and was fastest");
  }
  SUBCASE("not accepted: told, and not taken") {
    fake::trainer trainer{world};  // a low softmax harms the loss
    const auto found = search_with(trainer, against({{"a computed guess", parse_plan("bb11")}}));
    CHECK(found.plan.str() != "bb11");
    REQUIRE(found.warnings.size() >= 1);
    CHECK(found.warnings.front().find("\"a computed guess\" was fastest and is not taken") == 0);
  }
}

TEST_CASE("on a machine too noisy to tell the rule-based plan is kept where its losses are accepted, else FP32") {
  fake::world noisy = fake::typical();
  const auto turns = std::make_shared<std::map<plan, std::size_t>>();
  noisy.seconds = [turns](const plan& p) {  // two batches in five take twice as long as FP32's
    if (p.count_low() == 0) return 6.0;
    return (*turns)[p]++ % 5 > 2 ? 12.0 : 4.0;
  };
  SUBCASE("accepted") {
    fake::trainer trainer{noisy};
    const auto found = search_with(trainer);

    CHECK(found.plan.str() == "11bb");
    CHECK(fake::warns(found, "too noisy to tell: \"rule-based bf16"));
    CHECK(fake::warns(found,
                      "95%; its losses were accepted): search again when nothing else runs on the machine, or "
                      "with a higher settings.race.fp32_rounds"));
    CHECK(trainer.weights().steps == found.trained_batches);
  }
  SUBCASE("rejected") {
    noisy.harm = fake::harmed_by({2, 3});
    fake::trainer trainer{noisy};
    CHECK(search_with(trainer).plan.count_low() == 0);
  }
}

TEST_CASE_FIXTURE(fake::in_typical, "rivals cost a bounded number of batches, and hopeless ones two") {
  world.seconds = [inner = world.seconds](const plan& p) { return p.str().starts_with("b1") ? 100.0 : inner(p); };
  std::vector<rival> many;
  for (const char* text : {"b111", "b1b1", "b11b", "b1bb"}) many.push_back({text, parse_plan(text)});
  fake::trainer trainer{world};
  const auto found = search_with(trainer, against(many));
  for (const auto& c : found.contest) {
    CAPTURE(c.label);
    if (!c.label.starts_with("b1")) continue;
    CHECK(c.seconds.size() <= 3);
    CHECK(std::ranges::count_if(found.trials, [&c](const comp::trial& t) {
            return t.stage == comp::stage::contest && t.plan == c.plan;
          }) == 2);
  }
  CHECK(found.cost(comp::stage::contest).batches <= comp::race_settings{}.contest_rounds * found.contest.size());
}

TEST_CASE_FIXTURE(fake::in_typical, "a rival that cannot run is refused by its label, before anything is trained") {
  const auto refusal = [&](rival r) -> std::string {
    fake::trainer trainer{world};
    try {
      search_with(trainer, against({std::move(r)}));
    } catch (const comp::error& e) {
      CHECK(trainer.weights() == fake::state{});
      return e.what();
    }
    return "";
  };
  CHECK(
      refusal({"short", parse_plan("b1")}) ==
      "rival \"short\": plan has 2 operators, the model 4 (they must agree): use a plan that was made for this model");
  CHECK(refusal({"half", parse_plan("0111")}) ==
        "rival \"half\" has fp16 (the backend supports fp32, bf16): leave it out");
  CHECK(refusal({"comp", parse_plan("b111")}) ==
        "rival labelled \"comp\" (a label tells it apart from fp32 and comp): give it another");
  CHECK(refusal({"comp: my own", parse_plan("b111")}) ==
        "rival labelled \"comp: my own\" (a label tells it apart from fp32 and comp): give it another");
  CHECK(refusal({"", parse_plan("b111")}) ==
        "rival labelled \"\" (a label tells it apart from fp32 and comp): give it another");
  world.runs = [](const comp::op_info& op, precision p) { return p != precision::bf16 || op.name != "1"; };
  CHECK(refusal({"half", parse_plan("1b11")}) ==
        "rival \"half\" has operator 1 (\"1\") in bf16 (the backend does not run " + world.graph[1].kind +
            " in it): change it");
}

struct with_device : fake::minimal_trainer {
  with_device(fake::world given, comp::device_kind kind) : minimal_trainer{std::move(given)}, kind_{kind} {}
  comp::hardware hardware() const { return {.kind = kind_}; }

 private:
  comp::device_kind kind_;
};

TEST_CASE("PyTorch's list is that of the backend's device, also beneath a user's rules, unless one is named") {
  fake::world world = fake::typical();
  world.graph = fake::sized_chain({"layer_norm", "linear"});
  const auto category_of = [&](const auto& policy, comp::device_kind kind) {
    with_device trainer{world, kind};
    return comp::two_stage{policy}.run(trainer).reasons.at(0).category;
  };
  using comp::category, comp::device_kind, comp::policy::pytorch;
  CHECK(category_of(pytorch{}, device_kind::cpu) == category::follow);
  CHECK(category_of(pytorch{}, device_kind::cuda) == category::deny);
  CHECK(category_of(comp::policy::custom{.over = pytorch{}}, device_kind::cpu) == category::follow);
  CHECK(category_of(pytorch{.list = comp::policy::pytorch_list::cuda}, device_kind::cpu) == category::deny);
}

TEST_CASE("the systems' rules are rivals by name, for each searched precision that they have") {
  const std::vector<precision> lows{precision::fp16, precision::tf32, precision::bf16};
  const auto rivals = comp::system_rules()(perceptron(), lows);
  REQUIRE(rivals.size() == 12);
  CHECK(rivals[0].label == "rule-based pytorch fp16");
  CHECK(rivals[0].plan.str() == "0001");  // linear by the list, ReLU as it comes, softmax in FP32
  CHECK(rivals[3].label == "rule-based paddle OD fp16");
  CHECK(rivals[3].plan.str() == "0101");  // its list alone: what no list names is FP32
  CHECK(rivals[7].label == "rule-based tensorflow bf16");
  const auto some = comp::system_rules({"tvm", "paddle-o2"})(perceptron(), std::vector{precision::bf16});
  REQUIRE(some.size() == 2);
  CHECK(some[0].label == "rule-based tvm bf16");
  CHECK(some[1].label == "rule-based paddle O2 bf16");
  const comp::hardware gpu{.kind = comp::device_kind::cuda};
  CHECK(comp::system_rules({"pytorch"}, gpu)(perceptron(), lows)[1].plan.str() == "bbb1");
  CHECK(comp::system_rules()(perceptron(), std::vector{precision::tf32}).empty());
  CHECK_THROWS_WITH_AS(comp::system_rules({"apex"}),
                       "\"apex\" is no system whose rules are known (they are pytorch, tensorflow, tvm, paddle-od, "
                       "paddle-o1, paddle-o2): name some of those",
                       comp::settings_error);
}

TEST_CASE_FIXTURE(fake::in_typical, "a rule that cannot be applied is left out, and the outcome's warnings say why") {
  world.runs = [](const comp::op_info& op, precision p) { return p != precision::bf16 || op.name != "1"; };
  fake::trainer trainer{world};
  const auto found = search_with(trainer, against({{"rule-based paddle O2 bf16", {}, true, "it is low already"},
                                                   {"rule-based tensorflow bf16", parse_plan("0111"), true},
                                                   {"rule-based tvm bf16", parse_plan("1b11"), true},
                                                   {"rule-based paddle O1 bf16", parse_plan("11b1"), true}}));
  const auto labels = labels_of(found);
  CHECK(std::ranges::count_if(labels, [](const std::string& l) { return l.find("O1") != l.npos; }) == 1);
  for (const char* left_out : {"O2", "tensorflow", "tvm"})
    CHECK(std::ranges::none_of(labels, [&](const std::string& l) { return l.find(left_out) != l.npos; }));
  CHECK(fake::warns(found, "\"rule-based paddle O2 bf16\" was no rival: it is low already"));
  CHECK(fake::warns(found, "was no rival: rival \"rule-based tensorflow bf16\" has fp16 (the backend supports"));
  CHECK(fake::warns(found, "was no rival: rival \"rule-based tvm bf16\" has operator 1"));

  op_graph stored_low = perceptron();
  std::vector<comp::op_info> ops(stored_low.begin(), stored_low.end());
  ops[0].inputs.push_back({.shape = {64, 64}, .dtype = precision::bf16, .parameter = true});
  const auto rivals = comp::system_rules()(op_graph{std::move(ops)}, std::vector{precision::bf16});
  CHECK(std::ranges::count_if(rivals, [](const rival& r) { return r.refusal.empty() && !r.plan.empty(); }) == 5);
  const auto o2 = std::ranges::find(rivals, "rule-based paddle O2 bf16", &rival::label);
  REQUIRE(o2 != rivals.end());
  CHECK(o2->refusal.find("a parameter of operator 0 (\"linear\") is bf16 already") == 0);
}

/// Has a mixed precision of its own, which takes `seconds` a batch.
struct with_autocast : fake::trainer {
  with_autocast(fake::world given, plan lowers, double seconds, std::uint64_t seed = 1)
      : fake::trainer{[&] {
                        given.seconds = [inner = given.seconds, seconds](const plan& p) {
                          return p.runs_autocast() ? seconds : inner(p);
                        };
                        return std::move(given);
                      }(),
                      seed},
        lowers_{std::move(lowers)} {}
  plan own_autocast(precision low) {
    ++asked;
    moved_clock::pass(20e-3);
    if (lowers_.empty()) throw comp::error{fmt::format("no autocast to {}", name(low))};
    return lowers_.as_autocast();
  }
  comp::execution execution() { return {{"plan", now().str(), {}}}; }
  plan lowers_;
  int asked = 0;
};

comp::outcome searched(with_autocast& trainer, const comp::search_settings& settings = {}) {
  return fake::greedy_search{{}, {}, {}, settings}.run(trainer);
}

}  // namespace

TEST_CASE("the backend's own autocast is a rival of each search, apart from the plan of the same precisions") {
  SUBCASE("it wins where it is fastest, as itself") {
    with_autocast trainer{fake::typical(), parse_plan("11bb"), 0.5};
    const auto found = searched(trainer);
    CHECK(found.plan == parse_plan("11bb@autocast"));
    CHECK(trainer.now() == found.plan);
    REQUIRE(found.execution.size() == 1);
    CHECK(found.execution[0].value == found.plan.str());  // asked while the winner is set
    REQUIRE(found.fallbacks.size() > 1);
    CHECK(found.fallbacks.front() == found.plan);
    for (std::size_t i = 1; i < found.fallbacks.size(); ++i) CHECK_FALSE(found.fallbacks[i].runs_autocast());
    CHECK(comp::summary(found)["rule_based"] == "rule-based autocast bf16");
  }
  SUBCASE("it loses where it is slower than what it lowers") {
    with_autocast trainer{fake::typical(), parse_plan("11bb"), 20};
    const auto found = searched(trainer);
    CHECK(found.plan.str() == "1bbb");
    const auto labels = labels_of(found);
    CHECK(std::find(labels.begin(), labels.end(), "rule-based autocast bf16") != labels.end());
  }
  SUBCASE("what it cannot run is said") {
    with_autocast trainer{fake::typical(), {}, 1};
    const auto found = searched(trainer);
    CHECK(found.warnings.front() == "the backend's own autocast to bf16 was no rival: no autocast to bf16");
  }
  SUBCASE("what it takes to see what it lowers is the search's cost") {
    with_autocast trainer{fake::typical(), parse_plan("11bb"), 20};
    CHECK(searched(trainer).cost(comp::stage::baseline).seconds > 0.02 * trainer.asked);
    CHECK(trainer.asked > 0);
  }
  SUBCASE("it is not run where the policy leaves nothing to lower") {
    with_autocast trainer{fake::typical(), parse_plan("11bb"), 20};
    const auto found = comp::two_stage{comp::policy::all_fp32{}}.run(trainer);
    CHECK(found.plan.count_low() == 0);
    CHECK(trainer.asked == 0);
  }
}

TEST_CASE("autocast is kept unless the found plan was shown to be faster in batches beside it") {
  fake::world world = fake::typical();
  world.noise = 0.2;
  world.batches = 100;
  world.harm = [](const plan&) { return 0.0; };
  const double found_plan = world.seconds(parse_plan("bbbb"));
  for (const double autocast : {0.95 * found_plan, 0.98 * found_plan, 0.99 * found_plan}) {
    for (std::uint64_t seed = 0; seed < 15; ++seed) {
      CAPTURE(autocast);
      CAPTURE(seed);
      with_autocast trainer{world, parse_plan("bbbb"), autocast, seed};
      const auto found = comp::two_stage<fake::lists>{}.run(trainer);
      CHECK(found.plan.runs_autocast());
      CHECK(trainer.weights().steps == found.trained_batches);
    }
  }
  with_autocast slower{world, parse_plan("bbbb"), 1.2 * found_plan};
  CHECK_FALSE(comp::two_stage<fake::lists>{}.run(slower).plan.runs_autocast());
}

namespace {

/// Runs FP32 in `seconds` a batch if it is tuned, with `harm` to its losses.
struct with_tuned_fp32 : fake::trainer {
  with_tuned_fp32(fake::world given, double seconds, double harm = 0)
      : fake::trainer{[&] {
          given.seconds = [inner = given.seconds, seconds](const plan& p) { return p.is_tuned() ? seconds : inner(p); };
          given.harm = [inner = given.harm, harm](const plan& p) { return p.is_tuned() ? harm : inner(p); };
          return std::move(given);
        }()} {}
  plan tuned_fp32() {
    ++asked;
    if (!fails_by.empty()) throw std::runtime_error{fails_by};
    return tunes ? plan{graph().size()}.as_tuned() : plan{graph().size()};
  }
  bool tunes = true;
  std::string fails_by = {};
  int asked = 0;
};

fake::world without_low_precisions() {
  fake::world only_fp32 = fake::typical();
  only_fp32.precisions = {precision::fp32};
  return only_fp32;
}
const plan tuned_plan = plan{fake::typical().graph.size()}.as_tuned();

}  // namespace

TEST_CASE("FP32 as the backend runs it fastest is a rival where no lower precision can be chosen") {
  const double fp32 = fake::typical().seconds(plan{fake::typical().graph.size()});
  const auto search = [](auto& trainer) { return fake::greedy_search{{}, {}, {}, {}}.run(trainer); };
  SUBCASE("it wins where it is faster") {
    with_tuned_fp32 trainer{without_low_precisions(), 0.5 * fp32};
    const auto found = search(trainer);
    CHECK(found.plan == tuned_plan);
    CHECK(trainer.now() == tuned_plan);
    CHECK(found.speedup == doctest::Approx(2));
    CHECK(labels_of(found) == std::vector<std::string>{"fp32", "comp: all in fp32, tuned"});
    CHECK(found.fallbacks == std::vector{tuned_plan, plan{tuned_plan.size()}});
  }
  SUBCASE("a guided search takes it, too") {
    with_tuned_fp32 trainer{without_low_precisions(), 0.5 * fp32};
    CHECK(comp::two_stage<fake::lists>{}.run(trainer).plan == tuned_plan);
  }
  SUBCASE("it loses where it is slower") {
    with_tuned_fp32 trainer{without_low_precisions(), 1.1 * fp32};
    CHECK(search(trainer).plan == plan{tuned_plan.size()});
  }
  SUBCASE("it is not taken where its losses are worse") {
    with_tuned_fp32 trainer{without_low_precisions(), 0.5 * fp32, 1};
    CHECK(search(trainer).plan == plan{tuned_plan.size()});
  }
  SUBCASE("a backend may have nothing to tune") {
    with_tuned_fp32 trainer{without_low_precisions(), 0.5 * fp32};
    trainer.tunes = false;
    CHECK(labels_of(search(trainer)) == std::vector<std::string>{"fp32"});
  }
  SUBCASE("what fails by being tuned is no rival, and is told") {
    with_tuned_fp32 trainer{without_low_precisions(), 0.5 * fp32};
    trainer.fails_by = "a tensor that a kernel has saved was written";
    const auto found = search(trainer);
    CHECK(found.plan == plan{tuned_plan.size()});
    CHECK(fake::warns(found, "tuned FP32 was no rival: a tensor that a kernel has saved was written"));
  }
  SUBCASE("a search of lower precisions does not ask") {
    with_tuned_fp32 trainer{fake::typical(), 0.001 * fp32};
    CHECK_FALSE(search(trainer).plan.is_tuned());
    CHECK(trainer.asked == 0);
  }
  SUBCASE("a policy that leaves nothing to choose has plain FP32") {
    with_tuned_fp32 trainer{without_low_precisions(), 0.5 * fp32};
    CHECK(comp::two_stage{comp::policy::all_fp32{}}.run(trainer).plan == plan{tuned_plan.size()});
    CHECK(trainer.asked == 0);
  }
}
