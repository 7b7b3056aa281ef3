// SPDX-License-Identifier: Apache-2.0
// g++ 12 takes an optional's empty tensor in torch::data::DataLoader for one that is read.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <comp_libtorch/support/memory.hpp>
#include <comp_libtorch/train/data_order.hpp>
#include <comp_libtorch/train/replayed.hpp>
#include <comp_libtorch/train/training_signature.hpp>
#include <comp_libtorch/train/training_state.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "torch_and_doctest.hpp"

namespace lt = comp::libtorch;
namespace optim = torch::optim;

namespace {

struct tiny_net : torch::nn::Module {
  torch::nn::Linear first{4, 8}, second{8, 2};
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Dropout dropout{0.3};

  tiny_net() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("dropout", dropout);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(dropout(torch::relu(norm(first(x))))); }
};

/// An optimizer of a user's own, whose state is known to LibTorch's serialization alone.
struct own_state : optim::OptimizerCloneableParamState<own_state> {
  at::Tensor average;
  std::int64_t count = 0;

  void serialize(torch::serialize::InputArchive& from) override {
    from.read("average", average);
    c10::IValue n;
    from.read("count", n);
    count = n.toInt();
  }
  void serialize(torch::serialize::OutputArchive& to) const override {
    to.write("average", average);
    to.write("count", c10::IValue{count});
  }
};
struct own_options : optim::OptimizerCloneableOptions<own_options> {
  double rate = 0.1;
  double get_lr() const override { return rate; }
  void set_lr(double lr) override { rate = lr; }
  void serialize(torch::serialize::OutputArchive& to) const override { to.write("rate", c10::IValue{rate}); }
};
struct own_optimizer : optim::Optimizer {
  explicit own_optimizer(std::vector<at::Tensor> p) : Optimizer{std::move(p), std::make_unique<own_options>()} {}
  at::Tensor step(LossClosure closure = nullptr) override {
    if (closure) closure();
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (auto& p : group.params()) {
        auto& entry = state()[p.unsafeGetTensorImpl()];
        if (!entry) entry = std::make_unique<own_state>();
        auto& mine = static_cast<own_state&>(*entry);
        mine.average = mine.average.defined() ? mine.average * 0.5 + p.grad() : p.grad().clone();
        p.sub_(mine.average, group.options().get_lr() / static_cast<double>(++mine.count));
      }
    }
    return {};
  }
};

struct bare_state : optim::OptimizerParamState {};

using maker = std::function<std::unique_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;

template <class Optimizer, class Options>
maker of(Options options) {
  return [=](std::vector<at::Tensor> p) { return std::make_unique<Optimizer>(std::move(p), options); };
}

const std::map<std::string, maker> some_optimizers{
    {"SGD", of<optim::SGD>(optim::SGDOptions{0.1})},
    {"SGD with momentum", of<optim::SGD>(optim::SGDOptions{0.1}.momentum(0.9).nesterov(true))},
    {"Adam", of<optim::Adam>(optim::AdamOptions{0.01})},
    {"Adam amsgrad", of<optim::Adam>(optim::AdamOptions{0.01}.amsgrad(true))},
    {"AdamW", of<optim::AdamW>(optim::AdamWOptions{0.01})},
    {"RMSprop", of<optim::RMSprop>(optim::RMSpropOptions{0.01}.momentum(0.5).centered(true))},
    {"Adagrad", of<optim::Adagrad>(optim::AdagradOptions{0.05})},
    {"LBFGS", of<optim::LBFGS>(optim::LBFGSOptions{0.5}.max_iter(4))},
    {"a user's own", [](std::vector<at::Tensor> p) { return std::make_unique<own_optimizer>(std::move(p)); }}};

struct training {
  std::shared_ptr<tiny_net> net = std::make_shared<tiny_net>();
  std::unique_ptr<optim::Optimizer> optimizer;
  lt::setup setup;

