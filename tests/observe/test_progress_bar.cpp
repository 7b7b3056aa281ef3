// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include <comp/observe/progress_bar.hpp>
#include <comp/observe/progress_text.hpp>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "made_up.hpp"
#include "scratch.hpp"

using made_up::found;

namespace {

// Plays a search to whoever observes. `at_most`: plans that will be judged; 0: not known, as in a guided search.
void play(comp::progress_bar& bar, std::size_t trials = found.trials.size(), bool to_the_end = true,
          std::size_t at_most = 8) {
  bar.search_started({found.graph, found.hardware, "", 0.01, at_most});
  std::map<std::pair<comp::stage, comp::plan>, std::size_t> repeats;
  for (std::size_t i = 0; i < trials; ++i) {
    comp::trial t = found.trials[i];
    t.repeat = repeats[{t.stage, t.plan}]++;
    bar.trial_started(t);
    comp::sample so_far = t.sample;
    for (so_far.batches = 1; so_far.batches <= t.sample.batches; ++so_far.batches) bar.batch_done(t, so_far);
    bar.trial_done(t);
  }
  if (to_the_end) bar.search_done(found);
}

struct closes {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using file = std::unique_ptr<std::FILE, closes>;

std::string in_a_file(auto&& watch) {
  const scratch folder;
  const file to{std::fopen((folder / "log").c_str(), "w")};
  watch(to.get());
  std::fflush(to.get());
  return text_of(folder / "log");
}

// A terminal of `columns`: what is written to the one end is read from the other.
std::string in_a_terminal(unsigned short columns, auto&& watch) {
  const file screen{::fdopen(::posix_openpt(O_RDWR | O_NOCTTY), "r+")};
  const int master = ::fileno(screen.get());
  REQUIRE(::grantpt(master) == 0);
  REQUIRE(::unlockpt(master) == 0);
  const file to{::fdopen(::open(::ptsname(master), O_RDWR | O_NOCTTY), "r+")};  // or its end would be our end
  const winsize size{24, columns, 0, 0};
  REQUIRE(::ioctl(master, TIOCSWINSZ, &size) == 0);
  REQUIRE(::fcntl(master, F_SETFL, O_NONBLOCK) == 0);
  std::string text;
  watch(to.get(), [&] {
    char chunk[4096];
    for (ssize_t got; (got = ::read(master, chunk, sizeof chunk)) > 0;)
      text.append(chunk, static_cast<std::size_t>(got));
  });
  return text;
}

class variable {  // sets an environment variable for one test
 public:
  variable(const char* name, const char* value) : name_{name} {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~variable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// The longest line as it stands on a screen: escape sequences take no room.
std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0, now = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      while (i < text.size() && !std::isalpha(static_cast<unsigned char>(text[i]))) ++i;
    } else if (text[i] == '\r' || text[i] == '\n') {
      now = 0;
    } else {
      longest = std::max(longest, ++now);
    }
  }
  return longest;
}
}  // namespace

static_assert(comp::Observer<comp::progress_bar>);

TEST_CASE(
    "FP32's check of a state is no turn of the contest, whose other batches have nothing to be compared with then") {
  const std::string log = in_a_file([](std::FILE* to) {
    comp::progress_bar bar{to};
    bar.search_started({found.graph, found.hardware, "", 0.01, 0});
    const comp::plan fp32 = comp::as_written(found.graph), low = comp::plan(fp32.size(), comp::precision::bf16);
    using enum comp::stage;
    for (const auto& [stage, plan, batches] : {std::tuple{baseline, fp32, 8}, {contest, low, 1}, {contest, fp32, 4}}) {
      comp::trial t{.plan = plan, .accepted = true};
      t.stage = stage;
      t.sample = {.loss = 1, .seconds = 0.5 * batches, .batches = batches};
      comp::detail::summarise_times(t);
      bar.trial_started(t);
      bar.trial_done(t);
    }
    bar.search_done(found);
  });
  CHECK(log.find("Final contest: 5 batches of 2 plans\n") != std::string::npos);
}

