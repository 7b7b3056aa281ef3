# SPDX-License-Identifier: Apache-2.0
"""Plan files go from C++ to Python and back, for one model written twice, traced and scripted.
Usage: test_languages.py SAME_MODEL [unittest options]"""

import os
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import comp
from support import plan_file, small_net

X, Y = torch.ones(16, 3, 8, 8), torch.zeros(16, dtype=torch.long)
SAME_MODEL = sys.argv.pop(1)


def written_once():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 4)
    )


class OfModules(nn.Module):
    """Layers with scores that two of them make; notes the formats of what the first ones make."""

    def __init__(self):
        super().__init__()
        self.add_module('0', nn.Conv2d(3, 8, 3, padding=1))
        self.add_module('5', nn.Linear(8 * 16, 4))
        self.q, self.k, self.dtypes = nn.Linear(4, 4), nn.Linear(4, 4), []

    def forward(self, x):
        images = self.get_submodule('0')(x)
        h = nn.functional.max_pool2d(nn.functional.dropout(torch.relu(images), 0.2), 2)
        h = self.get_submodule('5')(torch.flatten(h, 1))
        rows = h.unsqueeze(0)
        q = self.q(rows)
        scores = torch.matmul(q, self.k(rows).transpose(-1, -2))
        self.dtypes.append([each.dtype for each in (images, h, q, scores)])
        return torch.matmul(torch.softmax(scores, -1), rows).squeeze(0)


def said_by_cpp(*arguments):
    done = subprocess.run([SAME_MODEL, *arguments], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout.strip()


def train(net, plan):
    for _ in range(2):
        with plan:
            loss = cross_entropy(net(X), Y)
        loss.backward()
    return plan.letters


class Languages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def goes_both_ways(self, net, *module):
        theirs = self.path('theirs.json')
        letters = said_by_cpp('save', theirs, *module)
        self.assertIn('b', letters)
        self.assertEqual(train(net, comp.plan(theirs, net)), letters)

        def run(plan):
            with plan:
                return cross_entropy(net(X), Y)

        mine = plan_file(net, run)
        self.assertEqual(said_by_cpp('use', mine, *module), train(net, comp.plan(mine, net)))

    def test_plans_of_a_model_that_is_written_twice(self):
        self.goes_both_ways(written_once())

    def test_plans_of_a_traced_and_a_scripted_module(self):
        for model in (torch.jit.trace(small_net(), X, check_trace=False), torch.jit.script(small_net())):
            module = self.path('module.pt')
            model.save(module)
            self.goes_both_ways(model, module)

    def test_a_layer_that_calls_another_operator_in_the_other_language_is_the_same_layer(self):
        theirs, net = self.path('theirs.json'), OfModules()
        said_by_cpp('save_modules', theirs)
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            train(net, comp.plan(theirs, {'net': net}, forced=True))
            with torch.no_grad(), comp.plan(theirs, {'net': net}, forced=True):
                net(X)
        self.assertEqual(net.dtypes, [[torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]] * 3)

        def run(plan):
            with plan:
                return cross_entropy(net(X), Y)

        for kind, formats in (('linear', 'Float BFloat16 BFloat16 Float'), ('matmul', 'Float Float Float BFloat16')):
            mine = plan_file({'net': net}, run, kinds=(kind,))
            self.assertEqual(said_by_cpp('use_modules', mine), formats)

    def test_a_plan_of_a_module_is_one_of_what_is_traced_and_scripted_of_it(self):
        net = small_net()

        def run(model):
            def forward(plan):
                with plan:
                    return cross_entropy(model(X), Y)

            return forward

        models = [torch.jit.trace(small_net(), X, check_trace=False), torch.jit.script(small_net()), net]
        for a in models:
            path = plan_file(a, run(a), kinds=('conv', 'linear', 'batch_norm'))
            for b in models:
                with warnings.catch_warnings():
                    warnings.simplefilter('error')
                    self.assertEqual(train(b, comp.plan(path, b)).count('b'), 3)

    def test_a_plan_of_another_model_is_refused(self):
        theirs, net = self.path('theirs.json'), small_net()
        said_by_cpp('save', theirs)
        with self.assertRaisesRegex(RuntimeError, 'is for another model'):
            train(net, comp.plan(theirs, net, forced=False))


if __name__ == '__main__':
    unittest.main()