  explicit training(const maker& make) : optimizer{make(net->parameters())} {
    setup.modules = {{"net", *net}};
    setup.optimizers = {optimizer.get()};
  }
  /// Draws its data from LibTorch's generator, as dropout does.
  double step() {
    const auto x = torch::randn({16, 4}), y = torch::randn({16, 2});
    double loss = 0;
    optimizer->step([&] {
      optimizer->zero_grad();
      const auto l = torch::mse_loss(net->forward(x), y);
      l.backward();
      loss = l.item<double>();
      return l;
    });
    optimizer->param_groups()[0].options().set_lr(optimizer->param_groups()[0].options().get_lr() * 0.9);
    return loss;
  }
  std::vector<double> steps(int n) {
    std::vector<double> losses;
    for (int i = 0; i < n; ++i) losses.push_back(step());
    return losses;
  }
};

/// 10 examples 0..9 with targets 0..9.
lt::indexed_batches<torch::data::Example<>> ten(lt::batch_options options, lt::augmentation augment = {}) {
  return lt::tensor_batches(torch::arange(10, torch::kFloat).reshape({10, 1}), torch::arange(10), options, augment);
}

/// What an epoch of batches holds, joined.
std::vector<float> epoch_of(auto& source) {
  std::vector<float> values;
  while (auto batch = source.next()) {
    const at::Tensor flat = batch->data.reshape({-1}).contiguous();
    values.insert(values.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
  }
  return values;
}

}  // namespace

TEST_CASE("a restored state trains on to the same losses bit for bit, with every optimizer") {
  for (const auto& [name, make] : some_optimizers) {
    CAPTURE(name);
    torch::manual_seed(3);
    training t{make};
    const auto fresh = lt::save_training(t.setup, at::kCPU);
    const auto first = t.steps(3);
    const auto later = lt::save_training(t.setup, at::kCPU);
    const auto second = t.steps(3);
    lt::restore_training(later, t.setup, at::kCPU);
    CHECK(t.steps(3) == second);
    lt::restore_training(fresh, t.setup, at::kCPU);  // the optimizer's entries were not there then
    if (name != "Adagrad") CHECK(t.optimizer->state().empty());
    CHECK(t.steps(3) == first);
    CHECK(t.steps(3) == second);
    lt::restore_training(later, t.setup, at::kCPU);  // and again, from a state that was used before
    CHECK(t.steps(3) == second);
    CHECK(first != second);
    CHECK(later.bytes() >= fresh.bytes());
  }
}

TEST_CASE("tensors and options keep their identity") {
  training t{some_optimizers.at("Adam")};
  t.step();
  const auto& options = t.optimizer->param_groups()[0].options();
  const auto weight = t.net->first->weight;
  const auto moment =
      static_cast<optim::AdamParamState&>(*t.optimizer->state().at(weight.unsafeGetTensorImpl())).exp_avg();
  const auto saved = lt::save_training(t.setup, at::kCPU);
  const auto value = weight.detach().clone();
  const auto average = moment.clone();
  t.step();
  CHECK_FALSE(torch::equal(weight, value));
  lt::restore_training(saved, t.setup, at::kCPU);
  CHECK(t.net->first->weight.is_same(weight));
  CHECK(torch::equal(weight, value));
  CHECK(torch::equal(moment, average));
  CHECK(&options == &t.optimizer->param_groups()[0].options());
}

TEST_CASE("what is frozen, pending gradients and running statistics come back") {
  training t{some_optimizers.at("SGD")};
  t.net->first->weight.set_requires_grad(false);
  t.net->second->weight.mutable_grad() = torch::full({2, 8}, 2.F);
  const auto mean = t.net->norm->running_mean.clone();
  const auto saved = lt::save_training(t.setup, at::kCPU);
  t.net->first->weight.set_requires_grad(true);
  t.step();
  lt::restore_training(saved, t.setup, at::kCPU);
  CHECK_FALSE(t.net->first->weight.requires_grad());
  CHECK(t.net->second->weight.grad()[0][0].item<float>() == 2);
  CHECK_FALSE(t.net->second->bias.grad().defined());
  CHECK(torch::equal(t.net->norm->running_mean, mean));
  CHECK(t.net->norm->num_batches_tracked.item<std::int64_t>() == 0);
}

