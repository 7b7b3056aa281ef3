# SPDX-License-Identifier: Apache-2.0
"""Trainings after a search: callbacks, checkpoints, and going on in another process."""

import collections
import datetime
import decimal
import enum
import fractions
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
from typing import get_type_hints

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import comp
from comp import _checkpoint
from comp._plain import NotPlain, plain, unplain
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


class Phase(enum.Enum):
    WARM = 1
    COLD = 2


class Kept:
    """Has a state of its own, as schedulers have."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class Bad:
    """A pickle that makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, 'w')


PLAIN = {
    'numbers': [1, 1 << 200, 2.5, complex(1, 2), float('inf'), True, None, 'a', b'b'],
    'tensors': [torch.ones(2, 3), torch.zeros((), dtype=torch.bfloat16), nn.Parameter(torch.ones(1)), torch.Size([1, 2])],
    'of torch': [torch.bfloat16, torch.device('cpu'), nn.BatchNorm1d(2).state_dict(), torch.get_rng_state()],
    'of numpy': [numpy.arange(6.0).reshape(2, 3), numpy.zeros((0, 2)), numpy.array(3), numpy.float32(1.5), numpy.bool_(True)],
    'more of numpy': [numpy.array(['ab', 'c']), numpy.datetime64('2026-01-02'), numpy.array([1], '>i4')],
    'generators': [random.getstate(), numpy.random.get_state(), numpy.random.default_rng(1).bit_generator.state],
    'containers': [(1, (2, [3])), {1, (2, 'a')}, frozenset({4}), collections.deque([1, 2], 7), bytearray(b'12'), range(1, 9, 2)],
    'dicts': [
        collections.OrderedDict(b=1, a=2),
        collections.defaultdict(list, {1: [2]}),
        collections.Counter('aab'),
        {(1, 'a'): 1, None: 2},
        {frozenset({1}): 3},
        {'comp type': 'set', 'of': [1]},
    ],
    'exact numbers': [decimal.Decimal('1.10'), fractions.Fraction(1, 3)],
    'times': [datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.timezone.utc), datetime.date(2026, 1, 2), datetime.timedelta(1, 2)],
}  # fmt: skip


