# SPDX-License-Identifier: Apache-2.0
"""torch.compile inside `with plan:`."""

import json
import os
import threading
import time
import unittest
import warnings

os.environ.pop('CXX', None)  # "ccache g++", as ./run sets it, is no compiler to Inductor
import comp
import torch
import torch.utils.checkpoint
from support import QUICK, NoPlan, inductor, plan_file, training_step
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

TOKENS, Y = torch.arange(96).view(4, 24) % 50, (torch.arange(96).view(4, 24) * 7) % 50


class Block(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, d))
        return x + self.down(gelu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, blocks=2, breaks=False):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.breaks, self.called, self.run = breaks, (), lambda block, x: block(x)

    def forward(self, x):
        x = self.embed(x)
        for block in self.called or self.blocks:
            x = self.run(block, x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.head(torch.relu(x))


class Attention(nn.Module):
    """Attention to keys that go through a function of the caller's."""

    def __init__(self, hand_on):
        super().__init__()
        torch.manual_seed(6)
        self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.query, self.key, self.hand_on = nn.Linear(32, 32), nn.Linear(32, 32), hand_on

    def forward(self, x):
        x = self.embed(x).unsqueeze(1)
        key = self.hand_on(self.key(x))
        return self.head(scaled_dot_product_attention(self.query(x), key, key).squeeze(1))


class Counting:
    """A backend that runs ATen's kernels as they were traced, and counts graphs."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return aot_eager(graph, inputs)


def forward(net, x=TOKENS, y=Y):
    def run(plan, called=None):
        with plan:
            return cross_entropy((net if called is None else called)(x).flatten(0, 1), y.flatten())

    return run


def planned(net, kinds=('linear', 'attention'), precision='bf16', **more):
    """A plan whose first forward was seen."""
    path = plan_file(net, forward(net), precision=precision, kinds=kinds)
    plan = comp.plan(path, net, **more)
    forward(net)(plan)
    return plan


def planned_but_for(net, *blocks):
    """The same with linear layers low, but for those of `blocks`."""
    path = plan_file(net, forward(net), kinds=('linear',))
    with open(path) as file:
        written = json.load(file)
    for operator in written['operators']:
        if any(block in operator['name'] for block in blocks):
            operator['precision'] = 'fp32'
    with open(path, 'w') as file:
        json.dump(written, file)
    plan = comp.plan(path, net)
    forward(net)(plan)
    return plan


def gradients(net, loss):
    net.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


class Compiled(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        self.backend = Counting()

    def same(self, net, plan, called=None, prepare=lambda: None, x=TOKENS, y=Y):
        """Losses and gradients with and without compilation have the same bits."""
        run = forward(net, x, y)
        expected = run(plan)
        wanted = gradients(net, expected)
        prepare()
        for _ in range(3):
            loss = run(plan, called)
            self.assertEqual(loss.item(), expected.item())
            for one, other in zip(wanted, gradients(net, loss)):
                self.assertTrue(torch.equal(one, other))

    def test_a_compiled_model_has_the_plans_losses_and_gradients_and_is_compiled_once(self):
        net = Transformer()
        plan = planned(net)
        self.assertNotEqual(forward(net)(plan).item(), forward(net)(NoPlan()).item())
        self.same(net, plan, torch.compile(net, backend=self.backend, fullgraph=True))
        self.assertEqual(self.backend.graphs, 1)
        self.assertEqual(plan.left, (0, ''))

    def test_outside_of_the_plan_the_same_function_is_compiled_without_it(self):
        net = Transformer()
        plan, called = planned(net), torch.compile(net, backend=self.backend)
        inside, outside = forward(net)(plan), forward(net)(NoPlan())
        for _ in range(2):
            self.assertEqual(forward(net)(NoPlan(), called).item(), outside.item())
            self.assertEqual(forward(net)(plan, called).item(), inside.item())
        self.assertEqual(self.backend.graphs, 2)

    def test_a_plan_of_fp32_and_one_of_autocast_run_what_compiles_without_comp(self):
        net = Transformer()
        called = torch.compile(net, backend=self.backend)
        plan = planned(net, kinds=())
        self.assertEqual(forward(net)(plan, called).item(), forward(net)(NoPlan(), called).item())

    def test_a_graph_may_break_and_the_operators_between_run_under_the_plan(self):
        net = Transformer(breaks=True)
        self.same(net, planned(net), torch.compile(net, backend=self.backend))
        self.assertEqual(self.backend.graphs, 2)

    def test_attention_behind_a_break_reads_keys_that_the_plan_made_before_it(self):
        net = Attention(lambda key: torch._dynamo.graph_break() or key)
        with warnings.catch_warnings():
            warnings.filterwarnings('error', 'a compiled function')
            plan, called = planned(net), torch.compile(net, backend=self.backend)
            expected, loss = forward(net)(plan), forward(net)(plan, called)
            self.assertEqual(loss.item(), expected.item())
            for one, other in zip(gradients(net, expected), gradients(net, loss)):
                self.assertLess((one - other).norm(), 0.02 * one.norm())  # they are added in FP32 at a graph's end

    def test_what_cannot_be_captured_with_a_low_tensor_runs_uncompiled_and_that_is_told(self):
        net = Attention(torch._dynamo.disable(lambda key: key @ torch.eye(32)))
        plan, called = planned(net, ('linear', 'attention', 'matmul')), torch.compile(net, backend=self.backend)
        expected = forward(net)(plan).item()
        with self.assertWarnsRegex(UserWarning, 'runs uncompiled under the plan .its capture fails'):
            self.assertEqual(forward(net)(plan, called).item(), expected)
        self.assertEqual(forward(net)(plan, called).item(), expected)

    def test_one_function_for_all_blocks_is_compiled_once_where_the_plan_treats_them_alike(self):
        net = Transformer(blocks=3)
        plan = planned(net)

        def compile_blocks():
            net.run = torch.compile(net.run, backend=self.backend)

        with warnings.catch_warnings():
            warnings.filterwarnings('error', message='a compiled function')
            self.same(net, plan, prepare=compile_blocks)
        self.assertEqual(self.backend.graphs, 1)

    def test_where_the_plan_differs_between_blocks_the_others_run_uncompiled_and_that_is_told(self):
        net = Transformer(blocks=3)
        plan = planned_but_for(net, 'blocks.1')

        def compile_blocks():
            net.run = torch.compile(net.run, backend=self.backend)

        with self.assertWarnsRegex(UserWarning, 'runs uncompiled under the plan .*where the plan differs'):
            self.same(net, plan, prepare=compile_blocks)

    def test_another_batch_size_compiles_for_all_sizes_and_keeps_the_bits(self):
        net = Transformer()
        plan, called = planned(net), torch.compile(net, backend=self.backend)
        self.same(net, plan, called)
        self.same(net, plan, called, x=TOKENS[:3], y=Y[:3])
        self.same(net, plan, called, x=TOKENS[:2], y=Y[:2])
        self.assertEqual(self.backend.graphs, 2)

    def test_a_graph_that_computes_otherwise_than_the_first_forward_runs_uncompiled_and_that_is_told(self):
        net = Transformer()
        plan = planned(net)
        net.run = lambda block, x: block(x.tanh())
        with self.assertWarnsRegex(UserWarning, 'runs uncompiled under the plan \\(aten::tanh is not where'):
            self.same(net, plan, torch.compile(net, backend=self.backend))

    def test_first_forwards_run_uncompiled_in_training_and_in_evaluation(self):
        net = Transformer()
        called = torch.compile(net, backend=self.backend)
        plan = comp.plan(plan_file(net, forward(net), kinds=('linear',)), net)
        forward(net)(plan, called)
        self.assertEqual(self.backend.graphs, 0)
        forward(net)(plan)
        with torch.no_grad():
            forward(net)(plan, called)
        self.assertEqual(self.backend.graphs, 0)

    def evaluated(self, net, plan, called=None, x=TOKENS):
        net.eval()
        with torch.no_grad(), plan:
            return (net if called is None else called)(x)

    def test_an_evaluation_has_the_bits_of_the_uncompiled_one_before_training_and_after(self):
        net = Transformer(blocks=3, breaks=True)
        plan = comp.plan(plan_file(net, forward(net), kinds=('linear', 'attention')), net)
        called = torch.compile(net, backend=self.backend)
        wanted = {n: self.evaluated(net, plan, x=TOKENS[:n]) for n in (4, 3, 2)}
        self.assertFalse(torch.equal(wanted[4], self.evaluated(net, NoPlan())))
        for trained in False, True:
            if trained:
                forward(net.train())(plan)
            with warnings.catch_warnings():
                warnings.simplefilter('error')
                for n in (4, 3, 2, 4):
                    self.assertTrue(torch.equal(self.evaluated(net, plan, called, TOKENS[:n]), wanted[n]))
            self.assertEqual(self.backend.graphs, 4)  # two parts, and anew for other batch sizes
        net.run = torch.compile(net.run, backend=self.backend)
        for _ in range(2):
            self.assertTrue(torch.equal(self.evaluated(net, plan), wanted[4]))
        self.assertEqual(self.backend.graphs, 5)  # one for all blocks

    def test_an_evaluated_graph_runs_for_no_block_that_the_plan_treats_otherwise(self):
        net = Transformer(blocks=3)
        plan = planned_but_for(net, 'blocks.1')
        wanted = self.evaluated(net, plan)
        net.run = torch.compile(net.run, backend=self.backend)
        with self.assertWarnsRegex(UserWarning, 'runs uncompiled under the plan .*where the plan differs'):
            for _ in range(2):
                self.assertTrue(torch.equal(self.evaluated(net, plan), wanted))
        self.assertEqual(self.backend.graphs, 1)

    def test_names_of_parameters_are_those_of_the_module_that_is_compiled(self):
        net = Transformer()
        path = plan_file(net, forward(net), kinds=('linear',))
        net.blocks[0] = torch.compile(net.blocks[0], backend=self.backend)
        called = torch.compile(net, backend=self.backend)
        plan = comp.plan(path, called)
        forward(net)(plan, called)
        forward(net)(plan, called)
        self.assertEqual(plan.left, (0, ''))
        self.assertEqual(plan.warnings, [])
        self.assertGreater(len(set(plan.letters)), 1)

    def test_a_failing_backend_leaves_the_region_as_it_was(self):
        net = Transformer()
        plan = planned(net)
        expected = forward(net)(plan).item()

        def fails(graph, inputs):
            aot_eager(graph, inputs)
            raise ZeroDivisionError

        called = torch.compile(net, backend=fails)
        with self.assertRaises(Exception):
            forward(net)(plan, called)
        self.assertEqual(forward(net)(plan).item(), expected)

    def test_a_backend_that_traces_nothing_runs_uncompiled_and_that_is_told(self):
        net = Transformer()
        with self.assertWarnsRegex(UserWarning, 'its backend does not trace operators'):
            self.same(net, planned(net), torch.compile(net, backend=lambda graph, inputs: graph.forward))

    def test_blocks_that_their_author_keeps_in_fp32_stay_so(self):
        net = Transformer()
        plain = net.run

        def run(block, x):
            with torch.autocast('cpu', enabled=False):
                return plain(block, x.float())

        net.run = run
        plan = planned(net)
        self.same(net, plan, torch.compile(net, backend=self.backend))

    def test_a_weight_that_is_first_read_without_gradients_gets_its_gradient_nevertheless(self):
        net = Transformer()

        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, x):
                with torch.no_grad():
                    wanted = self.net(x).softmax(-1)
                return self.net(x) - wanted

        twice = Twice()
        self.same(twice, planned(twice), torch.compile(twice, backend=self.backend))
        self.assertEqual(self.backend.graphs, 1)

    def test_a_graph_for_all_blocks_runs_none_that_is_called_out_of_turn(self):
        net = Transformer(blocks=3)
        plan = planned_but_for(net, 'blocks.1', 'blocks.2')
        blocks, plain, fast = list(net.blocks), net.run, torch.compile(net.run, backend=self.backend)
        net.run = fast
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            forward(net)(plan)
            for order in ((1, 2), (2,), (1, 0, 2), (2, 1, 0), (0, 0, 1)):
                net.called = [blocks[i] for i in order]
                net.run = plain
                expected = forward(net)(plan).item()
                net.run = fast
                self.assertEqual(forward(net)(plan).item(), expected, order)

    def test_a_graph_that_was_compiled_outside_of_an_authors_block_does_not_run_in_one(self):
        net = Transformer()
        plan = planned(net)
        plain, fast = net.run, torch.compile(net.run, backend=self.backend)

        def in_block(inner):
            def run(block, x):
                with torch.autocast('cpu', enabled=False):
                    return inner(block, x.float())

            return run

        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            net.run = fast
            forward(net)(plan)
            net.run = in_block(plain)
            expected = forward(net)(plan).item()
            net.run = in_block(fast)
            self.assertEqual(forward(net)(plan).item(), expected)

    def test_a_compiled_block_in_a_checkpoint_runs_uncompiled(self):
        net = Transformer()
        plan = planned(net)
        plain = net.run
        for inner in (plain, torch.compile(plain, backend=self.backend)):
            net.run = lambda block, x, inner=inner: torch.utils.checkpoint.checkpoint(inner, block, x, use_reentrant=False)
            loss = forward(net)(plan)
            found = [loss.item(), *gradients(net, loss)]
            wanted = wanted if inner is not plain else found
        self.assertEqual(found[0], wanted[0])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(found[1:], wanted[1:])))
        self.assertEqual(self.backend.graphs, 0)

    def test_functions_that_are_compiled_anew_in_each_step_are_found_again(self):
        net = Transformer()
        plan = planned(net)
        for _ in range(12):
            forward(net)(plan, torch.compile(net, backend=self.backend))
        self.assertEqual(self.backend.graphs, 1)

    def test_stances_hold_inside_a_plan(self):
        net = Transformer()
        plan, called = planned(net), torch.compile(net, backend=self.backend)
        expected = forward(net)(plan).item()
        with torch.compiler.set_stance('force_eager'):
            self.assertEqual(forward(net)(plan, called).item(), expected)
        self.assertEqual(self.backend.graphs, 0)
        self.assertEqual(forward(net)(plan, called).item(), expected)
        for stance in ('fail_on_recompile', 'eager_on_recompile', 'eager_then_compile'):
            with torch.compiler.set_stance(stance), warnings.catch_warnings():
                warnings.simplefilter('ignore')
                self.assertEqual(forward(net)(plan, called).item(), expected, stance)
        self.assertEqual(self.backend.graphs, 1)

    def test_each_segment_of_a_step_has_its_own_place(self):
        model = {'make': Block(), 'judge': Block()}
        x = torch.randn(4, 6, 32)

        def both(plan):
            with plan:
                return model['judge'](model['make'](x)).mean()

        plan = comp.plan(plan_file(model, both, kinds=('linear',)), model, segments=('make', 'judge'))

        def step(make, judge):
            with plan('make'):
                output = make(x)
            with plan('judge'):
                loss = judge(output).pow(2).mean()
            loss.backward()
            return loss.item(), output

        for _ in range(2):
            expected, output = step(**model)
        called = {name: torch.compile(module, backend=self.backend) for name, module in model.items()}
        for _ in range(2):
            loss, again = step(**called)
            self.assertEqual(loss, expected)
            self.assertTrue(torch.equal(again, output))
        self.assertEqual(plan.left, (0, ''))
        self.assertGreater(self.backend.graphs, 0)

    def test_a_compiled_step_that_enters_a_plan_is_refused_in_a_sentence(self):
        net = Transformer()
        run = torch.compile(forward(net), backend='eager')
        with self.assertRaisesRegex(Exception, 'a compiled function enters a plan'):
            run(planned(net))

    def test_a_thread_outside_of_the_plan_compiles_without_it(self):
        net, losses = Transformer(), []
        plan, called = planned(net), torch.compile(net, backend=self.backend)
        outside = forward(net)(NoPlan()).item()
        with plan:
            thread = threading.Thread(target=lambda: losses.append(forward(net)(NoPlan(), called).item()))
            thread.start()
            thread.join()
            cross_entropy(called(TOKENS).flatten(0, 1), Y.flatten())
        self.assertEqual(losses, [outside])
        self.assertEqual(self.backend.graphs, 2)

    @inductor
    def test_inductor_gives_the_plans_losses_up_to_rounding(self):
        net = Transformer(blocks=1)
        plan = planned(net)
        expected = forward(net)(plan)
        wanted = gradients(net, expected)
        called = torch.compile(net)
        for _ in range(2):
            loss = forward(net)(plan, called)
            self.assertAlmostEqual(loss.item(), expected.item(), delta=0.01)
            for one, other in zip(wanted, gradients(net, loss)):
                self.assertLess((one - other).norm(), 0.03 * one.norm() + 1e-6)


class Conditional(nn.Module):
    """A model whose forward chooses a layer by torch.cond."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.embed, self.hidden, self.head = nn.Embedding(50, 64), nn.Linear(64, 64), nn.Linear(64, 50)
        self.either, self.other = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        h = self.hidden(self.embed(x))
        h = torch.cond(x.sum() > 0, lambda h: torch.relu(self.either(h)), lambda h: self.other(h), (h,))
        return self.head(h)


class HigherOrderOperators(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()

    def test_a_branch_runs_in_fp32_and_its_weights_get_their_gradients_compiled_and_uncompiled(self):
        net = Conditional()
        plan, run = planned(net), forward(net)
        in_fp32 = gradients(net, run(NoPlan()))
        loss = run(plan)
        self.assertIn('b', plan.letters)
        expected = gradients(net, loss)
        for one, other in zip(in_fp32, expected):
            self.assertLessEqual((one - other).norm(), 0.1 * one.norm())
        called = torch.compile(net, backend=Counting())
        for _ in range(2):
            again = run(plan, called)
            self.assertEqual(again.item(), loss.item())
            for one, other in zip(expected, gradients(net, again)):
                self.assertLessEqual((one - other).norm(), 0.02 * one.norm())
        self.assertEqual(plan.left, (0, ''))

    def test_flex_attention_is_evaluated_in_fp32(self):
        net, outputs = Attention(lambda key: key), []

        def attend(key):
            outputs.append(flex_attention(key, key, key))
            return outputs[-1]

        plan = planned(net)
        net.hand_on = attend  # flex_attention has no backward on a CPU
        with torch.no_grad():
            expected = forward(net)(NoPlan()).item()
            for run in (net, torch.compile(net, backend='aot_eager')):
                self.assertAlmostEqual(forward(net)(plan, run).item(), expected, places=2)
        self.assertEqual({each.dtype for each in outputs}, {torch.float32})

    def test_a_search_does_not_take_a_branch_for_compiled_code(self):
        net = Conditional()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        found = comp.search(
            training_step(optimizer, forward(net)), model=net, optimizer=optimizer, data=[(TOKENS, Y)] * 8, **QUICK
        )
        self.assertFalse(found.compiled)
        self.assertEqual([trial for trial in found.trials if trial.sample.status == 'failed'], [])


class SearchOfCompiledModels(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()

    def search(self, backend, whole=False, net=None, called=None, warned='error', **settings):
        """A search of a model that `backend` compiles; None: nothing is compiled. Returns: what it found, and the model."""
        net = net or Transformer(blocks=1)
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        if called is None:
            called = net if backend is None else torch.compile(net, backend=backend)
        step = training_step(optimizer, lambda plan: forward(net)(plan, called))
        with warnings.catch_warnings():
            warnings.simplefilter(warned)
            found = comp.search(
                step, model=called if whole else net, optimizer=optimizer, data=[TOKENS] * 40, tune=False, **(QUICK | settings)
            )
        return found, net

    def test_losses_are_those_of_uncompiled_steps_and_times_those_of_compiled_ones(self):
        plain, _ = self.search(None)
        backend = Counting()
        for whole in False, True:
            found, net = self.search(backend, whole)
            self.assertTrue(found.compiled)
            self.assertEqual(found.baseline.curve, plain.baseline.curve)
            self.assertEqual(found.operators[0].name, plain.operators[0].name)
            self.assertIn('Plans were timed by compiled steps.', found.table())
            raced = [each for each in found.contest if each.seconds]
            self.assertGreaterEqual(len(raced), 3)
            self.assertEqual(backend.graphs, len(raced))  # each plan once, and no other
            backend.graphs = 0
            torch._dynamo.reset()
        self.assertFalse(plain.compiled)
        self.assertNotIn('compiled', plain.table())

    def test_the_plan_whose_compiled_steps_are_fastest_is_found(self):
        def slow_in_fp32(graph, inputs):
            compiled = aot_eager(graph, inputs)

            def run(*given):
                result = compiled(*given)
                if result[0].dtype == torch.float32:
                    time.sleep(0.05)
                return result

            return run

        found, _ = self.search(slow_in_fp32)
        self.assertGreater(found.speedup, 1.2)  # the sleeps would make it five where nothing else runs
        head = [operator.name for operator in found.operators].index('head.linear')  # what the model returns
        self.assertEqual(found.plan[head], 'b')

    def test_training_goes_on_compiled(self):
        backend = Counting()
        found, net = self.search(backend)
        graphs = backend.graphs
        before = [parameter.clone() for parameter in net.parameters()]
        with warnings.catch_warnings(record=True):
            found.train(found.trained_batches // 40 + 2)
        self.assertFalse(all(torch.equal(a, b) for a, b in zip(before, net.parameters())))
        self.assertEqual(backend.graphs, graphs + 1)  # for the found plan alone
        forward(net)(found.region, torch.compile(net, backend=backend))
        self.assertEqual(backend.graphs, graphs + 1)

    def test_neither_plans_nor_own_compilations_use_up_dynamos_limit_and_an_interrupted_search_leaves_none(self):
        class Stop:
            def __init__(self):
                self.contest = 0

            def trial_done(self, trial):
                self.contest += trial.stage == 'contest'

            def stop_requested(self):
                return self.contest > 6

        with torch._dynamo.config.patch(recompile_limit=2):
            backend = Counting()
            net = Transformer(blocks=1)
            called = torch.compile(net, backend=backend)
            for mode in net.train(), net.eval():
                forward(mode)(NoPlan(), called)
            net.train()
            with self.assertRaises(comp.Interrupted):
                self.search(backend, net=net, called=called, observers=[Stop()])
            backend.graphs = 0
            found, _ = self.search(backend, net=net, called=called)
            self.assertGreaterEqual(backend.graphs, 3)  # more than the limit
            self.assertEqual(backend.graphs, sum(bool(each.seconds) for each in found.contest))

    def test_functions_that_must_not_break_and_others_have_one_backend(self):
        backend = Counting()
        net = Transformer(blocks=1)
        whole = torch.compile(net, backend=backend, fullgraph=True)
        other = Transformer(blocks=1, breaks=True)
        broken = torch.compile(other, backend=backend)
        found, _ = self.search(
            backend, net=nn.ModuleList([net, other]), called=lambda x: whole(x) + 0.5 * broken(x), warned='ignore'
        )  # Dynamo itself warns of what it looks at behind a break
        self.assertTrue(found.compiled)
        self.assertGreaterEqual(backend.graphs, 3 * 3)  # three parts, under three plans

    def test_a_compiled_block_in_a_checkpoint_is_searched_uncompiled(self):
        backend = Counting()
        net = Transformer(blocks=1)
        block = torch.compile(net.run, backend=backend)
        net.run = lambda each, x: torch.utils.checkpoint.checkpoint(block, each, x, use_reentrant=False)
        found, _ = self.search(None, net=net)
        self.assertEqual((found.compiled, backend.graphs), (False, 0))

    def test_what_the_backend_raises_comes_out_unchanged(self):
        def failing(graph, inputs):
            raise ValueError('no C++ compiler')

        with self.assertRaisesRegex(torch._dynamo.exc.BackendCompilerFailed, 'no C[+][+] compiler'):
            self.search(failing)
        self.search(Counting())


if __name__ == '__main__':
    unittest.main()
