// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <comp/core/error.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/systems/system_rules.hpp>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <range/v3/range/conversion.hpp>
#include <range/v3/view/join.hpp>
#include <range/v3/view/split.hpp>
#include <range/v3/view/transform.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "checks.hpp"

namespace train {

namespace {

std::vector<std::string> all_models() {
  std::vector<std::string> all = native_models;
  for (const std::string& name : libtorch_models) {
    if (std::ranges::find(all, name) == all.end()) all.push_back(name);
  }
  return all;
}

/// Throws: `error` for an option that only other backends or models have: it would have no effect here.
void require_heard(const options& chosen) {
  const options usual;
  const std::string backend = "backend " + chosen.backend, model = "model " + chosen.model;
  const bool cuda = chosen.backend == "cuda", libtorch = chosen.backend == "libtorch";
  const bool transformer = chosen.model == "transformer", bert = chosen.model == "bert";
  const bool graph = chosen.model == "gcn" || chosen.model == "gat";
  const bool of_gan = chosen.size == "connected" || chosen.size == "convolutional";
  const auto heard = [](bool fits, const std::string& given, const std::string& with, const char* why) {
    const bool several = given.find(" --") != std::string::npos;
    comp::require<comp::error>(fits, "{} with {} ({}): leave {} out", given, with, why, several ? "them" : "it");
  };
  heard(!libtorch || ((chosen.scaling == "pytorch" || chosen.scaling == "off") && chosen.accumulate == 1),
        fmt::format("--scaling {} --accumulate {}", chosen.scaling, chosen.accumulate), backend,
        "which has pytorch's scaling or off, and no micro-batches");
  heard(cuda || chosen.gpu == 0, fmt::format("--gpu {}", chosen.gpu), backend, "only cuda has it");
  heard(libtorch || chosen.side == 0, fmt::format("--side {}", chosen.side), backend, "only libtorch has it");
  heard(!libtorch || chosen.attention == "auto", "--attention " + chosen.attention, backend,
        "only host and cuda have it");
  heard(cuda || chosen.captured == "measured", "--captured " + chosen.captured, backend, "only cuda has it");
  heard(!cuda || chosen.target.empty(), "--target " + chosen.target, backend, "only host and libtorch have it");
  heard(transformer || bert || chosen.attention == "auto", "--attention " + chosen.attention, model,
        "only transformer and bert have it");
  heard(transformer || std::tie(chosen.layers, chosen.width, chosen.heads, chosen.context) ==
                           std::tie(usual.layers, usual.width, usual.heads, usual.context),
        fmt::format("--layers {} --width {} --heads {} --context {}", chosen.layers, chosen.width, chosen.heads,
                    chosen.context),
        model, "only the transformer has them");
  heard(chosen.weights.empty() || (bert && libtorch), "--weights " + chosen.weights.string(), model,
        "only bert has it, with backend libtorch");
  heard(!graph || (chosen.batch == 0 && chosen.limit == 0),
        fmt::format("--batch {} --limit {}", chosen.batch, chosen.limit), model, "a step is the whole graph");
  heard(chosen.size.empty() || chosen.model == (of_gan                   ? "gan"
                                                : chosen.size == "plain" ? "vgg16"
                                                                         : "bert"),
        "--size " + chosen.size, model, "bert has base, small and tiny, gan connected and convolutional, vgg16 plain");
}

/// Makes the choices of the paper's search, which scales no losses. Throws: `settings_error` for a strategy beside it.
void choose_paper(options& chosen) {
  const auto enumerates = [](std::string& stage, const char* unless) {
    comp::require<comp::settings_error>(
        stage == unless || stage == "none",
        "--search paper with strategy {} (the paper enumerates): leave it out, or give none to skip the stage", stage);
    if (stage != "none") stage = "exhaustive";
  };
  enumerates(chosen.stage1, "guided");
  enumerates(chosen.stage2, "greedy");
  chosen.scaling = "off";
  if (chosen.precisions == "auto") chosen.precisions = "fp16";
}

/// Throws: `settings_error` for strategies that do not go together.
void require_strategies(const options& chosen) {
  comp::require<comp::settings_error>(
      chosen.stage1 != "none" || chosen.stage2 != "none",
      "both stages are none (there is nothing to search): name a strategy, or use --plan");
  comp::require<comp::settings_error>(
      chosen.stage1 != "guided" || chosen.stage2 == "greedy",
      "--stage2 {} with --stage1 guided (guided does both stages): leave it out, or name another --stage1",
      chosen.stage2);
}

/// Returns: a command line as a shell takes it, without the options `without` and their values.
std::string command_line(const std::vector<std::string_view>& words, const std::vector<std::string_view>& without) {
  std::string line;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view option = words[i].substr(0, words[i].find('='));
    if (std::ranges::find(without, option) == without.end()) {
      line += (i > 0 ? " " : "") + in_shell(std::string{words[i]});
    } else if (option == words[i] && option != "--resume") {
      ++i;  // its value
    }
  }
  return line;
}

/// The options that --help shows. --help-all shows every one.
constexpr std::array usual_options{"--help",         "--help-all", "--model",      "--data",   "--backend",
                                   "--epochs",       "--rules",    "--precisions", "--target", "--tolerance",
                                   "--memory-limit", "--plan",     "--out",        "--resume"};

/// Shows of each option one line: the kind of what it takes, its default, and its description up to a semicolon.
struct short_lines : CLI::Formatter {
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string kind = option->get_type_name(), usual = option->get_default_str();
    if (option->get_type_size() == 0) return "";
    return " " + kind.substr(0, kind.find_first_of(":[")) + (usual.empty() ? "" : "=" + usual);
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string whole = option->get_description();
    return whole.substr(0, whole.find(';'));
  }
};