TEST_CASE("in a file there are plain lines: one per plan that is judged or timed, one per stage") {
  const std::string log = in_a_file([](std::FILE* to) {
    comp::progress_bar bar{to};
    play(bar);
  });
  CHECK(
      log ==
      "FP32 baseline: fp32 took 52 ms per batch, loss 2.407 of 40 batches\n"
      "FP32 baseline: 40 batches\n"
      "Judged by losses: fp32 but 2 linear and 2 matmul in bf16 took 37.4 ms per batch, loss +0.15% of 40 batches, accepted\n"
      "Judged by losses: all but 2 layer_norm, 2 softmax and 2 add in bf16 took 32.2 ms per batch, loss +0.49% of 40 batches, accepted\n"
      "Judged by losses: all in bf16 took 30.2 ms per batch, loss +4.36% of 16 batches, not accepted\n"
      "Judged by losses: all in fp16 gave a loss that is not finite\n"
      "Judged by losses: fp32 but block0.softmax3 and block0.softmax9 in bf16 was cut: too slow\n"
      "Judged by losses: all in fp8_e5m2 failed: kernel <b>exploded</b>\n"
      "Judged by losses: 6 plans, 2 accepted\n"
      "Timed in turns: all but 2 layer_norm, 2 softmax and 2 add in bf16 took 30 ms per batch\n"  // no FP32 was timed
                                                                                                  // beside it
      "Timed in turns: fp32 but 2 linear and 2 matmul in bf16 took 31 ms per batch\n"
      "Timed in turns: 6 batches of 2 plans\n"
      "Final contest: fp32 took 52.2 ms per batch\n"
      "Final contest: rule-based bf16 took 36.2 ms per batch\n"
      "Final contest: comp took 32.8 ms per batch\n"
      "Final contest: 60 batches of 3 plans, best 1.61x FP32\n"
      "Found all but 2 layer_norm, 2 softmax and 2 add in bf16: 1.61 times as fast as FP32 (95%: 1.59 to 1.64)\n"
      "Warning: no profile (the device has no timer): costs were estimated from operations and bytes\n");
}

TEST_CASE(
    "FP32's batches within a candidate's run are no stage of their own, and a first look is no plan that was judged") {
  const comp::outcome all = made_up::with_side_runs(12);
  const std::string log = in_a_file([&](std::FILE* to) {
    comp::progress_bar bar{to};
    bar.search_started({all.graph, all.hardware, "", 0.01, 0});
    const auto alone = [&](std::size_t i) {
      bar.trial_started(all.trials[i]);
      bar.trial_done(all.trials[i]);
    };
    alone(0);                          // FP32's first batches
    alone(1);                          // a first look
    bar.trial_started(all.trials[4]);  // a candidate
    alone(2);                          // within it: FP32 goes on
    alone(3);                          // and is perturbed
    bar.trial_done(all.trials[4]);
    alone(6);
  });
  CHECK(
      log ==
      "FP32 baseline: fp32 took 52 ms per batch, loss 2.407 of 16 batches\n"
      "FP32 baseline: 16 batches\n"
      "Judged by losses: all bf16 took 29 ms per batch, a first look\n"
      "FP32 baseline: fp32 took 52 ms per batch, loss 2.407 of 24 batches\n"
      "FP32 baseline: fp32, roundings perturbed took 52 ms per batch, loss 2.5118 of 16 batches\n"
      "Judged by losses: fp32 but 2 linear and 2 matmul in bf16 took 37.4 ms per batch, 1.39x FP32, loss +0.15% of 40 batches, accepted\n"
      "Judged by losses: all in bf16 took 30.2 ms per batch, 1.72x FP32, loss +4.36% of 16 batches, not accepted\n");
}

