// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <comp/files/json.hpp>
#include <comp/files/plan_file.hpp>
#include <csignal>

#include "observe/made_up.hpp"
#include "scratch.hpp"
#include "search/fake_trainer.hpp"

using comp::json;

namespace {
const comp::op_graph model = made_up::graph(12);
const comp::plan chosen = comp::parse_plan("b1b1b1b1b011");

json saved() {
  const scratch folder;
  comp::save(chosen, model, made_up::machine(), folder / "plan.json");
  return json::parse(text_of(folder / "plan.json"));
}
template <class E>
std::string refusal(const json& document, const comp::op_graph& graph = model) {
  return message_of<E>([&] { comp::read_plan(document.dump(), graph, nullptr, "p.json"); });
}
comp::op_graph changed(auto change) {
  std::vector<comp::op_info> operators{model.begin(), model.end()};
  change(operators);
  return operators;
}
}  // namespace

TEST_CASE_FIXTURE(with_folder, "a saved plan is loaded as it was, without a warning on the same machine") {
  const auto machine = made_up::machine();
  comp::save(chosen, model, machine, folder / "plan.json");
  const auto loaded = comp::load_plan(folder / "plan.json", model, &machine);
  CHECK(loaded.plan == chosen);
  CHECK(loaded.warnings.empty());
  CHECK(folder.files() == 1);  // nothing temporary is left
}

TEST_CASE("a plan that is loaded for a trainer is held against its model and its machine") {
  struct elsewhere : fake::trainer {
    using fake::trainer::trainer;
    comp::hardware hardware() const { return {.name = "another machine", .kind = comp::device_kind::cpu}; }
  };
  const scratch folder;
  comp::save(chosen, model, made_up::machine(), folder / "plan.json");
  elsewhere trainer{{.graph = model}};
  const comp::loaded_plan loaded = comp::load_plan(folder / "plan.json", trainer);
  CHECK(loaded.plan == chosen);
  REQUIRE_FALSE(loaded.warnings.empty());
  CHECK(has(loaded.warnings[0], "here it is \"another machine\""));
  fake::trainer silent{{.graph = model}}, other{{.graph = fake::chain({"a"})}};
  CHECK(comp::load_plan(folder / "plan.json", silent).warnings.empty());
  CHECK_THROWS_AS((void)comp::load_plan(folder / "plan.json", other), comp::plan_error);
}

TEST_CASE_FIXTURE(with_folder, "a plan file can be read and edited by a person: one operator per line") {
  comp::save(chosen, model, made_up::machine(), folder / "plan.json");
  const std::string text = text_of(folder / "plan.json");
  CHECK(has(text, "\n    {\"kind\":\"linear\",\"name\":\"block0.linear0\",\"precision\":\"bf16\"},\n"));
  CHECK(has(text, "\n  \"plan\": \"b1b1b1b1b011\""));
}

TEST_CASE_FIXTURE(with_folder, "later plans come back with their batches and reasons, for a model and as a listing") {
  const std::string file = folder / "plan.json", changed = folder / "changed.json";
  const std::vector<comp::later_plan> later{{40, comp::parse_plan("bbbbbbbbb011"), "its loss was lower"},
                                            {900, comp::plan{12}}};
  comp::save(chosen, model, made_up::machine(), file);
  CHECK(comp::load_plan(file, model).later.empty());
  comp::save_later(file, later, changed);
  const comp::loaded_plan loaded = comp::load_plan(changed, model);
  CHECK(loaded.plan == chosen);
  CHECK(loaded.later == later);
  const comp::plan_listing listing = comp::load_listing(changed);
  for (const std::size_t batch : {0, 39, 40, 899, 900, 5000}) {
    const comp::plan now = comp::fitted(listing.at(batch), model).plan;
    CHECK(now == comp::plan_at(batch, chosen, later));
    for (std::size_t i = 0; i < now.size(); ++i) CHECK(listing.at(batch).chosen(i) == now[i]);
  }
  comp::save_later(changed, {}, file);
  CHECK(comp::load_plan(file, model).later.empty());
}

