// SPDX-License-Identifier: Apache-2.0
// A trainer in FP64: a small machine-learned potential. Random features of the distance between two atoms give each
// pair an energy, and their weights are fitted to energies and forces of made-up Lennard-Jones clusters. The clusters
// lie far apart in one box, so that distances are differences of large numbers and need FP64. comp finds that the rest
// does not.
#include <chrono>
#include <comp/comp.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/observe/summary.hpp>
#include <filesystem>
#include <random>

class potential {  // models comp::Backend; what comes after run_batch() is optional
 public:
  potential() {
    std::mt19937_64 random{1};
    std::normal_distribution<double> normal;
    for (double& w : layer_) w = normal(random);
    for (std::size_t i = 0; i < clusters * atoms; ++i)
      for (const std::size_t axis : {1, 3, 9})
        positions_.push_back(1e4 * (i / atoms) + 1.12 * (i % atoms / axis % 3) + 0.06 * normal(random));
    for (std::size_t first = 0; first < clusters; first += batch) {
      find_distances(double{}, first);
      for_each_pair([&](std::size_t p, std::size_t i, std::size_t j) {  // Lennard and Jones
        const double six = std::pow(distance_[p], -6);
        energies_[first + i / atoms] += 4 * six * (six - 1);
        push_apart(&forces_[3 * first * atoms], p, i, j, 24 * six * (2 * six - 1) / distance_[p]);
      });
    }
  }
  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const comp::plan& p) { plan_ = p; }
  comp::sample run_epoch() { return train(batches_per_epoch()); }
  comp::sample run_batch() { return train(1); }
  auto save() const { return state_; }
  void restore(const auto& saved) { state_ = saved; }
  std::size_t batches_per_epoch() const { return clusters / batch; }

 private:
  static constexpr std::size_t clusters = 1280, batch = 40, atoms = 13, rows = batch * atoms,
                               pairs = rows * (atoms - 1) / 2, radial = 24, hidden = 128;
  using numbers = std::vector<double>;

  void run(std::size_t i, auto f) const { plan_[i] == fp64 ? f(double{}) : f(float{}); }
  template <class T>
  static std::vector<T> in(const numbers& from) {
    return {from.begin(), from.end()};
  }
  static void for_each_pair(auto f) {  // of a batch's clusters: f(pair, atom, other atom)
    for (std::size_t p = 0, i = 0; i < rows; ++i)
      for (std::size_t j = i - i % atoms; j < i; ++j) f(p++, i, j);
  }
  void push_apart(auto* to, std::size_t pair, std::size_t i, std::size_t j, double force) const {
    for (std::size_t k = 0; k < 3; ++k) {
      to[3 * i + k] += force * direction_[3 * pair + k];
      to[3 * j + k] -= force * direction_[3 * pair + k];
    }
  }
  template <class T>
  void find_distances(T, std::size_t first) {
    const std::vector<T> x(&positions_[3 * first * atoms], &positions_[3 * first * atoms] + 3 * rows);
    for_each_pair([&](std::size_t p, std::size_t i, std::size_t j) {
      const T d[] = {x[3 * i] - x[3 * j], x[3 * i + 1] - x[3 * j + 1], x[3 * i + 2] - x[3 * j + 2]};
      distance_[p] = std::sqrt(std::max(d[0] * d[0] + d[1] * d[1] + d[2] * d[2], T{0.01}));
      for (std::size_t k = 0; k < 3; ++k) direction_[3 * p + k] = d[k] / static_cast<T>(distance_[p]);
    });
  }
  comp::sample train(std::size_t count) {
    const auto begin = std::chrono::steady_clock::now();
    comp::sample got{.loss = 0, .losses = {0, 0}, .batches = static_cast<std::int64_t>(count)};
    for (std::size_t b = 0; b < count; ++b) step(state_.steps++ % batches_per_epoch() * batch, got.losses);
    for (double& loss : got.losses) got.loss += loss /= count;
    got.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return got;
  }
  void step(std::size_t first, std::vector<double>& losses) {  // adds the losses before it, of energies and of forces
    numbers gradient(hidden);
    run(0, [&](auto number) { find_distances(number, first); });
    run(1, [&]<class T>(T) {  // features: x / (1 + |x|) of a layer of Gaussians of the distance; and their slopes
      const auto layer = in<T>(layer_);
      for (std::size_t p = 0; p < pairs; ++p) {
        std::array<T, hidden> x{}, slope{};
        for (std::size_t i = 0; i < radial; ++i) {
          const T off = static_cast<T>(distance_[p] - 0.8) - static_cast<T>(i) / 10, value = std::exp(-20 * off * off);
          for (std::size_t k = 0; k < hidden; ++k) {
            x[k] += value * layer[i * hidden + k];
            slope[k] -= 40 * off * value * layer[i * hidden + k];
          }
        }
        for (std::size_t k = 0; k < hidden; ++k) {
          const T a = 1 / (1 + std::abs(x[k]));
          feature_[p * hidden + k] = a * x[k], slope_[p * hidden + k] = a * a * slope[k];
        }
      }
    });
    run(2, [&]<class T>(T) {  // energies
      const auto f = in<T>(feature_), w = in<T>(state_.weights);
      for (std::size_t c = 0; c < batch; ++c) {
        std::vector<T> all(hidden);
        for (std::size_t k = 0; k < f.size() / batch; ++k) all[k % hidden] += f[c * f.size() / batch + k];
        const double off = (std::inner_product(w.begin(), w.end(), all.begin(), T{0}) - energies_[first + c]) / atoms;
        losses[0] += off * off / batch;
        for (std::size_t k = 0; k < hidden; ++k) gradient[k] += 2 * off * all[k] / (atoms * batch);
      }
    });
    run(3, [&]<class T>(T) {  // forces
      const auto s = in<T>(slope_), w = in<T>(state_.weights), u = in<T>(direction_);
      std::vector<T> off(&forces_[3 * first * atoms], &forces_[3 * first * atoms] + 3 * rows);
      for_each_pair([&](std::size_t p, std::size_t i, std::size_t j) {
        push_apart(off.data(), p, i, j, std::inner_product(w.begin(), w.end(), &s[p * hidden], T{0}));
      });
      losses[1] += std::inner_product(off.begin(), off.end(), off.begin(), T{0}) / off.size();
      for_each_pair([&](std::size_t p, std::size_t i, std::size_t j) {
        T along = 0;
        for (std::size_t k = 0; k < 3; ++k) along += (off[3 * i + k] - off[3 * j + k]) * u[3 * p + k];
        for (std::size_t k = 0; k < hidden; ++k) gradient[k] += 2 * along * s[p * hidden + k] / off.size();
      });
    });
    for (std::size_t k = 0; k < hidden; ++k) {  // RMSprop
      state_.square[k] += 0.01 * (gradient[k] * gradient[k] - state_.square[k]);
      state_.weights[k] -= 0.01 * gradient[k] / (std::sqrt(state_.square[k]) + 1e-8);
    }
  }

  struct {
    numbers weights = numbers(hidden), square = weights;
    std::size_t steps = 0;
  } state_;
  static constexpr auto fp64 = comp::precision::fp64;
  comp::op_graph graph_{{{.name = "distances", .kind = "cdist", .as_written = fp64},
                         {.name = "features", .kind = "linear", .producers = {0}, .as_written = fp64},
                         {.name = "energies", .kind = "sum", .producers = {1}, .as_written = fp64},
                         {.name = "forces", .kind = "bmm", .producers = {0, 1}, .as_written = fp64}}};
  comp::plan plan_ = as_written(graph_);
  numbers layer_ = numbers(radial * hidden), positions_, energies_ = numbers(clusters),
          forces_ = numbers(3 * clusters * atoms), distance_ = numbers(pairs), direction_ = numbers(3 * pairs),
          feature_ = numbers(pairs * hidden), slope_ = feature_;
};

int main(int count, char** given) {  // [--out FOLDER]
  const std::filesystem::path out = count > 2 ? given[2] : "out/potential";
  std::filesystem::create_directories(out);
  potential trainer;
  comp::html_report report{(out / "report.html").string(), {.model = "potential"}};
  const comp::outcome best = comp::two_stage{comp::policy::pytorch{}}.run(trainer, comp::progress_bar{}, report);
  comp::save(best, (out / "plan.json").string());
  comp::write_summary(best, (out / "summary.json").string(), {.model = "potential"});
  fmt::print("{} is {:.2f}x as fast as FP64\n", name(best.plan, best.graph), best.speedup);
}