TEST_CASE("a cold start is not taken for a speedup: FP32 counts where it ran in the same stage") {
  comp::detail::progress p;
  comp::trial cold = found.trials[0], warm = cold, plan = found.trials[1];
  for (double& s : cold.sample.batch_seconds) s *= 10;
  p.stage_begins(comp::stage::baseline);
  p.trial_done(cold);
  p.stage_begins(comp::stage::losses);
  p.trial_done(plan);
  CHECK_FALSE(has(p.trial_line(plan), "x FP32"));
  CHECK_FALSE(has(p.stage_line(comp::stage::losses), "x FP32"));
  p.trial_done(warm);  // FP32 goes on within the next candidate's run
  CHECK(has(p.trial_line(plan), "1.39x FP32"));
  CHECK(has(p.stage_line(comp::stage::losses), "1 plan, 1 accepted, best 1.39x FP32"));
  p.stage_begins(comp::stage::times);
  CHECK_FALSE(has(p.line(0, 200), "x FP32"));
}

TEST_CASE("what is wrong is said as soon as it is known, and once; an outcome's other warnings at the end") {
  const std::string log = in_a_file([](std::FILE* to) {
    comp::progress_bar bar{to};
    bar.search_started({found.graph, found.hardware, "", 0.01, 0});
    bar.warned("restore() does\x1b nothing");
    comp::outcome o = found;
    o.warnings = {"restore() does\x1b nothing", "memory limit"};
    bar.search_done(o);
    bar.search_started({found.graph, found.hardware, "", 0.01, 0});
    bar.warned("memory limit");
  });
  CHECK(log ==
        "Warning: restore() does? nothing\n"
        "Found all but 2 layer_norm, 2 softmax and 2 add in bf16: 1.61 times as fast as FP32 (95%: 1.59 to 1.64)\n"
        "Warning: memory limit\n"
        "Warning: memory limit\n");
}

TEST_CASE("the last line says a tie, FP32, and how many runs came from the ledger") {
  const auto last = [](const comp::outcome& o) {
    return in_a_file([&](std::FILE* to) { comp::progress_bar{to}.search_done(o); });
  };
  comp::outcome o = found;
  o.warnings.clear();
  o.speedup = 1.01, o.speedup_bounds = {0.98, 1.03}, o.recalled = 5;
  CHECK(
      last(o) ==
      "Found all but 2 layer_norm, 2 softmax and 2 add in bf16: as fast as FP32 within noise (95%: 0.98 to 1.03); 5 of 73 runs came from the ledger\n");
  o = made_up::fp32_wins(3);
  o.warnings.clear();
  CHECK(last(o) == "Found all in fp32: FP32, no accepted plan is faster\n");
  o = made_up::outcome(3);
  o.warnings.clear();
  o.plan = o.contest[0].plan;
  o.contest[2].over_fp32 = {1.3, {0.99, 1.81}};
  CHECK(last(o) == "Found all in fp32: FP32, too noisy to tell\n");
}

TEST_CASE("a line from outside cannot move the cursor") {
  const std::string log = in_a_file([](std::FILE* to) {
    comp::progress_bar bar{to};
    bar.search_started({found.graph, found.hardware, "", 0.01, 7});
    comp::trial t = found.trials[6];
    t.label = "a\x1b[2Jb\r\n";
    t.sample.message = std::string(1000, '\x07') + "\xc2\x9b";
    bar.trial_started(t);
    bar.trial_done(t);
  });
  CHECK(has(log, "a?[2Jb??"));
  for (const char c : log) CHECK((c == '\n' || (c >= ' ' && c <= '~')));
  CHECK(log.size() < 400);
}

