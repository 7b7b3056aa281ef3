# SPDX-License-Identifier: Apache-2.0
"""comp.autocast in loops as Python users have them. Seconds of batches are given, so that no result depends on a clock."""

import copy
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.checkpoint import checkpoint

import comp
from support import DEVICE, NoPlan, same, some_images

LOW = {'precisions': ['bf16'], 'tune': False}  # whatever this CPU is fast in


class Loop:
    """Two layers, an optimizer and batches."""

    def __init__(self, harm=lambda net, out: out):
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(192, 16), nn.Tanh(), nn.Linear(16, 4)).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3)
        x, y = some_images(64)
        self.batches = [(x.flatten(1)[k : k + 16], y[k : k + 16]) for k in range(0, 64, 16)]
        self.harm = harm
        self.at = 0

    def autocast(self, **more):
        return comp.autocast(self.net, **({'optimizer': self.optimizer, 'batches_per_epoch': 16} | LOW | more))

    def forward(self):
        x, y = self.batches[self.at % len(self.batches)]
        self.at += 1
        return cross_entropy(self.harm(self.net, self.net(x)), y)

    def update(self, loss):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def batch(self, plan):
        with plan:
            loss = self.forward()
        self.update(loss)
        return loss.detach()

    def train(self, plan, batches):
        """A plan saves a second for each operator that is low. Returns the letters of each batch."""
        letters = []
        for _ in range(batches):
            loss = self.batch(plan)
            letters.append(plan.letters)
            plan.step(loss, seconds=8.0 - plan.letters.count('b'))
        return letters

    def train_by_closure(self, plan, batches):
        def closure():
            self.optimizer.zero_grad()
            with plan:
                loss = self.forward()
            loss.backward()
            return loss

        for _ in range(batches):
            loss = self.optimizer.step(closure)
            letters = plan.letters
            plan.step(loss, seconds=8.0 - letters.count('b'))
        return letters

    def everything(self):
        return comp._state.copied({'net': self.net.state_dict(), 'optimizer': self.optimizer.state_dict()})



class harmful_if_low:
    """Harms the loss while the last layer is low, by `harm(out)`."""

    def __init__(self, harm):
        self.harm = harm

    def __call__(self, net, out):
        return self.harm(out) if out.dtype == torch.bfloat16 else out


