# SPDX-License-Identifier: Apache-2.0
"""Plan files go from C++ to Python and back, for one model written twice, traced and scripted.
Usage: test_languages.py SAME_MODEL [unittest options]"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch
from torch.nn.functional import cross_entropy

import comp
from support import plan_file, small_net

X, Y = torch.ones(16, 3, 8, 8), torch.zeros(16, dtype=torch.long)
SAME_MODEL = sys.argv.pop(1)


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

    def modules(self):
        net = small_net()
        yield 'eager', net
        yield 'traced', torch.jit.trace(net, X, check_trace=False)
        yield 'scripted', torch.jit.script(net)

    def test_a_plan_of_cpp_trains_in_python(self):
        plan = self.path('cpp.json')
        letters = said_by_cpp('save', plan)
        self.assertIn('b', letters)
        for kind, net in self.modules():
            with self.subTest(kind):
                self.assertEqual(train(net, comp.plan(plan, net)), letters)

    def test_a_plan_of_python_trains_in_cpp(self):
        for kind, net in self.modules():
            with self.subTest(kind):

                def run(plan):
                    with plan:
                        return cross_entropy(net(X), Y)

                plan = plan_file(net, run)
                low = [op['precision'] for op in json.load(open(plan))['operators']].count('bf16')
                self.assertEqual(said_by_cpp('use', plan).count('b'), low)

    def test_a_traced_and_a_scripted_module_are_the_same_in_both(self):
        for kind, net in list(self.modules())[1:]:
            with self.subTest(kind):
                module, plan = self.path('module.pt'), self.path('plan.json')
                net.save(module)
                letters = said_by_cpp('save', plan, module)
                self.assertEqual(train(net, comp.plan(plan, net)), letters)


if __name__ == '__main__':
    unittest.main()
