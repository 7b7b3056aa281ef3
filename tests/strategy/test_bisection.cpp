// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <comp/strategy/bisection.hpp>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <vector>

using comp::bisection;
using items = std::vector<std::size_t>;

namespace {

// Asks to the end. Checks of every question that it keeps what was accepted, and that none is asked twice.
struct answers {
  std::size_t questions = 0;
  std::set<items> refused = {};
  bool sound = true;
};
answers ask_all(bisection& asking, std::size_t count, const std::function<bool(const items&)>& trains) {
  answers record;
  items whole(count);
  std::iota(whole.begin(), whole.end(), std::size_t{0});
  record.refused.insert(whole);
  std::set<items> asked;
  for (auto question = asking.next(); question; question = asking.next()) {
    const items& kept = asking.accepted();
    record.sound =
        record.sound && question->size() > kept.size() && std::equal(kept.begin(), kept.end(), question->begin());
    items sorted = *question;
    std::sort(sorted.begin(), sorted.end());
    record.sound =
        record.sound && std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() && sorted.back() < count;
    record.sound = record.sound && asked.insert(sorted).second && !(sorted == whole);
    const bool yes = trains(*question);
    if (!yes) record.refused.insert(sorted);
    asking.tell(yes);
    record.sound = record.sound && (!yes || asking.accepted() == *question);
    if (++record.questions > 10'000) break;
  }
  CHECK(record.sound);
  CHECK(record.questions == asking.questions());
  return record;
}

bool has(const items& all, std::size_t item) { return std::find(all.begin(), all.end(), item) != all.end(); }

}  // namespace

TEST_CASE("one harmful item of 64 in no order is found in at most 14 questions, and all others are accepted") {
  for (std::size_t harmful = 0; harmful < 64; ++harmful) {
    CAPTURE(harmful);
    bisection asking{std::vector(64, 1.0), 0, false, {.questions = 96, .worth = 0}};
    const answers record = ask_all(asking, 64, [&](const items& set) { return !has(set, harmful); });
    CHECK(record.questions <= 14);
    CHECK(asking.accepted().size() == 63);
    CHECK(asking.harmful() == items{harmful});
  }
}

TEST_CASE("half of 64 harmful, in the right order, are found in at most 20 questions without an item lost") {
  for (std::size_t safe = 0; safe < 64; ++safe) {
    CAPTURE(safe);
    bisection asking{std::vector(64, 1.0), 0, true, {.questions = 96}};
    const answers record = ask_all(asking, 64, [&](const items& set) {
      return std::all_of(set.begin(), set.end(), [&](std::size_t i) { return i < safe; });
    });
    CHECK(record.questions <= (safe > 6 ? 20 : 68));  // of the first nine a third harm: the order may be wrong
    CHECK(asking.accepted().size() == safe);
  }
}

TEST_CASE("an order that is the wrong way round is dropped after a few questions and costs no item") {
  for (std::size_t harmful = 1; harmful < 56; ++harmful) {
    CAPTURE(harmful);
    std::vector<std::size_t> right(64);
    for (std::size_t i = 0; i < 64; ++i) right[i] = 63 - i;
    bisection asking{std::vector(64, 1.0), 0, true, {.questions = 96}, right};
    const answers record = ask_all(asking, 64, [&](const items& set) {
      return std::all_of(set.begin(), set.end(), [&](std::size_t i) { return i >= harmful; });
    });
    CHECK(asking.accepted().size() >= 62 - harmful);
    CHECK(record.questions <= 70);
  }
}

TEST_CASE("scores that are wrong by a factor of three cost 5% of what could be gained at most, on average") {
  std::mt19937_64 random{5};
  double part = 0, questions = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<double, bool>> candidates;  // score, harmful
    std::normal_distribution<double> spread{0, 2};
    std::uniform_real_distribution<double> wrong{-std::log(3.0), std::log(3.0)};
    for (int i = 0; i < 64; ++i) {
      const double truly = spread(random);
      candidates.emplace_back(truly + wrong(random), truly > 0);
    }
    std::sort(candidates.begin(), candidates.end());
    bisection asking{std::vector(64, 1.0), 0, true, {.questions = 96, .hopeless = 6}};
    const answers record = ask_all(asking, 64, [&](const items& set) {
      return std::none_of(set.begin(), set.end(), [&](std::size_t i) { return candidates[i].second; });
    });
    const auto harmless = std::count_if(candidates.begin(), candidates.end(), [](const auto& m) { return !m.second; });
    part += static_cast<double>(asking.accepted().size()) / static_cast<double>(harmless) / 200;
    questions += static_cast<double>(record.questions) / 200;
  }
  CHECK(part > 0.95);
  CHECK(questions < 33);
}

