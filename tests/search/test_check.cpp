// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/check.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/trainer/findings.hpp>
#include <new>
#include <stdexcept>

#include "fake_search.hpp"
#include "truth/trainer.hpp"
#include "truth/worlds.hpp"

using comp::precision;

namespace {

// A sound trainer on a CPU: BF16 moves the loss and the time.
fake::world sound() {
  fake::world w{.graph = fake::sized_chain({"linear", "relu", "softmax"})};
  fake::timed_by(w, {{3, 1, 1}, {1.5, 0.5, 0.7}, 0});
  w.harm = fake::harmed_by({0, 1, 2}, 1e-4);
  return w;
}
std::string all_of(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& s : sentences) text += s + "\n";
  return text;
}
std::string found_by(auto&& trainer) { return all_of(comp::check(trainer).findings()); }
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct no_restore : fake::trainer {
  using fake::trainer::trainer;
  void restore(const fake::state&) {}
};
struct no_precision : fake::trainer {
  using fake::trainer::trainer;
  void set_precision(const comp::plan&) {}
};
struct without_fp16 : fake::trainer {  // and names none
  using fake::trainer::trainer;
  void set_precision(const comp::plan& p) {
    comp::plan known{p.size()};
    for (std::size_t i = 0; i < p.size(); ++i) known[i] = p[i] == precision::bf16 ? p[i] : precision::fp32;
    fake::trainer::set_precision(known);
  }
  std::vector<precision> supported_precisions() const { return {precision::fp32, precision::bf16, precision::fp16}; }
};
struct names_nothing : fake::trainer {
  using fake::trainer::trainer;
  std::vector<precision> supported_precisions() const { return {}; }
};
// Changes what a batch says of itself.
struct says : fake::trainer {
  std::function<void(comp::sample&)> change;
  says(const fake::world& w, std::function<void(comp::sample&)> how) : fake::trainer{w}, change{std::move(how)} {}
  using fake::trainer::run_epoch;
  comp::sample run_batch() {
    comp::sample got = fake::trainer::run_batch();
    change(got);
    return got;
  }
};

// Trainers of the lab whose restore() or set_precision() does nothing.
struct keeps_training : truth::full_trainer {
  using truth::full_trainer::full_trainer;
  void restore(const truth::state&) {}
};
struct keeps_fp32 : truth::full_trainer {
  using truth::full_trainer::full_trainer;
  void set_precision(const comp::plan&) {}
};

comp::outcome searched(auto& trainer, fake::watcher& watching, comp::search_settings settings = {}) {
  return comp::two_stage<comp::policy::pytorch>{.settings = std::move(settings)}.run(trainer, watching);
}
comp::outcome searched(auto& trainer) {
  fake::watcher silent;
  return searched(trainer, silent);
}

}  // namespace

TEST_CASE("a sound trainer has no finding, and is left where it was") {
  fake::trainer trainer{sound()};
  (void)trainer.run_batch();
  const fake::state before = trainer.weights();
  const comp::check_report report = comp::check(trainer);
  CHECK(all_of(report.findings()) == "");
  CHECK(report.ok());
  CHECK(trainer.weights() == before);
  CHECK(trainer.count().batches == 1 + 5 + 10);
  CHECK(report.first_losses.size() == 2);
  CHECK(has(report.str(), "set_precision bf16     ok"));
}

TEST_CASE("an epoch that is not as long as the trainer says is told, and none is run that may be long") {
  struct miscounts : fake::trainer {
    std::uint64_t epoch_length;
    miscounts(const fake::world& w, std::uint64_t n) : fake::trainer{w}, epoch_length{n} {}
    std::uint64_t batches_per_epoch() const { return epoch_length; }
  };
  CHECK(has(found_by(miscounts{sound(), 7}), "an epoch had more than 7 batches (batches_per_epoch() says 7, by which"));
  CHECK(has(found_by(miscounts{sound(), 20}), "an epoch had 10 batches (batches_per_epoch() says 20, by which"));
  miscounts large{sound(), 1000};
  const comp::check_report report = comp::check(large);
  CHECK(report.ok());
  CHECK(large.count().epochs == 0);
  CHECK(has(report.str(), "batches_per_epoch      not checked  1000 batches are said to be an epoch"));
}

TEST_CASE("a trainer that cannot restore its state is not trained, and the table says what was not checked") {
  fake::minimal_trainer trainer{sound()};
  const comp::check_report report = comp::check(trainer);
  CHECK(report.ok());
  CHECK(trainer.count().batches == 0);
  CHECK(has(report.str(), "not checked"));
}