class Normed(Loop):
    """With statistics that each forward moves."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(192, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4)).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3)


class Proxies(Loop):
    """Its loss stores its parameter in the format of its input, as some of metric learning do."""

    def __init__(self):
        def similar(net, out):
            net.proxies.data = net.proxies.data.to(out.dtype)
            return out @ net.proxies

        super().__init__(similar)
        self.net.register_parameter('proxies', nn.Parameter(torch.eye(4, device=DEVICE)))
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3)


class Recurrent(Loop):
    """Its hidden state is carried from batch to batch, as by truncated backpropagation through time."""

    def __init__(self):
        super().__init__()
        self.net = nn.GRUCell(192, 4).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.net.parameters(), 1e-3)
        self.hidden = torch.zeros(16, 4, device=DEVICE)

    def forward(self):
        x, y = self.batches[self.at % len(self.batches)]
        self.at += 1
        hidden = self.net(x, self.hidden)
        self.hidden = hidden.detach()
        return cross_entropy(hidden, y)


class Scaled(Loop):
    def __init__(self, *harm):
        super().__init__(*harm)
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=7)

    def autocast(self, **more):
        return super().autocast(state=[self.scaler], **more)

    def update(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def everything(self):
        return super().everything() | {'scaler': self.scaler.state_dict()}


class Checkpointed(Loop):
    def __init__(self, *harm):
        super().__init__(*harm)
        self.net[0].forward = lambda x, layer=self.net[0].forward: checkpoint(lambda x: layer(x).tanh(), x, use_reentrant=False)


class Compiled(Loop):
    def __init__(self, *harm):
        super().__init__(*harm)
        self.graphs = []
        self.net = torch.compile(self.net, backend=lambda *captured: self.graphs.append(captured) or aot_eager(*captured))


class Loops(unittest.TestCase):
    def test_a_loop_finds_a_plan_and_writes_it_and_the_next_loop_uses_it(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, 'plan.json')
            loop = Loop()
            plan = loop.autocast(file=file)
            self.assertTrue(plan.searching)
            self.assertIsNone(plan.found)
            letters = loop.train(plan, 1500)
            self.assertNotIn('b', ''.join(letters[:17]))
            self.assertIn('b', plan.found.plan)
            self.assertEqual(plan.letters, plan.found.plan)
            self.assertGreater(plan.found.speedup, 1)
            self.assertEqual(plan.batches_undone, 2)  # in which operators were timed in BF16
            self.assertIn('cost of the search', str(plan.found))
            self.assertEqual(comp.load(file).letters, plan.found.plan)
            again = Loop()
            used = again.autocast(file=file, forced=True)
            letters = again.train(used, 17)
            self.assertNotIn('b', ''.join(letters))
            self.assertEqual(again.train(used, 40), [plan.found.plan] * 40)
            self.assertIsNone(used.found)
            again.harm = harmful_if_low(lambda out: out * float('nan'))
            again.train(used, 200)
            self.assertNotEqual(used.letters, plan.found.plan)
            self.assertEqual(comp.load(file).letters, used.letters)
            self.assertLess(again.batch(NoPlan()), 0.5)

    def test_a_state_that_a_plan_made_low_is_read_by_batches_in_fp32(self):
        for harm in (0, 9):  # the plan is found, or rejected
            loop = Recurrent()
            plan = loop.autocast()
            low = []
            for _ in range(300):
                before = loop.hidden.dtype
                loss = loop.batch(plan)
                low.append((before, 'b' in plan.letters))
                plan.step(loss + harm * low[-1][1], seconds=8.0 - plan.letters.count('b'))
            self.assertIn((torch.bfloat16, False), low)
            self.assertEqual(low[-1][1], harm == 0)

    def test_a_plan_whose_forward_stores_a_parameter_in_another_format_is_not_tried_again(self):
        loop = Proxies()
        plan = loop.autocast()
        letters = loop.train(plan, 1500)
        last = [op.name for op in plan.found.operators].index('2.linear')
        self.assertIn('b', {each[last:][:1] for each in letters})  # the first batches have no plan
        self.assertEqual(plan.found.plan[last], '1')
        self.assertIn('b', plan.found.plan)
        for p in loop.net.parameters():
            self.assertEqual({p.dtype, loop.optimizer.state[p]['exp_avg'].dtype}, {torch.float32})
            self.assertTrue(p.isfinite().all())

    @unittest.skipIf(DEVICE != 'cpu', 'these operators have no BF16 on a CPU')
    def test_an_operator_that_has_no_low_kernel_is_not_lowered_in_a_batch_of_the_loop(self):
        for function in (lambda net, out: out + torch.cdist(out, out).mean(), lambda net, out: out + torch.trace(out)):
            loop = Loop(function)
            self.assertIn('b', ''.join(loop.train(loop.autocast(), 40)))

    def test_a_loop_in_fp32_trains_to_the_bits_of_the_plain_one(self):
        plain, planned = Loop(), Loop()
        plan = planned.autocast(policy='all_fp32')
        for _ in range(400):
            mine = plain.batch(NoPlan())
            loss = planned.batch(plan)
            plan.step(loss)
            self.assertEqual(mine, loss)
        self.assertTrue(same(plain.everything(), planned.everything()))

    def test_the_first_batches_are_fp32_to_the_bit_and_those_of_a_plan_are_not(self):
        for kind in (Loop, Normed, Scaled, Checkpointed, Compiled):
            plain, planned = kind(), kind()
            plan = planned.autocast()
            for k in range(17):
                planned.train(plan, 1)
                plain.batch(NoPlan())
                self.assertTrue(same(plain.everything(), planned.everything()), (kind, k))
            self.assertIn('b', ''.join(planned.train(plan, 60)))

    def test_a_loop_with_a_scaler_a_checkpoint_or_a_compiled_model_finds_a_plan(self):
        for kind in (Scaled, Checkpointed, Compiled):
            loop = kind()
            plan = loop.autocast()
            while plan.found is None and loop.at < 1500:
                loop.train(plan, 1)
            self.assertFalse(vars(loop).get('graphs'))
            self.assertEqual(set(loop.train(plan, 2)), {plan.found.plan})
            self.assertIn('b', plan.found.plan)
            self.assertEqual(plan.left[0], 0)
            self.assertNotEqual(vars(loop).get('graphs'), [])

    def test_a_harmful_operator_is_not_in_the_plan_and_its_batches_are_undone(self):
        harms = (lambda out: -1e30 * out, lambda out: out * float('nan'), lambda out: out + 3 * torch.randn_like(out))
        for harm, tune in ((harms[0], False), (harms[0], True), (harms[1], True), (harms[2], False)):
            loop = Loop(harmful_if_low(harm))
            plan = loop.autocast(tune=tune, batches_per_epoch=64 if tune else 16)
            loop.train(plan, 2500)
            names = [op.name for op in plan.found.operators]
            self.assertEqual(plan.found.plan[names.index('2.linear')], '1')
            self.assertGreater(plan.batches_undone, 0)
            self.assertTrue(all(bool(p.isfinite().all()) for p in loop.net.parameters()))
            self.assertLess(loop.batch(NoPlan()), 0.1)

    def test_undoing_puts_weights_and_moments_back(self):
        for kind in (Loop, Scaled, Checkpointed, Compiled):
            loop = kind(harmful_if_low(lambda out: out * float('nan')))
            loop.net.empty = nn.Parameter(torch.zeros(0, 4))  # of which there is no norm
            plan = loop.autocast()
            states = []
            while not plan.batches_undone:
                states.append(loop.everything())
                loop.train(plan, 1)
                self.assertLess(loop.at, 200)
            self.assertTrue(same(states[-plan.batches_undone], loop.everything()), kind)
            self.assertTrue(all(p.grad is None for p in loop.net.parameters()))

    def test_a_plan_that_harms_after_it_was_found_is_given_up_and_the_file_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, 'plan.json')
            loop = Loop()
            plan = loop.autocast(file=file)
            while plan.found is None:
                loop.train(plan, 1)
            found = plan.found.plan
            self.assertEqual(comp.load(file).letters, found)
            loop.train(plan, 20)
            loop.harm = harmful_if_low(lambda out: out * float('nan'))
            loop.train(plan, 200)
            self.assertNotEqual(plan.found.plan, found)
            self.assertEqual(plan.letters, plan.found.plan)
            self.assertEqual(comp.load(file).letters, plan.letters)
            self.assertLessEqual(plan.batches_undone, 16)
            self.assertLess(loop.batch(NoPlan()), 0.5)

    def test_a_plan_whose_forward_raises_after_it_was_found_is_left(self):
        def raises(net, out):
            if out.dtype == torch.bfloat16:
                raise ZeroDivisionError
            return out

        loop, raised = Loop(), 0
        plan = loop.autocast()
        while plan.found is None:
            loop.train(plan, 1)
        loop.harm = raises
        for _ in range(300):
            try:
                loop.train(plan, 1)
            except ZeroDivisionError:
                raised += 1
        self.assertIn(raised, range(1, 20))
        self.assertEqual(plan.found.plan[[op.name for op in plan.found.operators].index('2.linear')], '1')

    def test_a_gradient_that_is_not_finite_leaves_no_damage_whenever_it_comes(self):
        for at in range(17, 90, 3):
            loop = Loop()

            def spoil(net, out):
                if loop.at > at and out.dtype == torch.bfloat16:
                    out.register_hook(lambda gradient: gradient * float('nan'))
                return out

            loop.harm = spoil
            loop.train(loop.autocast(), 400)
            self.assertTrue(all(bool(p.isfinite().all()) for p in loop.net.parameters()), at)

    def test_layers_that_are_unfrozen_under_a_plan_are_put_back(self):
        def spoil(layer, given, out):
            if out.requires_grad and out.dtype == torch.bfloat16:
                out.register_hook(lambda gradient: gradient * float('nan'))

        for at in (20, 25, 30, 35):
            loop = Loop()
            loop.net[0].requires_grad_(False)
            loop.optimizer = torch.optim.Adam(loop.net[2].parameters(), 1e-3)
            loop.net[0].register_forward_hook(spoil)
            plan = loop.autocast()
            loop.train(plan, at)
            loop.net[0].requires_grad_(True)
            loop.optimizer.add_param_group({'params': loop.net[0].parameters()})
            loop.train(plan, 400)
            self.assertTrue(all(bool(p.isfinite().all()) for p in loop.net.parameters()), at)

    def test_an_average_of_weights_within_the_model_is_put_back_with_them(self):
        for at in range(17, 40, 5):
            loop = Loop()
            online, average = loop.net, copy.deepcopy(loop.net).requires_grad_(False)
            loop.net = nn.Sequential(online, nn.Identity())
            loop.net[1].average = average

            def spoil(nets, out):
                if loop.at > at and out.dtype == torch.bfloat16:
                    out.register_hook(lambda gradient: gradient * float('nan'))
                return out

            loop.harm = spoil
            plan = loop.autocast()
            for _ in range(150):
                loss = loop.batch(plan)
                for mean, now in zip(average.parameters(), online.parameters()):
                    mean.data = mean.data * 0.9 + now.data * 0.1
                plan.step(loss, seconds=8.0 - plan.letters.count('b'))
            self.assertGreater(plan.batches_undone, 0)
            self.assertTrue(all(bool(p.isfinite().all()) for p in loop.net.parameters()), at)

    def test_gradients_can_be_read_after_a_batch_that_was_undone(self):
        loop = Loop(harmful_if_low(lambda out: out * float('nan')))
        plan = loop.autocast()
        while not plan.batches_undone:
            loop.optimizer.zero_grad()
            with plan:
                loss = loop.forward()
            loss.backward()
            loop.optimizer.step()
            plan.step(loss, seconds=8.0 - plan.letters.count('b'))
            self.assertTrue(all(p.grad.isfinite().all() or not plan.batches_undone for p in loop.net.parameters()))
        self.assertTrue(all(not p.grad.any() for p in loop.net.parameters()))

    def test_a_parameter_that_a_closure_stores_in_another_format_gets_its_own_back(self):
        for make in (torch.optim.Adam, torch.optim.SGD, torch.optim.LBFGS):
            loop = Proxies()
            loop.optimizer = make(loop.net.parameters(), 1e-3)
            loop.train_by_closure(loop.autocast(), 200)
            self.assertEqual({p.dtype for p in loop.net.parameters()}, {torch.float32})
            self.assertTrue(all(bool(p.isfinite().all()) for p in loop.net.parameters()))

    def test_lbfgs_takes_no_difference_of_gradients_of_two_plans(self):
        loop = Loop()
        loop.optimizer = torch.optim.LBFGS(loop.net.parameters(), 1e-2, max_iter=3)
        plan = loop.autocast()
        last, changes = '', 0
        for _ in range(200):
            state, undone = loop.optimizer.state[loop.optimizer._params[0]], plan.batches_undone
            before = state.get('n_iter', 0)
            letters = loop.train_by_closure(plan, 1)
            if last and letters != last:
                self.assertLessEqual(state['n_iter'], 3)
                changes += 1
            elif last:
                self.assertGreater(state['n_iter'], before)
            last = letters if plan.batches_undone == undone else ''  # what is put back is of an earlier plan
        self.assertGreater(changes, 3)

    def test_a_short_loop_judges_one_plan_or_none(self):
        for batches, most in ((50, 0), (200, 1), (float('inf'), 9)):
            loop = Loop()
            plan = loop.autocast(batches=batches)
            letters = loop.train(plan, 600)
            tried = {t.plan for t in plan.found.trials if 'b' in t.plan}
            self.assertLessEqual(len(tried), most)
            self.assertEqual('b' in ''.join(letters), most > 0)

    def test_rates_of_a_scheduler_go_on_when_batches_are_undone(self):
        loop = Loop(harmful_if_low(lambda out: out * float('nan')))
        schedule = torch.optim.lr_scheduler.StepLR(loop.optimizer, 1, 0.99)
        plan = loop.autocast(state=[schedule])
        for _ in range(100):
            loop.train(plan, 1)
            schedule.step()
        self.assertGreater(plan.batches_undone, 0)
        self.assertAlmostEqual(loop.optimizer.param_groups[0]['lr'], 1e-3 * 0.99**100)

    def test_a_loop_may_end_at_any_batch_and_leaves_no_file(self):
        for batches in (0, 1, 3, 17, 60):
            with tempfile.TemporaryDirectory() as folder:
                for file, then in ((None, 'train longer'), (os.path.join(folder, 'plan.json'), '.* is not written')):
                    loop = Loop()
                    plan = loop.autocast(file=file)
                    loop.train(plan, batches)
                    with self.assertWarnsRegex(UserWarning, f'ended after {batches} batches, before .* a plan: {then}'):
                        del plan
                        gc.collect()
                self.assertEqual(os.listdir(folder), ['plan.json.search'] if batches > 1 else [])

    def test_the_next_loop_goes_on_from_what_the_last_one_learned(self):
        sentences = []

        def batches_until_found(file, loop, most=3000):
            plan = loop.autocast(file=file)
            for k in range(most):
                loop.train(plan, 1)
                if plan.found:
                    sentences.extend(plan.found.warnings)
                    return k
            return most

        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter('ignore')
            file = os.path.join(folder, 'plan.json')
            whole = batches_until_found(os.path.join(folder, 'whole.json'), Loop())
            batches_until_found(file, Loop(), whole - 20)
            with open(file + '.search') as learned:
                text = learned.read()
            self.assertIn('"stage":"losses"', text)
            self.assertLess(batches_until_found(file, Loop()), whole // 2)
            self.assertEqual(set(os.listdir(folder)), {'plan.json', 'whole.json'})
            altered = text.replace('"stage":"losses"', '"stage":"nothing"', 1)
            for content, then in (('no ledger', "what this loop's search learns is not kept"), (altered, 'this loop writes it anew')):
                with open(os.path.join(folder, 'other.json.search'), 'w') as other:
                    other.write(content)
                self.assertNotIn(then, ' '.join(sentences))
                self.assertEqual(batches_until_found(os.path.join(folder, 'other.json'), Loop()), whole)
                self.assertIn(then, ' '.join(sentences))
                os.remove(os.path.join(folder, 'other.json'))

    def test_a_loop_leaves_the_file_of_a_search_that_another_one_goes_on_with(self):
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
            warnings.simplefilter('ignore')
            file = os.path.join(folder, 'plan.json')
            first, second = Loop(), Loop()
            going_on = first.autocast(file=file)
            first.train(going_on, 60)
            found_by_second = second.autocast(file=file)
            second.train(found_by_second, 1500)
            self.assertIn('.search" is in use (another search writes to it)', ' '.join(found_by_second.found.warnings))
            self.assertEqual(set(os.listdir(folder)), {'plan.json', 'plan.json.search'})
            first.train(going_on, 1500)
            self.assertIsNotNone(going_on.found)
            self.assertEqual(os.listdir(folder), ['plan.json'])

    def test_an_interpreter_ends_while_a_search_waits(self):
        process = subprocess.run(
            [sys.executable, '-W', 'default', '-c', _ENDS_EARLY], capture_output=True, text=True, timeout=120, cwd=tempfile.mkdtemp()
        )
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn('the loop ended after 20 batches', process.stderr)

    def test_a_loop_that_is_killed_goes_on_from_its_file(self):
        with tempfile.TemporaryDirectory() as folder:
            for batches, left in (('165', 'plan.json.search'), ('25', 'plan.json')):  # 25 are too few without the first 165
                killed = subprocess.run(
                    [sys.executable, '-c', _IS_KILLED, batches], capture_output=True, text=True, timeout=120, cwd=folder
                )
                self.assertEqual(killed.returncode, -signal.SIGKILL, killed.stderr)
                self.assertEqual(os.listdir(folder), [left])
            self.assertIn('b', comp.load(os.path.join(folder, 'plan.json')).letters)

    def test_gradient_accumulation_counts_batches_by_steps(self):
        plain, loop = Loop(), Loop()
        plan = loop.autocast()
        for k in range(12):
            for each, region in ((plain, NoPlan()), (loop, plan)):
                total = 0
                for _ in range(3):
                    with region:
                        loss = each.forward() / 3
                    loss.backward()
                    total += loss.detach()
                each.optimizer.step()
                each.optimizer.zero_grad()
            plan.step(total, seconds=1.0)
        self.assertEqual(plan._inner.batches, 12)
        self.assertTrue(same(plain.everything(), loop.everything()))
        self.assertEqual(plan.left[0], 0)

    def test_evaluation_between_batches_belongs_to_none(self):
        loop = Loop()
        plan = loop.autocast()
        x = loop.batches[0][0]

        def evaluate():
            kinds = set()
            hook = loop.net[2].register_forward_hook(lambda m, i, out: kinds.add(out.dtype))
            loop.net.eval()
            with torch.no_grad(), plan:
                loop.net(x)
            with plan, torch.no_grad():
                loop.net(x)
            with plan:
                loop.net(x)
            loop.net.train()
            with torch.inference_mode(), plan:
                loop.net(x)
            hook.remove()
            return kinds

        self.assertEqual(evaluate(), {torch.float32})
        for k in range(1500):
            loop.train(plan, 1)
            if k % 7 == 0 and plan.found is None:
                self.assertEqual(evaluate(), {torch.float32})
        self.assertEqual(plan._inner.batches, 1500)
        self.assertIn('b', plan.found.plan)
        self.assertEqual(evaluate(), {torch.bfloat16})
        with self.assertRaisesRegex(comp.Error, 'without a training forward'):
            plan.step(1.0)

    def test_an_evaluation_with_gradients_before_the_first_batch_is_not_what_is_recorded(self):
        loop = Loop()
        loop.net.append(nn.Dropout(0.5))
        plan = loop.autocast()
        loop.net.eval()
        with plan:
            loop.forward()
        loop.net.train()
        loop.train(plan, 20)
        self.assertEqual(plan.left[0], 0)

    def test_an_exception_in_a_region_drops_the_batch_and_a_plan_that_raises_it_is_left(self):
        def raises(out):
            raise ValueError('not in bf16')

        loop = Loop(harmful_if_low(raises))
        plan = loop.autocast()
        raised = 0
        for _ in range(2500):
            try:
                loop.train(plan, 1)
            except ValueError:
                raised += 1
        self.assertGreater(raised, 0)
        names = [op.name for op in plan.found.operators]
        self.assertEqual(plan.found.plan[names.index('2.linear')], '1')
        self.assertEqual(plan._inner.batches, 2500 - raised)

    def test_an_exception_in_the_first_batch_and_in_fp32_leaves_the_search_as_it_was(self):
        loop = Loop()
        plan = loop.autocast()
        for batches in (0, 1, 5):
            loop.train(plan, batches)
            with self.assertRaisesRegex(ZeroDivisionError, 'mine'), plan:
                loop.forward()
                raise ZeroDivisionError('mine')
        loop.train(plan, 10)
        self.assertEqual(plan._inner.batches, 16)

    def test_what_is_wrong_is_said(self):
        loop = Loop()
        with self.assertRaisesRegex(comp.SettingsError, 'optimizer 0, a SGD, holds none of the model'):
            loop.autocast(optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), 1))
        with self.assertRaisesRegex(comp.SettingsError, 'policy is a function of Python'):
            loop.autocast(policy=lambda op: comp.deny())
        with self.assertRaisesRegex(comp.SettingsError, "precision 'mxfp8' in a loop's own batches"):
            loop.autocast(precisions=['mxfp8'])
        with self.assertRaisesRegex(comp.SettingsError, r'precisions is "bf16" \(a list is wanted\): give \["bf16"\]'):
            loop.autocast(precisions='bf16')
        with self.assertRaisesRegex(comp.SettingsError, 'batches_per_epoch is 0'):
            loop.autocast(batches_per_epoch=0)
        for batches in (0, 'many', float('nan')):
            with self.assertRaisesRegex(comp.SettingsError, f'batches is {batches!r}'):
                comp.autocast(loop.net, optimizer=loop.optimizer, batches=batches)
        with self.assertRaisesRegex(comp.SettingsError, 'did you mean "tolerance"'):
            loop.autocast(tolerence=1)
        with self.assertRaisesRegex(comp.FileError, 'no folder "nowhere"'):
            loop.autocast(file='nowhere/plan.json')
        plan = loop.autocast()
        with self.assertRaisesRegex(comp.Error, r'step\(\) without a training forward'):
            plan.step(1.0)
        loss = loop.batch(plan)
        for wrong, words in ((None, 'a NoneType as "loss"'), (torch.ones(2), r'a tensor of \(2,\)'), ({}, 'no loss')):
            with self.assertRaisesRegex(comp.SettingsError, words):
                plan.step(wrong)
        with self.assertRaisesRegex(comp.Error, "again after the optimizer's step"):
            loop.batch(plan)
        plan.step(loop.batch(plan))  # the batch before is dropped
        with self.assertRaisesRegex(comp.Error, r'step\(\) inside `with plan:`'), plan:
            plan.step(loss)

    def test_what_may_be_wrong_is_told_once(self):
        def forwards_of_one_name(loop, plan):
            with plan:
                hidden = loop.net[:2](loop.batches[0][0])
            with plan:
                loss = loop.net[2](hidden).square().mean()
            loop.update(loss)
            plan.step(loss)

        def another_optimizer(loop, plan):
            loop.train(plan, 1)
            torch.optim.SGD(loop.net.parameters(), 1e-3).step()

        def no_step(loop, plan):
            loop.batch(plan)

        another = Loop()
        for use, words in (
            (lambda loop, plan: loop.train(plan, 1), None),
            (forwards_of_one_name, '2.linear .* was not in the recorded forward.* give each forward of a step its name'),
            (another_optimizer, 'a SGD steps that was not given .*: its moments'),
            (lambda loop, plan: another.train(plan, 1), 'a Adam steps that was not given .* another model a plan of its own'),
            (no_step, r'stepped 64 times since step\(\) was called .*: call plan.step\(loss\)'),
        ):
            loop = Loop()
            plan = loop.autocast(optimizer=[loop.optimizer, torch.optim.SGD(loop.net[2].parameters(), 1e-3)])
            with warnings.catch_warnings(record=True) as messages:
                warnings.simplefilter('always', UserWarning)
                for _ in range(70):
                    use(loop, plan)
                    another.update(cross_entropy(another.net(another.batches[0][0]), another.batches[0][1]))  # of a loop beside it
            self.assertEqual(len(messages), words is not None)
            if words:
                self.assertRegex(str(messages[0].message), words)

    def test_an_optimizer_that_is_made_of_several_is_one(self):
        class Several(torch.optim.Optimizer):
            def __init__(self, *parts):
                super().__init__([p for part in parts for group in part.param_groups for p in group['params']], {})
                self.parts = list(parts)

            def step(self):
                for part in self.parts:
                    part.step()

        loop = Loop()
        loop.optimizer = Several(torch.optim.Adam(loop.net[0].parameters()), torch.optim.SGD(loop.net[2].parameters(), 0.01))
        plan = loop.autocast()
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            loop.train(plan, 40)

    def test_fp32_that_loses_its_batches_is_told_once_and_the_loop_goes_on(self):
        loop = Loop(lambda net, out: out * float('nan'))
        plan = loop.autocast()
        with self.assertRaisesRegex(comp.Error, 'FP32 training ended as not_finite'):
            loop.train(plan, 60)
        loop.train(plan, 10)
        self.assertIsNone(plan.found)
        self.assertFalse(plan.searching)
        loop = Loop()
        wrong = loop.autocast(tolerance=-1)
        with self.assertRaisesRegex(comp.SettingsError, 'tolerance is -1'):
            Loop.train(loop, wrong, 2)

    def test_two_losses_two_models_and_two_segments(self):
        torch.manual_seed(3)
        a, b = nn.Linear(8, 8), nn.Linear(8, 8)
        optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (a, b)]
        plan = comp.autocast({'a': a, 'b': b}, optimizer=optimizers, batches_per_epoch=16, **LOW)
        x = torch.randn(4, 8)
        for _ in range(1500):
            losses = {}
            for name, net, optimizer in (('a', a, optimizers[0]), ('b', b, optimizers[1])):
                with plan(name):
                    losses[name] = mse_loss(net(x), x)
                losses[name].backward()
                optimizer.step()
                optimizer.zero_grad()
            plan.step(losses, seconds=8.0 - plan.letters.count('b'))
        self.assertEqual({op.name for op in plan.found.operators}, {f'{model}.{op}' for model in 'ab' for op in ('linear', 'broadcast_tensors', 'mse_loss')})
        self.assertIn('b', plan.found.plan)

    def test_a_search_in_a_thread_beside_it_and_one_that_reads_it_do_not_disturb(self):
        one, two = Loop(), Loop()
        first, second = one.autocast(), two.autocast()
        done = threading.Event()

        def read():
            while not done.is_set():
                _ = first.found, first.letters, second.searching
                time.sleep(0.001)  # or the loops wait for the interpreter's lock at each operator

        threads = [threading.Thread(target=read), threading.Thread(target=lambda: two.train(second, 200))]
        for thread in threads:
            thread.start()
        one.train(first, 200)
        threads[1].join()
        done.set()
        threads[0].join()
        self.assertTrue(same(one.everything(), two.everything()))


_IS_KILLED = '''
import os, signal, sys
from test_loop import Loop
loop = Loop()
plan = loop.autocast(file='plan.json')
loop.train(plan, int(sys.argv[1]))
assert all(p.isfinite().all() for p in loop.net.parameters())
with plan:
    loop.forward()
    os.kill(os.getpid(), signal.SIGKILL)
'''
_ENDS_EARLY = '''
import torch, comp
from torch import nn
net = nn.Linear(8, 8)
plan = comp.autocast(net, optimizer=torch.optim.SGD(net.parameters(), 0.1), file='plan.json', batches_per_epoch=16, precisions=['bf16'])
for _ in range(20):
    with plan:
        loss = net(torch.ones(4, 8)).square().mean()
    loss.backward()
    plan.step(loss)
net.kept = plan                # a cycle with what the search holds
'''


if __name__ == '__main__':
    with warnings.catch_warnings():
        unittest.main()