TEST_CASE("what the user adds to the state comes back, and own generators too") {
  training t{some_optimizers.at("SGD")};
  int counter = 1;
  auto generator = at::detail::createCPUGenerator(5);
  t.setup.generators = {generator};
  t.setup.extra = {[&] { return std::any{counter}; }, [&](const std::any& s) { counter = std::any_cast<int>(s); }};
  const auto saved = lt::save_training(t.setup, at::kCPU);
  counter = 7;
  const auto drawn = torch::rand({3}, generator);
  lt::restore_training(saved, t.setup, at::kCPU);
  CHECK(counter == 1);
  CHECK(torch::equal(torch::rand({3}, generator), drawn));
}

TEST_CASE("the state of another model, or of an optimizer that cannot be copied, is refused") {
  training t{some_optimizers.at("Adam")};
  const auto saved = lt::save_training(t.setup, at::kCPU);
  torch::nn::Linear other{4, 8};
  optim::Adam others{other->parameters(), 0.1};
  lt::setup wrong{.modules = {{"net", other}}, .optimizers = {&others}};
  CHECK_THROWS_WITH_AS(lt::restore_training(saved, wrong, at::kCPU),
                       "state of 9 parameters and buffers and 1 optimizers for a training of 2 and 1 (it is another "
                       "training's): save and restore one trainer",
                       comp::error);
  t.optimizer->state()[t.net->first->weight.unsafeGetTensorImpl()] = std::make_unique<bare_state>();
  try {
    lt::save_training(t.setup, at::kCPU);
    FAIL("it was copied");
  } catch (const comp::error& e) {
    CHECK(std::string{e.what()}.find("bare_state cannot be copied (it neither clones nor serializes itself)") !=
          std::string::npos);
  }
}

TEST_CASE("an optimizer says its class and options") {
  training t{some_optimizers.at("SGD with momentum")};
  const std::string words = lt::text(*t.optimizer);
  CHECK(words.find("SGD [6 ") != std::string::npos);
  CHECK(words.find("lr=0.1") != std::string::npos);
  CHECK(words.find("momentum=0.9") != std::string::npos);
  CHECK(lt::text(own_optimizer{t.net->parameters()}).find("rate=0.1") != std::string::npos);
}

TEST_CASE("settings of a training that cannot work are refused") {
  training t{some_optimizers.at("SGD")};
  lt::setup s = t.setup;
  SUBCASE("no optimizer") { s.optimizers = {}; }
  SUBCASE("a null optimizer") { s.optimizers = {nullptr}; }
  SUBCASE("two models of one name") { s.modules.push_back(s.modules.front()); }
  SUBCASE("half an extra state") {
    s.extra.save = [] { return std::any{}; };
  }
  SUBCASE("no profile steps") { s.profile_steps = 0; }
  CHECK_THROWS_AS(lt::require_usable(s), comp::settings_error);
}

