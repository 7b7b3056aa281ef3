# SPDX-License-Identifier: Apache-2.0
"""Plans over models as they are: what is run in low precision is what the plan says, or a sentence says why not."""

import contextlib
import threading
import unittest
import warnings

import torch
from torch import nn
from torch.nn.functional import cross_entropy, layer_norm
from torch.utils.checkpoint import checkpoint

import comp
from support import Classification, plan_file, small_net, some_images

X, Y = some_images(16)
FLAT = X.flatten(1)


def mlp():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def forward(net, x=FLAT):
    def run(plan):
        with plan:
            return cross_entropy(net(x), Y)

    return run


def dtypes_of(net):
    """Of the outputs of a model's linear layers, as they are seen in the next forwards."""
    dtypes = []
    for part in net.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(lambda module, given, out: dtypes.append(out.dtype))
    return dtypes


class Plans(unittest.TestCase):
    def test_a_plan_lowers_what_it_says_and_gradients_stay_fp32(self):
        net = mlp()
        plan = comp.plan(plan_file(net, forward(net), kinds=('linear',)), net)
        dtypes = dtypes_of(net)
        for _ in range(2):
            with plan:
                loss = cross_entropy(net(FLAT), Y)
            loss.backward()
        self.assertEqual(dtypes, [torch.bfloat16] * 6)
        self.assertTrue(plan.in_use)
        self.assertEqual({p.grad.dtype for p in net.parameters()}, {torch.float32})
        with torch.no_grad(), plan:
            net(FLAT[:3])
        self.assertEqual(dtypes[6:], [torch.bfloat16] * 3)
        net(FLAT)
        self.assertEqual(dtypes[9:], [torch.float32] * 3)

    def test_an_evaluation_runs_under_the_plan_before_any_step_and_with_parameters_that_came_later(self):
        net = mlp()
        plan = comp.plan(plan_file(net, forward(net), kinds=('linear',)), net)
        dtypes = dtypes_of(net)

        def evaluated():
            dtypes.clear()
            with torch.no_grad(), plan:
                net(FLAT[:3])
            return dtypes == [torch.bfloat16] * 3

        self.assertTrue(evaluated())
        for _ in range(2):
            forward(net)(plan)
        self.assertTrue(evaluated())
        net.load_state_dict(mlp().state_dict(), assign=True)
        self.assertTrue(evaluated())
        net[0].weight = nn.Parameter(torch.zeros(64, 192))
        self.assertTrue(evaluated())
        forward(net)(plan)
        self.assertEqual(plan.left, (0, ''))

    def test_what_is_quantized_is_fp32(self):
        class Quantizes(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = nn.Linear(192, 16), nn.Linear(16, 4)

            def forward(self, x):
                x = self.first(x)
                q = torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.quint8).dequantize()
                c = torch.quantize_per_channel(x.detach(), torch.ones(16), torch.zeros(16), 1, torch.quint8).dequantize()
                return self.last(x + q + c)

        net = Quantizes()
        plan = comp.plan(plan_file(net, forward(net), kinds=('',)), net)
        dtypes = dtypes_of(net)
        for _ in range(2):
            with plan:
                loss = cross_entropy(net(FLAT), Y)
            loss.backward()
        with torch.no_grad(), plan:
            net(FLAT)
        self.assertEqual(dtypes, [torch.bfloat16] * 6)

    def test_a_plan_of_another_model_or_size_is_refused(self):
        net = mlp()
        path = plan_file(net, forward(net))
        other = comp.plan(path, small_net(), match='exact')
        with self.assertRaisesRegex(RuntimeError, 'is for another model: its operator 0 is "0.linear"'):
            forward(small_net(), X)(other)
        with self.assertRaisesRegex(comp.FileError, 'no/such'):
            comp.plan('no/such/plan.json', net)
        with self.assertRaisesRegex(comp.SettingsError, 'match "exactly" is not known'):
            comp.plan(path, net, match='exactly')

    def test_a_forward_that_leaves_the_plan_is_an_error_or_counted(self):
        net = mlp()
        path = plan_file(net, forward(net))
        for otherwise in ('error', 'fp32'):
            plan = comp.plan(path, net, otherwise=otherwise)
            forward(net)(plan)
            if otherwise == 'error':
                with self.assertRaisesRegex(RuntimeError, 'recorded was'), plan:
                    net(FLAT).sigmoid()
                self.assertTrue(torch.isfinite(forward(net)(plan)))
            else:
                with plan:
                    net(FLAT).sigmoid()
                self.assertEqual(plan.left[0], 1)
                self.assertIn('sigmoid', plan.left[1])

    def test_a_plan_with_fp16_says_that_it_wants_a_scaler(self):
        net = mlp()
        plan = comp.plan(plan_file(net, forward(net), precision='fp16', kinds=('linear',)), net, forced=True)
        forward(net)(plan)
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter('always')
            forward(net)(plan)
        self.assertIn('GradScaler', ' '.join(str(w.message) for w in messages))
        strict = comp.plan(plan_file(net, forward(net), precision='fp16', kinds=('linear',)), net, forced=True)
        forward(net)(strict)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            with self.assertRaises(UserWarning):
                forward(net)(strict)
        self.assertEqual(comp._region.depth(), 0)
        self.assertTrue(plan.needs_scaling)


    def test_threads_share_a_plan(self):
        net = mlp()
        plan = comp.plan(plan_file(net, forward(net), kinds=('linear',)), net)
        first = forward(net)(plan)
        got = []

        def run():
            for _ in range(50):
                loss = forward(net)(plan)
                got.append(loss.item() == first.item() and net(FLAT).dtype == torch.float32)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.assertEqual(got, [True] * 200)
        self.assertEqual(plan.left, (0, ''))

    def test_plans_that_are_left_in_another_order_are_an_error_and_leave_nothing_open(self):
        net = mlp()
        path = plan_file(net, forward(net), kinds=('linear',))
        a, b = comp.plan(path, net), comp.plan(path, net)
        forward(net)(a)
        forward(net)(b)
        dtypes = dtypes_of(net)
        a.__enter__()
        b.__enter__()
        net(FLAT)
        with self.assertRaisesRegex(comp.Error, 'left before 1 that were entered in it'):
            a.__exit__(None, None, None)
        self.assertEqual(comp._region.depth(), 0)
        with self.assertRaisesRegex(comp.Error, 'not in it'):
            b.__exit__(None, None, None)
        net(FLAT)
        self.assertEqual(dtypes, [torch.bfloat16] * 3 + [torch.float32] * 3)
        with a:
            errors = []

            def leave():
                try:
                    a.__exit__(None, None, None)
                except comp.Error as refused:
                    errors.append(str(refused))

            thread = threading.Thread(target=leave)
            thread.start()
            thread.join()
            cross_entropy(net(FLAT), Y)
        self.assertIn('a thread that is not in it', errors[0])
        self.assertEqual(dtypes[6:], [torch.bfloat16] * 3)
        self.assertTrue(torch.isfinite(forward(net)(b)))