TEST_CASE("mistakes that only running shows are told, each in its sentence") {
  const fake::world w = sound();
  CHECK(has(found_by(no_restore{w}), "after restore() the same batch in FP32 gave loss 0.9801, before it 1 ("));
  const std::string ignored = found_by(no_precision{w});
  CHECK(has(ignored, "plans in bf16 changed neither a loss, to the last bit, nor the time"));
  const std::string fp16 = found_by(without_fp16{w});
  CHECK(has(fp16, "plans in fp16 changed neither"));
  CHECK_FALSE(has(fp16, "plans in bf16"));
  const auto nan = [](comp::sample& got) { got.loss = comp::sample{}.loss + 1, got.curve.clear(); };
  CHECK(has(found_by(says{w, nan}),
            "the loss in FP32 is nan, batch after batch (a comp::sample's loss is NaN until it is set"));
  CHECK(has(found_by(says{w, [](comp::sample& got) { got.seconds = -0.5; }}), "run_batch() gave -0.5 as its seconds"));
  CHECK(has(found_by(says{w, [](comp::sample& got) { got.batch_seconds = {0}; }}),
            "run_batch() gave 0 as batch_seconds[0]"));
  CHECK(has(found_by(says{w, [](comp::sample& got) { got.batches = 64; }}),
            "run_batch() says that it trained 64 batches"));
  const auto throws = [](const comp::sample&) { throw 42; };
  CHECK(has(found_by(says{w, throws}), "an exception that is no std::exception"));
  const auto fails = [](const comp::sample&) { throw std::runtime_error{"no data"}; };
  CHECK(has(found_by(says{w, fails}), "a batch in FP32 ended with an exception: no data"));
}

TEST_CASE("seconds that are left out are no mistake: comp takes the time itself") {
  const auto silent = [](comp::sample& got) { got.seconds = 0, got.batch_seconds.clear(); };
  CHECK(found_by(says{sound(), silent}) == "");
}

TEST_CASE("a low precision may overflow or be missing: that is for the search to find") {
  fake::world w = sound();
  w.harm = [](const comp::plan& p) { return p.count_low() > 0 ? fake::nan : 0.0; };
  CHECK(found_by(fake::trainer{w}) == "");
  w = sound();
  w.before_batch = [](const comp::plan& p, std::uint64_t) {
    if (p.count_low() > 0) throw comp::out_of_memory{"too much"};
  };
  CHECK(found_by(fake::trainer{w}) == "");
}

TEST_CASE("FP32 that does not fit is no mistake, whoever says so: the search has plans that need less") {
  fake::world w = sound();
  w.before_batch = [](const comp::plan&, std::uint64_t) { throw comp::out_of_memory{"too much"}; };
  CHECK(found_by(fake::trainer{w}) == "");
  w.before_batch = [](const comp::plan&, std::uint64_t) { throw std::bad_alloc{}; };
  CHECK(found_by(fake::trainer{w}) == "");
}

TEST_CASE("a trainer that hardly repeats itself is not told to mend restore()") {
  const auto problem_of_restore = [](std::vector<double> first, std::vector<double> again) {
    return comp::detail::problem_of_restore(first, again).has_value();
  };
  CHECK_FALSE(problem_of_restore({2.5, 2.4}, {2.500001}));      // roundings of the forward
  CHECK_FALSE(problem_of_restore({1e-9, 1.1e-9}, {1.001e-9}));  // close to its end
  CHECK_FALSE(problem_of_restore({0, 0}, {0}));
  CHECK_FALSE(problem_of_restore({}, {1}));
  CHECK(problem_of_restore({2.5, 2.4}, {2.3}));
  CHECK(problem_of_restore({-1, -1.001}, {-1.002}));
  CHECK(problem_of_restore({2.5}, {2.3, 2.2}));  // which of the two is longer does not matter
  CHECK_FALSE(problem_of_restore({2.5}, {2.3}));
}

TEST_CASE("operators of one name, kinds that no list has and an empty list of precisions are told without a batch") {
  fake::world w = sound();
  w.graph =
      comp::op_graph{{{.name = "a", .kind = "linear"}, {.name = "b", .kind = "relu"}, {.name = "a", .kind = "relu"}}};
  CHECK(has(found_by(fake::minimal_trainer{w}), "operators 0 and 2 are both named \"a\""));
  w.graph = fake::chain({"Linear", "relu"});
  CHECK(has(found_by(fake::minimal_trainer{w}),
            "operator kind \"Linear\" is on no list of the policy (\"linear\" is): call it"));
  w.graph = fake::chain({"conv2d", "LayerNorm"});
  CHECK(has(found_by(fake::minimal_trainer{w}), "\"LayerNorm\" is on no list of the policy (\"layer_norm\" is)"));
  w.graph = fake::chain({"linear", "_softmax", "exp_", "relu"});  // as LibTorch calls what is on no list
  CHECK(found_by(fake::minimal_trainer{w}) == "");
  w.graph = fake::chain({"linaer", "dense_block"});
  const std::string none = found_by(fake::minimal_trainer{w});
  CHECK(has(none, "no operator kind is on a list of the policy: \"dense_block\"; \"linaer\", near \"linear\" ("));
  CHECK(has(found_by(names_nothing{sound()}), "supported_precisions() gave none"));
  fake::minimal_trainer own{fake::world{.graph = fake::chain({"deny.x", "y"})}};
  CHECK(comp::check(own, fake::lists{}).ok());  // a policy with kinds of its own
}