TEST_CASE("later plans that run backwards, or are for another model, are refused") {
  const auto refused = [](const json& later) {
    json file = saved();
    file["later"] = later;
    return refusal<comp::error>(file);
  };
  const std::string letters = chosen.str();
  CHECK(has(refused({{{"batch", 9}, {"plan", letters}}, {{"batch", 9}, {"plan", letters}}}),
            "field later[1].batch is 9 (a whole number from 10 to"));
  CHECK(has(refused({{{"batch", 0}, {"plan", letters}}}), "field later[0].batch is 0 (a whole number from 1 to"));
  CHECK(has(refused({{{"batch", -3}, {"plan", letters}}}), "field later[0].batch is -3"));
  CHECK(has(refused({{{"batch", 1e300}, {"plan", letters}}}), "field later[0].batch is 1e+300"));
  CHECK(has(refused({{{"batch", 9}, {"plan", "b1"}}}), "its plan has 12 operators, that from batch 9 on 2"));
  CHECK(has(refused({{{"batch", 9}, {"plan", "xyzxyzxyzxyz"}}}), "field later[0].plan"));
  CHECK(has(refused({{{"batch", 9}}}), "field later[0]"));
  CHECK(has(refused({{{"batch", 9}, {"plan", letters}, {"step", 1}}}), "later[0].step"));
  CHECK(has(refused("soon"), "field later is \"soon\""));
  CHECK(refused(json::array()).empty());
}

TEST_CASE("choices of the backend that make no sense are refused, by field") {
  const auto refused = [](const json& how) {
    json file = saved();
    file["execution"] = how;
    return refusal<comp::file_error>(file);
  };
  const json bounds = {1, 2};
  CHECK(has(refused(json::array()), "field execution is array of 0 (an object is needed)"));
  CHECK(
      has(refused({{"images", "channels_last"}}), "field execution.images is \"channels_last\" (an object is needed)"));
  CHECK(has(refused({{"images", {{"value", 1}}}}), "field execution.images.value is 1 (a text is needed)"));
  CHECK(has(refused({{"images", {{"value", "a"}, {"seed", 1}}}}), "field execution.images.seed is 1"));
  CHECK(has(refused({{"images", {{"value", "a"}, {"speedup", 1.1}}}}), "(both speedup and speedup_bounds, or neither"));
  CHECK(has(refused({{"images", {{"value", "a"}, {"speedup", "nan"}, {"speedup_bounds", bounds}}}}),
            "field execution.images.speedup is \"nan\" (a number above 0 is needed)"));
}

TEST_CASE("a listing tells an operator's precision before the model is known, and what it hands on") {
  const auto handing_on = changed([](auto& ops) {
    ops[2].hands_on_fp32 = true;
    ops[3].outputs = {{.dtype = comp::precision::bf16}};
  });
  const scratch folder;
  comp::save(chosen, handing_on, made_up::machine(), folder / "plan.json");
  const auto listing = comp::load_listing(folder / "plan.json");
  REQUIRE(listing.size() == 12);
  CHECK(listing.chosen(0) == chosen[0]);
  CHECK((*listing.operators)[2].hands_on_fp32);
  CHECK_FALSE((*listing.operators)[3].hands_on_fp32);
  CHECK((*listing.operators)[2].gives == comp::precision::fp32);
  CHECK((*listing.operators)[3].gives == comp::precision::bf16);
  CHECK_NOTHROW(listing.require_operator(3, model[3].name, model[3].kind));
  CHECK(has(message_of<comp::plan_error>([&] { listing.require_operator(3, "other", model[3].kind); }),
            "its operator 3 is \"block0.softmax3\" (\"softmax\"), the model's is \"other\" (\"softmax\")"));
  CHECK(has(message_of<comp::plan_error>([&] { listing.require_operator(12, "more", "relu"); }),
            "the first that the file lacks is operator 12, \"more\" (\"relu\")"));
}

TEST_CASE("a file tells what the model's author fixed, and a plan of when that was not so is taken without it") {
  const auto fixing = changed([](auto& ops) {
    ops[3].author = comp::author_choice::autocast_off;
    ops[3].choosable = false;
  });
  comp::plan lowers = chosen;
  lowers[3] = comp::precision::bf16;
  const scratch folder;
  comp::save(lowers, model, made_up::machine(), folder / "plan.json");
  const auto loaded = comp::load_plan(folder / "plan.json", fixing);
  CHECK((loaded.plan[3] == comp::precision::fp32));
  CHECK(loaded.plan.count_low() == lowers.count_low() - 1);
  REQUIRE(loaded.warnings.size() == 1);
  CHECK(has(loaded.warnings[0],
            "lowers 1 operators that no plan changes, first \"block0.softmax3\" (the model's author "
            "switched autocast off there): they run as the model's author wrote them"));
  comp::save(loaded.plan, fixing, made_up::machine(), folder / "plan.json");
  CHECK(comp::load_plan(folder / "plan.json", fixing).warnings.empty());
  CHECK(((*comp::load_listing(folder / "plan.json").operators)[3].author == comp::author_choice::autocast_off));
  json file = json::parse(text_of(folder / "plan.json"));
  CHECK(file["operators"][3]["author"] == "autocast off");
  file["operators"][3]["author"] = "autocast";
  CHECK(has(refusal<comp::file_error>(file, fixing),
            "author is \"autocast\" (one of none, autocast off, autocast on is needed)"));
}

