# SPDX-License-Identifier: Apache-2.0
"""State, batches and plan files, each alone."""

import copy
import dataclasses
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn

import comp
from comp._data import Batches, own, tensors_of
from comp._state import OtherState, random_state, same_random_state
from support import Classification, plan_file, same, small_net, some_images


class State(unittest.TestCase):
    def step(self, net, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(4, 3)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    def test_every_optimizer_of_torch_is_put_back_and_goes_on_the_same(self):
        makes = [
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
            lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
            lambda p: torch.optim.AdamW(p, torch.tensor(0.1), foreach=False),
            lambda p: torch.optim.RMSprop(p, centered=True),
            lambda p: torch.optim.LBFGS(p, max_iter=2),
            lambda p: torch.optim.Adagrad(p),
            lambda p: torch.optim.Rprop(p),
            lambda p: torch.optim.NAdam(p),
        ]
        for make in makes:
            torch.manual_seed(0)
            net = nn.Linear(3, 2)
            optimizer = make(net.parameters())
            for warm in (0, 2):
                for _ in range(warm):
                    self.step(net, optimizer)
                state = OtherState({'': net}, [optimizer], [])
                saved, weights = state.save(), {k: v.clone() for k, v in net.state_dict().items()}
                ends = []
                for _ in range(2):
                    for _ in range(3):
                        self.step(net, optimizer)
                    ends.append({k: v.clone() for k, v in net.state_dict().items()})
                    net.load_state_dict(weights)
                    state.restore(saved)
                self.assertTrue(same(*ends), type(optimizer).__name__)

    def test_tensors_and_settings_keep_their_identity(self):
        net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.Adam(net.parameters(), torch.tensor(0.1))
        self.step(net, optimizer)
        state = OtherState({'': net}, [optimizer], [])
        saved = state.save()
        group, rate, mean = optimizer.param_groups[0], optimizer.param_groups[0]['lr'], net[1].running_mean
        moment = optimizer.state[net[0].weight]['exp_avg']
        before = [t.clone() for t in (rate, mean, moment)]
        rate.fill_(5)
        group['added'] = 1
        self.step(net, optimizer)
        state.restore(saved)
        self.assertIs(optimizer.param_groups[0], group)
        self.assertIs(group['lr'], rate)
        self.assertIs(net[1].running_mean, mean)
        self.assertIs(optimizer.state[net[0].weight]['exp_avg'], moment)
        self.assertNotIn('added', group)
        self.assertTrue(same([rate, mean, moment], before))

    def test_a_buffer_that_was_replaced_is_put_back(self):
        net = nn.Module()
        net.inner = nn.Module()
        net.inner.register_buffer('kept', torch.ones(2))
        net.inner.register_buffer('late', None)
        state = OtherState({'': net}, [torch.optim.SGD([torch.ones(1)], 0.1)], [])
        saved = state.save()
        net.inner.kept = torch.zeros(5)
        net.inner.late = torch.zeros(5)
        net.inner.register_buffer('new', torch.zeros(5))
        later = state.save()
        state.restore(saved)
        self.assertTrue(torch.equal(net.inner.kept, torch.ones(2)))
        self.assertEqual((list(net.inner._buffers), net.inner.late), (['kept', 'late'], None))
        state.restore(later)
        self.assertEqual(list(net.state_dict()), ['inner.kept', 'inner.late', 'inner.new'])

    def test_what_an_optimizer_keeps_under_no_parameter_is_put_back(self):
        optimizer = torch.optim.SGD([torch.ones(1)], 0.1)
        count = optimizer.state['k'] = torch.zeros(1)  # as MADGRAD
        optimizer.state['steps'] = 3
        state = OtherState({}, [optimizer], [])
        saved = state.save()
        count += 1
        optimizer.state['steps'] = 4
        state.restore(saved)
        self.assertIs(optimizer.state['k'], count)
        self.assertEqual((float(count), optimizer.state['steps']), (0, 3))

    def test_random_generators_are_told_apart(self):
        for draw in (lambda: torch.rand(1), random.random):
            before = random_state()
            self.assertTrue(same_random_state(before, random_state()))
            draw()
            self.assertFalse(same_random_state(before, random_state()))


class Data(unittest.TestCase):
    def test_each_epoch_is_one_iteration_and_draws_are_kept_with_the_batch(self):
        class Noisy(list):
            def __iter__(self):
                for value in list.__iter__(self):
                    if value == 2:
                        torch.rand(1)
                    yield value

        batches = Batches(Noisy([1, 2]))
        first, second, end, again = (batches.pull() for _ in range(4))
        self.assertEqual((first[0], first[1], end, again[0]), (1, None, None, 1))
        self.assertTrue(same_random_state(second[1], random_state()))
        self.assertEqual(batches.length, 2)

    def test_epochs_of_a_given_length_go_on_over_the_end_of_the_data(self):
        batches = Batches([1, 2, 3], 2)
        got = [batches.pull() for _ in range(9)]
        self.assertEqual([each and each[0] for each in got], [1, 2, None, 3, 1, None, 2, 3, None])
        self.assertEqual(batches.length, 2)
        with self.assertRaisesRegex(comp.SettingsError, 'batches_per_epoch is 0'):
            Batches([1], 0)
        with self.assertRaisesRegex(comp.SettingsError, 'data gives no batch'):
            Batches([], 2).pull()

    def test_a_batch_may_refer_to_itself_and_be_deep(self):
        batch = {'x': torch.zeros(3), 'all': []}
        batch['all'] += [batch, torch.zeros(2), batch['x'], (torch.zeros(1), 'text')]
        self.assertEqual([t.numel() for t in tensors_of(batch)], [3, 2, 1])
        mine = own(batch)
        self.assertIs(mine['all'][0], mine)
        self.assertIsNot(mine, batch)
        mine.pop('x')
        mine['all'].clear()
        self.assertEqual(len(batch['all']), 4)
        self.assertEqual([t.numel() for t in tensors_of(batch)], [3, 2, 1])
        deep = torch.zeros(1)
        for _ in range(10000):
            deep = [deep]
        self.assertEqual(len(tensors_of(deep)), 1)

        job = Classification()
        x, y = some_images(16)
        given = {'x': x, 'y': y}
        given['again'] = given
        found = job.search(lambda plan, b: job.step(plan, (b['again']['x'], b['y'])), data=[given] * 8)
        self.assertGreater(found.trained_batches, 0)


class Imports(unittest.TestCase):
    def imported(self, **files):
        """What `import comp` says if the package has these files in place of its own."""
        package = os.path.dirname(comp.__file__)
        with tempfile.TemporaryDirectory() as folder:
            there = os.path.join(folder, 'comp')
            shutil.copytree(package, there, ignore=shutil.ignore_patterns('*.p', '__pycache__'))
            for name in os.listdir(there):
                text = files.get(name.partition('.')[0])
                if text is not None and not name.endswith('.pyi'):
                    with open(os.path.join(there, name), 'w') as file:
                        file.write(text)
            ran = subprocess.run(
                [sys.executable, '-c', 'import comp'],
                capture_output=True,
                text=True,
                env=os.environ | {'PYTHONPATH': folder},
            )
        return ran.stderr.strip().splitlines()[-1]

    def test_a_package_for_another_torch_says_so(self):
        here = torch.__version__
        self.assertEqual(
            self.imported(_built_for='TORCH = "1.2.3"'),
            f'ImportError: comp was compiled against torch 1.2.3 and does not fit torch {here} (each release has libraries '
            "of its own): install comp's wheel for that torch, or compile it here with pip install --no-build-isolation",
        )
        broken = self.imported(_comp='no library')
        self.assertTrue(broken.startswith('ImportError: comp was compiled against torch '), broken)
        self.assertIn('file too short', broken)


class Files(unittest.TestCase):
    def setUp(self):
        net = small_net()
        x, y = some_images(16)

        def run(plan):
            with plan:
                return nn.functional.cross_entropy(net(x), y)

        self.low, self.full = plan_file(net, run), plan_file(net, run, kinds=())

    def comp(self, *arguments):
        return subprocess.run(
            [sys.executable, '-m', 'comp', *arguments],
            capture_output=True,
            text=True,
            env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
        )

    def test_show_and_compare(self):
        shown = self.comp('show', self.low)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r'2 bf16')
        self.assertRegex(shown.stdout, r'0\.conv2d +bf16 +aten::conv2d')
        differs = self.comp('compare', self.low, self.full).stdout
        self.assertEqual(differs, comp.compare(comp.load(self.low), comp.load(self.full)) + '\n')
        self.assertRegex(differs, r'^0:\n  0\.conv2d +bf16 +fp32 +aten::conv2d\n')
        self.assertEqual(self.comp('compare', self.low, self.low).stdout, 'the same precisions\n')
        self.assertIn('give two', self.comp('compare', self.low, self.low, self.low).stderr)
        plain = comp.load(self.full)
        tuned = dataclasses.replace(plain, letters=plain.letters + '@tuned')
        self.assertEqual(comp.compare(tuned, plain), 'the first is tuned, the second plain')
        self.assertEqual(self.comp('shwo', self.low).returncode, 2)
        refused = self.comp('train')
        self.assertEqual((refused.returncode, refused.stderr[:24]), (2, 'comp: train is not here '))
        missing = self.comp('show', 'no-such.json')
        self.assertEqual((missing.returncode, 'no-such.json' in missing.stderr), (1, True))

    def test_files_that_are_none_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'plan.json')
            for text in (
                '',
                '[]',
                '{}',
                '{"comp_plan": 2}',
                '{"comp_plan": 1, "plan": "1x"}',
                '{"comp_plan": 1, "plan": "1\udca3"}',  # no UTF-8
                '{"comp_plan": 1, "operators": 3}',
                '{"comp_plan": 1, "operators": [{"name": "a", "kind": "b", "precision": "bf17"}]}',
            ):
                with open(path, 'w', errors='surrogateescape') as file:
                    file.write(text)
                with self.assertRaises(comp.Error, msg=text):
                    comp.load(path)
                with self.assertRaises(comp.Error, msg=text):
                    comp.plan(path, small_net())

    def test_what_holds_on_to_a_model_is_not_copied(self):
        found = Classification().search(stages='losses_only')
        with self.assertRaisesRegex(TypeError, r'use found.save\(path\)'):
            pickle.dumps(found)
        with self.assertRaisesRegex(TypeError, r'comp.plan\(path, model\)'):
            copy.deepcopy(found.region)

    def test_an_outcome_is_compared_with_its_contestants(self):
        found = Classification().search(stages='losses_only')
        self.assertEqual(comp.compare(found, found), '')
        self.assertIn('bf16', comp.compare(found, 'fp32') + comp.compare(found, 'autocast'))
        with self.assertRaisesRegex(comp.SettingsError, '"fp33" was no contestant'):
            comp.compare(found, 'fp33')
        self.assertEqual(json.dumps(found.summary())[0], '{')


if __name__ == '__main__':
    unittest.main()