/// `brief`: `app` is to print --help, which hides an option's name; a complaint needs the name.
void describe(CLI::App& app, options& chosen, bool brief) {
  // ./run demo passes its own options before the user's, which must win.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.description(
      "Trains a model and finds, while doing so, the precision of each operator that trains fastest and\n"
      "still converges. "
      "Writes plan.json, report.html (open it) and more into --out.");
  app.footer(
      "train --model vgg16 --data cifar-100-binary --epochs 10 --out out/vgg\n"
      "Ctrl-C, a hang-up or a kill end it in good order; the same command with --resume goes on.");
  app.set_help_all_flag("--help-all", "Print every option, with the values that it takes");
  app.set_version_flag("--version", fmt::format("comp {}", comp::detail::comp_version));
  const auto group = [&](const char* name) { app.option_defaults()->group(name); };
  // Without a default in its help: what is not given is the model's, or nothing.
  const auto add = [&](const char* name, auto& to, const std::string& words, auto... checks) {
    CLI::Option* option = app.add_option(name, to, words);
    (option->transform(checks), ...);
    return option;
  };
  const auto add_with_default = [&](const char* name, auto& to, const std::string& words, auto... checks) {
    add(name, to, words, checks...)->capture_default_str();
  };

  group("The job");
  const std::vector<std::string> models = all_models();
  add_with_default("--model", chosen.model,
                   models | ranges::views::join(std::string_view{", "}) | ranges::to<std::string>(),
                   CLI::IsMember(models));
  add("--data", chosen.data,
      "What to train on, a file or folder; a text file (transformer), a folder in MNIST's or CIFAR's standard layout, a "
      "CIFAR .bin file, the digits' .csv.gz, a folder of SQuAD (bert), a graph (gcn, gat: made up without it); with "
      "libtorch also folders of JPEG pictures by class, and without it made-up data of the same shapes");
  add_with_default("--backend", chosen.backend,
                   "host is this CPU, cuda an NVIDIA GPU, libtorch is LibTorch; host computes by oneDNN",
                   CLI::IsMember({"host", "cuda", "libtorch"}));
  add_with_default("--epochs", chosen.epochs, "Epochs to train in all; batches that the search trained for good count",
                   whole(1, 1000000));
  add_with_default(
      "--finish", chosen.finish,
      "Part of the training, at its end, that has a higher precision where its loss is lower: 0.1 is a tenth",
      real(0.0, 1.0));
  add("--batch", chosen.batch, "Examples per batch (default: the model's)", whole(1, 1 << 20));
  add("--limit", chosen.limit, "Training examples per epoch, the first ones (default: all); of images no more validate",
      whole(1, std::uint64_t{1} << 40));
  add("--learning-rate", chosen.learning_rate, "Of the optimiser (default: the model's)", positive());
  add_with_default(
      "--scaling", chosen.scaling,
      "Loss scaling while a plan has FP16: pytorch, off, or, with host and cuda, paddle, paddle-guide, keras, or a "
      "number, which is a static scale",
      CLI::Validator{[](std::string& text) { return check_scaling(text); }, "NAME|NUMBER"});
  add_with_default(
      "--accumulate", chosen.accumulate,
      "Batches whose gradients make a step, of the host and cuda backends; each is as large as --batch says",
      whole(1, 1 << 16));
  add_with_default("--seed", chosen.seed, "Of weights, shuffling and dropout",
                   whole(0, std::numeric_limits<std::uint64_t>::max()));
  add("--threads", chosen.threads, "Threads that compute (default: all cores)", whole(1, 1024));
  add_with_default("--gpu", chosen.gpu, "Which GPU the cuda backend trains on", whole(0, 1023));
  add_with_default(
      "--captured", chosen.captured,
      "Forward and backward of the cuda backend's steps as one CUDA graph: measured does so after the search "
      "where it is faster, on does so in all epochs",
      CLI::IsMember({"off", "measured", "on"}));
  add("--size", chosen.size,
      "Of bert: base, small or tiny; of gan: connected or, with libtorch, convolutional; of vgg16: plain is without "
      "batch norm",
      CLI::IsMember({"base", "small", "tiny", "connected", "convolutional", "plain"}));
  add("--weights", chosen.weights,
      "Pre-trained weights of libtorch's bert: a safetensors file with Hugging Face's names; the learning rate is then "
      "3e-5",
      CLI::ExistingFile);
  add("--side", chosen.side, "What libtorch brings JPEG pictures to: 224 is ImageNet's (default: 64)", whole(32, 1024));
  add_with_default("--layers", chosen.layers, "Blocks of the transformer", whole(1, 96));
  add_with_default("--width", chosen.width, "Width of the transformer", whole(8, 16384));
  add_with_default("--heads", chosen.heads, "Attention heads of the transformer", whole(1, 128));
  add_with_default(
      "--attention", chosen.attention,
      "Of transformer and bert: parts, or one operator, which host and cuda may compute in one; auto is one on cuda, "
      "else parts",
      CLI::IsMember({"auto", "parts", "one"}));
  add_with_default("--context", chosen.context, "Characters that the transformer sees", whole(2, 8192));

  group("The search");
  add_with_default("--policy", chosen.policy,
                   "Which operators may change precision; auto is pytorch-cuda on a GPU, else pytorch-cpu",
                   CLI::IsMember({"auto", "pytorch-cpu", "pytorch-cuda", "fp32"}));
  add_with_default(
      "--rules", chosen.rules,
      "Systems with whose rules the found plan is compared, as pytorch,tvm; joined by commas: pytorch, tensorflow, tvm, "
      "paddle-od, paddle-o1, paddle-o2; all or none. Each distinct plan costs the batches that judge its loss and its "
      "turns in the head-to-head",
      CLI::Validator{[](std::string& text) { return check_rules(text); }, "LIST|all|none"});
  add_with_default(
      "--search", chosen.search,
      "paper is the CoMP paper's own: an epoch of FP32 and of each plan of stage 1, a batch of each plan of stage 2, "
      "fp16 unless --precisions says otherwise, and no loss scaling",
      CLI::IsMember({"comp", "paper"}));
  add_with_default(
      "--stage1", chosen.stage1,
      "Strategy judged by losses. guided does both stages: it proposes whole plans by what operators and casts cost; "
      "none looks at no loss (may not converge)",
      CLI::IsMember({"guided", "exhaustive", "greedy", "none"}));
  add_with_default("--stage2", chosen.stage2,
                   "Strategy judged by times, after a --stage1 other than guided; none skips the stage",
                   CLI::IsMember({"exhaustive", "greedy", "none"}));
  add_with_default("--plans", chosen.plans, "Plans of a stage that exhaustive may try; a larger space is refused",
                   whole(1, 1 << 30));
  add_with_default("--tie", chosen.tie,
                   "Operators that change together, where --stage1 is not guided: of one kind, of one scope, or none",
                   CLI::IsMember({"kind", "scope", "none"}));
  add_with_default(
      "--precisions", chosen.precisions,
      "Low precisions to search, joined by commas; auto: those that this machine, or the --target, speeds up, or bf16. "
      "Where formats below 16 bits are among them, bf16 is too",
      CLI::Validator{[](std::string& text) { return check_precisions(text); }, "LIST|auto"});
  add_with_default(
      "--products", chosen.products,
      "Whether the products of a linear layer's backward have precisions of their own; auto: where formats below 16 "
      "bits are searched, or --plan has such operators",
      CLI::IsMember({"auto", "together", "separate"}));
  app.add_flag(
      "--moments", chosen.moments,
      "Lets a plan keep the optimizer's moments in BF16, rounded at random (host); a --plan that has them does "
      "so without it");
  add("--target", chosen.target,
      "Find the plan of a GPU that is not here, as B200; with host and libtorch: losses are of this CPU, times are "
      "modelled for that GPU",
      CLI::Validator{
          [](std::string& name) { return std::string{name.empty() ? "no GPU is named: name one, as B200" : ""}; },
          "GPU"});
  add_with_default("--tolerance", chosen.tolerance, "How far above FP32's a plan's loss may be, as a part of it",
                   real(0.0, 9.0));
  add_with_default("--level", chosen.level,
                   "Chance that a plan is wrongly accepted, or wrongly rejected; a lower one takes more batches",
                   real(1e-6, 0.49));
  add_with_default(
      "--budget", chosen.budget,
      "Part of the training (--epochs, or 100 where that is more) that the search may cost; while much is to be gained, "
      "eight times that",
      real(0.0, 1.0));
  add_with_default(
      "--judge-by", chosen.judge_by,
      "What decides whether a plan trains: losses of as few batches as decide, mean losses of whole epochs (the CoMP "
      "paper's rule), or validation scores after whole epochs",
      CLI::IsMember({"batches", "epochs", "scores"}));
  add("--memory-limit", chosen.memory_limit,
      "Most memory that a plan may need, as 4GiB (default: no limit); in bytes, or as 800MiB", CLI::AsSizeValue(false),
      digits_first())
      ->check(whole(0, std::numeric_limits<std::int64_t>::max()).description(""));
  add_with_default("--slowdown", chosen.slowdown,
                   "The plan with the least memory is wanted of those that are by such a part slower than the fastest",
                   real(0.0, 9.0));
  add("--warm-start", chosen.warm_start,
      "Begin with the plan of this file too, of another batch size, machine or version of the model",
      CLI::ExistingFile);
  add("--plan", chosen.plan, "Train with this plan file instead of searching", CLI::ExistingFile);

  group("Files");
  add_with_default("--out", chosen.out, "Folder for what is written; made when missing");
  app.add_flag("--resume", chosen.resume,
               "Go on with the search or the training in --out; without this option they are kept as *.old");
  add("--weights-out", chosen.weights_out,
      "Also write the trained weights: in safetensors' format, with libtorch in LibTorch's own");
  if (!brief) return;
  const auto lines = std::make_shared<short_lines>();
  lines->column_width(28);
  app.formatter(lines);
  for (CLI::Option* option : app.get_options()) {
    const std::string called = option->get_name();
    const bool shown = std::ranges::find(usual_options, called) != usual_options.end();
    option->group(shown ? "Options" : "");
  }
}

}  // namespace

