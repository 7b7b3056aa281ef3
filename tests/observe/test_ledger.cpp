// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <comp/observe/ledger.hpp>
#include <csignal>
#include <map>
#include <thread>

#include "made_up.hpp"
#include "scratch.hpp"

using comp::ledger;

namespace {
const comp::outcome of_six = made_up::outcome(6);
const comp::op_graph no_graph;
const comp::hardware no_machine;

comp::search_info about(std::string signature = "model=1; backend=toy") {
  return {no_graph, no_machine, std::move(signature), 0.01, 0};
}

// A search that takes its trials from `of_six`: recalls what it can. Returns how many runs it had to make.
std::size_t search(ledger& l, std::size_t trials = of_six.trials.size(), bool to_the_end = false) {
  l.search_started(about());
  std::map<std::pair<comp::stage, comp::plan>, std::size_t> repeats;
  std::size_t runs = 0;
  for (std::size_t i = 0; i < trials; ++i) {
    comp::trial t = of_six.trials[i];
    t.repeat = repeats[{t.stage, t.plan}]++;
    const auto known = l.recall(t);
    runs += known ? 0 : 1;
    l.trial_done(known ? *known : t);
  }
  if (to_the_end) l.search_done(of_six);
  return runs;
}
std::size_t search(const std::string& path, std::size_t trials = of_six.trials.size(), bool to_the_end = false) {
  ledger l{path};
  return search(l, trials, to_the_end);
}
std::string refusal(const std::string& path, ledger::mode how = ledger::mode::resume_or_start,
                    const std::string& signature = "model=1; backend=toy") {
  return message_of<comp::file_error>([&] { ledger{path, how}.search_started(about(signature)); });
}
std::size_t lines(const std::string& path) {
  const std::string text = text_of(path);
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}
constexpr auto restart = ledger::mode::restart;
}  // namespace

static_assert(comp::Observer<ledger>);

struct with_ledger : with_folder {
  const std::string path = folder / "l.jsonl";
};

TEST_CASE_FIXTURE(with_ledger, "a search goes on from its ledger, and what is recalled is not written twice") {
  CHECK(search(path, 5) == 5);
  CHECK(lines(path) == 6);
  CHECK(search(path) == of_six.trials.size() - 5);
  CHECK(lines(path) == 1 + of_six.trials.size());
  const std::string whole = text_of(path);
  CHECK(search(path, of_six.trials.size(), true) == 0);
  CHECK(lines(path) == 2 + of_six.trials.size());
  CHECK(text_of(path).substr(0, whole.size()) == whole);
}

TEST_CASE_FIXTURE(with_ledger, "a complete search is marked, recalls all the same, and is marked once") {
  search(path, of_six.trials.size(), true);
  ledger l{path};
  l.search_started(about());
  CHECK(l.complete());
  CHECK(l.size() == of_six.trials.size());
  CHECK(l.recall(of_six.trials[0])->sample.curve == of_six.trials[0].sample.curve);
  l.search_done(of_six);
  CHECK(lines(path) == 2 + of_six.trials.size());
}

TEST_CASE_FIXTURE(with_ledger,
                  "epochs of a training after the search are added, and never recalled in place of the search's own") {
  comp::trial own = of_six.trials[2];
  own.stage = comp::stage::training;
  {
    ledger l{path};
    l.search_started(about());
    l.trial_done(own);
    l.search_done(of_six);
    l.search_started(about());  // the training, with the same observers
    comp::trial later = own;
    later.sample.loss = 1.5;
    l.trial_done(later);
    CHECK_FALSE(l.complete());
    l.search_done(of_six);
  }
  ledger l{path};
  l.search_started(about());
  CHECK(l.recall(own)->sample.loss == own.sample.loss);
  CHECK(comp::read_ledger(path).size() == 2);
}

TEST_CASE_FIXTURE(with_ledger, "a last line cut off at any byte is left out and cut from the file") {
  search(path, 3);
  const std::string whole = text_of(path);
  const std::size_t last = whole.rfind('\n', whole.size() - 2) + 1;
  for (std::size_t size = last; size < whole.size(); size += 7) {
    CAPTURE(size - last);
    write_text(path, whole.substr(0, size));
    CHECK(comp::read_ledger(path).size() == 2);
    CHECK(search(path, 3) == 1);
    CHECK(text_of(path) == whole);
  }
}

TEST_CASE(
    "what is wrong with a ledger's file becomes a warning of the search, and nothing is where it is to be begun anew") {
  const scratch folder;
  const std::string path = folder / "l.jsonl";
  const auto warned = [&](ledger::mode how) {
    std::vector<std::string> sentences;
    comp::search_info info = about();
    info.warn = [&](const std::string& sentence) { sentences.push_back(sentence); };
    ledger{path, how}.search_started(info);
    return comp::joined(sentences, "\n");
  };
  CHECK(warned(ledger::mode::resume_or_start).empty());  // no file yet
  write_text(path, "");
  CHECK(warned(ledger::mode::resume_or_start) ==
        fmt::format("ledger \"{}\" is damaged: it is empty (its runs are lost, if it had any): all runs are made anew",
                    path));
  CHECK(warned(ledger::mode::resume_or_start).empty());
  const std::string whole = text_of(path);
  write_text(path, whole + "{\"num");
  CHECK(has(warned(ledger::mode::resume_or_start), "(its last 5 bytes, as after a kill): that run is made again"));
  write_text(path, whole + "{\"num");
  CHECK(warned(ledger::mode::restart).empty());
}

