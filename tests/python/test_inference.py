# SPDX-License-Identifier: Apache-2.0
"""comp.export: a model's evaluation with the casts of a plan, without comp. Usage: test_inference.py [run_package]"""

import os
import subprocess
import sys
import tempfile
import unittest

os.environ.pop('CXX', None)  # "ccache g++", as ./run sets it, is no compiler to Inductor
import comp
import torch
from support import inductor, plan_file
from torch import nn
from torch.export import Dim
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

X = torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(1))
RUN_PACKAGE = sys.argv.pop() if sys.argv[-1].endswith('run_package') else None


class Mixed(nn.Module):
    """Convolutions, running statistics, a composite with products, attention, a shared weight and a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.mix, self.head = nn.Linear(16, 16), nn.Linear(16, 5)
        self.register_buffer('scale', torch.full((16,), 1.5))

    def forward(self, x):
        x = self.features(x).flatten(2).transpose(1, 2)
        x = x + self.mix(self.mix(x)) * self.scale
        x = x + scaled_dot_product_attention(x, x, x)
        return self.head(torch.einsum('btc,bt->bc', x, x.mean(-1)))


def planned(net, **more):
    def loss(plan):
        with plan:
            return cross_entropy(net(X), torch.arange(4))

    return comp.plan(plan_file(net, loss, **more), net)


def evaluated(net, plan, x=X):
    training = net.training
    with torch.no_grad(), plan:
        result = net.eval()(x)
    net.train(training)
    return result


class Export(unittest.TestCase):
    def setUp(self):
        self.net = Mixed()
        self.plan = planned(self.net, kinds=('conv', 'linear', 'attention', 'einsum', 'bmm'))
        self.wanted = evaluated(self.net, self.plan)

    def test_the_program_has_the_bits_of_the_evaluation(self):
        program = comp.export(self.plan, self.net, (X,))
        self.assertTrue(torch.equal(program.module()(X), self.wanted))
        self.assertFalse(torch.equal(self.wanted.float(), self.net.eval()(X)))
        self.assertEqual(self.wanted.dtype, torch.bfloat16)

    def test_dimensions_that_are_named_may_differ(self):
        other = torch.randn(7, 3, 12, 12, generator=torch.Generator().manual_seed(3))
        wanted = evaluated(self.net, self.plan, other)
        for shapes in {'x': {0: Dim('n', min=1, max=64)}}, ({0: Dim('n', min=1, max=64)},):
            program = comp.export(self.plan, self.net, [X], dynamic_shapes=shapes)
            self.assertTrue(torch.equal(program.module()(other), wanted))
            self.assertTrue(torch.equal(program.module()(X), self.wanted))

    def test_parameters_stay_fp32_have_the_models_names_and_are_there_once(self):
        program = comp.export(self.plan, self.net, (X,))
        self.assertEqual({str(t.dtype) for t in program.state_dict.values()}, {'torch.float32'})
        names = {name.replace('.', '_') for name, _ in self.net.named_parameters()}
        self.assertLessEqual(names, set(program.state_dict))
        tensors = [t.data_ptr() for t in program.state_dict.values()]
        self.assertEqual(len(tensors), len(set(tensors)))

    def test_the_model_and_its_plan_stay_as_they_were(self):
        self.net.train()
        self.net.features[1].eval()
        comp.export(self.plan, self.net, (X,))
        self.assertTrue(self.net.training)
        self.assertFalse(self.net.features[1].training)
        self.assertTrue(torch.equal(evaluated(self.net, self.plan), self.wanted))
        comp.export(self.plan, torch.compile(self.net, backend='eager'), (X,))

    def test_what_cannot_be_traced_is_an_error_and_the_model_is_in_training_again(self):
        class Branching(Mixed):
            def forward(self, x):
                return super().forward(x) if x.sum() > 0 else super().forward(-x)

        net = Branching()
        plan = planned(net, kinds=('linear',))
        with self.assertRaises(Exception):
            comp.export(plan, net, (X,), dynamic_shapes=({0: Dim('n')},))
        self.assertTrue(net.training)

    @inductor
    @unittest.skipUnless(RUN_PACKAGE, 'LibTorch was not built')
    def test_cpp_runs_a_package_of_it_without_comp(self):
        program = comp.export(self.plan, self.net, (X,), dynamic_shapes=({0: Dim('n', min=1, max=64)},))
        with tempfile.TemporaryDirectory() as folder:
            package, given, result = (os.path.join(folder, name) for name in ('net.pt2', 'x.pt', 'y.pt'))
            torch._inductor.aoti_compile_and_package(program, package_path=package)
            # Packages name LibTorch's libtorch.so, which holds nothing and which the fetched part of LibTorch is without.
            empty = os.path.join(folder, 'libtorch.so')
            subprocess.run(['g++', '-shared', '-x', 'c++', '/dev/null', '-o', empty, '-Wl,-soname,libtorch.so'], check=True)
            with_it = os.environ | {'LD_LIBRARY_PATH': folder}
            for x in X, X[:3]:
                torch.save(x, given)
                subprocess.run([RUN_PACKAGE, package, given, result], check=True, capture_output=True, env=with_it)
                wanted = evaluated(self.net, self.plan, x)
                got, largest = torch.load(result).float(), wanted.float().abs().max()  # Inductor rounds elsewhere
                self.assertLess((got - wanted.float()).abs().max() / largest, 0.02)
            broken = subprocess.run([RUN_PACKAGE, given, given, result], capture_output=True, text=True)
            self.assertEqual(broken.returncode, 1)
            self.assertTrue(broken.stderr.startswith('run_package: '), broken.stderr)


if __name__ == '__main__':
    unittest.main()