class Checkpoints(unittest.TestCase):
    class Net(nn.Module):
        def __init__(self, reentrant=None):
            super().__init__()
            torch.manual_seed(4)
            self.a, self.b, self.c = nn.Linear(192, 64), nn.Linear(64, 64), nn.Linear(64, 4)
            self.reentrant = reentrant

        def block(self, h):
            return torch.relu(self.b(torch.relu(h)))

        def forward(self, x):
            h = self.a(x)
            if self.reentrant == 'nested':
                h = checkpoint(lambda h: checkpoint(self.block, h, use_reentrant=False), h, use_reentrant=False)
            else:
                h = self.block(h) if self.reentrant is None else checkpoint(self.block, h, use_reentrant=self.reentrant)
            return self.c(h)

    def test_a_checkpointed_part_is_run_again_in_its_precisions(self):
        gradients = []
        for reentrant in (None, False, 'nested'):
            net = self.Net(reentrant)
            plan = comp.plan(plan_file(net, forward(net), kinds=('linear',)), net)
            dtypes = dtypes_of(net)
            for _ in range(3):  # in the first the plan has seen no operator yet
                net.zero_grad()
                forward(net)(plan).backward()
            gradients.append([p.grad for p in net.parameters()])
            self.assertEqual(dtypes, [torch.bfloat16] * (9 if reentrant is None else 12))
        for a, b, c in zip(*gradients):
            self.assertTrue(torch.equal(a, b) and torch.equal(a, c))

    def test_a_checkpointed_training_is_searched(self):
        for reentrant in (False, True):
            job = Classification(self.Net(reentrant))

            def step(plan, batch):
                return job.step(plan, (batch[0].flatten(1), batch[1]))

            found = job.search(step)
            self.assertEqual([t.sample.message for t in found.trials if t.sample.status == 'failed'], [])
            self.assertGreater(len(found.contest), 1)


