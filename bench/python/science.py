# SPDX-License-Identifier: Apache-2.0
"""Trainings of physics and chemistry in FP64, in FP32 alone and under the plan that comp.search finds: a step's time, in
turns, and an error on held-out data at the end of whole trainings, of three seeds.

Usage: science.py [NAME ...]     prints for each: ms per step in FP64, speed of FP32 and of the found plan over it, the search's
time, and the errors of the three."""

import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault('OMP_NUM_THREADS', '2')

import torch
from torch import nn

import comp

SEEDS, TURNS = 3, 40


def mlp(*widths, dtype):
    layers = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).to(dtype)


class Potential:
    """Energies and forces of clusters of 13 atoms, whose positions lie far from the origin."""

    steps, rate = 400, 5e-3

    def __init__(self, seed, dtype):
        torch.manual_seed(seed)
        self.net, self.dtype = mlp(24, 128, 128, 1, dtype=dtype), dtype
        grid = torch.cartesian_prod(*[torch.arange(3.0)] * 3)[:13].double() * 1.12
        moved = 1e6 * torch.randn(256, 1, 3, dtype=torch.float64)
        self.x = grid + moved + 0.05 * torch.randn(256, 13, 3, dtype=torch.float64)
        self.pairs = torch.triu_indices(13, 13, 1)
        i, j = self.pairs
        d = self.x[:, i] - self.x[:, j]
        six = d.square().sum(-1).pow(-3)
        self.energy = (4 * six * (six - 1)).sum(1)
        along = (24 * six * (2 * six - 1) / d.square().sum(-1)).unsqueeze(-1) * d
        self.force = torch.zeros_like(self.x).index_add_(1, i, along).index_add_(1, j, -along)
        self.mean, self.deviation = self.energy.mean(), self.energy.std()

    def predict(self, x):
        x = x.to(self.dtype).requires_grad_()
        i, j = self.pairs
        r = (x[:, i] - x[:, j]).square().sum(-1).sqrt()
        near = torch.exp(-20 * (r.unsqueeze(-1) - torch.linspace(0.8, 3.1, 24, dtype=self.dtype)).square())
        atoms = torch.zeros(*x.shape[:2], 24, dtype=near.dtype).index_add_(1, i, near).index_add_(1, j, near)
        energy = self.net(atoms).sum((1, 2))
        (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy, -slope

    def loss(self, batch):
        at = slice(batch * 16 % 192, batch * 16 % 192 + 16)
        energy, force = self.predict(self.x[at])
        wanted = ((self.energy[at] - self.mean) / self.deviation).to(energy.dtype)
        return (energy - wanted).square().mean() + (force * self.deviation - self.force[at]).square().mean() / 100

    def error(self):
        """Of forces, relative."""
        _, force = self.predict(self.x[192:])
        return ((force.double() * self.deviation - self.force[192:]).norm() / self.force[192:].norm()).item()


class Poisson:
    """A network that solves Poisson's equation on a square, by its residual and its boundary."""

    steps, rate = 600, 2e-3

    def __init__(self, seed, dtype):
        torch.manual_seed(seed)
        self.net, self.dtype = mlp(2, 128, 128, 128, 1, dtype=dtype), dtype
        self.x = torch.rand(4096, 2, dtype=torch.float64).to(dtype)
        side = torch.rand(256, 1, dtype=torch.float64)
        ends = torch.cat([torch.zeros(64, 1), torch.ones(64, 1)]).double()
        self.edge = torch.cat([torch.cat([side[:128], ends], 1), torch.cat([ends, side[128:]], 1)]).to(dtype)

    def loss(self, batch):
        x = self.x[batch * 256 % 4096 :][:256].clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        curved = sum(torch.autograd.grad(slope[:, k].sum(), x, create_graph=True)[0][:, k] for k in range(2))
        source = 2 * torch.pi**2 * torch.sin(torch.pi * x).prod(1)
        return (curved + source).square().mean() + 100 * self.net(self.edge).square().mean()

    def error(self):
        """Of the solution, relative."""
        x = torch.cartesian_prod(*[torch.linspace(0, 1, 41, dtype=self.dtype)] * 2)
        exact = torch.sin(torch.pi * x).prod(1).double()
        return ((self.net(x)[:, 0].double() - exact).norm() / exact.norm()).item()


class Ode:
    """A neural differential equation, by 20 steps of Runge and Kutta, fitted to spirals."""

    steps, rate = 300, 5e-3

    def __init__(self, seed, dtype):
        torch.manual_seed(seed)
        self.net, self.dtype = mlp(2, 128, 128, 2, dtype=dtype), dtype
        self.x = torch.randn(512, 2, dtype=torch.float64).to(dtype)

    @staticmethod
    def run(of, x):
        h, path = 0.1, []
        for _ in range(20):
            a = of(x)
            b = of(x + h / 2 * a)
            c = of(x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + of(x + h * c))
            path.append(x)
        return torch.stack(path)

    def exact(self, x):
        turn = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], dtype=x.dtype)
        return self.run(lambda at: at.pow(3) @ turn / (1 + at.square().sum(-1, keepdim=True)), x)

    def loss(self, batch):
        x = self.x[batch * 64 % 448 :][:64]
        return (self.run(self.net, x) - self.exact(x)).square().mean()

    def error(self):
        """Of the paths, relative."""
        x = self.x[448:]
        wanted = self.exact(x.double())
        return ((self.run(self.net, x).double() - wanted).norm() / wanted.norm()).item()