TEST_CASE("batches in memory: each example once per epoch, in an order that seed and epoch decide") {
  auto batches = ten({.batch = 3, .seed = 5, .keep_last = true});
  static_assert(lt::BatchSource<decltype(batches)>);
  auto first = epoch_of(batches), second = epoch_of(batches);
  CHECK(first != second);
  auto again = ten({.batch = 3, .seed = 5, .keep_last = true});
  CHECK(epoch_of(again) == first);
  auto other = ten({.batch = 3, .seed = 6, .keep_last = true});
  CHECK(epoch_of(other) != first);
  std::ranges::sort(first);
  CHECK(first == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  auto without_last = ten({.batch = 3});
  CHECK(epoch_of(without_last).size() == 9);
  CHECK(without_last.batches_per_epoch() == 3);
  CHECK(ten({.batch = 3, .seed = 1}).signature() != ten({.batch = 3, .seed = 2}).signature());
}

TEST_CASE("a position in memory comes back with its augmentation, in any epoch") {
  const auto noisy = [](at::Tensor x, at::Generator& g) { return x + torch::rand(x.sizes(), g); };
  auto batches = ten({.batch = 2}, noisy);
  epoch_of(batches);
  batches.next();
  const auto at = batches.position();
  const auto rest = epoch_of(batches), next = epoch_of(batches);
  batches.seek(at);
  CHECK(epoch_of(batches) == rest);
  CHECK(epoch_of(batches) == next);
  batches.seek(at);
  batches.begin_epoch();
  CHECK(epoch_of(batches) == next);
  batches.begin_epoch();
  batches.begin_epoch();  // nothing was taken: the same epoch
  CHECK(batches.position().epoch == 3);
}

TEST_CASE("data without a full batch, or with other targets, are refused") {
  CHECK_THROWS_AS(ten({.batch = 11}), comp::settings_error);
  CHECK(ten({.batch = 11, .keep_last = true}).batches_per_epoch() == 1);
  CHECK_THROWS_AS(ten({.batch = 0}), comp::settings_error);
  CHECK_THROWS_AS(lt::tensor_batches(torch::ones({3, 1}), torch::ones({4})), comp::settings_error);
}

TEST_CASE("a shuffling DataLoader is replayed from where a state was saved, workers or not") {
  for (const std::size_t workers : {0, 2}) {
    CAPTURE(workers);
    torch::manual_seed(1);
    auto data = torch::data::datasets::TensorDataset{torch::arange(10, torch::kFloat)}.map(
        torch::data::transforms::Stack<torch::data::TensorExample>{});
    auto batches = lt::replayed(torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
        std::move(data), torch::data::DataLoaderOptions{2}.workers(workers)));
    static_assert(lt::BatchSource<decltype(batches)>);
    const auto first = epoch_of(batches);
    CHECK(first.size() == 10);
    CHECK(batches.kept_bytes() == 0);  // no state needs them
    batches.next();
    auto at = batches.position();
    const auto rest = epoch_of(batches), next = epoch_of(batches);
    CHECK(rest.size() == 8);
    CHECK(next.size() == 10);
    CHECK(batches.kept_bytes() == 72);
    batches.seek(at);
    CHECK(epoch_of(batches) == rest);
    CHECK(epoch_of(batches) == next);
    CHECK(epoch_of(batches).size() == 10);  // and on
    batches.seek(at);
    batches.begin_epoch();
    CHECK(epoch_of(batches) == next);
    at = {};
    batches.next();
    CHECK(batches.kept_bytes() <= 40);  // what was taken after the last replay and is still to come
  }
}

TEST_CASE("a loader whose batches exceed the limit trains on but cannot go back") {
  int n = 0;
  auto batches = lt::replayed(
      [&]() -> std::optional<at::Tensor> {
        if (++n % 5 == 0) return std::nullopt;
        return torch::full({4}, static_cast<float>(n));
      },
      {.limit_bytes = 40});
  const auto at = batches.position();
  CHECK(batches.next()->numel() == 4);
  batches.next();
  batches.seek(at);
  CHECK((*batches.next())[0].item<float>() == 1);
  batches.next();
  CHECK((*batches.next())[0].item<float>() == 3);
  CHECK(batches.kept_bytes() == 0);
  CHECK_THROWS_WITH_AS(
      batches.seek(at),
      "batches since the saved state are no longer kept (they were more than 40 bytes, and this loader "
      "cannot go back): raise replay_options::limit_bytes, or use indexed_batches",
      comp::error);
  const auto later = batches.position();
  CHECK((*batches.next())[0].item<float>() == 4);
  CHECK_FALSE(batches.next().has_value());
  batches.seek(later);
  CHECK((*batches.next())[0].item<float>() == 4);
}

