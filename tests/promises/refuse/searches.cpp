// SPDX-License-Identifier: Apache-2.0
// Each part of this program, up to the next empty line, must be refused with the sentences that it expects.
#include <comp/comp.hpp>
#include <memory>

#include "whole.hpp"

// expect: a Backend needs: comp::sample run_batch()
struct checked_backend : whole::backend {
  void run_batch() = delete;
};
void run_checked_backend() {
  checked_backend trainer;
  (void)comp::check(trainer);
}

// expect: the trainer is given by a pointer (a trainer itself is needed): write *trainer
void run_checked_smart_pointer() {
  const auto trainer = std::make_unique<whole::backend>();
  (void)comp::check(trainer);
}

// expect: an observer's batch_done needs the form: void batch_done(const comp::trial&, const comp::sample&)
// expect: an observer's trial_done needs the form: void or bool trial_done(const comp::trial&)
struct observer_of_two_faults {
  void batch_done(const comp::trial&) {}
  void trial_done(const comp::sample&) {}
};
void run_observer_of_two_faults() {
  whole::backend trainer;
  observer_of_two_faults observer;
  (void)comp::two_stage{comp::policy::pytorch{}}.run(trainer, observer);
}

// expect: a Backend needs: comp::sample run_batch()
struct searched_backend : whole::backend {
  void run_batch() = delete;
};
void run_searched_backend() {
  searched_backend trainer;
  (void)comp::two_stage{comp::policy::pytorch{}}.run(trainer, comp::progress_bar{});
}

// expect: an observer needs a member: search_started,
struct searched_observer {
  void done_with(const comp::trial&) {}
};
void run_searched_observer() {
  whole::backend trainer;
  (void)comp::two_stage{comp::policy::pytorch{}}.run(trainer, searched_observer{});
}

// expect: the trainer is given by a pointer (a trainer itself is needed): write *trainer
void run_searched_pointer() {
  whole::backend trainer;
  (void)comp::two_stage{comp::policy::pytorch{}}.run(&trainer);
}

// expect: an OperatorPolicy needs: comp::decision classify(const comp::op_info&) const
struct searched_policy {};
void run_searched_policy() {
  whole::backend trainer;
  (void)comp::two_stage{searched_policy{}}.run(trainer, comp::progress_bar{});
}

// expect: a SearchStrategy needs: run start(comp::search_space) const
struct searched_strategy {};
void run_searched_strategy() {
  whole::backend trainer;
  comp::two_stage search{comp::policy::pytorch{}, searched_strategy{}, comp::strategy::greedy{}};
  (void)search.run(trainer, comp::progress_bar{});
}

// expect: the trainer is a temporary (it would be gone with all that it trained): give a variable
void run_searched_temporary() { (void)comp::two_stage{comp::policy::pytorch{}}.run(whole::backend{}); }

// expect: a Backend needs: comp::sample run_batch()
struct trained_backend : whole::backend {
  void run_batch() = delete;
};
void run_trained_backend() {
  trained_backend trainer;
  (void)comp::post_training{.epochs = 2}.run(trainer, comp::outcome{});
}

// expect: the trainer is const (it cannot train): give one that is not
void run_trained_const() {
  const whole::backend trainer;
  (void)comp::post_training{}.run(trainer, comp::outcome{});
}
