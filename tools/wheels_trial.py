# SPDX-License-Identifier: Apache-2.0
# What tools/wheels tries a wheel with: "search" finds a plan with BF16 in it and saves it as plan.json; both "search" and "load" print
# that file's precisions and the loss of a forward under it, which have to be the same in two processes.
# Usage: wheels_trial.py search|load
import sys

import torch
from torch import nn

import comp


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))


def loss_of(net, plan, x, y):
    with plan:
        return nn.functional.cross_entropy(net(x), y)


def step(plan, batch):
    loss = loss_of(net, plan, *batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


net = network()
x, y = torch.randn(16, 32), torch.arange(16) % 4
if sys.argv[1] == 'search':
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    linear_in_bf16 = comp.policy.custom([comp.by_kind('linear', comp.fixed('bf16'))])
    race = {'min_rounds': 6, 'max_rounds': 6, 'fp32_rounds': 6, 'contest_rounds': 6}
    found = comp.search(step, model=net, optimizer=optimizer, data=[(x, y)] * 8, policy=linear_in_bf16, race=race, progress=False)
    found.save('plan.json')
net = network()
print(comp.load('plan.json').letters, loss_of(net, comp.plan('plan.json', net), x, y).item().hex())