std::vector<std::string> split(const std::string& text) {
  const auto as_string = [](auto&& part) { return part | ranges::to<std::string>(); };
  return text | ranges::views::split(',') | ranges::views::transform(as_string) | ranges::to<std::vector>();
}

comp::rival_source rivals_of(const std::string& rules, const comp::hardware& on) {
  if (rules == "none") return {};
  return comp::system_rules(rules == "all" ? std::vector<std::string>{} : split(rules), on);
}

void require_model_of(const options& chosen, const std::vector<std::string>& models) {
  comp::require<comp::error>(std::ranges::find(models, chosen.model) != models.end(),
                             "{} is no model of backend {} (it trains {}): choose one of those, or another --backend",
                             chosen.model, chosen.backend,
                             models | ranges::views::join(std::string_view{", "}) | ranges::to<std::string>());
}

int threads_of(const options& chosen) {
  cpu_set_t allowed;
  if (chosen.threads == 0 || ::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return chosen.threads;
  const int cores = CPU_COUNT(&allowed);
  if (chosen.threads <= cores) return chosen.threads;
  fmt::print(stderr, "Note: --threads {} on a machine that runs {} at once: {} are used\n", chosen.threads, cores,
             cores);
  return cores;
}

void tell_of_busy_cores() {
  std::ifstream counts{"/proc/stat"};
  std::string word;
  long running = 0;
  while (counts >> word && word != "procs_running") {
  }
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (!(counts >> running) || running <= cores || std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT"))
    return;
  fmt::print(
      stderr,
      "Note: {} threads of other programs want the {} cores (threads that wait for each other spin, and slow each other "
      "down then): OMP_WAIT_POLICY=passive trains faster on a busy machine\n",
      running - 1, cores);
}

void require_data(const options& chosen) {
  const bool made_up = chosen.model == "gcn" || chosen.model == "gat" || chosen.model == "simplenet";
  comp::require<comp::error>(made_up || !chosen.data.empty(),
                             "no data for {} (backend {} makes up none): name a file or folder with --data",
                             chosen.model, chosen.backend);
}

/// Returns: a word of a command line, quoted if a shell needs it.
std::string in_shell(const std::string& word) {
  const auto plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_-./=,:+@%", c); };
  if (!word.empty() && std::ranges::all_of(word, plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string{"'\\''"} : std::string{c};
  return quoted + "'";
}

/// Returns whether --plan lists an operator that `is_one` holds for.
bool plan_lists(const options& chosen, bool (*is_one)(const std::string& name)) {
  if (chosen.plan.empty()) return false;
  try {
    const comp::plan_listing listed = comp::load_listing(chosen.plan.string());
    return listed.operators && std::ranges::any_of(*listed.operators, [&](const auto& op) { return is_one(op.name); });
  } catch (const comp::error&) {
    return false;  // what is wrong with the file is said when the plan is loaded
  }
}

bool keeps_moments(const options& chosen) {
  return chosen.moments ||
         plan_lists(chosen, [](const std::string& name) { return name.starts_with("optimizer.moment"); });
}

bool separates_products(const options& chosen) {
  if (chosen.products != "auto") return chosen.products == "separate";
  if (!chosen.plan.empty()) {
    return plan_lists(chosen, [](const std::string& name) { return comp::gradient_named(name) != comp::product::all; });
  }
  if (chosen.precisions == "auto") return !chosen.target.empty();
  return std::ranges::any_of(split(chosen.precisions), [](const std::string& name) {
    return is_scaled(*comp::precision_of(std::string_view{name}));
  });
}

std::optional<int> read_options(int argc, char** argv, options& chosen) {
  CLI::App app;
  const std::vector<std::string_view> words{argv, argv + argc};
  const auto has = [&](std::string_view word) { return std::ranges::find(words, word) != words.end(); };
  describe(app, chosen, has("--help") || has("-h"));
  CLI11_PARSE(app, argc, argv);
  chosen.command = command_line(words, {});
  chosen.training_command = command_line(words, {"--warm-start", "--resume"});
  if (chosen.search == "paper") choose_paper(chosen);
  require_heard(chosen);
  require_strategies(chosen);
  return std::nullopt;
}

}  // namespace train