TEST_CASE("peak memory counts what was in use at once, over what was held") {
  constexpr std::int64_t mega = 1 << 20;
  auto kept = torch::empty({mega}, torch::kByte);
  const lt::memory_meter meter{at::kCPU, lt::bytes_held({kept, kept.slice(0, 0, 10), at::Tensor{}})};
  CHECK(meter.peak() == mega);
  { auto two = torch::empty({2 * mega}, torch::kByte); }
  { auto one = torch::empty({mega}, torch::kByte); }
  CHECK(meter.peak() >= 3 * mega);
  CHECK(meter.peak() < 3 * mega + 4096);
  SUBCASE("in backward too") {
    auto w = torch::ones({mega}, torch::requires_grad());
    (w * w).sum().backward();
    CHECK(meter.peak() >= 1 * mega + 4 * 3 * mega);  // w, the product, the gradient
  }
  SUBCASE("and in other threads") {
    std::thread{[] { torch::empty({5 * mega}, torch::kByte); }}.join();
    CHECK(meter.peak() >= 6 * mega);
  }
  SUBCASE("not what was given back before") {
    const lt::memory_meter later{at::kCPU, 0};
    CHECK(later.peak() == 0);
    auto small = torch::empty({mega / 2}, torch::kByte);
    CHECK(later.peak() >= mega / 2);
    CHECK(later.peak() < mega);
    small = at::Tensor{};
    kept = at::Tensor{};  // older than the meter: it is not below zero
    CHECK(later.peak() >= mega / 2);
  }
}

TEST_CASE("pages of freed memory serve again, and are the system's when they are released or not kept") {
  constexpr std::int64_t megas = 64;
  const auto faults = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt;
  };
  const auto faults_of_use = [&] {
    const auto before = faults();
    torch::ones({megas << 20}, torch::kByte);
    return faults() - before;
  };
  const auto* const before = c10::GetCPUAllocator();
  if (before == c10::GetDefaultCPUAllocator()) {  // no test before this one has kept memory
    lt::keep_freed_memory(false);
    const lt::program none{{.freed = lt::freed_memory::returned}};
    lt::release_freed_memory();
    CHECK(c10::GetCPUAllocator() == before);
  }
  lt::keep_freed_memory(true);
  (void)faults_of_use();
  CHECK(faults_of_use() < megas);
  lt::release_freed_memory();
  CHECK(faults_of_use() >= megas / 2);  // huge pages have 2 MiB
  lt::keep_freed_memory(false);
  CHECK(faults_of_use() >= megas / 2);
  const lt::program program;
  CHECK(faults_of_use() < megas);
  const lt::program other{{.freed = lt::freed_memory::returned}};
  CHECK(faults_of_use() >= megas / 2);
  lt::keep_freed_memory(true);
}

TEST_CASE("blocks of kept memory never overlap, lie as LibTorch's do, and join again when they are freed") {
  lt::detail::page_keeper pages{32 << 20};
  std::mt19937 draw{7};
  std::vector<std::pair<std::byte*, std::size_t>> held;
  for (int step = 0; step < 20000; ++step) {
    if (held.empty() || draw() % 5 < 3) {
      const std::size_t bytes = pages.smallest + draw() % 300'000;
      auto* block = static_cast<std::byte*>(pages.allocate(bytes));
      if (block == nullptr) {
        REQUIRE(held.size() > 10);
      } else {
        REQUIRE(reinterpret_cast<std::uintptr_t>(block) % 64 == 0);
        REQUIRE(pages.owns(block));
        REQUIRE(pages.owns(block + bytes - 1));
        REQUIRE(pages.size_of(block) >= bytes);
        REQUIRE(pages.size_of(block) < bytes + 64);
        for (const auto& [other, size] : held) REQUIRE((block + bytes <= other || other + size <= block));
        std::memset(block, step, bytes);
        held.emplace_back(block, bytes);
        continue;
      }
    }
    std::swap(held[draw() % held.size()], held.back());
    pages.give_back(held.back().first);
    held.pop_back();
    if (step % 1000 == 0) pages.release();
  }
  for (const auto& [block, bytes] : held) pages.give_back(block);
  CHECK(pages.allocate((32 << 20) - 64) != nullptr);  // all of it, in one piece
  CHECK(pages.allocate(pages.smallest) == nullptr);
  CHECK(lt::detail::page_keeper{1 << 20}.allocate(100) == nullptr);
  CHECK(lt::detail::page_keeper{1 << 20}.allocate(SIZE_MAX) == nullptr);
  CHECK(lt::detail::page_keeper{std::size_t{1} << 62}.allocate(1 << 20) == nullptr);  // no such range of addresses
}