class Functions(unittest.TestCase):
    def test_an_autograd_function_stays_fp32_and_gets_fp32(self):
        dtypes = []

        class Gram(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                dtypes.append(x.dtype)
                return x @ x.T

            @staticmethod
            def backward(ctx, gradient):
                (x,) = ctx.saved_tensors
                dtypes.append(gradient.dtype)
                return (gradient + gradient.T) @ x

        net = nn.Linear(192, 16)

        def run(plan):
            with plan:
                return Gram.apply(net(FLAT)).mean()

        plan = comp.plan(plan_file(net, run, kinds=('linear', 'matmul')), net)
        for _ in range(3):
            run(plan).backward()
        self.assertIn('b', plan.letters)
        self.assertEqual(set(dtypes), {torch.float32})


class FastPaths(unittest.TestCase):
    def test_an_encoder_is_evaluated_under_the_plan_and_not_as_one_operator(self):
        torch.manual_seed(4)
        layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0.0)
        net, x = nn.TransformerEncoder(layer, 2), torch.randn(4, 6, 32)
        padded = torch.arange(6) >= torch.tensor([[6], [5], [4], [3]])

        def run(plan):
            with plan:
                return net(x, src_key_padding_mask=padded).pow(2).mean()

        plan = comp.plan(plan_file(net, run, kinds=('linear',)), net)
        for _ in range(2):
            trained = run(plan)
        self.assertIn('b', plan.letters)
        for mine in (True, False):
            torch.backends.mha.set_fastpath_enabled(mine)
            self.addCleanup(torch.backends.mha.set_fastpath_enabled, True)
            with torch.no_grad():
                self.assertEqual(run(plan), trained)  # nothing here differs in evaluation mode
                net.eval()
                self.assertEqual(run(plan), trained)
            self.assertEqual(torch.backends.mha.get_fastpath_enabled(), mine)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(192, 64), nn.LayerNorm(64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(torch.tanh(self.first(x))))


@torch.jit.interface
class Part(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class ByInterface(nn.Module):
    part: Part

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part.forward(x)


class Scripts(unittest.TestCase):
    def test_what_torchscript_has_optimized_runs_under_a_plan_and_outside_of_it_as_before(self):
        def loss_of(out):
            return layer_norm(out, (4,)).pow(2).mean() + out.pow(2).mean()

        def step(net, region, loss):
            with region:
                value = loss(net(FLAT))
            value.backward()
            results = [value.detach(), *(p.grad.clone() for p in net.parameters())]
            net.zero_grad()
            return results

        def differs(some, others):
            return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))

        torch.manual_seed(4)
        plain, outside, scripted_loss = Normed(), contextlib.nullcontext(), torch.jit.script(loss_of)
        path = plan_file(plain, lambda plan: step(plain, plan, loss_of)[0], kinds=('linear', 'norm', 'tanh', 'pow'))
        expected = step(plain, comp.plan(path, plain), loss_of)
        for variant in (torch.jit.trace(plain, FLAT), torch.jit.script(plain), torch.jit.script(ByInterface(plain))):
            for _ in range(4):
                fp32 = step(variant, outside, scripted_loss)
            plan = comp.plan(path, getattr(variant, 'part', variant))
            for _ in range(3):
                self.assertEqual(differs(step(variant, plan, scripted_loss), expected), 0)
                for _ in range(3):
                    self.assertLessEqual(differs(step(variant, outside, scripted_loss), fp32), 1e-6)
            self.assertGreater(plan.letters.count('b'), 4)
            self.assertEqual(plan.left, (0, ''))

    def test_a_first_forward_keeps_a_tensor_of_the_users_own_low_format(self):
        net = nn.Sequential(nn.Linear(192, 4), nn.Dropout(0.0)).bfloat16()
        x = FLAT.bfloat16()

        def run(plan):
            with plan:
                before = net(x).float().log_softmax(-1).mean()
                return before + net(nn.functional.dropout(x.to(net[0].weight.dtype), 0.0)).float().pow(2).mean()

        plan = comp.plan(plan_file(net, run, kinds=('log_softmax',)), net)
        for _ in range(2):
            run(plan).backward()
        self.assertEqual(plan.letters.count('b'), 1)


if __name__ == '__main__':
    unittest.main()