TEST_CASE(
    "a search tells of a restore() without effect before it judges a plan, and of a plan without effect at its end") {
  no_restore trainer{sound()};
  fake::watcher watching;
  std::size_t plans = 0;
  watching.sees = [&](const std::string& call, const comp::trial& t) {
    plans += call == "trial_started" && t.stage == comp::stage::losses && watching.warnings.empty();
  };
  const comp::outcome got = searched(trainer, watching);
  REQUIRE(watching.warnings.size() == 1);
  CHECK(has(watching.warnings[0], "after restore() the same batch in FP32"));
  CHECK(plans == 0);
  CHECK(got.warnings == watching.warnings);
  no_precision deaf{sound()};
  CHECK(has(all_of(searched(deaf).warnings), "plans in bf16 changed neither a loss"));
  fake::trainer fine{sound()};
  CHECK(all_of(searched(fine).warnings) == "");
}

TEST_CASE("a search does not begin on a loss that nobody sets or without a precision") {
  says trainer{sound(), [](comp::sample& got) { got.loss = fake::nan, got.curve.clear(); }};
  CHECK_THROWS_WITH_AS((void)searched(trainer), doctest::Contains("a comp::sample's loss is NaN until it is set"),
                       comp::error);
  CHECK(trainer.weights() == fake::state{});
  names_nothing silent{sound()};
  CHECK_THROWS_WITH_AS((void)searched(silent), doctest::Contains("supported_precisions() gave none"), comp::error);
}

TEST_CASE("the look at the start costs two batches, which are undone and paid for, and can be left out") {
  fake::trainer trainer{sound()}, bare{sound()};
  fake::watcher watching;
  comp::search_settings without;
  without.self_check = false;
  (void)searched(trainer, watching);
  (void)searched(bare, watching, without);
  CHECK(trainer.count().batches == bare.count().batches + 2);
  CHECK(trainer.weights() == bare.weights());
}

TEST_CASE("a training without a signature is identified by its type, its batches and FP32's first losses") {
  fake::trainer trainer{sound()};
  comp::outcome log;
  log.graph = sound().graph;
  log.batches_per_epoch = 10;
  const std::string signature = comp::search_signature(comp::trainer_of{trainer}, log, {}, {1, 0.99});
  CHECK(has(signature, "; backend=type fake::trainer; batches=10; losses=1,0.99; "));
}

TEST_CASE("where nothing tells a training apart a resumed search says so") {
  fake::minimal_trainer first{sound()}, again{sound()};
  fake::watcher watching;
  const comp::outcome whole = searched(first, watching);
  CHECK_FALSE(has(all_of(whole.warnings), "came from a ledger"));
  watching.recalls_from = whole.trials;
  const comp::outcome resumed = searched(again, watching);
  CHECK(resumed.recalled > 0);
  CHECK(has(all_of(resumed.warnings), "only model, type and machine say that they are of this training"));
}

TEST_CASE("an exception that is none is a failed trial") {
  fake::world w = sound();
  w.before_batch = [](const comp::plan& p, std::uint64_t) {
    if (p.count_low() > 0) throw 42;
  };
  fake::trainer trainer{w};
  const comp::outcome got = searched(trainer);
  CHECK(got.plan.count_low() == 0);
  CHECK(std::any_of(got.trials.begin(), got.trials.end(),
                    [](const comp::trial& t) { return t.sample.message == "an exception that is no std::exception"; }));
}

TEST_CASE("in the worlds of the lab no sound trainer is suspected, and nearly all that do not restore are") {
  using make = truth::world (*)(std::uint64_t);
  constexpr std::uint64_t seeds = 20;
  std::size_t suspected = 0, restores = 0, precisions = 0, worlds = 0;
  const auto wrong = [](auto&& trainer) { return !comp::check(trainer, truth::lists{}).ok(); };
  for (const make world :
       {make{truth::small_dag}, make{truth::noisy_losses}, make{truth::raises_by_5_percent}, make{truth::chaotic},
        make{truth::lengths}, make{truth::pairs}, make{truth::sensitive}, make{truth::signs}, make{truth::bad_input}}) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed, ++worlds) {
      suspected += wrong(truth::full_trainer{world(seed)});
      restores += wrong(keeps_training{world(seed)});
      precisions += wrong(keeps_fp32{world(seed)});
    }
  }
  MESSAGE(worlds << " worlds: " << suspected << " sound trainers suspected, told: " << restores
                 << " without restore(), " << precisions << " without set_precision()");
  CHECK(suspected == 0);
  CHECK(restores >= worlds * 8 / 10);
  CHECK(precisions >= seeds);  // of the worlds that repeat themselves to the bit
}