def alike(a, b):
    """Whether two values have the same types and values throughout."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, numpy.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return list(a) == list(b) and alike(list(a.values()), list(b.values())) and repr(vars_of(a)) == repr(vars_of(b))
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(alike, a, b)) and getattr(a, 'maxlen', 0) == getattr(b, 'maxlen', 0)
    return a == b


def vars_of(value):
    return getattr(value, '__dict__', None)


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
        calls = []

        def watch(now):
            calls.append((len(now.epochs), now.plan, now.epochs[-1].batches, len(now.fallbacks)))
            return len(now.epochs) == begun + 3

        done = found.train(begun + 9, callbacks=[watch, lambda now: 'no boolean'])
        self.assertEqual([n for n, *_ in calls], [begun + 1, begun + 2, begun + 3])
        self.assertEqual(calls[0][2], 8)
        self.assertEqual(len(done.epochs), begun + 3)
        self.assertEqual(done.plan, calls[-1][1])
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

    def test_plain_data_come_back_as_the_types_that_they_had(self):
        torch.save(plain(PLAIN, ''), self.path)
        back = unplain(torch.load(self.path, weights_only=True))
        for name, values in PLAIN.items():
            for value, other in zip(values, back[name]):
                self.assertTrue(alike(value, other), (name, value, other))

    def test_what_is_no_plain_data_is_named(self):
        Point = collections.namedtuple('Point', 'x')
        with_lambda = collections.defaultdict(lambda: 0)
        mixed = numpy.zeros(2, dtype=[('a', 'f4')])
        for value, kind in ((Phase.WARM, 'Phase'), (Point(1), 'Point'), (with_lambda, 'defaultdict'), (mixed, 'ndarray'), (len, 'builtin_function_or_method')):
            with self.assertRaises(NotPlain) as raised:
                plain({'state': [{'a': (1, value)}]}, '')
            self.assertEqual(str(raised.exception), f'state[0].a[1] is a {kind}')
        with self.assertRaises(NotPlain) as raised:
            plain({Phase.WARM: 1}, 'here')
        self.assertEqual(str(raised.exception), 'a key of here is a Phase')

    def test_a_state_that_is_no_plain_data_is_refused_before_the_first_epoch_and_told_later(self):
        job, kept = Classification(), Kept(phase=Phase.WARM)
        found = job.search(state=[job.schedule, kept])
        begun, steps = found.trained_batches // 8, job.steps
        with self.assertRaises(comp.FileError) as raised:
            found.train(begun + 1, checkpoint=self.path)
        self.assertEqual(
            str(raised.exception),
            f'"{self.path}" cannot hold all of the training (state[1].phase is a Phase; a checkpoint has tensors and plain '
            'data, which run nothing when they are read): leave it out of state_dict(), or have a number or a string there',
        )
        self.assertEqual((job.steps, os.listdir(os.path.dirname(self.path))), (steps, []))
        kept.state['phase'] = 1
        with self.assertWarnsRegex(UserWarning, r'no checkpoint after .* \(state\[1\].phase is a Phase; .*the training goes on'):
            found.train(begun + 2, checkpoint=self.path, callbacks=[lambda now: kept.state.update(phase=Phase.COLD)])
        self.assertEqual(len(_epochs_in(self.path)), begun)

    def test_what_a_step_changes_and_a_checkpoint_lacks_is_told(self):
        job = Classification()
        job.phase, job.last = Phase.WARM, collections.deque(maxlen=3)

        def step(plan, batch):
            job.phase = Phase.COLD if job.phase is Phase.WARM else Phase.WARM
            job.last.append(decimal.Decimal(job.steps))
            return job.step(plan, batch)

        found = job.search(step)
        with self.assertWarns(UserWarning) as context:
            found.train(found.trained_batches // 8 + 1, checkpoint=self.path)
        self.assertIn(
            'job.phase is or holds a Phase, which the checkpoint lacks (it has tensors and plain data, which run nothing when '
            'they are read): set it before comp.resume, or have the step change a number or a string',
            [str(each.message) for each in context.warnings],
        )
        state = _checkpoint.read(self.path)['unnamed']['job', False][1][0]
        self.assertEqual((state['last'], state['steps'], 'phase' in state), (job.last, job.steps, False))

    def test_attributes_of_the_object_whose_method_is_the_step_go_on(self):
        class Averaging(Classification):
            def __init__(self):
                super().__init__()
                self.average = next(self.net.parameters()).detach().clone()

            def step(self, plan, batch):
                loss = super().step(plan, batch)
                self.average.lerp_(next(self.net.parameters()).detach(), 0.1)
                return loss

        first, second = Averaging(), Averaging()
        found = first.search()
        found.train(found.trained_batches // 8 + 1, checkpoint=self.path)
        given = {'model': second.net, 'optimizer': second.optimizer, 'data': second.loader, 'state': [second.schedule]}
        comp.resume(self.path, second.step, **given, epochs=found.trained_batches // 8 + 1, progress=False)
        self.assertEqual((second.steps, second.average.tolist()), (first.steps, first.average.tolist()))

    def test_a_file_that_runs_code_is_not_read_unless_it_is_trusted(self):
        mark = os.path.join(os.path.dirname(self.path), 'ran')
        found = Classification().search()
        found.train(found.trained_batches // 8 + 1, checkpoint=self.path)
        contents = _checkpoint.read(self.path)
        sentence = (
            f'"{self.path}" is an older checkpoint, or none (such a file can run whatever its writer wrote into it, so it is '
            'not read): if you wrote it, give comp.resume(..., trusted=True), and the next checkpoint will be of the new kind'
        )
        for bad in (Bad(mark), contents | {'comp_training': 2, 'state': [Bad(mark)]}, contents | {'comp_training': 1}):
            torch.save(bad, self.path)
            with self.assertRaises(comp.FileError) as raised:
                self.resumed()
            self.assertEqual(str(raised.exception), sentence)
        with open(self.path, 'wb') as file:
            pickle.dump(Bad(mark), file)
        for trusted in (False, True):
            with self.assertRaisesRegex(comp.FileError, 'is no whole checkpoint'):
                self.resumed(trusted=trusted)
        self.assertFalse(os.path.exists(mark))

        torch.save(contents | {'comp_training': 1}, self.path)  # as comp wrote it
        done = self.resumed(trusted=True, epochs=found.trained_batches // 8 + 2)
        self.assertEqual(len(done.epochs), found.trained_batches // 8 + 2)
        _checkpoint.read(self.path)

    def test_plain_data_of_a_stranger_are_refused_in_a_sentence(self):
        found = Classification().search()
        found.train(found.trained_batches // 8 + 1, checkpoint=self.path)
        good = torch.load(self.path, weights_only=True)
        for bad in (
            [1],
            {},
            good | {'comp_training': 3},
            {key: each for key, each in good.items() if key != 'random'},
            good | {'state': {'comp type': 'os.system', 'of': ['true']}},
            good | {'state': {'comp type': 'array', 'of': [True, 'O', [1], torch.zeros(8, dtype=torch.uint8)]}},
            good | {'state': {'comp type': 'dtype', 'of': 'load'}},
            good | {'state': {'comp type': 'defaultdict', 'of': ['eval']}},
        ):
            torch.save(bad, self.path)
            with self.assertRaisesRegex(comp.FileError, 'holds no training'):
                self.resumed()
        for cut in (0, 1, 100, -1, -100):
            torch.save(good, self.path)
            whole = open(self.path, 'rb').read()
            with open(self.path, 'wb') as file:
                file.write(whole[:cut])
            with self.assertRaisesRegex(comp.FileError, 'is no whole checkpoint'):
                self.resumed()

    def test_results_have_types(self):
        self.assertIs(get_type_hints(comp.Outcome.train)['return'], comp.TrainingResult)
        self.assertEqual(get_type_hints(comp.Outcome.contest.fget)['return'], list[comp.Contestant])
        self.assertEqual(get_type_hints(comp.Outcome.operators.fget)['return'], list[comp.Operator])
        self.assertEqual(get_type_hints(comp.Outcome.trials.fget)['return'], list[comp.Trial])
        found = Classification().search(stages='losses_only')
        self.assertIsInstance(found.contest[0], comp.Contestant)
        self.assertIsInstance(found.baseline, comp.Sample)
        self.assertIsInstance(found.train(found.trained_batches // 8 + 1), comp.TrainingResult)


def _epochs_in(path):
    import json

    return json.loads(torch.load(path, weights_only=True)['progress'])['so_far']['epochs']


if __name__ == '__main__':
    unittest.main()
