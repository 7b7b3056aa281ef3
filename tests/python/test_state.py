# SPDX-License-Identifier: Apache-2.0
"""State that nobody named: a search finds what a step changes, and puts it back."""

import array
import collections
import copy
import dataclasses
import decimal
import enum
import functools
import itertools
import queue
import random
import types
import unittest
import warnings
import weakref

import numpy
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import comp
from comp._objects import attributes, is_library, may_hold_state
from comp._unnamed_state import UnnamedState
from support import QUICK, Classification, NoPlan, same


class Stream:
    """Data whose iterators `made` makes."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return self.make()


class Average:
    """An EMA as people write it, through `.data`, which no version counter sees."""

    def __init__(self, net):
        self.shadow = [p.detach().clone() for p in net.parameters()]
        self.updates = 0

    def update(self, net):
        self.updates += 1
        for mine, theirs in zip(self.shadow, net.parameters()):
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)


class Lookahead(torch.optim.Optimizer):
    """Its slow weights and its count are attributes, in no state_dict."""

    def __init__(self, inner, every=5):
        self.optimizer, self.every, self.count = inner, every, 0
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, inner.defaults
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group['params']]

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.optimizer.step()
        self.count += 1
        if self.count % self.every == 0:
            for slow, fast in zip(self.slow, [p for group in self.param_groups for p in group['params']]):
                slow.add_(fast.data - slow, alpha=0.5)
                fast.data.copy_(slow)


class Sharpness(torch.optim.Optimizer):
    """SAM: steps another optimizer, whose momenta lie under parameters as keys."""

    def __init__(self, parameters, **given):
        super().__init__(parameters, given)
        self.base = torch.optim.SGD(self.param_groups, **given)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        for p in (p for group in self.param_groups for p in group['params']):
            self.state[p]['before'] = p.clone()
            p.add_(p.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group['params']):
            p.copy_(self.state[p]['before'])
        self.base.step()
        self.zero_grad()


class Caller:
    """A step with slots, and no __dict__."""

    __slots__ = ('job', 'calls', 'log', 'never_set')

    def __init__(self, job):
        self.job, self.calls, self.log = job, 0, collections.deque(maxlen=10000)

    def __call__(self, plan, batch):
        self.calls += 1
        self.log.append(self.calls)
        return self.job.step(plan, batch)


class Touchy:
    """Like objects that send what they are asked for over a network."""

    touched = []

    def __init__(self):
        object.__setattr__(self, 'told', [])

    def __getattribute__(self, name):
        Touchy.touched.append(name)
        return object.__getattribute__(self, name)

    def __eq__(self, other):
        raise RuntimeError('compared')

    __hash__ = None

    @property
    def live(self):
        raise RuntimeError('asked')


def counted_partial(state, job, plan, batch):
    state['n'] += 1
    return job.step(plan, batch)


@dataclasses.dataclass(slots=True)
class Statistics:
    best: float = 9.0
    numbers: list = dataclasses.field(default_factory=list)


class Phase(enum.Enum):
    WARM = 1
    COLD = 2


class Shared:
    count = 0

    @staticmethod
    def add():
        Shared.count += 1


def add_to_global():
    global MADE_LATE
    MADE_LATE = globals().get('MADE_LATE', 0) + 1


def called(function):
    function.calls = getattr(function, 'calls', 0) + 1


def closure():
    count, steps = 0, iter(list(range(1000)))

    def change(n=None):
        nonlocal count
        count += 0 if n is None else next(steps) + n
        return count

    return change


def with_default():
    def change(n=None, values=[]):  # noqa: B006
        values += [] if n is None else [n]
        return list(values)

    return change


def switch(job, n):
    job.it.phase = Phase.COLD if job.it.phase is Phase.WARM else Phase.WARM
    job.it.act = torch.tanh if job.it.act is torch.relu else torch.relu
    job.it.total += decimal.Decimal(n)
    job.it.form = torch.bfloat16 if job.it.form is torch.float32 else torch.float32


def add_late(job, n):
    if not hasattr(job, 'late'):
        job.late = Statistics()
    job.late.numbers.append(n)


def move(job, n):
    job.it.move_to_end(n % 5)


def learn_threshold(job, n):
    (2 * job.it).sum().backward()
    if n % 2 == 0:
        job.it.data -= job.it.grad
        job.it.grad = None


def grow(job, n):
    job.it.data = torch.cat([job.it.data, torch.full((1,), float(n))])


def average_anew(job, n):
    job.it.shadow = [0.9 * mine + 0.1 * theirs.detach() for mine, theirs in zip(job.it.shadow, job.net.parameters())]


def average(job, n):
    for mine, theirs in zip(job.it.parameters(), job.net.parameters()):
        mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)


# What a step changes in each seventh batch alone: how it is made (from the job), changed, and read.
RARELY = {
    'a list': (lambda job: [], lambda job, n: job.it.append(n), list),
    'a dict of as many keys': (lambda job: {n: True for n in range(-3, 0)}, lambda job, n: (job.it.pop(next(iter(job.it))), job.it.update({n: True})), list),
    'a full deque': (lambda job: collections.deque([0] * 3, 3), lambda job, n: job.it.append(n), list),
    'an order': (lambda job: collections.OrderedDict.fromkeys(range(5)), move, list),
    'a list of 60,000': (lambda job: [0] * 60000, lambda job, n: job.it.__setitem__(n * 7919 % 60000, n), sum),
    'a dataclass with slots': (lambda job: Statistics(), lambda job, n: (setattr(job.it, 'best', n), job.it.numbers.append(n)), repr),
    'namespaces in containers': (
        lambda job: types.SimpleNamespace(a={'b': [types.SimpleNamespace(n=0)]}),
        lambda job, n: job.it.a['b'].append(types.SimpleNamespace(n=n)),
        repr,
    ),
    'an attribute of a class': (lambda job: Shared, lambda job, n: Shared.add(), lambda it: it.count),
    'a global that is made late': (lambda job: globals().pop('MADE_LATE', None), lambda job, n: add_to_global(), lambda _: globals().get('MADE_LATE')),
    'an attribute of a function': (lambda job: lambda: None, lambda job, n: called(job.it), lambda it: getattr(it, 'calls', 0)),
    'variables of a closure': (lambda job: closure(), lambda job, n: job.it(n), lambda it: it()),
    'a default': (lambda job: with_default(), lambda job, n: job.it(n), lambda it: it()),
    'an object that is made late': (lambda job: job, add_late, lambda job: repr(getattr(job, 'late', None))),
    'values by which one chooses': (
        lambda job: types.SimpleNamespace(phase=Phase.WARM, act=torch.relu, total=decimal.Decimal(0), form=torch.float32),
        switch,
        repr,
    ),
    'an average through .data': (lambda job: copy.deepcopy(job.net), average, lambda it: [p.tolist() for p in it.parameters()]),
    'an average that is bound anew': (
        lambda job: types.SimpleNamespace(shadow=[p.detach().clone() for p in job.net.parameters()]),
        average_anew,
        lambda it: [p.tolist() for p in it.shadow],
    ),
    'a row of a buffer': (lambda job: torch.zeros(300, 40), lambda job, n: job.it.data[n % 300].fill_(n), lambda it: it.sum().item()),
    'a tensor that grows': (lambda job: torch.zeros(1), grow, lambda it: it.tolist()),
    'a threshold and its gradient': (lambda job: torch.zeros(1, requires_grad=True), learn_threshold, lambda it: str((it, it.grad))),
    'a value of an array': (lambda job: numpy.zeros((300, 40)), lambda job, n: job.it.__setitem__((n % 300, 7), n), lambda it: it.sum()),
    'an array of objects': (lambda job: numpy.array([None] * 5), lambda job, n: job.it.__setitem__(n % 5, n), repr),
    'bytes and a queue': (
        lambda job: (bytearray(), array.array('d'), queue.Queue(), collections.UserDict()),
        lambda job, n: (job.it[0].append(n % 256), job.it[1].append(n), job.it[2].put(n), job.it[3].update({n: n})),
        lambda it: repr((it[0], it[1], it[2].queue, it[3])),
    ),
    'iterators': (
        lambda job: [itertools.cycle([1, 2, 3]), zip(itertools.count(), iter(range(1000)))],
        lambda job, n: [next(each) for each in job.it],
        lambda it: [next(copy.deepcopy(each)) for each in it],
    ),
    'a random generator': (lambda job: random.Random(2), lambda job, n: job.it.random(), lambda it: it.getstate()),
    'rates set by hand': (lambda job: job.optimizer, lambda job, n: job.it.param_groups[0].update(lr=1 / n), lambda it: it.param_groups[0]['lr']),
    'a frozen layer': (
        lambda job: job.net[0].bias,
        lambda job, n: job.it.requires_grad_(not job.it.requires_grad),
        lambda it: it.requires_grad,
    ),
}  # fmt: skip


class Rare:
    """A small training with one of RARELY."""

    def __init__(self, kind):
        make, self.change, self.read = RARELY[kind]
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.05)
        self.data = [(torch.randn(8, 12), torch.arange(8) % 4) for _ in range(10)]
        self.steps = 0
        Shared.count = 0
        self.it = make(self)

    def step(self, plan, batch):
        self.steps += 1
        with plan:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.steps % 7 == 0:
            self.change(self, self.steps)
        return loss

    def state(self):
        return self.steps, self.read(self.it)

    def search(self, **more):
        return comp.search(self.step, model=self.net, optimizer=self.optimizer, data=self.data, **(QUICK | more))


class Rarely(unittest.TestCase):
    """What changes in few steps counts the batches that the model has behind it, too."""

    def test_a_search_that_keeps_nothing_puts_back_what_changes_rarely(self):
        for kind in RARELY:
            with self.subTest(kind):
                job = Rare(kind)
                before = job.state()
                job.search(keep=False)
                self.assertEqual(job.state(), before)

    def test_a_search_that_keeps_its_batches_has_changed_it_as_a_plain_loop_does(self):
        for kind in RARELY:
            with self.subTest(kind):
                job = Rare(kind)
                found = job.search(policy='all_fp32')
                after, plain = job.state(), Rare(kind)
                for i in range(found.trained_batches):
                    plain.step(NoPlan(), plain.data[i % 10])
                self.assertEqual(after, plain.state())

    def test_it_is_found(self):
        job = Rare('a list')
        found = job.search()
        self.assertEqual(found.also_saved, ['self.steps', 'self.it'])

    def test_a_step_that_raises_leaves_its_counters_as_they_were(self):
        class Mine(Exception):
            pass

        for last in (1, 2, 9):
            job, calls = Rare('a list'), []

            def step(plan, batch):
                calls.append(0)
                job.steps += 1
                if len(calls) == last:
                    raise Mine
                return job.step(plan, batch)

            with self.assertRaises(Mine):
                comp.search(step, model=job.net, optimizer=job.optimizer, data=job.data, **QUICK)
            self.assertEqual((job.steps, len(calls)), (0, 0), last)

    def test_a_generator_that_a_step_draws_from_is_told(self):
        job = Rare('a list')
        numbers = (n for n in range(100000))
        job.change = lambda job, n: next(numbers)
        sentence = (
            'the step draws from numbers, a generator (it does not go back, so each plan is given other values): let `data` '
            'give them, too, or make it an object whose attributes say where it is'
        )
        with self.assertWarns(UserWarning) as context:
            job.search()
        self.assertEqual([str(each.message) for each in context.warnings if 'draws' in str(each.message)], [sentence])

    def test_what_others_change_between_steps_stays_theirs_however_late(self):
        class Watched(Rare):
            def __init__(self):
                super().__init__('a list')
                self.given, self.epochs, self.labels = 0, [], []
                self.dice = torch.Generator().manual_seed(2)

            def __iter__(self):
                while True:
                    if self.given % 10 == 0:
                        self.epochs.append(torch.randperm(10, generator=self.dice).tolist())
                    self.given += 1
                    yield self.data[self.epochs[-1][self.given % 10]]

            def trial_done(self, trial):
                self.labels.append(trial.label)

        job = Watched()
        found = comp.search(
            job.step,
            model=job.net,
            optimizer=job.optimizer,
            data=Stream(job.__iter__),
            batches_per_epoch=10,
            observers=[job],
            **QUICK,
        )
        self.assertEqual(job.it, list(range(7, found.trained_batches + 1, 7)))
        self.assertEqual(len(job.labels), len(found.trials))
        dice = torch.Generator().manual_seed(2)
        self.assertEqual(job.epochs, [torch.randperm(10, generator=dice).tolist() for _ in job.epochs])
        self.assertEqual(len(job.epochs), -(-job.given // 10))


class Counts(unittest.TestCase):
    """After a search everything counts the batches that the model has behind it, and no rejected one."""

    def search(self, make, least=4, **more):
        job = Classification()
        step, count = make(job)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            found = job.search(step, losses_tie='none', **more)
        self.assertGreaterEqual(len(found.trials), least)
        self.assertEqual(count(), found.trained_batches)
        return found

    def test_torchs_averaged_model(self):
        def make(job):
            average = AveragedModel(job.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

            def step(plan, batch):
                loss = job.step(plan, batch)
                average.update_parameters(job.net)
                return loss

            return step, lambda: average.n_averaged.item()

        self.assertIn('average.n_averaged', self.search(make).also_saved)

    def test_an_optimizers_own_attributes(self):
        def make(job):
            look = job.optimizer = Lookahead(torch.optim.SGD(job.net.parameters(), 0.05, momentum=0.9))

            def step(plan, batch):
                with plan:
                    loss = nn.functional.cross_entropy(job.net(batch[0]), batch[1])
                loss.backward()
                look.step()
                look.zero_grad()
                return loss

            return step, lambda: look.count

        self.assertIn('optimizer.count', self.search(make, state=[]).also_saved)

    def test_an_optimizer_within_the_optimizer(self):
        def make(job):
            sharp = job.optimizer = Sharpness(job.net.parameters(), lr=0.05, momentum=0.9)
            count = 0

            def step(plan, batch):
                nonlocal count
                count += 1
                with plan:
                    loss = nn.functional.cross_entropy(job.net(batch[0]), batch[1])
                loss.backward()
                sharp.climb()
                with plan:
                    again = nn.functional.cross_entropy(job.net(batch[0]), batch[1])
                again.backward()
                sharp.step()
                return loss

            return step, lambda: count

        found = self.search(make, state=[])
        self.assertTrue(any(path.startswith('optimizer.base.state') for path in found.also_saved), found.also_saved)

    def test_steps_that_are_no_plain_function(self):
        def of_object(job):
            return job.step, lambda: job.steps

        def with_slots(job):
            caller = Caller(job)
            return caller, lambda: caller.calls if len(caller.log) == caller.calls else -1

        def partial(job):
            state = {'n': 0}
            return functools.partial(counted_partial, state, job), lambda: state['n']

        def decorated(job):
            counts = [0]

            @functools.wraps(job.step)
            def step(*given):
                counts[0] += 1
                return job.step(*given)

            return step, lambda: counts[0]

        def in_a_lambda(job):
            counts = {'n': 0}
            return lambda plan, batch: (counts.update(n=counts['n'] + 1), job.step(plan, batch))[1], lambda: counts['n']

        for make in (of_object, with_slots, partial, decorated, in_a_lambda):
            self.search(make)

    def test_an_attribute_of_the_model_and_a_hook_of_the_optimizer(self):
        def in_forward(job):
            class Counting(nn.Module):
                calls = 0

                def __init__(self):
                    super().__init__()
                    self.net = job.net

                def forward(self, x):
                    self.calls += 1
                    return self.net(x)

            outer = Counting()

            def step(plan, batch):
                with plan:
                    loss = nn.functional.cross_entropy(outer(batch[0]), batch[1])
                loss.backward()
                job.update()
                return loss

            job.net = outer
            return step, lambda: outer.calls

        self.assertIn('model.calls', self.search(in_forward).also_saved)

        def in_hook(job):
            average = Average(job.net)
            job.optimizer.register_step_post_hook(lambda *_: average.update(job.net))
            return job.step, lambda: average.updates

        self.assertIn('average.updates', self.search(in_hook).also_saved)

    def test_a_hook_that_a_forward_registers_once(self):
        class Hooked(nn.Module):
            calls, registered = 0, None

            def __init__(self, net, remembered):
                super().__init__()
                self.net, self.remembered = net, remembered

            def forward(self, x):
                if not self.registered:
                    self.registered = self.remembered(next(self.net.children()).register_forward_hook(self.count))
                return self.net(x)

            def count(self, *_):
                self.calls += 1

        for remembered in (lambda handle: True, lambda handle: handle, lambda handle: [handle]):

            def make(job):
                job.net = outer = Hooked(job.net, remembered)
                return job.step, lambda: outer.calls

            self.search(make)

    def test_a_touchy_object_is_not_touched(self):
        def make(job):
            touchy = Touchy()

            def step(plan, batch):
                loss = job.step(plan, batch)
                touchy.told.append(loss.item())
                return loss

            Touchy.touched.clear()
            return step, lambda: len(object.__getattribute__(touchy, 'told'))

        self.search(make)
        self.assertEqual(set(Touchy.touched), {'told'})


class Others(unittest.TestCase):
    def test_generators_of_the_users_own_go_back(self):
        dice = [numpy.random.default_rng(3), numpy.random.RandomState(3), random.Random(4), torch.Generator().manual_seed(5)]
        drawn = []
        job = Classification()

        def draw():
            return (dice[0].random(), dice[1].rand(), dice[2].random(), torch.rand(1, generator=dice[3]).item())

        def step(plan, batch):
            drawn.append(draw())
            return job.step(plan, batch)

        found = job.search(step)
        dice[:] = [numpy.random.default_rng(3), numpy.random.RandomState(3), random.Random(4), torch.Generator().manual_seed(5)]
        self.assertEqual(drawn, [draw() for _ in range(found.trained_batches)])

    def test_what_autograd_made_is_not_brought_back(self):
        job = Classification()
        job.last = None

        def step(plan, batch):
            with plan:
                job.last = job.net(batch[0])
                loss = nn.functional.cross_entropy(job.last, batch[1])
            loss.backward()
            job.update()
            return loss

        found = job.search(step)
        self.assertNotIn('job.last', found.also_saved)

    def test_what_is_too_large_to_be_saved_on_suspicion_is_told(self):
        job = Classification()
        seen = torch.zeros(3 << 20)

        def step(plan, batch):
            seen.add_(1)
            return job.step(plan, batch)

        sentence = (
            'seen of 12582912 bytes was changed by the step, and nobody has it as it was (what is large is '
            'saved from its first change on): give the search state=[...] with what saves and loads it'
        )
        with self.assertWarns(UserWarning) as context:
            found = job.search(step)
        self.assertEqual(str(context.warning), sentence)
        self.assertIn(sentence, found.warnings)

    def test_a_step_that_draws_from_an_iterator_is_told(self):
        job = Classification()
        more = iter(DataLoader(list(range(100000)), batch_size=2))

        def step(plan, batch):
            next(more)
            return job.step(plan, batch)

        with self.assertWarnsRegex(UserWarning, '^the step draws from more, an iterator of a DataLoader'):
            job.search(step)

    def test_a_saved_state_and_the_data_are_left_alone(self):
        class Data:
            """Gives batches, and counts them."""

            def __init__(self, batches):
                self.batches, self.given = batches, 0

            def __iter__(self):
                for batch in self.batches:
                    self.given += 1
                    yield batch

        job = Classification()
        data = Data(list(job.loader))

        def step(plan, batch):
            return job.step(plan, batch) if data.given else None

        job.search(step, data=data)
        self.assertGreaterEqual(data.given, 8)

    def test_loops_deep_structures_and_odd_objects_are_walked_over(self):
        class Odd:
            @property
            def __dict__(self):
                raise RuntimeError('asked')

            __class__ = property(lambda self: (_ for _ in ()).throw(RuntimeError('asked')))

        job = Classification()
        loop = []
        loop.append({'again': loop, 'odd': Odd(), 'lazy': nn.LazyLinear(3), 'sparse': torch.eye(2).to_sparse()})
        for _ in range(5000):
            loop = [loop]

        def step(plan, batch):
            self.assertTrue(loop)
            return job.step(plan, batch)

        found = job.search(step)
        self.assertEqual(job.steps, found.trained_batches)

    def test_states_share_the_copies_of_what_has_not_changed(self):
        net, teacher = nn.Linear(700, 700), nn.Linear(700, 700)
        average = Average(net)
        unnamed = UnnamedState(lambda: (teacher, average), {'': net}, [torch.optim.SGD(net.parameters(), 0.1)], [], None)

        def copies(state):
            return {each.snapshot.holder.path: each.copies for each in state if each.copies}

        first = unnamed.save()
        for _ in range(5):
            unnamed.around(lambda: average.update(net))
        second = unnamed.save()
        self.assertTrue(same(copies(first)['teacher'][0].copy, teacher.weight.detach()))
        self.assertIs(copies(first)['teacher'][0], copies(second)['teacher'][0])
        self.assertIsNot(copies(first)['average'][0], copies(second)['average'][0])
        unnamed.around(lambda: average.update(net))
        unnamed.restore(second)
        self.assertEqual(average.updates, 5)
        unnamed.restore(first)
        self.assertEqual(average.updates, 0)

    def test_library_modules_are_looked_at_only_when_a_state_is_saved_or_put_back(self):
        net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(300)])
        unnamed = UnnamedState(lambda: net, {'': net}, [torch.optim.SGD(net.parameters(), 0.1)], [], None)
        saved = unnamed.save()
        for _ in range(4):
            unnamed.around(lambda: None)
        unnamed.around(lambda: setattr(net[7], 'mine', 1))
        self.assertEqual(list(unnamed.found), [])
        unnamed.restore(saved)
        self.assertFalse(hasattr(net[7], 'mine'))
        self.assertEqual(list(unnamed.found), ['model.7.mine'])

    def test_what_autograd_made_does_not_outlive_its_step(self):
        net, held = nn.Linear(4, 4), types.SimpleNamespace()
        unnamed = UnnamedState(lambda: held, {'': net}, [torch.optim.SGD(net.parameters(), 0.1)], [], None)
        for _ in range(5):
            unnamed.around(lambda: setattr(held, 'last', net(torch.ones(4))))
        saved = unnamed.save()
        reference = weakref.ref(held.last)
        held.last = None
        self.assertIsNone(reference())
        unnamed.restore(saved)
        self.assertIsNone(held.last)

    def test_objects_are_told_apart(self):
        self.assertTrue(may_hold_state(Average) and may_hold_state(AveragedModel) and may_hold_state(Lookahead))
        self.assertFalse(may_hold_state(DataLoader) or may_hold_state(comp.Region) or may_hold_state(type(open)))
        self.assertFalse(may_hold_state(torch.optim.lr_scheduler.StepLR))
        self.assertTrue(is_library(nn.Linear) and not is_library(Average))
        self.assertIsNone(attributes(object()))


if __name__ == '__main__':
    unittest.main()