TEST_CASE_FIXTURE(with_folder, "a plan saved alone is checked by its size only, and the loader says so") {
  comp::save(chosen, folder / "plan.json");
  const auto loaded = comp::load_plan(folder / "plan.json", model);
  CHECK(loaded.plan == chosen);
  REQUIRE(loaded.warnings.size() == 1);
  CHECK(has(loaded.warnings[0], "does not say which model it is for"));
  CHECK_THROWS_AS((void)comp::load_plan(folder / "plan.json", made_up::graph(11)), comp::plan_error);
}

TEST_CASE("a plan for another model is refused, saying what differs") {
  const json file = saved();
  CHECK(refusal<comp::plan_error>(file, made_up::graph(13)) ==
        "\"p.json\" is for a model with 12 operators, this one has 13 (the first that the file lacks is operator 12, "
        "\"block1.linear0\" (\"linear\")): use a plan that was found for this model, or search again");
  CHECK(refusal<comp::plan_error>(file, made_up::graph(11)) ==
        "\"p.json\" is for a model with 12 operators, this one has 11 (the first that the model lacks is operator 11, "
        "\"block0.add11\" (\"add\")): use a plan that was found for this model, or search again");
  const auto shorter = changed([](auto& ops) {
    ops[3].name = "norm";
    ops.pop_back();
  });
  CHECK(has(refusal<comp::plan_error>(file, shorter),
            "its operator 3 is \"block0.softmax3\" (\"softmax\"), the model's is \"norm\""));
  CHECK(has(refusal<comp::plan_error>(file, changed([](auto& ops) { ops[4].name = "stem"; })),
            "its operator 4 is \"block0.matmul4\" (\"matmul\"), the model's is \"stem\" (\"matmul\")"));
  CHECK(has(refusal<comp::plan_error>(file, changed([](auto& ops) { ops[5].kind = "mul"; })),
            "its operator 5 is \"block0.add5\" (\"add\"), the model's is \"block0.add5\" (\"mul\")"));
  CHECK(has(refusal<comp::plan_error>(file, changed([](auto& ops) { ops[6].outputs[0].shape[0] = 16; })),
            "the operators agree, so shapes, edges or what is choosable changed"));
}

TEST_CASE("a plan that lowers an operator that cannot be chosen is refused, saved or loaded") {
  const auto fixed = changed([](auto& ops) { ops[0].choosable = false; });
  const scratch folder;
  CHECK_THROWS_AS(comp::save(chosen, fixed, {}, folder / "plan.json"), comp::plan_error);
  comp::save(chosen, folder / "plan.json");
  CHECK_THROWS_AS((void)comp::load_plan(folder / "plan.json", fixed), comp::plan_error);
}

TEST_CASE("plan string and operator list must agree; either is enough") {
  json file = saved();
  file["operators"][9]["precision"] = "fp32";
  CHECK(has(refusal<comp::plan_error>(file),
            "its plan gives operator 9 (\"block0.softmax9\") fp16, its operator list fp32"));
  file.erase("plan");
  CHECK(comp::read_plan(file.dump(), model, nullptr, "p.json").plan == comp::parse_plan("b1b1b1b1b111"));
  file = saved();
  file.erase("operators");
  CHECK(comp::read_plan(file.dump(), model, nullptr, "p.json").plan == chosen);
  file.erase("plan");
  CHECK(has(refusal<comp::file_error>(file), "field \"plan\" or \"operators\""));
}

TEST_CASE("other hardware is reported, not refused") {
  comp::hardware other = made_up::machine();
  other.name = "Other CPU";
  other.isa.pop_back();
  other.threads = 64;
  const auto loaded = comp::read_plan(saved().dump(), model, &other, "p.json");
  CHECK(loaded.plan == chosen);
  REQUIRE(loaded.warnings.size() == 3);
  CHECK(has(loaded.warnings[0], "the device was \"Made-up CPU <9>\", here it is \"Other CPU\""));
  CHECK(has(loaded.warnings[1], "avx512_bf16"));
  CHECK(has(loaded.warnings[2], "64"));
}

