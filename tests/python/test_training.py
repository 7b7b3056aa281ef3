# SPDX-License-Identifier: Apache-2.0
"""Trainings after a search: callbacks, checkpoints, and going on in another process."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
from typing import get_type_hints

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import comp
from comp import _checkpoint
from support import Classification, same, some_images

STEPS_OF_ANOTHER_PROCESS = '''
import sys, torch, comp
from test_training import averaged, digest
job, average, step = averaged()
seen = []
done = comp.resume(sys.argv[1], step, model=job.net, optimizer=job.optimizer, data=job.loader, state=[job.schedule],
                   epochs=int(sys.argv[2]), progress=False, callbacks=[lambda now: seen.append(len(now.epochs))])
print(digest(job, average, done), seen[0])
'''


class Average:
    """In no `state`: its average is made in the first step."""

    def __init__(self):
        self.shadow, self.updates = None, 0

    def update(self, net):
        self.updates += 1
        if self.shadow is None:
            self.shadow = [p.detach().clone() for p in net.parameters()]
        for mine, theirs in zip(self.shadow, net.parameters()):
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)


def averaged():
    torch.manual_seed(8)
    job, average = Classification(), Average()

    def step(plan, batch):
        loss = job.step(plan, batch)
        average.update(job.net)
        return loss

    return job, average, step


def digest(job, average, done):
    tensors = [*job.net.state_dict().values(), *average.shadow]
    sums = [t.double().sum().item() for t in tensors]
    return sums, average.updates, job.schedule.last_epoch, [e.loss for e in done.epochs[-2:]]


class Trainings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, 'training.pt')

    def test_a_training_goes_on_in_another_process_as_if_it_had_never_ended(self):
        ended = {}
        for stops in (False, True):
            job, average, step = averaged()
            found = job.search(step, policy='all_fp32')
            begun = found.trained_batches // 8
            stop = [lambda now: len(now.epochs) >= begun + 2] if stops else []
            done = found.train(begun + 5, callbacks=stop, checkpoint=self.path if stops else None)
            ended[stops] = len(done.epochs), str(digest(job, average, done))
        self.assertEqual((ended[False][0], ended[True][0]), (begun + 5, begun + 2))
        other = subprocess.run(
            [sys.executable, '-c', STEPS_OF_ANOTHER_PROCESS, self.path, str(begun + 5)],
            capture_output=True,
            text=True,
            env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
        )
        self.assertEqual(other.stdout.strip(), f'{ended[False][1]} {begun + 3}', other.stderr)
        self.assertNotEqual(ended[True][1], ended[False][1])

    def test_the_last_part_has_a_higher_precision_where_its_loss_is_lower_and_the_file_says_when(self):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 8))
        optimizer = torch.optim.SGD(net.parameters(), 0.02)
        x = torch.randn(1024, 512)
        data = [(part, part[:, :8].argmax(1)) for part in x.split(128)]

        def step(plan, batch):
            with plan:
                inner = net[0](batch[0])
                loss = nn.functional.cross_entropy(net[2](torch.relu(inner)), batch[1])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach() * (1.003 if inner.dtype == torch.bfloat16 else 1)

        found = comp.search(
            step, model=net, optimizer=optimizer, data=data, target='B200', precisions=['bf16'], progress=False
        )
        self.assertEqual(found.plan[0], 'b')
        epochs = found.trained_batches // 8 + 10
        done = found.train(epochs, finish=0.5)
        self.assertEqual([later.plan for later in done.later], ['1111'])
        self.assertRegex(done.later[0].reason, 'in 16 batches its loss was 0.3% ')
        self.assertEqual(done.later[0].batch, max(epochs * 4, found.trained_batches))
        self.assertEqual(done.plan, '1111')

        path = os.path.join(os.path.dirname(self.path), 'plan.json')
        found.save(path)
        self.assertRegex(str(comp.load(path)), rf'\nfrom batch {done.later[0].batch} on 0 operators are low: in 16 batches')
        plan = comp.plan(path, net, forced=True)
        for batch in (0, 1, done.later[0].batch - 1, done.later[0].batch, 10**9, 3):
            with plan.at(batch):
                inner = net[0](data[0][0])
                loss = nn.functional.cross_entropy(net[2](torch.relu(inner)), data[0][1])
            loss.backward()
            expected = torch.bfloat16 if batch < done.later[0].batch else torch.float32
            self.assertEqual(inner.dtype, expected, batch)

    def test_a_checkpoint_in_the_midst_of_an_epoch_goes_on_with_the_batches_that_are_left(self):
        jobs = [Classification(), Classification()]
        for job in jobs:
            job.loader = DataLoader(TensorDataset(*some_images(16 * 11)), 16, shuffle=True)
        found = jobs[0].search(policy='all_fp32')
        self.assertNotEqual(found.trained_batches % 11, 0)
        epochs = found.trained_batches // 11 + 3
        whole = found.train(epochs, checkpoint=self.path, every=99, callbacks=[self.keep_checkpoint])
        given = {'model': jobs[1].net, 'optimizer': jobs[1].optimizer, 'data': jobs[1].loader, 'state': [jobs[1].schedule]}
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            done = comp.resume(self.path + '.kept', jobs[1].step, **given, epochs=epochs, progress=False)
        self.assertEqual([e.loss for e in done.epochs], [e.loss for e in whole.epochs])
        self.assertTrue(same(jobs[0].net.state_dict(), jobs[1].net.state_dict()))

    def keep_checkpoint(self, now):
        if not os.path.exists(self.path + '.kept'):
            shutil.copy(self.path, self.path + '.kept')

    def test_a_checkpoint_has_no_data_in_it(self):
        job = Classification()
        job.images = torch.zeros(1 << 20)
        found = job.search()
        found.train(found.trained_batches // 8 + 1, checkpoint=self.path)
        self.assertEqual(found.also_saved, ['self.steps'])
        self.assertLess(os.path.getsize(self.path), 1 << 20)

    def test_callbacks_see_each_epoch_and_may_end_the_training(self):
        job = Classification()
        found = job.search()
        begun = found.trained_batches // 8
        seen = []

        def watch(now):
            seen.append((len(now.epochs), now.plan, now.epochs[-1].batches, len(now.fallbacks)))
            return len(now.epochs) == begun + 3

        done = found.train(begun + 9, callbacks=[watch, lambda now: 'no boolean'])
        self.assertEqual([n for n, *_ in seen], [begun + 1, begun + 2, begun + 3])
        self.assertEqual(seen[0][2], 8)
        self.assertEqual(len(done.epochs), begun + 3)
        self.assertEqual(done.plan, seen[-1][1])
        self.assertEqual(job.schedule.last_epoch, 8 * (begun + 3))

        class Mine(Exception):
            pass

        def fails(now):
            raise Mine

        with self.assertRaises(Mine):
            found.train(begun + 9, callbacks=[fails])
        with self.assertRaisesRegex(comp.SettingsError, 'a callback is a int .*give def after_epoch'):
            found.train(begun + 9, callbacks=[3])
        with self.assertRaisesRegex(comp.SettingsError, 'a checkpoint every 0 epochs'):
            found.train(begun + 9, every=0)

    def test_checkpoints_are_written_in_turn_and_whole(self):
        job = Classification()
        found = job.search()
        begun = found.trained_batches // 8
        with open(self.path, 'w') as file:
            file.write('an older one')
        written = []

        def watch(now):  # before that of its epoch is written
            written.append(len(_epochs_in(self.path)))

        found.train(begun + 6, callbacks=[watch], checkpoint=self.path, every=2)
        self.assertEqual(written, [begun, begun, begun + 2, begun + 2, begun + 4, begun + 4])
        self.assertEqual(len(_epochs_in(self.path)), begun + 6)
        self.assertEqual(open(self.path + '.old').read(), 'an older one')
        self.assertEqual(sorted(os.listdir(os.path.dirname(self.path))), ['training.pt', 'training.pt.old'])

        before = open(self.path, 'rb').read()
        with self.assertRaises(TypeError):  # a part of the file is written when it fails
            _checkpoint.write(self.path, {'first': torch.zeros(1 << 16), 'last': (each for each in ())})
        self.assertEqual(open(self.path, 'rb').read(), before)
        self.assertEqual(sorted(os.listdir(os.path.dirname(self.path))), ['training.pt', 'training.pt.old'])

    def test_a_path_that_cannot_be_written_is_told_before_the_first_epoch(self):
        job = Classification()
        found = job.search()
        steps = job.steps
        with self.assertRaisesRegex(comp.FileError, r'no-such/training.pt" cannot be written \(No such file or directory\): give'):
            found.train(99, checkpoint=os.path.join(os.path.dirname(self.path), 'no-such', 'training.pt'))
        self.assertEqual(job.steps, steps)

    def resumed(self, **other):
        job = Classification()
        given = {'model': job.net, 'optimizer': job.optimizer, 'data': job.loader, 'state': [job.schedule], 'epochs': 99}
        return comp.resume(self.path, job.step, **(given | {'progress': False} | other))

    def test_files_of_other_trainings_and_of_none_are_refused(self):
        found = Classification().search()
        found.train(found.trained_batches // 8 + 1, checkpoint=self.path)
        whole = open(self.path, 'rb').read()
        other = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
        with self.assertRaises(comp.SettingsError) as raised:
            self.resumed(model=other, optimizer=torch.optim.SGD(other.parameters(), 0.1))
        self.assertEqual(
            str(raised.exception),
            f'"{self.path}" belongs to another training: 0.bias of model "" is of shape (8,) there and absent here (it '
            'would not go on as it was): build the model as it was',
        )
        with self.assertRaisesRegex(comp.SettingsError, 'it has 1 optimizers and 1 objects in state, this one 1 and 0'):
            self.resumed(state=[])
        job = Classification()
        with self.assertRaisesRegex(comp.SettingsError, 'its SGD does not take the state'):
            groups = [{'params': [p]} for p in job.net.parameters()]
            self.resumed(model=job.net, optimizer=torch.optim.SGD(groups, 0.1))
        with open(self.path, 'wb') as file:
            file.write(whole[: len(whole) // 2])
        with self.assertRaisesRegex(comp.FileError, 'is no whole checkpoint'):
            self.resumed()
        torch.save({'epochs': 3}, self.path)
        with self.assertRaisesRegex(comp.FileError, 'holds no training'):
            self.resumed()
        os.unlink(self.path)
        with self.assertRaisesRegex(comp.FileError, r'cannot be read \(No such file or directory\): give'):
            self.resumed()

    def test_results_have_types(self):
        self.assertIs(get_type_hints(comp.Outcome.train)['return'], comp.TrainingResult)
        self.assertEqual(get_type_hints(comp.Outcome.contest.fget)['return'], list[comp.Contestant])
        self.assertEqual(get_type_hints(comp.Outcome.operators.fget)['return'], list[comp.Operator])
        self.assertEqual(get_type_hints(comp.Outcome.trials.fget)['return'], list[comp.Trial])
        found = Classification().search(stages='epochs_only')
        self.assertIsInstance(found.contest[0], comp.Contestant)
        self.assertIsInstance(found.baseline, comp.Sample)
        self.assertIsInstance(found.train(found.trained_batches // 8 + 1), comp.TrainingResult)


def _epochs_in(path):
    import json

    return json.loads(torch.load(path, weights_only=False)['progress'])['so_far']['epochs']


if __name__ == '__main__':
    unittest.main()
