# SPDX-License-Identifier: Apache-2.0
"""Trainings of physics and chemistry as they are written, in the lower format alone and under the plan that comp.search
finds: a step's time, in turns, and an error on held-out data at the end of whole trainings, of three seeds.

Usage: science.py [NAME ...]     prints for each: ms per step as written, speed of the lower format and of the found plan
over it, the search's time, and the errors of the three; then how many plans and batches the searches ran."""

import contextlib
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


def mlp(*widths, dtype, between=nn.Tanh):
    layers = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), between())]
    return nn.Sequential(*layers[:-1]).to(dtype)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Training:
    """One network, one loss, Adam; FP64 as written, beside FP32."""

    written, low, forwards = torch.float64, torch.float32, ('forward',)

    def models(self):
        return {'net': self.net}

    def optimizers(self):
        return [torch.optim.Adam(self.net.parameters(), self.rate)]

    def step(self, plan, optimizers, batch):
        with plan('forward'):
            loss = self.loss(batch)
        update(*optimizers, loss)
        return loss


class Potential(Training):
    """Energies and forces of clusters of 64 atoms, whose positions lie far from the origin."""

    steps, rate, atoms, side = 400, 5e-3, 64, 4

    def __init__(self, seed, dtype):
        torch.manual_seed(seed)
        self.net, self.dtype = mlp(24, 128, 128, 1, dtype=dtype), dtype
        grid = torch.cartesian_prod(*[torch.arange(float(self.side))] * 3)[: self.atoms].double() * 1.12
        moved = 1e6 * torch.randn(256, 1, 3, dtype=torch.float64)
        self.x = grid + moved + 0.05 * torch.randn(256, self.atoms, 3, dtype=torch.float64)
        self.pairs = torch.triu_indices(self.atoms, self.atoms, 1)
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


class SmallPotential(Potential):
    atoms, side = 13, 3


class Poisson(Training):
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


class Ode(Training):
    """A neural differential equation, by 20 steps of Runge and Kutta, fitted to spirals."""

    steps, rate, batch = 300, 5e-3, 256

    def __init__(self, seed, dtype):
        torch.manual_seed(seed)
        self.net, self.dtype = mlp(2, 128, 128, 2, dtype=dtype), dtype
        self.x = torch.randn(8 * self.batch, 2, dtype=torch.float64).to(dtype)

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
        x = self.x[batch % 7 * self.batch :][: self.batch]
        return (self.run(self.net, x) - self.exact(x)).square().mean()

    def error(self):
        """Of the paths, relative."""
        x = self.x[-self.batch :]
        wanted = self.exact(x.double())
        return ((self.run(self.net, x).double() - wanted).norm() / wanted.norm()).item()


class SmallOde(Ode):
    batch = 64


class Process(Training, nn.Module):
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


class Wgan(Training):
    """A generator of points of a mixture of Gaussians, and its critic, whose slope a penalty holds at 1."""

    written, low, forwards = torch.float32, torch.bfloat16, ('critic', 'generator')
    steps, rate, count, space, noise, width = 600, 5e-4, 256, 16, 64, 512

    def __init__(self, seed, dtype):
        torch.manual_seed(seed)
        self.dtype = dtype
        self.critic = mlp(self.space, *[self.width] * 3, 1, dtype=dtype, between=nn.SiLU)
        self.generator = mlp(self.noise, *[self.width] * 3, self.space, dtype=dtype, between=nn.SiLU)
        self.centres = torch.randn(8, self.space, generator=torch.Generator().manual_seed(0))

    def models(self):
        return {'critic': self.critic, 'generator': self.generator}

    def optimizers(self):
        rates = ((self.critic, 2 * self.rate), (self.generator, self.rate))
        return [torch.optim.Adam(of.parameters(), rate, (0.0, 0.9)) for of, rate in rates]

    def draw(self, count, dice=None):
        near = torch.randint(len(self.centres), (count,), generator=dice)
        return self.centres[near] + 0.1 * torch.randn(count, self.space, generator=dice)

    def make(self, count, dice=None):
        return self.generator(torch.randn(count, self.noise, generator=dice).to(self.dtype))

    def step(self, plan, optimizers, batch):
        real = self.draw(self.count).to(self.dtype)
        with plan('critic'):
            points = self.make(self.count).detach()
            between = (real + torch.rand(self.count, 1).to(self.dtype) * (points - real)).requires_grad_()
            (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
            penalty = (slope.square().sum(1).sqrt() - 1).square().mean()
            judged = self.critic(points).mean() - self.critic(real).mean() + 10 * penalty
        update(optimizers[0], judged)
        with plan('generator'):
            fooled = -self.critic(self.make(self.count)).mean()
        update(optimizers[1], fooled)
        return {'critic': judged, 'generator': fooled}

    def error(self):
        """The sliced Wasserstein distance between points made and points drawn."""
        dice = torch.Generator().manual_seed(1)
        ways = nn.functional.normalize(torch.randn(self.space, 128, generator=dice), dim=0)
        points, real = ((of.float() @ ways).sort(0).values for of in (self.make(4096, dice), self.draw(4096, dice)))
        return (points - real).abs().mean().item()


TRAININGS = {
    'potential, 64 atoms': Potential,
    'potential, 13 atoms': SmallPotential,
    'Poisson': Poisson,
    'ODE, 256 paths': Ode,
    'ODE, 64 paths': SmallOde,
    'Gaussian process': Process,
    'WGAN-GP': Wgan,
}


def trainer(make, seed, dtype, path=None):
    job = make(seed, dtype)
    optimizers = job.optimizers()
    plan = comp.plan(path, job.models(), segments=job.forwards) if path else lambda name: contextlib.nullcontext()
    return job, lambda batch: job.step(plan, optimizers, batch)


def search(make, path):
    job = make(0, make.written)
    optimizers = job.optimizers()
    found = comp.search(
        lambda plan, batch: job.step(plan, optimizers, batch),
        model=job.models(),
        optimizer=optimizers,
        data=range(100),
        progress=False,
        planned_epochs=30,
    )
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
    counts = []
    for name in names or TRAININGS:
        make = TRAININGS[name]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'plan.json')
            begin = time.perf_counter()
            found = search(make, path)
            cost = time.perf_counter() - begin
            modes = {'written': (make.written, None), 'low': (make.low, None), 'found': (make.written, path)}
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
        spread = statistics.quantiles([a / b for a, b in zip(seconds['written'], seconds['found'])], n=20)
        print(
            f"| {name} | {1e3 * middle['written']:.3g} | {middle['written'] / middle['low']:.2f} "
            f"| {middle['written'] / middle['found']:.2f} ({spread[0]:.2f} to {spread[-1]:.2f}) | {cost:.2g} s "
            + ''.join('| ' + ', '.join(f'{e:.2g}' for e in errors[mode]) + ' ' for mode in modes) + '|',
            flush=True,
        )
        print(found.plan, file=sys.stderr)
        plans, batches = len({t.plan for t in found.trials}), sum(t.sample.batches for t in found.trials)
        counts.append(f'| {name} | {len(found.operators)} operators | {plans} plans | {batches} batches, {batches / make.steps:.2g} trainings |')
    print('', *counts, sep='\n')


if __name__ == '__main__':
    main(sys.argv[1:])
