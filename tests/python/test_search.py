# SPDX-License-Identifier: Apache-2.0
"""comp.search over trainings as Python users have them."""

import gc
import os
import signal
import tempfile
import threading
import unittest
import weakref
from fractions import Fraction

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import comp
from support import Classification, NoPlan, same, some_images


class Searches(unittest.TestCase):
    def test_a_search_gives_a_plan_a_table_and_files_and_trains_on(self):
        job = Classification()
        with tempfile.TemporaryDirectory() as folder:
            plan, report = os.path.join(folder, 'plan.json'), os.path.join(folder, 'report.html')
            found = job.search(report=report, score=lambda: 0.5)
            found.save(plan)
            self.assertIn('cost of the search', str(found))
            self.assertIn('<html', open(report).read())
            self.assertEqual(comp.load(plan).letters, found.plan)
            self.assertEqual(len(found.plan.partition('@')[0]), len(found.operators))
        self.assertEqual(found.batches_per_epoch, 8)
        self.assertEqual(job.schedule.last_epoch, found.trained_batches)
        epochs = found.trained_batches // 8 + 3
        done = found.train(epochs)
        self.assertEqual(len(done.epochs), epochs)
        self.assertEqual(job.schedule.last_epoch, 8 * epochs)
        self.assertEqual(done.epochs[-1].score, 0.5)
        self.assertLess(done.epochs[-1].loss, done.epochs[0].loss)

    def test_all_fp32_trains_to_the_bits_of_a_plain_loop(self):
        for workers in (0, 2):
            plain, searched = Classification(workers=workers), Classification(workers=workers)
            torch.manual_seed(3)
            found = searched.search(policy='all_fp32')
            self.assertNotIn('b', found.plan)
            epochs = found.trained_batches // 8 + 2
            done = found.train(epochs)
            torch.manual_seed(3)
            for _ in range(epochs):
                for batch in plain.loader:
                    plain.step(NoPlan(), batch)
            self.assertEqual(len(done.epochs), epochs)
            for name, value in plain.net.state_dict().items():
                self.assertTrue(torch.equal(value, searched.net.state_dict()[name]), f'{name}, {workers} workers')

    def test_a_scheduler_that_is_not_named_is_an_error(self):
        job = Classification()
        with self.assertRaisesRegex(comp.SettingsError, r"learning rate 0 after step \d+ .* give the search state="):
            job.search(state=[])

    def test_a_batch_that_the_step_writes_is_an_error(self):
        job = Classification()

        def step(plan, batch):
            batch[0].div_(2)
            return job.step(plan, batch)

        with self.assertRaisesRegex(comp.SettingsError, "batch 0 was written in place since it was given .*: let the step write to a copy"):
            job.search(step)

    def test_an_exception_comes_out_unchanged_and_all_is_as_before(self):
        class Mine(KeyError):
            pass

        raised = Mine('mine')
        for fails_in in (1, 3, 14):
            job = Classification()
            before = job.everything()

            def step(plan, batch):
                loss = job.step(plan, batch)
                if job.steps == fails_in:
                    raise raised
                return loss

            with self.assertRaises(Mine) as got:
                job.search(step)
            self.assertIs(got.exception, raised)
            self.assertTrue(same(before, job.everything()), f'step {fails_in}')

    def test_an_exception_in_the_region_leaves_no_region_open(self):
        job = Classification()

        def step(plan, batch):
            with plan:
                job.net(batch[0])
                raise ZeroDivisionError('in the forward')

        with self.assertRaisesRegex(ZeroDivisionError, 'in the forward'):
            job.search(step)
        x = torch.ones(2, 3, 8, 8)
        self.assertEqual(job.net(x).dtype, torch.float32)

    def test_what_the_data_the_score_and_a_policy_raise_comes_out_too(self):
        class Broken:
            def __iter__(self):
                yield some_images(16)
                raise OSError('disk')

            def __len__(self):
                return 8

        def fails(*_):
            raise LookupError('theirs')

        with self.assertRaisesRegex(OSError, 'disk'):
            Classification().search(data=Broken())
        with self.assertRaisesRegex(LookupError, 'theirs'):
            Classification().search(score=fails, criterion='scores')
        with self.assertRaisesRegex(LookupError, 'theirs'):
            Classification().search(policy=fails)

    def listen(self):
        """Ctrl-C is as a terminal leaves it, whoever started these tests (a shell's & ignores SIGINT)."""
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

    def test_ctrl_c_ends_a_search_and_puts_the_state_back(self):
        self.listen()
        job = Classification()
        before = job.everything()

        def step(plan, batch):
            if job.steps == 9:
                os.kill(os.getpid(), signal.SIGINT)
            return job.step(plan, batch)

        with self.assertRaises(KeyboardInterrupt):
            job.search(step)
        self.assertTrue(same(before, job.everything()))

    def test_ctrl_c_while_a_state_is_put_back_waits_until_it_is(self):
        self.listen()
        class Interrupts(dict):
            times = 0

            def state_dict(self):
                return dict(self)

            def load_state_dict(self, state):
                self.times += 1
                if self.times == 2:
                    os.kill(os.getpid(), signal.SIGINT)
                self.update(state)

        job, other = Classification(), Interrupts(kept=1)
        before = job.everything()
        with self.assertRaises(KeyboardInterrupt):
            job.search(state=[job.schedule, other])
        self.assertGreater(other.times, 2)
        self.assertTrue(same(before, job.everything()))

    def test_an_observer_stops_a_search_with_a_ledger_that_goes_on(self):
        class Stops:
            def __init__(self):
                self.labels = []

            def trial_done(self, trial):
                self.labels.append(trial.label)
                return len(self.labels) == 4

        with tempfile.TemporaryDirectory() as folder:
            ledger = os.path.join(folder, 'search.jsonl')
            watch = Stops()
            with self.assertRaisesRegex(comp.Interrupted, 'same ledger'):
                Classification().search(observers=[watch], ledger=ledger)
            self.assertEqual(len(watch.labels), 4)
            found = Classification().search(ledger=ledger)
            self.assertIn('runs came from the ledger', found.table())

    def test_a_search_that_is_forgotten_is_freed(self):
        job = Classification()
        net = weakref.ref(job.net)
        found = job.search()
        del job, found
        gc.collect()
        self.assertIsNone(net())

    def test_a_search_that_keeps_nothing_puts_all_back(self):
        job, dice = Classification(), torch.Generator()
        job.loader = torch.utils.data.DataLoader(job.loader.dataset, 16, shuffle=True, generator=dice)
        before = job.everything(), dice.get_state()
        found = job.search(keep=False, losses_tie='none')
        self.assertGreater(found.trained_batches, 0)
        self.assertTrue(same(before, (job.everything(), dice.get_state())))

    def test_data_without_an_end_have_epochs_of_a_given_length(self):
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                x, y = some_images(64)
                at = 0
                while True:
                    yield x[at % 64], y[at % 64]
                    at += 1

        job = Classification()
        endless = torch.utils.data.DataLoader(Endless(), 16)
        found = job.search(data=endless, batches_per_epoch=4)
        self.assertEqual(found.batches_per_epoch, 4)
        self.assertEqual(len(found.train(found.trained_batches // 4 + 2).epochs), found.trained_batches // 4 + 2)
        unknown = (
            'the data did not end while the search read ahead (so nobody knows how long an epoch is, and nothing of the '
            'search counts as training): give batches_per_epoch=...'
        )
        with self.assertWarns(UserWarning) as context:
            found = Classification().search(data=endless, keep_bytes=64 << 20)
        self.assertEqual(str(context.warning), unknown)
        self.assertIn(unknown, found.warnings)
        with self.assertRaises(comp.SettingsError) as raised:
            found.train(3)
        self.assertEqual(
            str(raised.exception),
            'the data did not end, so nobody knows how long an epoch is (each may go on for ever): give comp.search '
            'batches_per_epoch=...',
        )

    def test_what_the_model_raises_under_a_plan_is_a_failed_trial(self):
        class Mine(Exception):
            pass

        class Strict(nn.Module):
            def __init__(self, raised):
                super().__init__()
                self.first, self.last, self.raised = nn.Linear(192, 16), nn.Linear(16, 4), raised

            def forward(self, x):
                x = self.first(x.flatten(1))
                if x.dtype != torch.float32:
                    raise self.raised(f'no {x.dtype}')
                return self.last(x.relu())

        for raised in (ValueError, AssertionError, Mine):
            found = Classification(Strict(raised)).search()
            self.assertEqual(found.plan[[op.name for op in found.operators].index('first.linear')], '1')
            messages = [t.sample.message for t in found.trials if t.sample.status == 'failed']
            self.assertEqual(set(messages), {f'{raised.__name__}: no torch.bfloat16'})

    def test_a_plan_whose_forward_stores_a_parameter_in_another_format_is_a_failed_trial(self):
        job = Classification()
        job.net.register_parameter('mean', nn.Parameter(torch.zeros(4), requires_grad=False))

        def step(plan, batch):
            with plan:
                out = job.net(batch[0])
                with torch.no_grad():
                    job.net.mean.data = job.net.mean.data * 0.9 + out.mean(0) * 0.1
                loss = cross_entropy(out, batch[1])
            loss.backward()
            job.update()
            return loss

        found = job.search(step)
        messages = {t.sample.message for t in found.trials if t.sample.status == 'failed'}
        self.assertEqual(messages, {'the step has stored parameter "mean" in another format than torch.float32'})
        self.assertEqual(job.net.mean.dtype, torch.float32)

    def test_what_a_score_or_a_check_raises_under_a_plan_is_a_failed_trial(self):
        job = Classification()

        def checked(plan, batch):
            with plan:
                out = job.net(batch[0])
                loss = cross_entropy(out, batch[1])
            if out.dtype != torch.float32:
                raise ValueError('not FP32')
            loss.backward()
            job.update()
            return loss

        def score():
            out = job.net(torch.ones(2, 3, 8, 8))
            assert out.dtype == torch.float32, 'not FP32'
            return 0.5

        self.assertIn('ValueError: not FP32', {t.sample.message for t in job.search(checked).trials})
        job = Classification()
        found = job.search(score=score, criterion='scores')
        self.assertIn('AssertionError: not FP32', {t.sample.message for t in found.trials})

    def test_what_no_loss_shows_is_counted(self):
        """Rows of an embedding, statistics that training does not read, and an average of the user's own, under a low plan."""

        class Quiet(nn.Module):
            def __init__(self, value):
                super().__init__()
                self.first, self.norm, self.last = nn.Linear(192, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)
                self.rows, self.value = nn.Embedding(50, 4), value

            def forward(self, x):
                x = self.first(x.flatten(1))
                if x.dtype != torch.float32:
                    with torch.no_grad():
                        self.norm.running_var.fill_(self.value)
                        self.rows.weight[7] = self.value
                        average['now'] = average['now'] + self.value
                return self.last(self.norm(x).relu()) + self.rows.weight[:2].mean()

        for value in (float('nan'), float('inf'), 1e30):
            average = {'now': torch.zeros(3)}
            job = Classification(Quiet(value))
            job.search()
            held = [*job.net.state_dict().values(), average['now']]
            self.assertLess(max(float(t.abs().max()) for t in held if t.is_floating_point()), 1e7, value)

    def test_what_is_not_finite_in_fp32_is_not_laid_to_its_precision(self):
        job = Classification()

        def step(plan, batch):
            with plan:
                loss = cross_entropy(job.net(batch[0]), batch[1])
            loss.backward()
            job.update()
            return loss * (float('nan') if batch[1][0] == lost else 1)

        data = [(torch.randn(16, 3, 8, 8), torch.full((16,), i % 4)) for i in range(8)]
        lost = 1
        found = job.search(step, data=data, policy='all_fp32')
        done = found.train(found.trained_batches // 8 + 1)
        self.assertRegex(
            done.epochs[-1].message,
            r'^loss nan in step \d+ \(in FP32\): look at the data of that batch and at the learning rate$',
        )
        lost = None
        with self.assertRaises(comp.Error) as raised:
            Classification().search(lambda plan, batch: step(plan, batch) * float('nan'), data=data)
        self.assertIn(
            "(plans are judged against FP32's losses): look at the data and the learning rate, or at what comp.doctor says "
            'of a step',
            str(raised.exception),
        )

    def test_one_search_at_a_time(self):
        inside, go_on, got = threading.Event(), threading.Event(), []

        def slow(plan, batch):
            inside.set()
            go_on.wait(60)
            return job.step(plan, batch)

        job = Classification()
        thread = threading.Thread(target=lambda: got.append(job.search(slow)))
        thread.start()
        inside.wait(60)
        with self.assertRaises(comp.SettingsError) as raised:
            Classification().search()
        go_on.set()
        thread.join()
        self.assertEqual(
            str(raised.exception),
            'a search beside another search or training of comp in this process (both put back its random generators, and '
            "each slows the other's batches down): run one after the other, or train with comp.plan",
        )
        self.assertEqual(len(got), 1)
        self.assertGreater(Classification().search().trained_batches, 0)

    def test_a_region_works_from_another_thread(self):
        got = []
        thread = threading.Thread(target=lambda: got.append(Classification().search()))
        thread.start()
        thread.join()
        self.assertGreaterEqual(got[0].speedup, 0.5)


class Unsized:
    """Nobody knows how many batches it has."""

    def __iter__(self):
        return iter([some_images(16)] * 8)


class Refusals(unittest.TestCase):
    def refused(self, sentence, *given, kind=comp.SettingsError, **more):
        with self.assertRaisesRegex(kind, sentence):
            Classification().search(*given, **more)

    def test_what_cannot_be_searched_is_refused_in_a_sentence(self):
        net = Classification().net
        self.refused('setting "tolerence" is not known .*did you mean "tolerance"', tolerence=0.1)
        self.refused('tolerance is -1', tolerance=-1)
        self.refused(r"setting tolerance is 'much' \(a number is wanted\)", tolerance='much')
        self.refused(r'setting planned_epochs is 1.5 \(a whole number that is not negative is wanted\)', planned_epochs=1.5)
        self.refused('policy "pytorh" is not known', policy='pytorh')
        self.refused('strategy is a int', strategy=3)
        self.refused('precision "fp166" is not known .*did you mean "fp16"', precisions=['fp166'])
        self.refused('fp16 without a GradScaler', precisions=['fp16'])
        self.refused('data is a generator', data=(b for b in []))
        self.refused('data gives no batch', data=[])
        self.refused('model "" is a int', model=3)
        self.refused('optimizer is a int', optimizer=3)
        self.refused('state has a int', state=[3])
        self.refused('"0" has no shape yet|parameter .* has no shape yet', model=nn.Sequential(nn.LazyLinear(3)))
        self.refused('is a DataParallel', model=nn.DataParallel(net))

    def test_optimizers_that_are_not_those_of_the_step_are_told(self):
        job = Classification()
        other = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
        self.refused(
            r"^optimizer 0, a SGD, holds none of the model's parameters \(it would train something else\): give the "
            'optimizer of this model$',
            optimizer=other,
        )
        unused = torch.optim.Adam(job.net.parameters(), 1e-3)
        with self.assertRaises(comp.SettingsError) as raised:
            job.search(optimizer=unused)
        self.assertEqual(
            str(raised.exception),
            'the step steps a SGD that was not given (given: Adam; a rejected plan would leave its moments changed): give '
            'the search optimizer=[...] with it',
        )

        def none(plan, batch):
            with plan:
                return cross_entropy(job.net(batch[0]), batch[1])

        with self.assertWarns(UserWarning) as context:
            found = job.search(none)
        self.assertEqual(
            str(context.warning),
            '16 steps ended without optimizer.step() (no plan can be judged by weights that stay as they are): call it in '
            'the step; where gradients of more batches are accumulated all is well',
        )
        self.assertIn(str(context.warning), found.warnings)

    def test_no_message_names_what_python_does_not_have(self):
        job = Classification()

        def flat(plan, batch):
            job.step(plan, batch)
            return 1.0

        sentences = job.search(flat).warnings
        self.assertTrue(any(s.endswith('look whether the weights are trained, and what the step returns') for s in sentences), sentences)

        with tempfile.TemporaryDirectory() as folder:
            ledger = os.path.join(folder, 'search.jsonl')
            Classification().search(ledger=ledger)
            with self.assertRaisesRegex(comp.Error, r'give another file, or delete this one$'):
                Classification(nn.Sequential(nn.Flatten(), nn.Linear(192, 4))).search(ledger=ledger)
        self.refused(r'raise keep_bytes$', kind=comp.Error, data=Unsized(), keep_bytes=40000)
        self.refused(
            r'^plans are to be judged by scores \(there is no score\): give score=..., or choose another criterion$',
            criterion='scores',
        )
        short = Classification().search(planned_epochs=2).warnings
        self.assertTrue(any("an earlier search's plan in warm_start or its ledger" in s for s in short), short)

    def test_a_loss_is_a_number_of_any_kind(self):
        for kind in (float, Fraction, numpy.float32, numpy.array, lambda number: numpy.array([number])):
            job = Classification()
            plan = comp.autocast(job.net, optimizer=job.optimizer)
            plan.step(kind(float(job.step(plan, some_images(16)))))
            found = job.search(lambda plan, batch, job=job, kind=kind: kind(float(job.step(plan, batch))), policy='all_fp32')
            self.assertGreater(found.baseline.loss, 0)

    def test_a_step_that_a_search_cannot_use_is_refused(self):
        job = Classification()

        def outside(plan, batch):
            return cross_entropy(job.net(batch[0]), batch[1])

        def nothing(plan, batch):
            job.step(plan, batch)

        def many(plan, batch):
            with plan:
                return cross_entropy(job.net(batch[0]), batch[1], reduction='none')

        def stays(plan, batch):
            plan.__enter__()
            return cross_entropy(job.net(batch[0]), batch[1])

        def autocast_inside(plan, batch):
            with plan, torch.autocast('cpu', dtype=torch.bfloat16):
                return cross_entropy(job.net(batch[0]), batch[1])

        self.refused('never entered the plan', outside, kind=comp.Error)
        self.refused('returned a NoneType as "loss"', nothing)
        self.refused(r'returned a tensor of \(16,\)', many)
        self.refused("ended in the plan's region", stays, kind=comp.Error)
        self.assertEqual(comp._region.depth(), 0)
        self.refused(
            'every operator of the step is in an autocast block of its own, .* or give protect_blocks=False',
            autocast_inside,
            kind=RuntimeError,
        )


class Choices(unittest.TestCase):
    def test_a_callable_is_a_policy(self):
        asked = []

        def only_linear(op):
            asked.append(op.kind)
            return comp.allow('bf16') if op.kind == 'aten::linear' else comp.fixed('fp32')

        found = Classification().search(policy=only_linear)
        self.assertIn('aten::conv2d', asked)
        for contestant in found.contest:
            if 'autocast' not in contestant.label:
                self.assertLessEqual(contestant.plan.count('b'), 1)
        with self.assertRaisesRegex(comp.SettingsError, "the policy says 'bf16' for operator"):
            Classification().search(policy=lambda op: 'bf16')

    def test_a_plan_below_16_bits_is_found_for_a_gpu_that_is_not_here_and_used(self):
        def layers_in_mxfp8(op):
            if op.kind not in ('aten::addmm', 'aten::mm', 'aten::linear'):
                return comp.allow('bf16')
            return comp.fixed('bf16' if op.name.endswith('.input_gradient') else 'mxfp8')

        job = Classification()
        found = job.search(policy=layers_in_mxfp8, target='B200', precisions=['bf16', 'mxfp8'])
        self.assertIn('modelled for B200', str(found))
        names = [op.name for op in found.operators]
        self.assertEqual(names[-2:], ['6.linear.input_gradient', '6.linear.weight_gradient'])
        self.assertEqual(found.plan[-2:], 'b8')
        with tempfile.TemporaryDirectory() as folder:
            path, kept = os.path.join(folder, 'plan.json'), os.path.join(folder, 'training.pt')
            found.train(1, checkpoint=kept)
            again = {'model': job.net, 'optimizer': job.optimizer, 'data': job.loader, 'state': [job.schedule]}
            self.assertEqual(comp.resume(kept, job.step, epochs=2, progress=False, **again).plan, found.plan)
            found.save(path)
            images, _ = some_images(16)
            with torch.no_grad():
                job.net.eval()
                exact = job.net(images)
                with comp.plan(path, job.net, forced=True):  # no CPU computes in it, so that it is emulated
                    low = job.net(images)
            job.net.train()
            plan = comp.plan(path, job.net, forced=True)
            for _ in range(2):  # the first is recorded under the plan
                with plan:
                    total = job.net(images).sum()
                total.backward()
            self.assertEqual(plan.letters, found.plan)
            products = {'forward': 'mxfp8', 'input_gradient': 'bf16', 'weight_gradient': 'mxfp8'}
            self.assertEqual(comp.to_transformer_engine(path).modules['6'], products)
        off = ((low - exact).norm() / exact.norm()).item()
        self.assertTrue(0.005 < off < 0.2, off)
        with self.assertRaisesRegex(comp.SettingsError, '"B20" is no GPU .* did you mean "B200"'):
            Classification().search(target='B20')
        with self.assertRaisesRegex(comp.SettingsError, "target is '' "):
            Classification().search(target='')
        with self.assertRaisesRegex(comp.SettingsError, "products is 'apart' .*: give \"auto\", "):
            Classification().search(products='apart')
        whole = Classification().search(target='B200', products='together', strategy='greedy')
        self.assertEqual([op.name for op in whole.operators], names[:-2])

    def test_rules_are_a_policy(self):
        rules = comp.policy.custom([comp.by_kind('conv2d', comp.fixed('fp32'))], over=comp.policy.pytorch(list='cpu'))
        found = Classification().search(policy=rules)
        at = [op.kind for op in found.operators].index('aten::conv2d')
        self.assertTrue(all(t.plan[at] == '1' for t in found.trials if 'autocast' not in t.label + t.plan))

    def test_an_object_that_asks_and_tells_is_a_strategy(self):
        class Mine:
            def start(self, space):
                self.space, self.plans, self.left = space, [], 3
                return self

            def ask(self, n):
                self.left -= 1
                if self.left < 0:
                    return []
                plan = self.space.conservative
                return [self.space.set(plan, 0, min(self.left, len(self.space.groups[0].levels) - 1))]

            def tell(self, trial):
                self.plans.append(trial.plan)

        mine = Mine()
        found = Classification().search(strategy=mine, batches_strategy=comp.strategy.greedy())
        self.assertGreaterEqual(len(mine.plans), 1)
        self.assertTrue(set(mine.plans) <= {t.plan for t in found.trials})

    def test_each_strategy_has_a_name(self):
        for name in ('greedy', 'beam', 'genetic'):
            self.assertGreater(len(Classification().search(strategy=name, stages='losses_only').trials), 0)


    def test_rules_with_an_fp32_head_are_a_rival_if_their_format_is_named(self):
        found = Classification().search(precisions=['bf16', 'bf16>fp32'])
        heads = [t.plan for t in found.trials if 'B' in t.plan]
        self.assertTrue(heads)
        last = max(i for i, op in enumerate(found.operators) if 'linear' in op.kind or 'addmm' in op.kind)
        self.assertTrue(any(plan.count('B') == 1 and plan[last] == 'B' for plan in heads), heads)

    def test_the_papers_search_by_its_name(self):
        job = Classification()
        before = [p.detach().clone() for p in job.net.parameters()]
        found = job.search(strategy='paper', precisions=['bf16'])
        length = found.batches_per_epoch
        runs = [(t.stage, t.sample.batches) for t in found.trials if t.sample.status == 'ok']
        self.assertEqual(runs[0], ('baseline', length))
        self.assertIn(('losses', length), runs)
        # Stage 2 has nothing to time if FP32's epoch was the fastest of stage 1.
        self.assertLessEqual(set(runs), {('baseline', length), ('losses', length), ('times', 1)})
        self.assertEqual(found.trained_batches, 0)
        self.assertTrue(all(map(torch.equal, before, job.net.parameters())))
        for strategy in 'paper', 'guided':
            with self.assertRaisesRegex(comp.SettingsError, 'does both stages'):
                Classification().search(strategy=strategy, batches_strategy='exhaustive')


class Trainings(unittest.TestCase):
    """Steps that are not one forward, one loss and one update."""

    def test_several_losses(self):
        torch.manual_seed(2)
        make, judge = nn.Linear(4, 8), nn.Linear(8, 1)
        of_make, of_judge = torch.optim.Adam(make.parameters(), 1e-3), torch.optim.Adam(judge.parameters(), 1e-3)
        data = [torch.randn(16, 8, generator=torch.Generator().manual_seed(i)) for i in range(8)]
        dice = torch.Generator().manual_seed(7)

        def step(plan, real):
            noise = torch.randn(16, 4, generator=dice)
            with plan('judge'):
                right = judge(real).relu().mean() - judge(make(noise).detach()).relu().mean()
            of_judge.zero_grad()
            right.backward()
            of_judge.step()
            with plan('make'):
                fooled = mse_loss(judge(make(noise)), torch.ones(16, 1))
            of_make.zero_grad()
            fooled.backward()
            of_make.step()
            return {'judge': right, 'make': fooled}

        found = comp.search(
            step,
            model={'make': make, 'judge': judge},
            optimizer=[of_make, of_judge],
            data=data,
            state=[dice],
            progress=False,
            race={'contest_rounds': 6},
        )
        self.assertEqual(len(found.baseline.losses), 2)
        self.assertIn('make.linear', [op.name for op in found.operators])

    def test_a_penalty_of_gradients_in_a_region_of_its_own(self):
        job = Classification()

        def step(plan, batch):
            with plan:
                loss = cross_entropy(job.net(batch[0]), batch[1])
            gradients = torch.autograd.grad(loss, job.net.parameters(), create_graph=True)
            with plan:
                loss = loss + 1e-3 * sum(g.pow(2).sum() for g in gradients).sqrt()
            loss.backward()
            job.update()
            return loss

        found = job.search(step)
        self.assertEqual([t.sample.message for t in found.trials if t.sample.status == 'failed'], [])

    def test_a_net_that_is_trained_each_third_step(self):
        torch.manual_seed(2)
        make, judge = nn.Linear(4, 8), nn.Linear(8, 1)
        optimizers = [torch.optim.SGD(net.parameters(), 1e-3) for net in (make, judge)]
        data = [(i % 3 == 2, torch.randn(16, 8)) for i in range(9)]

        def step(plan, batch):
            third, real = batch
            noise = torch.ones(16, 4)
            with plan('judge'):
                loss = judge(real).relu().mean() - judge(make(noise).detach()).relu().mean()
            loss.backward()
            if third:
                with plan('make'):
                    fooled = mse_loss(judge(make(noise)), torch.ones(16, 1))
                fooled.backward()
                optimizers[0].step()
            optimizers[1].step()
            make.zero_grad()
            judge.zero_grad()
            return loss

        found = comp.search(
            step, model={'make': make, 'judge': judge}, optimizer=optimizers, data=data, progress=False, race={'contest_rounds': 6}
        )
        self.assertEqual([t.sample.message for t in found.trials if t.sample.status == 'failed'], [])

    def test_gradient_accumulation_and_a_batch_that_is_consumed(self):
        job = Classification()
        x, y = some_images(64)
        data = [{'x': x[i : i + 16], 'y': y[i : i + 16]} for i in range(0, 64, 16)]

        def step(plan, batch):
            halves = zip(batch.pop('x').chunk(2), batch.pop('y').chunk(2))
            total = 0.0
            for a, b in halves:
                with plan:
                    loss = cross_entropy(job.net(a), b) / 2
                loss.backward()
                total += loss.item()
            job.optimizer.step()
            job.optimizer.zero_grad()
            return total

        found = job.search(step, data=data)
        self.assertEqual(len(data[0]), 2)
        self.assertGreater(found.trained_batches, 0)

    def test_lbfgs_and_a_grad_scaler(self):
        net = nn.Linear(8, 1)
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
        data = [torch.randn(16, 8) for _ in range(4)]

        def step(plan, x):
            first = []

            def closure():
                optimizer.zero_grad()
                with plan:
                    loss = mse_loss(net(x), x.sum(1, keepdim=True))
                loss.backward()
                first.append(loss.detach())
                return loss

            optimizer.step(closure)
            return first[0]

        found = comp.search(step, model=net, optimizer=optimizer, data=data, progress=False, race={'contest_rounds': 6})
        self.assertGreater(found.trained_batches, 0)

        job = Classification()
        scaler = torch.amp.GradScaler('cpu')

        def scaled(plan, batch):
            with plan:
                out = job.net(batch[0])
                loss = cross_entropy(out.masked_fill(out > 1e3, -1e9), batch[1])
            scaler.scale(loss).backward()
            scaler.step(job.optimizer)
            scaler.update()
            job.optimizer.zero_grad()
            return loss

        found = job.search(scaled, state=[job.schedule, scaler], precisions=['fp16', 'bf16'])
        self.assertTrue(any('0' in t.plan for t in found.trials))
        self.assertEqual([t.sample.message for t in found.trials if t.sample.status == 'failed'], [])


if __name__ == '__main__':
    unittest.main()