TEST_CASE("pages of kept memory go back when no block used them for a while, and those of other blocks stay") {
  constexpr std::size_t mega = 1 << 20;
  lt::detail::page_keeper pages{64 * mega};
  const auto resident = [](void* block, std::size_t bytes) {
    std::vector<unsigned char> in_memory(bytes / 4096);
    auto* const page = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(block) + 4095) / 4096 * 4096);
    REQUIRE(::mincore(page, in_memory.size() * 4096, in_memory.data()) == 0);
    return std::ranges::count_if(in_memory, [](unsigned char each) { return (each & 1) != 0; });
  };
  auto* const used = pages.allocate(8 * mega);
  std::memset(used, 7, 8 * mega);
  auto* const large = pages.allocate(16 * mega);
  std::memset(large, 1, 16 * mega);
  auto* const more = pages.allocate(4 * mega);
  std::memset(more, 2, 4 * mega);
  pages.give_back(large);
  CHECK(pages.keeps());
  pages.release_unused(5);
  CHECK(resident(large, 15 * mega) == 15 * 256);
  std::this_thread::sleep_for(std::chrono::milliseconds{2100});
  pages.give_back(more);
  pages.release_unused(1);
  CHECK(resident(large, 15 * mega) == 0);
  CHECK(resident(more, 3 * mega) > 2 * 256);  // it has only just been freed
  CHECK(pages.keeps());
  CHECK(static_cast<unsigned char*>(used)[8 * mega - 1] == 7);
  pages.release();
  CHECK(resident(more, 3 * mega) == 0);
  CHECK(!pages.keeps());
  CHECK(static_cast<unsigned char*>(used)[0] == 7);
  CHECK(pages.allocate(18 * mega) != nullptr);  // of both, joined
}

TEST_CASE("a process that forks while other threads allocate has a child that can allocate") {
  lt::keep_freed_memory(true);
  auto* const cpu = c10::GetCPUAllocator();
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!done) (void)cpu->allocate(1 << 20);
    });
  }
  int hung = 0;
  for (int i = 0; i < (std::getenv("COMP_TEST_SMALL") != nullptr ? 40 : 100); ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);  // ends a child that hangs
      { (void)cpu->allocate(1 << 20); }
      ::_exit(0);
    }
    int how = 0;
    REQUIRE(::waitpid(child, &how, 0) == child);
    hung += WIFEXITED(how) && WEXITSTATUS(how) == 0 ? 0 : 1;
    if (hung > 0) break;
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(hung == 0);
}

TEST_CASE("kept memory may be used from several threads, and given back in another") {
  lt::keep_freed_memory(true);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; ++t) {
    threads.emplace_back([t, &wrong] {
      at::Tensor kept;
      for (int i = 0; i < 500; ++i) {
        at::Tensor block = torch::full({20'000 + 100 * t}, static_cast<double>(t));
        if (kept.defined() && !kept.eq(t).all().item<bool>()) ++wrong;
        kept = block;
      }
    });
  }
  for (std::thread& each : threads) each.join();
  CHECK(wrong == 0);
}

TEST_CASE("LibTorch's exceptions become comp's, without the stack trace") {
  CHECK_THROWS_AS(lt::translated([] { return torch::empty({std::int64_t{1} << 46}); }), comp::out_of_memory);
  try {
    lt::translated([] { torch::mm(torch::ones({2, 3}), torch::ones({2, 3})); });
    FAIL("it was computed");
  } catch (const comp::out_of_memory&) {
    FAIL("memory has nothing to do with it");
  } catch (const comp::error& e) {
    CHECK(std::string{e.what()}.find("mat1 and mat2 shapes cannot be multiplied") < 10);
    CHECK(std::string{e.what()}.find('\n') == std::string::npos);
  }
  CHECK_THROWS_AS(lt::translated([] { throw std::logic_error{"mine"}; }), std::logic_error);
  CHECK(lt::translated([] { return 3; }) == 3);
}

TEST_CASE("a CPU is this one, with the threads that LibTorch computes on") {
  const comp::hardware found = lt::probe(at::kCPU);
  CHECK(found == comp::this_cpu(at::get_num_threads()));
  CHECK(found.kind == comp::device_kind::cpu);
}
