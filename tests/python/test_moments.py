# SPDX-License-Identifier: Apache-2.0
"""Moments of torch's own SGD, Adam and AdamW as operators of a plan."""

import copy
import gc
import json
import os
import tempfile
import unittest
import warnings

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import comp
from support import QUICK, NoPlan, operators_of, same

FP32, BF16, BLOCKS = torch.float32, torch.bfloat16, torch.uint8
# The formats of the moments of a plan; in FP8 those of fewer than 4096 values stay in FP32.
LOW = {'bf16': {BF16}, 'fp8_e4m3': {BLOCKS, FP32}}
OWN = {
    'adam': lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.1, amsgrad=True),
    'adamw': lambda p: torch.optim.AdamW(p, 1e-2, maximize=False, foreach=True),
    'fused': lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    'sgd': lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    'nesterov': lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, fused=True),
}


class Job:
    """An MLP, whose weights count for most of its memory."""

    def __init__(self, make=OWN['adamw'], width=64):
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
        self.optimizer = make(self.net.parameters())
        generator = torch.Generator().manual_seed(2)
        self.x = torch.randn(8, 16, 16, generator=generator)
        self.data = [(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()) for x in self.x]
        self.folder = tempfile.TemporaryDirectory()

    def step(self, plan, batch):
        with plan:
            loss = cross_entropy(self.net(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if isinstance(plan, comp.Autocast):
            plan.step(loss)
        return loss

    def train(self, plan, steps):
        return [self.step(plan, self.data[i % len(self.data)]).item() for i in range(steps)]

    def plan(self, moments='bf16', given=True, suffix=''):
        """A plan that keeps the moments so, and all else in FP32."""
        net = copy.deepcopy(self.net)

        def run(plan):
            with plan:
                return cross_entropy(net(self.data[0][0]), self.data[0][1])

        rows = [(op.name, op.kind, 'fp32', op.hands_on_fp32) for op in operators_of(net, run)]
        kinds = ('moment1',) if type(self.optimizer) is torch.optim.SGD else ('moment1', 'moment2')
        rows += [(f'optimizer.{kind}{suffix}', kind, moments, True) for kind in kinds]
        path = os.path.join(self.folder.name, 'plan.json')
        keys = ('name', 'kind', 'precision', 'hands_on_fp32')
        with open(path, 'w') as file:
            json.dump({'comp_plan': 1, 'operators': [dict(zip(keys, row)) for row in rows]}, file)
        return comp.plan(path, self.net, optimizer=self.optimizer if given else None)

    def search(self, **more):
        given = {'model': self.net, 'optimizer': self.optimizer, 'data': self.data, 'moments': True}
        return comp.search(self.step, **(given | QUICK | {'planned_epochs': 10_000} | more))

    def moments(self):
        return [t for state in self.optimizer.state.values() for n, t in state.items() if n in ('exp_avg', 'exp_avg_sq', 'momentum_buffer')]

    def formats(self):
        return {each.dtype for each in self.moments()}

    def weights(self):
        return [p.detach().clone() for p in self.net.parameters()]


def moments_in(low):
    """A policy that leaves all else in FP32."""
    return lambda op: comp.allow(low) if op.kind in ('moment1', 'moment2') else comp.fixed('fp32')


moments_alone = moments_in('bf16')


class Lowered:
    """A strategy that tries the plan with the least bits."""

    def start(self, space):
        self.plans = [space.conservative]
        for i, group in enumerate(space.groups):
            self.plans[0] = space.set(self.plans[0], i, list(group.levels).index('bf16'))
        return self

    def ask(self, n):
        plans, self.plans = self.plans, []
        return plans

    def tell(self, trial):
        pass


class Formats(unittest.TestCase):
    def each(self):
        for name, make in OWN.items():
            with self.subTest(name):
                yield name, make

    def each_low(self):
        for low in LOW:
            for _, make in self.each():
                with self.subTest(low):
                    yield low, make

    def test_in_fp32_the_loop_has_its_own_bits_and_state(self):
        for _, make in self.each():
            plain, planned = Job(make), Job(make)
            self.assertEqual(plain.train(NoPlan(), 6), planned.train(planned.plan('fp32'), 6))
            self.assertTrue(same(plain.weights(), planned.weights()))
            self.assertTrue(same(plain.optimizer.state_dict(), planned.optimizer.state_dict()))

    def test_lower_ones_take_less_losses_are_near_and_a_run_is_reproducible(self):
        for low, make in self.each_low():
            plain, one, other = Job(make), Job(make), Job(make)
            plan = one.plan(low)
            expected, got = plain.train(NoPlan(), 12), one.train(plan, 12)
            self.assertEqual(other.train(other.plan(low), 12), got)
            self.assertTrue(same(one.optimizer.state_dict(), other.optimizer.state_dict()))
            self.assertEqual(one.formats(), LOW[low])
            for whole, kept in zip(plain.moments(), one.moments()):
                few = whole.numel() < 4096
                self.assertEqual(kept.nbytes, whole.nbytes // 2 if low == 'bf16' else whole.nbytes if few else 16 * 260)
            self.assertNotEqual(got, expected)
            self.assertAlmostEqual(got[-1], expected[-1], delta=0.02 * expected[0])
            del plan
            gc.collect()
            one.train(NoPlan(), 1)
            self.assertEqual(one.formats(), LOW[low])  # as the last plan has it
            one.train(one.plan('fp32'), 1)
            self.assertEqual(one.formats(), {FP32})

    def test_a_step_is_torchs_on_the_moments_as_they_are_also_over_several_pieces(self):
        elements = comp._comp.Piecewise.most + 4099
        wide = lambda p, moment: comp._comp.in_format(p, moment, FP32, 0, 0)
        for low, make in self.each_low():
            torch.manual_seed(3)
            start, gradients = torch.randn(elements), torch.randn(3, elements)
            job = Job(make, 4)
            plan = job.plan(low)
            weight = nn.Parameter(start.clone())
            small = nn.Parameter(torch.ones(3))
            job.optimizer.add_param_group({'params': [weight, small]})
            job.train(plan, 1)
            for gradient in gradients:
                expected = {}
                for p, g in ((weight, gradient), (small, gradient[:3])):
                    twin = nn.Parameter(p.detach().clone())
                    p.grad, twin.grad = g.clone(), g.clone()
                    optimizer = make([twin])
                    state = comp._state.copied(dict(job.optimizer.state.get(p, {})))
                    if state:
                        optimizer.state[twin].update({n: wide(p, t) if isinstance(t, torch.Tensor) else t for n, t in state.items()})
                    optimizer.step()
                    expected[p] = twin, optimizer.state[twin]
                job.optimizer.step()
                for p, (twin, state) in expected.items():
                    self.assertTrue(torch.equal(p, twin))
                    for name, moment in job.optimizer.state[p].items():
                        if name in ('exp_avg', 'exp_avg_sq', 'momentum_buffer'):
                            self.assertIn(moment.dtype, LOW[low])
                            exact = state[name].abs()
                            unit = exact * 2**-7 if low == 'bf16' else (exact / 8).maximum(exact.max() / 448 / 512)
                            self.assertTrue(((wide(p, moment) - state[name]).abs() <= unit * 1.001).all())
                        elif name != 'step' or isinstance(moment, torch.Tensor):
                            self.assertTrue(torch.equal(moment, state[name]))

    def test_small_changes_count_on_average(self):
        """Rounded to nearest, a second moment that grows by less than half a unit of BF16 a step stands still."""
        for format, most in ((BF16, 2e-3), (torch.float8_e4m3fn, 1e-2)):
            p = nn.Parameter(torch.zeros(1 << 14))
            optimizer = torch.optim.Adam([p], 1e-3)
            kept = comp._moments.Moments([optimizer])
            kept.formats = lambda: {'optimizer.moment1': format, 'optimizer.moment2': format}
            exact, nearest, gradient = 0.0, torch.zeros(1, dtype=BF16), torch.linspace(0.1, 1, 1 << 14).view(64, 256).t().flatten()
            for _ in range(1500):
                p.grad = gradient.clone()
                optimizer.step()
                exact = 0.999 * exact + 0.001
                nearest = (0.999 * nearest.float() + 0.001).to(BF16)
            moment = comp._comp.in_format(p, optimizer.state[p]['exp_avg_sq'], FP32, 0, 1)
            off = moment / gradient**2 / exact - 1
            self.assertLess(abs(off.mean().item()), most)
            self.assertLess(off.abs().median().item(), 20 * most)
            self.assertGreater(abs(nearest.item() / exact - 1), 0.2)

    def test_a_loaded_state_goes_on_with_the_same_bits(self):
        for low, make in self.each_low():
            whole, begun, resumed = Job(make), Job(make), Job(make)
            losses = whole.train(whole.plan(low), 16)
            begun.train(begun.plan(low), 8)
            path = os.path.join(begun.folder.name, 'state.pt')
            torch.save([begun.net.state_dict(), begun.optimizer.state_dict()], path)
            saved = torch.load(path, weights_only=True)
            self.assertLessEqual(LOW[low], {t.dtype for s in saved[1]['state'].values() for t in s.values() if torch.is_tensor(t)})
            resumed.net.load_state_dict(saved[0])
            resumed.optimizer.load_state_dict(saved[1])
            self.assertEqual(resumed.train(resumed.plan(low), 8), losses[8:])
            self.assertTrue(same(resumed.optimizer.state_dict(), whole.optimizer.state_dict()))

    def test_closures_schedulers_and_scalers_go_on_as_without_comp(self):
        def closure(job, plan, batch):
            def evaluate():
                job.optimizer.zero_grad()
                with plan:
                    loss = cross_entropy(job.net(batch[0]), batch[1])
                loss.backward()
                return loss

            return job.optimizer.step(evaluate)

        def scaled(job, plan, batch):
            job.scaler = getattr(job, 'scaler', None) or torch.amp.GradScaler('cpu', init_scale=2.0**10)
            with plan:
                loss = cross_entropy(job.net(batch[0]), batch[1])
            job.scaler.scale(loss).backward()
            if batch is job.data[2]:
                job.net[0].weight.grad[0, 0] = float('inf')  # this step is left out
            job.scaler.step(job.optimizer)
            job.scaler.update()
            job.optimizer.zero_grad()
            return loss

        def scheduled(job, plan, batch):
            job.schedule = getattr(job, 'schedule', None) or torch.optim.lr_scheduler.StepLR(job.optimizer, 2, 0.1)
            loss = job.step(plan, batch)
            job.schedule.step()
            return loss

        for way in (closure, scaled, scheduled):
            for name, make in OWN.items():
                with self.subTest(way=way.__name__, optimizer=name):
                    plain, planned = Job(make), Job(make)
                    plan = planned.plan()
                    losses = [[way(job, region, batch).item() for batch in job.data] for job, region in ((plain, NoPlan()), (planned, plan))]
                    self.assertEqual(planned.formats(), {BF16})
                    for a, b in zip(*losses):
                        self.assertAlmostEqual(a, b, delta=0.02 * losses[0][0])
                    if way is scaled:
                        self.assertEqual(planned.scaler.get_scale(), 2.0**9)


class Others(unittest.TestCase):
    def warnings_of(self, work):
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter('always')
            work()
        return [str(w.message) for w in messages if 'moments stay in FP32' in str(w.message)]

    def test_other_optimizers_are_refused_or_keep_fp32_with_one_warning(self):
        class Own(torch.optim.Adam):
            pass

        others = {
            'RMSprop is not': lambda p: torch.optim.RMSprop(p, 1e-3, momentum=0.9),
            'Own is not': lambda p: Own(p, 1e-3),
            'without momentum': lambda p: torch.optim.SGD(p, 1e-3),
            'is differentiable': lambda p: torch.optim.Adam(p, 1e-3, differentiable=True),
            'in FP32 and on a CPU': lambda p: torch.optim.Adam([*p, nn.Parameter(torch.ones(2).double())], 1e-3),
            'not whole, in FP32': lambda p: torch.optim.Adam([*p, nn.Parameter(torch.ones(2, dtype=torch.complex64))], 1e-3),
        }
        for words, make in others.items():
            with self.subTest(words):
                for call in (lambda: Job(make).search(), lambda: self.loop(Job(make))):
                    with self.assertRaisesRegex(comp.SettingsError, words):
                        call()
                if words == 'is differentiable':
                    continue  # torch steps it for parameters that were computed alone
                job, plain = Job(make), Job(make)
                sentences = self.warnings_of(lambda: job.train(job.plan(), 3))
                self.assertTrue(any(words in each for each in sentences), sentences)
                self.assertEqual(len(set(sentences)), len(sentences))
                plain.train(NoPlan(), 3)
                self.assertTrue(same(plain.weights(), job.weights()))
                self.assertLessEqual(job.formats(), {FP32})

    def loop(self, job, **more):
        return comp.autocast(job.net, optimizer=job.optimizer, moments=True, **more)

    def test_of_two_optimizers_the_one_that_may_is_lowered(self):
        job = Job()
        first, last = list(job.net[:-1].parameters()), list(job.net[-1].parameters())
        both = [torch.optim.RMSprop(first, 1e-3, momentum=0.9), torch.optim.AdamW(last, 1e-3)]
        job.optimizer = both[1]
        path = os.path.join(job.folder.name, 'plan.json')
        job.plan(suffix='.1', given=False)
        plan = comp.plan(path, job.net, optimizer=both)
        job.train(plan, 2)
        self.assertEqual(job.formats(), {BF16})
        sentences = self.warnings_of(lambda: comp.plan(path, job.net, optimizer=both[1]))
        self.assertEqual(sum('which no given optimizer has' in each for each in sentences), 2, sentences)

    def test_without_an_optimizer_a_plan_leaves_them_and_says_so(self):
        job = Job()
        plan = job.plan(given=False)
        job.train(plan, 2)
        self.assertEqual(job.formats(), {FP32})
        self.assertTrue(any('comp.plan(..., optimizer=optimizer)' in each for each in plan.warnings), plan.warnings)

    def test_sparse_gradients_and_those_that_lie_otherwise_keep_fp32_with_one_warning(self):
        def run(sparse):
            job = Job(OWN['sgd'])
            plan = job.plan()
            table = nn.Embedding(6, 4, sparse=sparse)
            table.weight.data.fill_(1)
            job.optimizer.add_param_group({'params': table.weight, 'weight_decay': 0})
            for i in range(3):
                with plan:
                    loss = cross_entropy(job.net(job.data[i][0]), job.data[i][1])
                (loss + table(torch.tensor([0, 2])).sum()).backward()
                if not sparse:
                    table.weight.grad = table.weight.grad.t().contiguous().t()
                job.optimizer.step()
                job.optimizer.zero_grad()
            self.assertIs(job.optimizer.state[table.weight]['momentum_buffer'].dtype, FP32)
            self.assertIs(job.optimizer.state[job.net[0].weight]['momentum_buffer'].dtype, BF16)
            self.assertLess(table.weight[0, 0], 0.9)

        for sparse in (True, False):
            sentences = self.warnings_of(lambda: run(sparse))
            self.assertEqual(len(sentences), 1, sentences)
            self.assertIn('lies otherwise', sentences[0])

    def test_a_compiled_step_keeps_fp32_with_one_warning(self):
        def run(job, region):
            update = torch.compile(job.optimizer.step, backend='eager')
            for batch in job.data[:4]:
                with region:
                    loss = cross_entropy(job.net(batch[0]), batch[1])
                loss.backward()
                update()
                job.optimizer.zero_grad()

        plain, job = Job(), Job()
        run(plain, NoPlan())
        sentences = self.warnings_of(lambda: run(job, job.plan()))
        self.assertEqual(job.formats(), {FP32})
        self.assertEqual(len(sentences), 1, sentences)
        self.assertIn('is compiled', sentences[0])
        self.assertTrue(same(plain.weights(), job.weights()))


class Searches(unittest.TestCase):
    def test_the_graph_has_them_as_in_cpp_and_fp32_trains_with_the_bits_of_the_loop(self):
        job, plain = Job(), Job()
        found = job.search(policy='all_fp32')
        self.assertEqual([op.name for op in found.operators][-2:], ['optimizer.moment1', 'optimizer.moment2'])
        self.assertEqual(found.operators[-1].bytes, 8 * sum(p.numel() for p in job.net.parameters()))
        plain.train(NoPlan(), found.trained_batches)
        self.assertTrue(same(plain.weights(), job.weights()))
        self.assertEqual(Job(OWN['sgd']).search(policy='all_fp32').operators[-1].kind, 'moment1')

    def test_a_plan_with_them_is_found_its_peak_is_lower_and_its_file_and_checkpoint_go_on(self):
        """The least memory is asked for, so that a busy machine's times do not count."""
        make = lambda p: torch.optim.AdamW(p, 1e-5, foreach=True)
        job, again, other = Job(make, 1024), Job(make, 1024), Job(make, 1024)
        found = job.search(policy=moments_alone, slowdown=9.0, precisions=['bf16'])
        self.assertIn('b', found.plan[-2:], found)
        peaks = {c.plan: c.peak_bytes for c in found.contest}
        fp32 = next(peak for plan, peak in peaks.items() if set(plan) == {'1'})
        self.assertLess(peaks[found.plan], fp32 - 3 * sum(p.numel() for p in job.net.parameters()))
        formats = {BF16 if letter == 'b' else FP32 for letter in found.plan[-2:]}

        path = os.path.join(job.folder.name, 'found.json')
        found.save(path)
        plan = comp.autocast(again.net, optimizer=again.optimizer, moments=True, file=path, batches_per_epoch=1)
        again.train(plan, 4)
        self.assertEqual(again.formats(), formats)

        path, kept = os.path.join(job.folder.name, 'training.pt'), os.path.join(job.folder.name, 'kept.pt')
        epochs = found.trained_batches // len(job.data)

        def keep(now):
            if not os.path.exists(kept):
                os.link(path, kept)

        found.train(epochs + 4, checkpoint=path, callbacks=[keep])
        given = {'model': other.net, 'optimizer': other.optimizer, 'data': other.data, 'progress': False}
        comp.resume(kept, other.step, **given, epochs=epochs + 4)
        self.assertEqual(other.formats(), formats)
        self.assertTrue(same(job.weights(), other.weights()))
        self.assertTrue(same(job.optimizer.state_dict(), other.optimizer.state_dict()))

    def test_formats_that_this_machine_computes_slowly_are_searched_for_moments(self):
        """The least memory is asked for, as above."""
        job = Job(lambda p: torch.optim.AdamW(p, 1e-5, foreach=True), 768)
        found = job.search(policy=moments_in('fp8_e4m3'), slowdown=9.0, precisions=['fp8_e4m3'])
        self.assertIn('e', found.plan[-2:], found)
        path = os.path.join(job.folder.name, 'found.json')
        found.save(path)
        job.train(comp.autocast(job.net, optimizer=job.optimizer, moments=True, file=path, batches_per_epoch=1), 4)
        self.assertIn(BLOCKS, job.formats())

    def test_a_search_that_is_put_back_leaves_the_training_as_it_was(self):
        job, plain = Job(), Job()
        for each in (job, plain):
            each.train(NoPlan(), 3)
        job.search(policy=moments_alone, strategy=Lowered(), precisions=['bf16'], keep=False)
        self.assertTrue(same(plain.optimizer.state_dict(), job.optimizer.state_dict()))
        self.assertEqual(plain.train(NoPlan(), 3), job.train(NoPlan(), 3))

    def test_a_loop_has_them_in_its_plan_leaves_them_in_fp32_and_says_why(self):
        job, plain = Job(), Job()
        plan = comp.autocast(
            job.net, optimizer=job.optimizer, moments=True, batches_per_epoch=8, planned_epochs=100, precisions=['bf16'], race=QUICK['race']
        )
        for i in range(1200):
            job.step(plan, job.data[i % 8])
            if i < 8:
                plain.step(NoPlan(), plain.data[i])
                self.assertTrue(same(plain.weights(), job.weights()))
            if plan.found is not None:
                break
        self.assertEqual([op.name for op in plan.found.operators][-2:], ['optimizer.moment1', 'optimizer.moment2'])
        self.assertEqual(plan.found.plan[-2:], '11')
        self.assertTrue(any('stay in FP32' in each for each in plan.found.warnings), plan.found.warnings)


if __name__ == '__main__':
    unittest.main()