TEST_CASE("a malformed plan file is refused") {
  const auto with = [](const char* field, const json& value) {
    json file = saved();
    file[field] = value;
    return refusal<comp::file_error>(file);
  };
  CHECK(has(with("comp_plan", 2), "field comp_plan is 2 "));
  CHECK(has(with("plan", 11), "field plan is 11 (a text is needed)"));
  CHECK(has(with("plan", "b1b1b1b1b01?"), "field plan is "));
  CHECK(has(with("operators", "all"), "field operators is \"all\" (a list is needed)"));
  CHECK(has(with("operators", {{{"name", "x"}, {"kind", "y"}, {"precision", "int8"}}}), "precision is \"int8\""));
  CHECK(has(with("operators", {1}), "field operators[0] is 1 (an object is needed)"));
  CHECK(has(with("model", {{"fingerprint", 5}}), "field model.fingerprint is 5"));
  CHECK(has(with("hardware", json::object()), "field hardware is "));
  CHECK(has(with("speedup", "fast"), "field speedup is \"fast\""));
  CHECK(has(with("precisions", {"fp12"}), "field precisions[0] is \"fp12\""));
  CHECK(has(with("pla", 1), "field pla is 1 (no such field"));
  CHECK(has(refusal<comp::file_error>(json::array()), "the text is array of 0"));
}

TEST_CASE_FIXTURE(with_folder, "a path that cannot be read is named with the reason") {
  const auto refused = [](const std::string& path) {
    return message_of<comp::file_error>([&] { (void)comp::load_plan(path, model); });
  };
  CHECK(has(refused(folder / "none.json"), "none.json\" cannot be opened (No such file or directory)"));
  CHECK(has(refused(folder / ""), "no regular file"));
  CHECK(has(refused("/dev/zero"), "no regular file"));
  CHECK(::truncate((write_text(folder / "huge.json", ""), (folder / "huge.json").c_str()), off_t{1} << 32) == 0);
  CHECK(has(refused(folder / "huge.json"), "is larger than 67108864 bytes"));
}

TEST_CASE_FIXTURE(with_folder, "a file that cannot be written is named with the reason, and the old one stays") {
  const auto refused = [](const std::string& path) {
    return message_of<comp::file_error>([&] { comp::save(chosen, path); });
  };
  CHECK(has(refused("/dev/full"), "\"/dev/full\" cannot be written (No space left on device)"));
  CHECK(has(refused(folder / "no/plan.json"), "No such file or directory"));
  CHECK(has(refused(folder / ""), "Is a directory"));

  comp::save(chosen, folder / "plan.json");
  const std::string before = text_of(folder / "plan.json");
  rlimit old = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{16, old.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = refused(folder / "plan.json");
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(has(message, "cannot be written (File too large)"));
  CHECK(text_of(folder / "plan.json") == before);
  CHECK(folder.files() == 1);
}

TEST_CASE_FIXTURE(with_folder, "a rewritten file keeps its permissions") {
  comp::save(chosen, folder / "plan.json");
  REQUIRE(::chmod((folder / "plan.json").c_str(), 0640) == 0);
  comp::save(chosen, folder / "plan.json");
  struct stat about = {};
  REQUIRE(::stat((folder / "plan.json").c_str(), &about) == 0);
  CHECK((about.st_mode & 0777) == 0640);
}

TEST_CASE("names that are no UTF-8 do not keep a plan from its model") {
  const auto odd = changed([](auto& ops) { ops[0].name = "caf\xe9"; });
  const scratch folder;
  comp::save(chosen, odd, {}, folder / "plan.json");
  CHECK(comp::load_plan(folder / "plan.json", odd).plan == chosen);
}

TEST_CASE("a field of an operator that nobody knows is refused: it may be a precision that was misspelt") {
  json file = saved();
  file["operators"][1]["hand_on_fp32"] = true;
  CHECK(has(refusal<comp::file_error>(file), "hand_on_fp32"));
}

TEST_CASE("a message shows no control characters of a file") {
  json file = saved();
  file["\x1b[2J"] = 1;
  const std::string unknown = refusal<comp::file_error>(file);
  CHECK(has(unknown, "field \"\\u001b[2J\" is 1"));
  file = saved();
  file["operators"][0]["name"] = "\x1b[2J" + std::string(10'000, 'x');
  const std::string other = refusal<comp::plan_error>(file);
  CHECK(has(other, "its operator 0 is \"\\u001b[2Jxxx"));
  CHECK(other.size() < 500);
  for (const char c : unknown + other) CHECK(c >= ' ');
}
