// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include <comp/observe/progress_bar.hpp>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>

#include "made_up.hpp"
#include "scratch.hpp"

namespace {
const comp::outcome found = made_up::outcome(12);

// Plays a search to whoever observes.
void play(comp::progress_bar& bar, std::size_t trials = found.trials.size(), bool to_the_end = true) {
  bar.search_started({found.graph, found.hardware, "", 0.01, 7});
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
  std::string seen;
  watch(to.get(), [&] {
    char chunk[4096];
    for (ssize_t got; (got = ::read(master, chunk, sizeof chunk)) > 0;)
      seen.append(chunk, static_cast<std::size_t>(got));
  });
  return seen;
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

TEST_CASE("in a file there are plain lines: one per epoch, one per plan timed by batches, one per stage") {
  const std::string log = in_a_file([](std::FILE* to) {
    comp::progress_bar bar{to};
    play(bar);
  });
  CHECK(log ==
        "FP32 baseline: fp32 took 52 ms per batch, loss 2.3, accepted\n"
        "FP32 baseline: 1 run of 1 plan, 1 usable\n"
        "Stage 1, by epochs: b111b1b111b1 took 37.4 ms per batch, 1.39x FP32, loss 2.304, accepted\n"
        "Stage 1, by epochs: b1b1b1b1b1b1 took 32.2 ms per batch, 1.61x FP32, loss 2.312, accepted\n"
        "Stage 1, by epochs: bbbbbbbbbbbb took 30.2 ms per batch, 1.72x FP32, loss 2.41, rejected\n"
        "Stage 1, by epochs: 000000000000 gave a loss that is not finite\n"
        "Stage 1, by epochs: 111b11111b11 was cut: too slow\n"
        "Stage 1, by epochs: EEEEEEEEEEEE failed: kernel <b>exploded</b>\n"
        "Stage 1, by epochs: 6 runs of 6 plans, 2 usable, best 1.61x FP32\n"
        "Stage 2, by batches: b1b1b1b1b1b1 took 30 ms per batch, 1.73x FP32\n"
        "Stage 2, by batches: b111b1b111b1 took 31 ms per batch, 1.68x FP32\n"
        "Stage 2, by batches: 6 runs of 2 plans, 6 usable\n"
        "Found b1b1b1b1b1b1: 1.61x as fast as FP32 (95%: 1.59 to 1.64)\n");
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
  for (const unsigned short columns : {20, 40, 80, 200}) {
    CAPTURE(columns);
    const std::string seen = in_a_terminal(columns, [](std::FILE* to, auto&& look) {
      comp::progress_bar bar{to};
      play(bar, 5, false);
      look();
    });
    CHECK(has(seen, "\r\x1b[36m"));
    CHECK(has(seen, "\x1b[K"));
    std::string redrawn;  // lines that stay may be longer
    for (std::size_t at = 0; (at = seen.find("\r\x1b[36m", at)) != std::string::npos; ++at) {
      redrawn += "\n" + seen.substr(at + 6, seen.find("\x1b[K", at) - at - 6);
    }
    CHECK(longest_line(redrawn) < columns);
    CHECK(has(redrawn, "Stage 1"));
    if (columns >= 80) CHECK(has(redrawn, "epoch 5 of about 7"));
    if (columns >= 200) CHECK(has(redrawn, "best 1.61x FP32"));
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
  const std::string seen = in_a_terminal(80, [](std::FILE* to, auto&& look) {
    try {
      comp::progress_bar bar{to};
      play(bar, 2, false);
      throw std::runtime_error{"disk full"};
    } catch (const std::runtime_error&) {
      look();
    }
  });
  CHECK(seen.ends_with("\n"));
}

TEST_CASE("the time that is left follows the epochs that were run, not those that were recalled") {
  comp::detail::progress<> p;
  p.search_started(4);
  comp::trial t = found.trials[0];
  t.sample.seconds = 30;
  p.trial_done(t, true);
  p.trial_started(t, 0);
  CHECK_FALSE(has(p.line(0, 200), "left"));
  p.trial_done(t, false);
  p.trial_started(t, 30);
  CHECK(has(p.line(30, 200), "epoch 3 of about 4"));
  CHECK(has(p.line(30, 200), "about 1 min 00 s left"));
  CHECK(has(p.line(45, 200), "about 45 s left"));
}

TEST_CASE("durations are said as people say them") {
  CHECK(comp::detail::duration(0.2) == "0 s");
  CHECK(comp::detail::duration(59.7) == "1 min 00 s");
  CHECK(comp::detail::duration(7500) == "2 h 05 min");
  CHECK(comp::detail::duration(1e300) == "a long time");
}