TEST_CASE("of a pair that harms together one is left out, and everything else is accepted") {
  std::mt19937_64 random{6};
  for (int round = 0; round < 200; ++round) {
    CAPTURE(round);
    const std::size_t n = 2 + random() % 63, a = random() % n, b = (a + 1 + random() % (n - 1)) % n;
    bisection asking{std::vector(n, 1.0), 0, false, {.questions = 96, .worth = 0}};
    const answers record = ask_all(asking, n, [&](const items& set) { return !(has(set, a) && has(set, b)); });
    CHECK(asking.accepted().size() == n - 1);
    REQUIRE(asking.harmful().size() == 1);
    CHECK((asking.harmful().front() == a || asking.harmful().front() == b));
    CHECK(record.questions <= 14);
  }
}

TEST_CASE("whatever is answered, nothing that was refused comes back and no item is lost") {
  CHECK(rc::check([] {
    const auto n = *rc::gen::inRange<std::size_t>(0, 40);
    const auto first = *rc::gen::inRange<std::size_t>(0, 50);
    const bool ordered = *rc::gen::arbitrary<bool>();
    const auto words = *rc::gen::container<std::vector<bool>>(200, rc::gen::arbitrary<bool>());
    const std::size_t most = 96;
    bisection asking{std::vector(n, 1.0), first, ordered, {.questions = most, .worth = 0, .hopeless = 1000}};
    std::size_t at = 0;
    const answers record = ask_all(asking, n, [&](const items&) { return words[at++ % words.size()]; });
    items got = asking.accepted();
    std::sort(got.begin(), got.end());
    RC_ASSERT(got.empty() || !record.refused.contains(got));
    RC_ASSERT(record.questions <= most);
    items all = got;
    all.insert(all.end(), asking.harmful().begin(), asking.harmful().end());
    std::sort(all.begin(), all.end());
    RC_ASSERT(std::adjacent_find(all.begin(), all.end()) == all.end());
    if (record.questions < most) RC_ASSERT(all.size() == n);
  }));
}

TEST_CASE("the first question is about what is thought safe") {
  bisection asking{std::vector(64, 1.0), 40, false};
  CHECK(asking.next()->size() == 40);
  asking.tell(true);
  CHECK(asking.accepted().size() == 40);
  CHECK(asking.next()->size() == 52);
}

TEST_CASE("questions end at their number, with what was accepted until then") {
  for (std::size_t most = 0; most < 12; ++most) {
    CAPTURE(most);
    bisection asking{std::vector(64, 1.0), 0, false, {.questions = most, .worth = 0}};
    const answers record = ask_all(asking, 64, [](const items& set) { return !has(set, 1) && !has(set, 40); });
    CHECK(record.questions == most);
    CHECK_FALSE(has(asking.accepted(), 1));
    CHECK_FALSE(has(asking.accepted(), 40));
  }
}

TEST_CASE("what is worth little is not asked for") {
  std::vector<double> gains(20, 1.0);
  gains[19] = 0.1;
  const auto all_but = [](std::size_t one) { return [one](const items& set) { return !has(set, one); }; };
  bisection asking{gains, 0, false, {.questions = 96, .worth = 0.03}};
  (void)ask_all(asking, 20, all_but(18));
  CHECK(asking.accepted().size() == 18);  // 19 is left: less than 3% of all
}

TEST_CASE("in a known order so many refused one after the other end it; in none everything is tried") {
  const auto trains = [](const items& set) {
    return std::all_of(set.begin(), set.end(), [](std::size_t i) { return i < 20 || i == 39; });
  };
  bisection ordered{std::vector(40, 1.0), 0, true, {.questions = 96, .worth = 0, .hopeless = 3}};
  (void)ask_all(ordered, 40, trains);
  CHECK(ordered.accepted().size() == 20);
  CHECK(ordered.harmful().size() == 3);
  bisection any{std::vector(40, 1.0), 0, false, {.questions = 96, .worth = 0, .hopeless = 3}};
  (void)ask_all(any, 40, trains);
  CHECK(has(any.accepted(), 39));
}

TEST_CASE("nothing to mend, and a single item, need no question") {
  bisection none{{}, 0, false};
  CHECK_FALSE(none.next().has_value());
  CHECK(none.accepted().empty());
  CHECK(none.harmful().empty());
  bisection one{{1.0}, 0, true};
  CHECK_FALSE(one.next().has_value());
  CHECK(one.harmful() == items{0});
}