class Process(nn.Module):
    """The marginal likelihood of a Gaussian process with little noise, by Cholesky's decomposition."""

    steps, rate = 200, 2e-2

    def __init__(self, seed, dtype):
        super().__init__()
        torch.manual_seed(seed)
        self.dtype, self.net = dtype, self
        self.x = 10 * torch.rand(400, 1, dtype=torch.float64).sort(0).values.to(dtype)
        self.y = (torch.sin(self.x[:, 0].double()) + 1e-4 * torch.randn(400, dtype=torch.float64)).to(dtype)
        self.scale, self.noise = (nn.Parameter(torch.tensor(v, dtype=dtype)) for v in (0.0, -16.0))

    def kernel(self, a, b):
        return torch.exp(-((a - b.T) / self.scale.exp()).square() / 2)

    def solve(self, x, y):
        k = self.kernel(x, x) + self.noise.exp() * torch.eye(len(x), dtype=self.dtype)
        root = torch.linalg.cholesky(k)
        return root, torch.cholesky_solve(y[:, None], root)[:, 0]

    def loss(self, batch):
        x, y = self.x[::2], self.y[::2]
        root, solved = self.solve(x, y)
        return (y @ solved / 2 + root.diagonal().log().sum()) / len(x)

    def error(self):
        """Of the mean between the points, absolute."""
        _, solved = self.solve(self.x[::2], self.y[::2])
        mean = self.kernel(self.x[1::2], self.x[::2]) @ solved
        return (mean.double() - torch.sin(self.x[1::2, 0].double())).abs().mean().item()


TRAININGS = {'potential': Potential, 'Poisson': Poisson, 'ODE': Ode, 'Gaussian process': Process}


def trainer(make, seed, dtype, path=None):
    job = make(seed, dtype)
    optimizer = torch.optim.Adam(job.net.parameters(), make.rate)
    plan = comp.plan(path, job.net) if path else None

    def step(batch):
        if plan is None:
            loss = job.loss(batch)
        else:
            with plan:
                loss = job.loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return job, step


def search(make, path):
    job = make(0, torch.float64)
    optimizer = torch.optim.Adam(job.net.parameters(), make.rate)

    def step(plan, batch):
        with plan:
            loss = job.loss(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    found = comp.search(step, model=job.net, optimizer=optimizer, data=range(100), progress=False, planned_epochs=30)
    found.save(path)
    return found


def trained(make, seed, dtype, path=None):
    try:
        job, step = trainer(make, seed, dtype, path)
        for batch in range(make.steps):
            step(batch)
        return job.error()
    except torch.linalg.LinAlgError:
        return float('nan')


def main(names):
    for name in names or TRAININGS:
        make = TRAININGS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'plan.json')
            begin = time.perf_counter()
            found = search(make, path)
            cost = time.perf_counter() - begin
            modes = {'FP64': (torch.float64, None), 'FP32': (torch.float32, None), 'found': (torch.float64, path)}
            steps = {mode: trainer(make, 0, *how)[1] for mode, how in modes.items()}
            seconds = {mode: [] for mode in modes}
            for turn in range(TURNS):
                for mode, step in steps.items():
                    begin = time.perf_counter()
                    try:
                        step(turn)
                        seconds[mode].append(time.perf_counter() - begin)
                    except torch.linalg.LinAlgError:
                        pass
            errors = {mode: [trained(make, seed, *how) for seed in range(SEEDS)] for mode, how in modes.items()}
        middle = {mode: statistics.median(of) if of else float('nan') for mode, of in seconds.items()}
        spread = statistics.quantiles([a / b for a, b in zip(seconds['FP64'], seconds['found'])], n=20)
        print(
            f"| {name} | {1e3 * middle['FP64']:.3g} | {middle['FP64'] / middle['FP32']:.2f} "
            f"| {middle['FP64'] / middle['found']:.2f} ({spread[0]:.2f} to {spread[-1]:.2f}) | {cost:.2g} s "
            + ''.join('| ' + ', '.join(f'{e:.2g}' for e in errors[mode]) + ' ' for mode in modes) + '|',
            flush=True,
        )
        print(found.plan, file=sys.stderr)


if __name__ == '__main__':
    main(sys.argv[1:])
