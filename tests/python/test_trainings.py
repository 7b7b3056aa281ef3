# SPDX-License-Identifier: Apache-2.0
"""Twenty trainings as their users have them: each is searched, and its plans train in a new process to the same bits.
Usage: test_trainings.py [unittest options], or by itself: test_trainings.py --deployed NAME FOLDER"""

import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch

import comp
from known_trainings import DEVICE, TRAININGS
from support import QUICK, NoPlan, states_of_gpus

# nn.Transformer's fast path for inference has other kernels, and a region switches it off
torch.backends.mha.set_fastpath_enabled(False)
PLANS = ('fp32', 'rules', 'mixed', 'found')


def letters_of(found, name):
    """Plans that do not depend on what this machine's time was like, and the one that was found."""
    mix = random.Random(name)
    rules = dict(found.rules())['pytorch']
    return {
        'fp32': '1' * len(rules),
        'rules': rules,
        # operators of one kind in other precisions each: only by its name does one get its own
        'mixed': ''.join(mix.choice('1b') if op.choosable else '1' for op in found.operators),
        'found': found.plan,
    }


def written(folder, found, plans):
    """Plan files of a search, one for each of `plans`."""
    path = os.path.join(folder, 'found.json')
    found.save(path)
    with open(path) as file:
        saved = json.load(file)
    for label, letters in plans.items():
        if label != 'found':
            saved['plan'] = letters
            for op, letter in zip(saved['operators'], letters):
                op['precision'] = {'1': 'fp32', 'b': 'bf16'}[letter]
            with open(os.path.join(folder, label + '.json'), 'w') as file:
                json.dump(saved, file)


def holders(training):
    return [*training.modules(), *training.optimizers, *training.state]


def everything(training):
    states = comp._state.copied([each.state_dict() for each in holders(training)], 'cpu')
    return states, comp._state.random_state(), states_of_gpus()


def put_back(training, saved):
    for each, state in zip(holders(training), comp._state.copied(saved[0])):
        each.load_state_dict(state)
    comp._state.set_random_state(saved[1])
    torch.cuda.set_rng_state_all(saved[2])


def trained(training, plan, begin):
    """Losses, weights and the formats of modules' results from `begin` on: an epoch between two evaluations."""
    put_back(training, begin)
    runs = {True: {}, False: {}}  # in training and in evaluation: module, format

    def note(name, module):
        def hook(module, given, result):
            if isinstance(result, torch.Tensor) and next(module.parameters(recurse=False), None) is not None:
                runs[torch.is_grad_enabled()].setdefault(name, set()).add(str(result.dtype))

        return module.register_forward_hook(hook)

    hooks = [note(f'{i}.{name}', m) for i, top in enumerate(training.modules()) for name, m in top.named_modules()]
    losses = [training.evaluate(plan, training.data[0])]
    for batch in training.data:
        loss = training.train(plan, batch)
        losses += list(loss.values()) if isinstance(loss, dict) else [loss]
    losses += [training.evaluate(plan, batch) for batch in training.data[:4]]
    for hook in hooks:
        hook.remove()
    weights = [float(v.double().sum()) for m in training.modules() for v in m.state_dict().values()]
    modes = {name: [sorted(runs[True][name]), sorted(runs[False][name])] for name in runs[True] if name in runs[False]}
    return {'losses': [float(loss) for loss in losses], 'weights': weights, 'formats': modes}


def deployed(name, folder):
    """What a new process does, which has the plan files and the state alone."""
    training = TRAININGS[name](False)
    begin = torch.load(os.path.join(folder, 'begin.pt'), weights_only=False)
    results = {'plain': trained(training, NoPlan(), begin)}
    for label in PLANS:
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter('always')
            plan = comp.plan(
                os.path.join(folder, label + '.json'), training.model, segments=training.segments, forced=True
            )
            results[label] = trained(training, plan, begin)
        results[label] |= {'letters': plan.letters, 'left': plan.left, 'warned': [str(w.message) for w in messages]}
    return results


def autocast_trains(name):
    """Whether torch itself has this training's kernels in BF16 here: those of an LSTM, not every CPU has."""
    training = TRAININGS[name](False)
    try:
        with torch.autocast(DEVICE, torch.bfloat16):
            training.train(NoPlan(), training.data[0])
    except RuntimeError:
        return False
    return True


class Trainings(unittest.TestCase):
    def check(self, name):
        if not autocast_trains(name):
            self.skipTest('torch.autocast raises here')
        torch.manual_seed(0)
        training = TRAININGS[name](False)
        found = comp.search(
            training.train,
            model=training.model,
            optimizer=training.optimizers,
            data=training.data,
            state=training.state,
            tune=False,  # a new process's first forward runs by ATen's kernels, whose sums have another order
            **QUICK,
        )
        self.assertEqual([t.sample.message for t in found.trials if t.sample.status != 'ok'], [])
        with tempfile.TemporaryDirectory() as folder:
            plans = letters_of(found, name)
            written(folder, found, plans)
            # With these random numbers LayerDrop keeps all layers in the first step. A layer that a process's first
            # forward lacks runs its operators without parameters as most of their kind: not as `mixed` says.
            torch.manual_seed(0)
            begin = everything(training)
            torch.save(begin, os.path.join(folder, 'begin.pt'))
            here = {'plain': trained(training, NoPlan(), begin)}
            for label, letters in plans.items():
                found._job.training.set_plan(letters)
                here[label] = trained(training, found.region, begin)
            there = self.in_a_new_process(name, folder)
        for label, mine in here.items():
            with self.subTest(plan=label):
                theirs = there[label]
                self.assertEqual(theirs['losses'], mine['losses'])
                self.assertEqual(theirs['weights'], mine['weights'])
        self.assertEqual(here['fp32']['losses'], here['plain']['losses'])
        self.assertEqual(here['fp32']['weights'], here['plain']['weights'])
        for label in ('rules', 'mixed'):
            with self.subTest(formats=label):
                self.assertIn('b', there[label]['letters'])
                self.assertNotEqual(here[label]['losses'], here['plain']['losses'])
                for module, (training_, evaluation) in there[label]['formats'].items():
                    self.assertLessEqual(set(evaluation), set(training_), module)

    def in_a_new_process(self, name, folder):
        done = subprocess.run(
            [sys.executable, __file__, '--deployed', name, folder],
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


def test_of(name):
    missing = TRAININGS[name].missing
    return unittest.skipIf(missing, f'no {" and ".join(missing)} here')(lambda self: self.check(name))


for name in TRAININGS:
    setattr(Trainings, 'test_' + name, test_of(name))


if __name__ == '__main__':
    if sys.argv[1:2] == ['--deployed']:
        print(json.dumps(deployed(*sys.argv[2:])))
    else:
        unittest.main()
