# SPDX-License-Identifier: Apache-2.0
"""Models in FP64, and gradients inside a region: potentials, differential equations, torch.func."""

import json
import os
import tempfile
import unittest

import torch
from torch import nn

import comp
from support import DEVICE, QUICK


def network(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    return net.to(DEVICE, dtype), torch.rand(32, 2, dtype=dtype, device=DEVICE)


def poisson(net, x):
    """The residual of Poisson's equation, which takes second derivatives in the forward."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    curvature = sum(torch.autograd.grad(slope[:, k].sum(), x, create_graph=True)[0][:, k] for k in range(2))
    return (curvature + torch.sin(torch.pi * x).prod(1)).square().mean()


def plain_losses(dtype, steps=5):
    net, x = network(dtype)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        loss = poisson(net, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Found(unittest.TestCase):
    def search(self, dtype, **given):
        self.net, x = network(dtype)
        optimizer = torch.optim.Adam(self.net.parameters(), 1e-2)
        self.losses = []

        def step(plan, batch):
            with plan:
                loss = poisson(self.net, x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            self.losses.append(loss.item())
            return loss

        return comp.search(step, model=self.net, optimizer=optimizer, data=[0] * 100, **QUICK, **given)

    def test_a_differential_equation_in_fp64_is_searched_in_fp64_and_fp32(self):
        found = self.search(torch.float64, precisions=None)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'plan.json')
            found.save(path)
            operators = json.load(open(path))['operators']
            named = {op['name']: op for op in operators}
            self.assertEqual(named['0.linear']['as_written'], 'fp64')
            self.assertLessEqual({op['precision'] for op in operators}, {'fp64', 'fp32'})
            self.assertFalse([op for op in operators if 'backward' in op['kind']])
            net, x = network(torch.float64)
            plan = comp.plan(path, net)
            for _ in range(3):
                with plan:
                    loss = poisson(net, x)
            self.assertAlmostEqual(loss.item() / plain_losses(torch.float64, 1)[0], 1, delta=1e-5)
            loss.backward()
            self.assertTrue(all(p.grad.dtype is torch.float64 for p in net.parameters() if p.grad is not None))
        self.assertIn('as written', str(found))
        self.assertEqual({p.dtype for p in self.net.parameters()}, {torch.float64})


class Transforms(unittest.TestCase):
    def test_transforms_of_torch_func_run_in_a_region_and_give_what_they_give_outside(self):
        for dtype, low in ((torch.float32, 'bf16'), (torch.float64, 'fp32')):
            net, x = network(dtype)
            written = {} if dtype is torch.float32 else {'as_written': 'fp64'}
            operators = [
                {'name': f'{i}.{kind}', 'kind': f'aten::{kind}', 'precision': low} | written
                for i, kind in enumerate(('linear', 'tanh', 'linear', 'tanh', 'linear'))
            ]
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, 'plan.json')
                json.dump({'comp_plan': 1, 'operators': operators}, open(path, 'w'))
                plan = comp.plan(path, net, forced=True)
                x.requires_grad_()
                for _ in range(2):
                    with plan:
                        net(x).sum().backward()
            x = x.detach()
            energy = lambda at: net(at).sum()  # noqa: E731
            for name, transformed in (
                ('grad', lambda: torch.func.grad(energy)(x)),
                ('vmap', lambda: torch.func.vmap(net)(x)),
                ('vmap of grad', lambda: torch.func.vmap(torch.func.grad(energy))(x)),
                ('jvp', lambda: torch.func.jvp(net, (x,), (torch.ones_like(x),))[1]),
                ('hessian', lambda: torch.func.jacrev(torch.func.grad(energy))(x[:3])),
            ):
                with self.subTest(name, dtype=dtype):
                    with plan:
                        inside = transformed()
                    self.assertTrue(torch.allclose(inside, transformed(), rtol=0.1 if low == 'bf16' else 1e-5, atol=1e-3))


if __name__ == '__main__':
    unittest.main()
