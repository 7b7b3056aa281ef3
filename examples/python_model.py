# SPDX-License-Identifier: Apache-2.0
"""A PyTorch training as its user has it, searched, and its plan used again without a search. Guide: docs/start/python.md.
Usage: python python_model.py [PLAN.json]"""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from torch.utils.data import DataLoader, TensorDataset

import comp


def bright_quarters(n):
    """Noise with a brighter quarter; which one is the label."""
    labels = torch.randint(4, (n,))
    pixels = torch.randn(n, 1, 2, 8, 2, 8) + 0.5 * one_hot(labels, 4).reshape(n, 1, 2, 1, 2, 1)
    return pixels.reshape(n, 1, 16, 16), labels


plan_file = sys.argv[1] if len(sys.argv) > 1 else 'python_model.plan.json'
torch.manual_seed(1)
net = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(64 * 8 * 8, 4),
)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
loader = DataLoader(TensorDataset(*bright_quarters(1536)), 64, shuffle=True)
pixels, labels = bright_quarters(512)


def step(plan, batch):
    x, y = batch
    with plan:
        loss = cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


# 1. The search, and training on with what it found.
found = comp.search(step, model=net, optimizer=optimizer, data=loader)
print(found)
epochs = found.train(2).epochs
print(f'after {len(epochs)} epochs: loss {epochs[-1].loss:.3f}')
found.save(plan_file)

# 2. Another day: the same plan in a loop of the user's own.
plan = comp.plan(plan_file, net)
for batch in loader:
    loss = step(plan, batch)
net.eval()
with torch.no_grad(), plan:
    right = (net(pixels).argmax(1) == labels).float().mean().item()
print(f'trained on with {plan_file}: loss {loss.item():.3f}, {right:.0%} of the test images are right')
