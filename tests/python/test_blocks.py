# SPDX-License-Identifier: Apache-2.0
"""Blocks in which a model's author switched autocast off, or to another format: no plan changes what runs in them."""

import contextlib
import sys
import types
import unittest

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import comp
from support import QUICK, plan_file, training_step

X, Y = torch.randn(8, 16, generator=torch.Generator().manual_seed(5)), torch.arange(8) % 4


class Protected(nn.Module):
    """A product whose author wants it in FP32, as Hugging Face's rotary embeddings have it, between two others."""

    def __init__(self, block=None, again=False):
        super().__init__()
        torch.manual_seed(1)
        self.into, self.inner, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.block = block or {'enabled': False}
        self.again = again
        self.formats = {}
        for name in ('into', 'inner', 'out'):
            hook = lambda module, given, result, name=name: self.formats.setdefault(name, []).append(result.dtype)
            getattr(self, name).register_forward_hook(hook)

    def protected(self, h):
        with torch.autocast('cpu', **self.block):
            return self.inner(h if self.block['enabled'] else h.float())

    def forward(self, x):
        h = torch.relu(self.into(x))
        h = checkpoint(self.protected, h, use_reentrant=False) if self.again else self.protected(h)
        return self.out(h.float())


OPTIONAL = '''
from contextlib import nullcontext
import torch
def maybe_autocast(device_type, dtype=None, enabled=True, cache_enabled=None):
    if device_type == "meta":
        return nullcontext()
    if torch.is_autocast_enabled(device_type) or enabled:
        return torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
    return nullcontext()
'''


@contextlib.contextmanager
def optional_blocks():
    """transformers' maybe_autocast, as its models have imported it."""
    library = types.ModuleType('transformers.utils.generic')
    exec(OPTIONAL, library.__dict__)
    before = sys.modules.get(library.__name__)
    sys.modules[library.__name__] = library
    try:
        yield library.maybe_autocast
    finally:
        del sys.modules[library.__name__]
        if before is not None:
            sys.modules[library.__name__] = before


def loss_of(net, plan):
    with plan:
        return cross_entropy(net(X), Y)


def all_low(net, protect_blocks=True):
    """A plan file that has each linear layer in BF16, whatever its author wrote."""
    return plan_file(net, lambda plan: loss_of(net, plan), protect_blocks=protect_blocks)


def formats_under(net, **choices):
    plan = comp.plan(all_low(net, protect_blocks=False), net, forced=True, **choices)
    net.formats.clear()
    for _ in range(2):
        loss_of(net, plan).backward()
    with torch.no_grad():
        loss_of(net, plan)
    return {name: set(dtypes) for name, dtypes in net.formats.items()}, plan


BF16, FP32 = {torch.bfloat16}, {torch.float32}


class Blocks(unittest.TestCase):
    def test_a_file_that_lowers_a_protected_operator_is_followed_elsewhere_and_says_so(self):
        with self.assertWarnsRegex(UserWarning, "first \"inner.linear\" \\(the model's author switched autocast off there\\)"):
            formats, _ = formats_under(Protected())
        self.assertEqual(formats, {'into': BF16, 'inner': FP32, 'out': BF16})

    def test_a_setting_frees_the_block(self):
        self.assertEqual(formats_under(Protected(), protect_blocks=False)[0], {'into': BF16, 'inner': BF16, 'out': BF16})

    def test_a_block_that_is_run_again_in_the_backward_is_protected_there(self):
        formats, _ = formats_under(Protected(again=True))
        self.assertEqual(formats, {'into': BF16, 'inner': FP32, 'out': BF16})

    def test_a_block_that_is_none_where_autocast_is_off_is_one_in_a_plan(self):
        for again in (False, True):
            with optional_blocks() as maybe_autocast:

                class Optional(Protected):
                    def protected(self, h):
                        with maybe_autocast(device_type='cpu', enabled=False):
                            return self.inner(h.float())

                formats, plan = formats_under(Optional(again=again))
                self.assertEqual(formats, {'into': BF16, 'inner': FP32, 'out': BF16})
                self.assertIsInstance(maybe_autocast('cpu', enabled=False), contextlib.nullcontext)
                with plan:
                    self.assertIsInstance(maybe_autocast('meta', enabled=False), contextlib.nullcontext)
                    with maybe_autocast('cpu', torch.float16):
                        self.assertEqual(torch.get_autocast_dtype('cpu'), torch.float16)
                self.assertEqual(comp._region._open.again, 0)

    def test_a_function_with_custom_fwd_runs_as_it_does_without_a_plan(self):
        dtypes = []

        class Square(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type='cpu', cast_inputs=torch.float32)
            def forward(ctx, x):
                ctx.save_for_backward(x)
                dtypes.append(x.dtype)
                return x * x

            @staticmethod
            @torch.amp.custom_bwd(device_type='cpu')
            def backward(ctx, gradient):
                dtypes.append(gradient.dtype)
                return 2 * gradient * ctx.saved_tensors[0]

        class Squared(Protected):
            def protected(self, h):
                with torch.autocast('cpu', **self.block):
                    return self.inner(Square.apply(h))

        for block, inner in ({'enabled': False}, FP32), ({'enabled': True, 'dtype': torch.float16}, {torch.float16}):
            net = Squared(block)
            plan = comp.plan(all_low(net), net, forced=True)
            net.formats.clear()
            dtypes.clear()
            for _ in range(3):
                loss_of(net, plan).backward()
            self.assertEqual(set(net.formats['inner']), inner)
            self.assertEqual(set(net.formats['into']), BF16)
            self.assertEqual(set(dtypes), FP32)
            self.assertTrue(torch.isfinite(net.into.weight.grad).all())

    def test_every_plan_of_a_search_leaves_it_alone(self):
        net = Protected()
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        step = training_step(optimizer, lambda plan: loss_of(net, plan))
        found = comp.search(step, model=net, optimizer=optimizer, data=[0] * 16, **QUICK)
        self.assertEqual(set(net.formats['inner']), FP32)
        self.assertIn(torch.bfloat16, set(net.formats['into']))
        at = [op.name for op in found.operators].index('inner.linear')
        self.assertFalse(found.operators[at].choosable)


if __name__ == '__main__':
    unittest.main()
