// SPDX-License-Identifier: Apache-2.0
// A trainer in FP64: a small machine-learned potential. Random features of the distances between atoms give each atom
// an energy, and their weights are fitted to energies and forces of made-up Lennard-Jones clusters. The clusters lie
// far apart in one box, so that distances are differences of large numbers and need FP64. comp finds that the rest does
// not.
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
    for (double& w : layer_) w = normal(random) / 4;
    for (std::size_t i = 0; i < clusters * atoms; ++i) {
      const std::size_t cell[] = {i % atoms % 3, i % atoms / 3 % 3, i % atoms / 9};
      if (i % atoms == 0) centre_ = 1e6 * normal(random);
      for (const std::size_t axis : cell) positions_.push_back(centre_ + 1.12 * axis + 0.06 * normal(random));
    }
    for (std::size_t c = 0; c < clusters; ++c) add_lennard_jones(3 * atoms * c);
  }
  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const comp::plan& p) { plan_ = p; }
  comp::sample run_epoch() { return train(batches_per_epoch()); }
  comp::sample run_batch() { return train(1); }
  auto save() const { return state_; }
  void restore(const auto& saved) { state_ = saved; }
  std::size_t batches_per_epoch() const { return clusters / batch; }
  std::string signature() const { return "1280 clusters of mt19937_64 1, batch 40, Adam 0.01"; }

 private:
  static constexpr std::size_t clusters = 1280, batch = 40, atoms = 13, near = atoms - 1, rows = batch * atoms,
                               radial = 24, hidden = 192;
  static constexpr double sharp = 20;  // of a Gaussian: 1 / (2 variance)
  using numbers = std::vector<double>;

  void run(std::size_t i, auto f) const { plan_[i] == comp::precision::fp64 ? f(double{}) : f(float{}); }
  template <class T>
  static std::vector<T> in(const numbers& from) {
    return {from.begin(), from.end()};
  }
  /// Calls f(pair, atom, other atom) for each ordered pair in a cluster of the batch.
  static void for_each_pair(auto f) {
    for (std::size_t p = 0; p < rows * near; ++p) {
      const std::size_t r = p / near, i = r % atoms, j = p % near;
      f(p, r, r - i + j + (j >= i));
    }
  }
  comp::sample train(std::size_t count) {
    const auto begin = std::chrono::steady_clock::now();
    comp::sample got{.loss = 0, .losses = {0, 0}, .batches = static_cast<std::int64_t>(count)};
    for (std::size_t b = 0; b < count; ++b) {
      const auto [energies, forces] = step(state_.steps % batches_per_epoch() * batch);
      got.losses[0] += energies / count;
      got.losses[1] += forces / count;
    }
    got.loss = got.losses[0] + got.losses[1];
    got.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return got;
  }
  std::pair<double, double> step(std::size_t first) {  // returns the losses before it, of energies and of forces
    state_.gradient.assign(hidden, 0);
    double energies = 0, forces = 0;
    run(0, [&](auto number) { find_distances(number, first); });
    run(1, [&](auto number) { find_descriptors(number); });
    run(2, [&](auto number) { find_features(number); });
    run(3, [&](auto number) { energies = fit_energies(number, first); });
    run(4, [&](auto number) { forces = fit_forces(number, first); });
    const double t = static_cast<double>(++state_.steps);
    for (std::size_t k = 0; k < hidden; ++k) {  // Adam
      state_.mean[k] += 0.1 * (state_.gradient[k] - state_.mean[k]);
      state_.square[k] += 0.001 * (state_.gradient[k] * state_.gradient[k] - state_.square[k]);
      const double mean = state_.mean[k] / (1 - std::pow(0.9, t)), square = state_.square[k] / (1 - std::pow(0.999, t));
      state_.weights[k] -= 0.01 * mean / (std::sqrt(square) + 1e-8);
    }
    return {energies, forces};
  }
  void add_lennard_jones(std::size_t at) {
    energies_.push_back(0);
    targets_.resize(at + 3 * atoms);
    for (std::size_t i = 0; i < 3 * atoms; i += 3) {
      for (std::size_t j = 0; j < i; j += 3) {
        const double *a = &positions_[at + i], *b = &positions_[at + j];
        const double d[] = {a[0] - b[0], a[1] - b[1], a[2] - b[2]}, square = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
        const double six = 1 / (square * square * square);
        energies_.back() += 4 * six * (six - 1);
        for (std::size_t k = 0; k < 3; ++k) {
          const double force = 24 * six * (2 * six - 1) / square * d[k];
          targets_[at + i + k] += force, targets_[at + j + k] -= force;
        }
      }
    }
  }
  template <class T>
  void find_distances(T, std::size_t first) {
    const std::vector<T> x(&positions_[3 * first * atoms], &positions_[3 * first * atoms] + 3 * rows);
    for_each_pair([&](std::size_t p, std::size_t r, std::size_t other) {
      const T d[] = {x[3 * r] - x[3 * other], x[3 * r + 1] - x[3 * other + 1], x[3 * r + 2] - x[3 * other + 2]};
      const T distance = std::sqrt(std::max(d[0] * d[0] + d[1] * d[1] + d[2] * d[2], T{0.01}));
      distance_[p] = distance;
      for (std::size_t k = 0; k < 3; ++k) direction_[3 * p + k] = d[k] / distance;
    });
  }
  template <class T>
  void find_descriptors(T) {  // of each atom, sums of Gaussians of distances; and the slopes of the Gaussians
    std::fill(descriptor_.begin(), descriptor_.end(), 0);
    for_each_pair([&](std::size_t p, std::size_t r, std::size_t) {
      for (std::size_t k = 0; k < radial; ++k) {
        const T off = static_cast<T>(distance_[p] - 0.8) - static_cast<T>(k) / 10,
                value = std::exp(-T{sharp} * off * off);
        descriptor_[r * radial + k] += value;
        slope_[p * radial + k] = -2 * T{sharp} * off * value;
      }
    });
  }
  template <class T>  // c[m, n] = a[m, k] b[k, n]
  static std::vector<T> product(const std::vector<T>& a, const std::vector<T>& b, std::size_t k, std::size_t n) {
    std::vector<T> c(a.size() / k * n);
    for (std::size_t i = 0; i < a.size(); ++i) {
      for (std::size_t j = 0; j < n; ++j) c[i / k * n + j] += a[i] * b[i % k * n + j];
    }
    return c;
  }
  template <class T>
  void find_features(T) {  // f = tanh(descriptors layer), and the slopes of the energy f weights by the descriptors
    const auto layer = in<T>(layer_), weights = in<T>(state_.weights);
    auto f = product(in<T>(descriptor_), layer, radial, hidden), s = f, transposed = layer;
    for (std::size_t k = 0; k < f.size(); ++k) f[k] = std::tanh(f[k]), s[k] = weights[k % hidden] * (1 - f[k] * f[k]);
    for (std::size_t k = 0; k < layer.size(); ++k) transposed[k % hidden * radial + k / hidden] = layer[k];
    const auto q = product(s, transposed, hidden, radial);
    feature_.assign(f.begin(), f.end()), energy_slope_.assign(q.begin(), q.end());
  }
  template <class T>
  double fit_energies(T, std::size_t first) {
    const auto f = in<T>(feature_), weights = in<T>(state_.weights);
    double loss = 0;
    for (std::size_t c = 0; c < batch; ++c) {
      std::vector<T> all(hidden);
      for (std::size_t k = 0; k < atoms * hidden; ++k) all[k % hidden] += f[c * atoms * hidden + k];
      const T energy = std::inner_product(all.begin(), all.end(), weights.begin(), T{0});
      const double off = (static_cast<double>(energy) - energies_[first + c]) / atoms;
      loss += off * off / batch;
      for (std::size_t k = 0; k < hidden; ++k) state_.gradient[k] += 2 * off * all[k] / (atoms * batch);
    }
    return loss;
  }
  template <class T>
  double fit_forces(T, std::size_t first) {
    const auto slope = in<T>(slope_), q = in<T>(energy_slope_), u = in<T>(direction_), f = in<T>(feature_);
    std::vector<T> off(3 * rows), back(rows * radial);
    for_each_pair([&](std::size_t p, std::size_t r, std::size_t other) {
      const T along = std::inner_product(&q[r * radial], &q[r * radial] + radial, &slope[p * radial], T{0});
      for (std::size_t k = 0; k < 3; ++k)
        off[3 * r + k] -= along * u[3 * p + k], off[3 * other + k] += along * u[3 * p + k];
    });
    for (std::size_t k = 0; k < off.size(); ++k) off[k] -= static_cast<T>(targets_[3 * first * atoms + k]);
    const double loss = std::inner_product(off.begin(), off.end(), off.begin(), T{0}) / T(off.size());
    for_each_pair([&](std::size_t p, std::size_t r, std::size_t other) {
      T along = 0;
      for (std::size_t k = 0; k < 3; ++k) along += (off[3 * other + k] - off[3 * r + k]) * u[3 * p + k];
      for (std::size_t k = 0; k < radial; ++k)
        back[r * radial + k] += 2 * along * slope[p * radial + k] / T(off.size());
    });
    const auto moved = product(back, in<T>(layer_), radial, hidden);
    for (std::size_t k = 0; k < f.size(); ++k) state_.gradient[k % hidden] += moved[k] * (1 - f[k] * f[k]);
    return loss;
  }

  struct {
    numbers weights = numbers(hidden), mean = weights, square = weights, gradient = weights;
    std::size_t steps = 0;
  } state_;
  static comp::op_info in_fp64(std::string name, std::string kind, std::vector<std::size_t> reads) {
    return {.name = name, .kind = kind, .producers = reads, .as_written = comp::precision::fp64};
  }
  comp::op_graph graph_{{in_fp64("distances", "cdist", {}), in_fp64("descriptors", "exp", {0}),
                         in_fp64("features", "linear", {1}), in_fp64("energies", "sum", {2}),
                         in_fp64("forces", "bmm", {0, 1, 2})}};
  comp::plan plan_ = as_written(graph_);
  double centre_ = 0;
  numbers positions_, energies_, targets_, layer_ = numbers(radial * hidden), distance_ = numbers(rows * near),
                                           direction_ = numbers(3 * rows * near), descriptor_ = numbers(rows * radial),
                                           slope_ = numbers(rows * near * radial), feature_, energy_slope_;
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