TEST_CASE("on a terminal one line is redrawn that never wraps, whatever the width") {
  const variable term{"TERM", "xterm"}, colour{"NO_COLOR", nullptr};
  for (const auto columns : std::initializer_list<unsigned short>{20, 40, 80, 200}) {
    CAPTURE(columns);
    const std::string text = in_a_terminal(columns, [](std::FILE* to, auto&& look) {
      comp::progress_bar bar{to};
      play(bar, 5, false);
      look();
    });
    CHECK(has(text, "\r\x1b[36m"));
    CHECK(has(text, "\x1b[K"));
    std::string redrawn;  // lines that stay may be longer
    for (std::size_t at = 0; (at = text.find("\r\x1b[36m", at)) != std::string::npos; ++at) {
      redrawn += "\n" + text.substr(at + 6, text.find("\x1b[K", at) - at - 6);
    }
    CHECK(longest_line(redrawn) < columns);
    CHECK(has(redrawn, "Judged by losses"));
    if (columns >= 80) CHECK(has(redrawn, "plan 4 of about 7"));
    if (columns >= 200) CHECK(has(redrawn, "batch 40"));
  }
}

TEST_CASE("no colour when NO_COLOR is set, no control characters at all when TERM is dumb") {
  const auto watch = [](std::FILE* to, auto&& look) {
    comp::progress_bar bar{to};
    play(bar, 3, false);
    look();
  };
  {
    const variable term{"TERM", "xterm"}, colour{"NO_COLOR", "1"};
    CHECK_FALSE(has(in_a_terminal(80, watch), "\x1b[36m"));
  }
  const variable term{"TERM", "dumb"};
  CHECK_FALSE(has(in_a_terminal(80, watch), "\x1b"));
}

TEST_CASE("the line is ended when an exception passes") {
  const variable term{"TERM", "xterm"};
  const std::string text = in_a_terminal(80, [](std::FILE* to, auto&& look) {
    try {
      comp::progress_bar bar{to};
      play(bar, 2, false);
      throw std::runtime_error{"disk full"};
    } catch (const std::runtime_error&) {
      look();
    }
  });
  CHECK(text.ends_with("\n"));
}

TEST_CASE("the time that is left follows the plans that were judged, not those that were recalled") {
  comp::detail::progress p;
  p.search_started(4);  // FP32 and three more
  p.stage_begins(comp::stage::losses);
  comp::trial t = found.trials[1];
  t.sample.seconds = 30;
  CHECK_FALSE(p.trial_done(t));  // recalled
  t.repeat = 1;
  p.trial_started(t, 0);
  CHECK_FALSE(has(p.line(0, 200), "left"));
  CHECK(p.trial_done(t));
  t.repeat = 2;
  p.trial_started(t, 30);
  CHECK(has(p.line(30, 200), "plan 3 of about 3"));
  CHECK(has(p.line(30, 200), "about 30 s left"));
  CHECK(has(p.line(45, 200), "about 15 s left"));
  t.sample.batches = 24;
  p.batch_done(t, t.sample);
  CHECK(has(p.line(45, 200), "batch 24"));
  p.batch_done(found.trials[0], found.trials[0].sample);  // FP32's, within it
  CHECK(has(p.line(45, 200), "batch 24"));
}

TEST_CASE("nothing is promised where it is not known how many plans there will be") {
  comp::detail::progress p;
  p.search_started(0);
  p.stage_begins(comp::stage::losses);
  for (std::size_t i = 1; i < 4; ++i) {
    p.trial_started(found.trials[i], 0);
    const std::string line = p.line(1, 200);
    CHECK(has(line, fmt::format("plan {}", i)));
    CHECK_FALSE(has(line, "of about"));
    CHECK_FALSE(has(line, "left"));
    CHECK_FALSE(has(line, "%"));
    p.trial_done(found.trials[i]);
  }
}

TEST_CASE("durations are said as people say them") {
  CHECK(comp::detail::duration(0.2) == "0 s");
  CHECK(comp::detail::duration(59.7) == "1 min 00 s");
  CHECK(comp::detail::duration(7500) == "2 h 05 min");
  CHECK(comp::detail::duration(1e300) == "a long time");
}
