# SPDX-License-Identifier: Apache-2.0
"""Operators whose samples in torch's own tests (tests/suites) have shown a fault of comp: the smallest input of each."""

import contextlib
import json
import unittest

import torch
from torch import nn
from torch.nn import functional as F

import comp
from support import operators_of, plan_file



class Called(nn.Module):
    """Calls a function on the tensor that it is made with, a parameter."""

    def __init__(self, function, *shape, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.x = nn.Parameter(torch.randn(*shape, generator=generator, dtype=dtype))
        self.function = function

    def forward(self):
        return self.function(self.x)


def values(net, region):
    """The result of a forward in `region` and the gradient of the parameter."""
    with region:
        result = net()
    (gradient,) = torch.autograd.grad(result.float().sum(), [net.x])
    return result, gradient


def in_plan(net, chosen):
    """A plan that gives `chosen(operator)` to each operator of a forward."""

    def run(region):
        with region:
            result = net()
        return result.float().sum()

    path = plan_file(net, run)
    with open(path) as file:
        plan = json.load(file)
    for op, row in zip(ops := operators_of(net, run), plan['operators']):
        row.update(precision=chosen(op, ops), as_written=op.as_written)
    with open(path, 'w') as file:
        json.dump(plan, file)
    return comp.plan(path, net, forced=True, otherwise='error')


def by_rules(op, ops):
    letters = dict(comp._comp.rules(ops, 'bf16')[0])['pytorch']
    return {'1': 'fp32', 'b': 'bf16', 'd': 'fp64'}[letters[[each.name for each in ops].index(op.name)]]


def low(op, ops):
    return 'bf16' if op.choosable else op.as_written


class Rules(unittest.TestCase):
    def test_composites_and_other_names_of_operators_are_what_autocast_makes_of_them(self):
        for function, shape in (
            (lambda x: torch.einsum('i->', x), (3,)),
            (lambda x: torch.einsum('ij,jk->ik', x, x), (3, 3)),
            (lambda x: torch.inner(x, x), (3,)),
            (lambda x: torch.tensordot(x, x, dims=([0, 1], [1, 0])), (2, 2)),
            (torch.cov, (2, 3)),
            (torch.corrcoef, (3, 2)),
            (lambda x: torch.true_divide(x @ x, x.sum()), (3, 3)),
            (lambda x: torch.multiply(x @ x, x.sum()), (3, 3)),
            (lambda x: (x @ x).sum() * 0.005, (3, 3)),
            (lambda x: torch.linalg.norm(x @ x, dim=1), (3, 3)),
        ):
            net = Called(function, *shape)
            want = values(net, torch.autocast('cpu', torch.bfloat16))
            plan = in_plan(net, by_rules)
            for forward in ('first', 'later'):
                got = values(net, plan)
                self.assertEqual(got[0].dtype, want[0].dtype, (shape, forward))
                self.assertTrue(torch.equal(got[0], want[0]), (shape, forward))
            with torch.no_grad(), plan:
                self.assertTrue(torch.equal(net(), want[0]), shape)

    def test_an_operator_gives_the_format_that_an_argument_of_it_asks_for(self):
        for function in (
            lambda x: torch.softmax(x @ x, 1, dtype=torch.float).square(),
            lambda x: (x @ x).sum(1, dtype=torch.float).square(),
            lambda x: (x @ x).cumsum(1, dtype=torch.float).square(),
            lambda x: torch.softmax(x @ x, 1, dtype=torch.bfloat16).square(),
            lambda x: (x @ x).to(x).square(),
            lambda x: (x @ x).to('cpu', torch.float).square(),
            lambda x: torch.as_tensor(x @ x, dtype=torch.float).square(),
        ):
            net = Called(function, 3, 3)
            want = values(net, torch.autocast('cpu', torch.bfloat16))
            plan = in_plan(net, by_rules)
            for _ in range(2):
                got = values(net, plan)
                self.assertEqual(got[0].dtype, want[0].dtype)
                self.assertTrue(all(torch.equal(*pair) for pair in zip(got, want)))

    def test_a_linear_layer_may_multiply_in_bf16_and_give_fp32(self):
        torch.manual_seed(3)
        net, x = nn.Linear(48, 8), torch.randn(32, 48)

        def run(region):
            with region:
                out = net(x)
            return out.square().mean()

        plan = comp.plan(plan_file(net, run, 'bf16>fp32'), net, forced=True)
        read, weight = x.bfloat16().float(), net.weight.detach().bfloat16().float()
        for _ in range(2):
            with plan:
                out = net(x)
            self.assertEqual(out.dtype, torch.float32)
            torch.testing.assert_close(out, F.linear(read, weight, net.bias), rtol=1e-5, atol=1e-6)
            (gradient,) = torch.autograd.grad(out.square().mean(), [net.weight])
            dy = (2 * out.detach() / out.numel()).bfloat16().float()
            torch.testing.assert_close(gradient, dy.T @ read, rtol=1e-4, atol=1e-6)

    def test_who_reads_a_tensor_beside_a_cast_that_left_it_as_it_was_reads_the_tensor_and_not_the_cast(self):
        def normed(x):
            h = x @ x
            return (h.float() * 3).type_as(h) * 1.01 + h

        def added(x):
            h = x @ x
            full = h.to(torch.float32)
            return (full * full.square().mean()) @ x + h

        for function in (normed, added):
            net = Called(function, 8, 8)
            want = values(net, torch.autocast('cpu', torch.bfloat16))
            plan = in_plan(net, by_rules)
            for _ in range(2):
                for now, then in zip(values(net, plan), want):
                    self.assertEqual(now.dtype, then.dtype)
                    self.assertTrue(torch.equal(now, then))

    def test_a_cast_that_left_its_tensor_as_it_was_is_that_tensor_for_what_is_written_in_place(self):
        def written(x):
            h = (x * 2)[1:]
            full = h.float()
            full.mul_(x[1:])
            full[0].add_(1)
            h.t_().sin_()
            return full.float() * full * h

        net = Called(written, 9, 8)
        want = values(net, contextlib.nullcontext())
        for now, then in zip(values(net, in_plan(net, lambda op, _: op.as_written)), want):
            self.assertTrue(torch.equal(now, then))

    def test_what_reads_a_compressed_sparse_tensor_that_trains_stays_as_written_because_its_casts_have_no_backward(self):
        net = Called(lambda x: torch.sparse.sampled_addmm(x.to_sparse_csr(), x, x).to_dense(), 3, 3).double()
        want = values(net, contextlib.nullcontext())
        for now, then in zip(values(net, in_plan(net, lambda op, _: 'fp32' if op.choosable else op.as_written)), want):
            self.assertTrue(torch.allclose(now, then, rtol=1e-5))

    def test_rms_norm_reads_its_weight_in_fp32_beside_a_low_input(self):
        net = Called(lambda x: F.rms_norm(x @ x, (3,), net.weight), 3, 3)
        net.weight = nn.Parameter(torch.tensor([1.001, 0.999, 1.0003]))
        want = values(net, torch.autocast('cpu', torch.bfloat16))
        plan = in_plan(net, by_rules)
        for _ in range(2):
            self.assertTrue(all(torch.equal(*pair) for pair in zip(values(net, plan), want)))

    def test_a_sum_by_einsum_does_not_hide_the_product_of_a_later_one(self):
        net = Called(lambda x: torch.einsum('ij->', x) + torch.einsum('ij,jk->ik', x, x), 3, 3)
        plan = in_plan(net, by_rules)
        values(net, plan)
        with torch.no_grad(), plan:
            got = net()
        with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):
            self.assertTrue(torch.equal(got, net()))

    def test_a_function_of_the_models_own_gets_what_the_model_converted_in_the_format_that_it_asked_for(self):
        formats = []

        class Looks(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                formats.append(x.dtype)
                return x * 2

            @staticmethod
            def backward(ctx, gradient):
                return gradient * 2

        net = Called(lambda x: Looks.apply((x * 3).double().exp().float()), 3)
        plan = in_plan(net, lambda op, _: op.as_written)
        formats.clear()
        for _ in range(2):  # the first forward, a later one
            values(net, plan)
        self.assertEqual(formats, [torch.float32] * 2)

    def test_autocast_leaves_fp64_alone_and_so_do_the_rules(self):
        net = Called(lambda x: x @ x, 3, 3, dtype=torch.float64)
        plan = in_plan(net, by_rules)
        for _ in range(2):
            self.assertTrue(torch.equal(values(net, plan)[0], net.x @ net.x))


class Low(unittest.TestCase):
    def test_what_has_no_low_kernel_or_no_low_backward_is_not_lowered(self):
        complex_view = lambda x: torch.view_as_real(torch.view_as_complex(x) * 1j)
        special = (torch.special.i1e, torch.special.bessel_j0, torch.special.log_ndtr, torch.special.erfcx)
        for function in (*special, complex_view):
            net = Called(lambda x: function(x * 2), 3, 2)
            result = net()
            plan = in_plan(net, low)
            with plan:
                got = net()
            self.assertEqual(got.dtype, torch.float32)
            self.assertTrue(torch.allclose(got, result, rtol=0.05, atol=0.05))
            with torch.no_grad(), plan:
                self.assertTrue(torch.allclose(net(), result, rtol=0.05, atol=0.05))
            if result.requires_grad:
                got.sum().backward()

    def test_a_number_that_fp16_does_not_have_keeps_its_operator_in_fp32(self):
        fp16 = lambda op, ops: 'fp16' if op.choosable else op.as_written
        for function, refused in (
            (lambda x: (x * 2).masked_fill(x > 0, -1e9), True),
            (lambda x: (x * 2).clamp(-100_000), True),
            (lambda x: (x * 2).masked_fill(x > 0, -6e4), False),
            (lambda x: (x * 2).masked_fill(x > 0, -torch.inf), False),
        ):
            net = Called(function, 3)
            plan = in_plan(net, fp16)
            for _ in range(2):
                self.assertEqual(values(net, plan)[0].dtype, torch.float32 if refused else torch.float16)
            self.assertEqual(plan.letters.endswith('1'), refused)
            with torch.no_grad(), plan:
                self.assertEqual(net().dtype, torch.float32 if refused else torch.float16)

    def test_a_layer_norm_with_a_bias_and_no_weight_has_gradients_in_bf16(self):
        net = Called(lambda x: F.layer_norm(x * 2, (2,), None, x[0] * 3), 3, 2)
        net.function = lambda x: F.layer_norm(x * 2, (2,), None, net.bias)
        net.bias = nn.Parameter(torch.ones(2))
        plan = in_plan(net, low)
        for _ in range(2):
            self.assertTrue(values(net, plan)[1].isfinite().all())

    def test_nested_tensors_stay_as_they_are_written(self):
        ragged = lambda x: torch.nested.nested_tensor([x[:1], x], layout=torch.jagged)
        net = Called(lambda x: torch.nested.to_padded_tensor((ragged(x.detach()) @ x.detach()).tanh(), 0.0) @ x, 3, 3)
        want = values(net, contextlib.nullcontext())
        plan = in_plan(net, low)
        for _ in range(2):
            got = values(net, plan)
            for mine, theirs in zip(got, want):
                self.assertTrue(torch.allclose(mine.float(), theirs, rtol=0.02, atol=0.02))
        self.assertIn('b', plan.letters)
        plan = in_plan(net, lambda op, ops: op.as_written)
        self.assertTrue(all(torch.equal(*pair) for pair in zip(values(net, plan), want)))

    def test_an_operator_that_raises_under_a_plan_is_named(self):
        net = Called(lambda x: torch.bmm(x, x * 2), 1, 2, 2)
        plan = in_plan(net, low)
        net.function = lambda x: torch.bmm(x, (x * 2)[:, :1])
        with self.assertRaisesRegex(RuntimeError, r'operator aten::bmm \("bmm"\) of the plan'):
            with plan:
                net()


class AsWritten(unittest.TestCase):
    def test_a_region_that_is_entered_again_within_itself_goes_on(self):
        net = Called(lambda x: (x @ x).tanh() @ x, 3, 3)
        plan = in_plan(net, low)
        once = values(net, plan)

        def again(x):
            with plan:
                y = (x @ x).tanh()
            return y @ x

        net.function = again
        self.assertTrue(all(torch.equal(*pair) for pair in zip(values(net, plan), once)))
        self.assertEqual(plan.left[0], 0)
        with self.assertRaises(ZeroDivisionError), plan:
            with plan:
                raise ZeroDivisionError
        self.assertTrue(all(torch.equal(*pair) for pair in zip(values(net, plan), once)))

    def test_fp32_beside_fp64_is_not_cast_by_a_plan_that_leaves_all_as_it_is(self):
        places = torch.tensor([0.1, 0.7, 5.3])
        net = Called(lambda x: torch.trapezoid(x, places), 3, dtype=torch.float64)
        plan = in_plan(net, lambda op, ops: op.as_written)
        self.assertTrue(torch.equal(values(net, plan)[0], net()))


if __name__ == '__main__':
    unittest.main()