TEST_CASE_FIXTURE(with_ledger, "a header cut off at any byte starts the ledger anew") {
  search(path, 1);
  const std::string whole = text_of(path);
  for (std::size_t size = 0; size < whole.find('\n'); ++size) {
    CAPTURE(size);
    write_text(path, whole.substr(0, size));
    CHECK(search(path, 1) == 1);
    CHECK(lines(path) == 2);
  }
}

TEST_CASE_FIXTURE(with_ledger, "a corrupt line is refused with its number, and the file stays as it was") {
  search(path, 4);
  std::string text = text_of(path);
  const auto third_line = text.find('\n', text.find('\n') + 1) + 1;
  SUBCASE("no JSON") { text[third_line] = '?'; }
  SUBCASE("a wrong type") { text.replace(text.find("\"repeat\":0", third_line), 10, "\"repeat\":{}"); }
  SUBCASE("zeros, as after a power cut") { text.replace(third_line, 20, std::string(20, '\0')); }
  SUBCASE("deep nesting") { text.insert(third_line, std::string(100'000, '[')); }
  SUBCASE("a second header") { text.insert(third_line, text.substr(0, text.find('\n') + 1)); }
  SUBCASE("an empty line") { text.insert(third_line, "\n"); }
  SUBCASE("a huge number") { text.replace(text.find("\"repeat\":0", third_line), 10, "\"repeat\":1e400"); }
  write_text(path, text);
  CHECK(has(refusal(path), "l.jsonl\" line 3: "));
  CHECK(has(refusal(path), "delete the line, or start again with ledger::mode::restart or another file"));
  CHECK(text_of(path) == text);
  CHECK_THROWS_AS((void)comp::read_ledger(path), comp::file_error);
  CHECK(refusal(path, restart).empty());
  CHECK(lines(path) == 1);
}

TEST_CASE_FIXTURE(with_ledger, "a ledger of another search is refused, saying which parts differ") {
  search(path, 2);
  CHECK(
      refusal(path, {}, "model=1; backend=other; seed=3") ==
      "ledger \"" + path +
          "\" belongs to another search: \"backend\" is \"toy\" there and \"other\" here, \"seed\" is nothing there and \"3\" "
          "here (its runs would not be this search's): give another file, or ledger::mode::restart to overwrite it");
  CHECK(lines(path) == 3);
  CHECK(refusal(path, {}, "backend=toy; model=1").empty());
  CHECK(refusal(path, restart, "model=2").empty());
  CHECK(lines(path) == 1);
}

TEST_CASE_FIXTURE(with_folder, "of long values that differ only the words that do are told") {
  const std::string path = folder / "l.jsonl", long_one = "model=1; backend=mlp of digits, batch 64, rate 0.";
  ledger{path}.search_started(about(long_one + "1, momentum 0.9"));
  CHECK(has(refusal(path, {}, long_one + "01, momentum 0.9"),
            "another search: \"backend\" is \"rate 0.1\" there and \"rate 0.01\" here (its"));
}

TEST_CASE(
    "a ledger of a trainer without a signature goes by FP32's first losses, as far as the trainer repeats itself") {
  const scratch folder;
  const std::string path = folder / "l.jsonl";
  const auto written = [&](double again) {
    ledger l{path, restart};
    l.search_started(about("model=1; losses=2.5,2.25"));
    comp::trial first = of_six.trials[0];
    first.sample.curve = {2.5, again, 2.1};
    l.trial_done(first);
  };
  const auto refused = [&](const std::string& losses) { return refusal(path, {}, "model=1; losses=" + losses); };
  written(2.25);
  CHECK(refused("2.5,2.25").empty());
  CHECK(refused("2.5,2.25000001").empty());  // another compiler's roundings
  CHECK(has(refused("2.5,2.249"), "\"losses\" is \"2.5,2.25\" there and \"2.5,2.249\" here"));
  for (const char* other : {"2.5", "2.5,2.25,2", "", "x", "2.5,nan"}) CHECK_FALSE(refused(other).empty());
  written(2.24);  // does not repeat itself
  CHECK(refused("2.5,2.249").empty());
  CHECK_FALSE(refused("2.5,1.9").empty());
  ledger{path, restart}.search_started(about("model=1; losses=2.5,2.25"));
  CHECK(refused("2.5,1").empty());  // nothing was recorded
}

TEST_CASE_FIXTURE(with_ledger, "an edited number, label or letter is refused, whichever it is") {
  search(path, 3);
  const std::string text = text_of(path);
  std::size_t edited = 0;
  for (std::size_t at = text.find('\n'); at < text.size(); ++at) {
    if (text[at] < '0' || text[at] > '8') continue;
    std::string changed = text;
    ++changed[at];
    write_text(path, changed);
    CAPTURE(changed.substr(at - 5, 20));
    const std::string message = refusal(path);
    CHECK(has(message, "it was changed after it was written"));
    ++edited;
    at += 15;
  }
  CHECK(edited > 20);
}

TEST_CASE_FIXTURE(with_ledger, "keep_old sets an old ledger aside, but not one that a search writes to") {
  CHECK(refusal(path, ledger::mode::keep_old).empty());
  search(path, 2);
  const std::string old = text_of(path);
  {
    ledger running{path, ledger::mode::keep_old};
    running.search_started(about("model=2"));
    CHECK(text_of(path + ".old") == old);
    const std::string now = text_of(path);
    CHECK(has(refusal(path, ledger::mode::keep_old), "is in use (another search writes to it)"));
    CHECK(text_of(path) == now);
    CHECK(text_of(path + ".old") == old);
    running.search_started(about("model=2"));  // a training after it
    CHECK(text_of(path) == now);
  }
  CHECK(refusal(path, ledger::mode::keep_old, "model=3").empty());
  std::filesystem::remove(path + ".old");
  std::filesystem::create_directory(path + ".old");
  CHECK(has(refusal(path, ledger::mode::keep_old),
            "cannot be renamed to \"" + path + ".old\" (Is a directory): move it"));
}

TEST_CASE_FIXTURE(with_folder, "a file that is no ledger is never overwritten") {
  const std::string path = folder / "thesis.tex";
  write_text(path, "\\documentclass{article}");
  for (const auto how : {ledger::mode::resume_or_start, restart}) CHECK_FALSE(refusal(path, how).empty());
  CHECK(has(refusal(path), "thesis.tex\" is no ledger"));
  CHECK(text_of(path) == "\\documentclass{article}");
}

TEST_CASE_FIXTURE(with_ledger, "two searches cannot write to one ledger") {
  SUBCASE("in one process") {
    ledger first{path};
    search(first, 1);
    CHECK(has(refusal(path), "is in use (another search writes to it)"));
  }
  SUBCASE("in two processes, until one is killed") {
    const pid_t other = ::fork();
    if (other == 0) {
      ledger first{path};
      search(first, 1);
      for (;;) ::pause();
    }
    while (text_of(path).find("\"stage\"") == std::string::npos) std::this_thread::yield();
    CHECK(has(refusal(path), "is in use (another search writes to it)"));
    ::kill(other, SIGKILL);
    ::waitpid(other, nullptr, 0);
    CHECK(search(path, 2) == 1);
  }
}

TEST_CASE_FIXTURE(with_folder, "a search killed at any moment repeats at most the run it was in") {
  for (int round = 0; round < 5; ++round) {
    const std::string path = folder / (std::to_string(round) + ".jsonl");
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ledger l{path};
      l.search_started(about());
      for (std::size_t i = 0;; ++i) {
        comp::trial t = of_six.trials[0];
        t.repeat = i;
        l.trial_done(t);
        (void)!::write(ends[1], "x", 1);  // this run is done
      }
    }
    ::close(ends[1]);
    std::size_t done = 0;
    for (char x = 0; done < 20U + 13U * static_cast<unsigned>(round) && ::read(ends[0], &x, 1) == 1;) ++done;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    for (char x = 0; ::read(ends[0], &x, 1) == 1;) ++done;
    ::close(ends[0]);
    const std::size_t kept = comp::read_ledger(path).size();
    CHECK(kept >= done);
    CHECK(kept <= done + 1);
    CHECK(refusal(path).empty());
  }
}

TEST_CASE("a full disk stops the search with path, reason and remedy") {
  const std::string message = refusal("/dev/full");
  CHECK(message ==
        "ledger \"/dev/full\" cannot be written (No space left on device): free some space and start the search "
        "again with the same file, it goes on after 0 runs");
}

TEST_CASE_FIXTURE(with_ledger,
                  "a disk that fills in the middle of a line leaves only whole lines, and the search goes on later") {
  search(path, 2);
  const auto size = text_of(path).size();
  ledger l{path};
  search(l, 2);
  rlimit old = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{size + 100, old.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = message_of<comp::file_error>([&] { l.trial_done(of_six.trials[2]); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(has(message,
            "cannot be written (File too large): free some space and start the search again with the same file, it "
            "goes on after 2 runs"));
  CHECK(text_of(path).size() == size);
  l.trial_done(of_six.trials[2]);  // the space is there again
  CHECK(comp::read_ledger(path).size() == 3);
}

TEST_CASE_FIXTURE(with_folder, "a path that cannot be used is named with the reason") {
  CHECK(has(refusal(folder / "no/l.jsonl"), "no/l.jsonl\" cannot be opened (No such file or directory)"));
  CHECK(has(refusal(folder / ""), "cannot be opened (Is a directory)"));
  CHECK_THROWS_AS((void)comp::read_ledger(folder / "none"), comp::file_error);
  CHECK(has(message_of<comp::file_error>([&] { ledger{folder / "l"}.trial_done(of_six.trials[0]); }), "is not open"));
}

TEST_CASE("a device without a disk can take a ledger") { CHECK(search("/dev/null", 3) == 3); }
