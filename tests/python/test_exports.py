# SPDX-License-Identifier: Apache-2.0
"""Plans as torchao and Transformer Engine take them, and beside other systems' rules."""

import ast
import importlib.util
import json
import os
import sys
import tempfile
import types
import unittest
import unittest.mock

import torch
from torch import nn

import comp
from comp import _exports
from support import Classification


def plan_file(*operators):
    path = os.path.join(tempfile.mkdtemp(), 'plan.json')
    with open(path, 'w') as file:
        fields = ({'name': n, 'kind': f'aten::{k}', 'precision': p} for n, k, p in operators)
        json.dump({'comp_plan': 1, 'operators': list(fields)}, file)
    return path


PLAN = (
    ('net.embed.embedding', 'embedding', 'fp32'),
    ('net.up.linear', 'linear', 'fp8_e4m3'),
    ('net.up.gelu', 'gelu', 'bf16'),
    ('net.down.linear', 'linear', 'fp8_e5m2'),
    ('net.head.linear', 'linear', 'fp32'),
    ('net.gate.linear', 'linear', 'bf16'),
    ('net.gate.linear_2', 'linear', 'fp32'),
)


class Exports(unittest.TestCase):
    def test_modules_have_their_precisions_and_what_is_left_is_said(self):
        said = comp.to_torchao(plan_file(*PLAN), model='net')
        self.assertEqual(said.swapped, ('up', 'down'))
        self.assertEqual(said.modules, {'up': 'fp8_e4m3', 'down': 'fp8_e5m2', 'head': 'fp32', 'gate': 'bf16'})
        self.assertEqual(said.recipe, {'recipe_name': 'tensorwise'})
        text = '\n'.join(said.left)
        for part in ('"gate" is called in bf16 and in fp32', '1 operators in bf16', '"down" is in fp8_e5m2'):
            self.assertIn(part, text)
        self.assertIn('1 linear modules are in bf16 and not swapped', text)
        self.assertEqual(comp.to_torchao(plan_file(PLAN[1]), model='net').left, ())
        self.assertEqual(comp.to_torchao(plan_file(*PLAN), model='net', fp8=['bf16']).swapped, ('gate',))
        self.assertEqual(comp.to_torchao(plan_file(*PLAN), model='other').modules, {})

    def test_torchao_gets_no_module_whose_products_differ(self):
        plan = plan_file(('up.linear', 'linear', 'fp8_e4m3'), ('down.linear', 'linear', 'fp8_e4m3'),
                         ('up.linear.input_gradient', 'linear', 'fp8_e4m3'),
                         ('up.linear.weight_gradient', 'linear', 'fp8_e4m3'),
                         ('down.linear.weight_gradient', 'linear', 'bf16'))
        said = comp.to_torchao(plan)
        self.assertEqual(said.modules, {'up': 'fp8_e4m3', 'down': 'fp8_e4m3'})
        self.assertEqual(said.swapped, ('up',))
        self.assertEqual(said.left, ('"down" has products in bf16, fp8_e4m3 (torchao swaps all three): it stays as it is',))

    def odd_net(self):
        class Own(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(16, 16))

            def forward(self, x):
                return nn.functional.linear(x, self.weight)

        return nn.ModuleDict(
            {'up': nn.Linear(16, 16), 'odd': nn.Linear(16, 10), 'own': Own(), 'seen': nn.MultiheadAttention(16, 2)}
        )

    ODD = tuple((f'net.{name}.linear', 'linear', 'fp8_e4m3') for name in ('up', 'odd', 'own', 'seen.out_proj', 'gone'))

    def test_with_the_model_given_swapped_are_those_that_are_swapped(self):
        net = self.odd_net()
        said = comp.to_torchao(plan_file(*self.ODD), model={'net': net})
        self.assertEqual(said.swapped, ('up',))
        self.assertEqual(
            said.left,
            (
                '"odd" is in fp8_e4m3 and has a weight of 10 x 16 (FP8 products want multiples of 16): it stays as it is',
                '"own" is in fp8_e4m3 and is a Own, no nn.Linear: it stays as it is',
                '"seen.out_proj" is in fp8_e4m3 and is never called (its MultiheadAttention reads its weights): it stays as '
                'it is',
                '"gone" is in fp8_e4m3 and is no module of this model: it stays as it is',
            ),
        )
        filtered = {name for name, module in net.named_modules() if said.module_filter_fn(module, name)}
        self.assertEqual(filtered, {'up'})
        by_name = comp.to_torchao(plan_file(*self.ODD), model='net')
        self.assertEqual({n for n, m in net.named_modules() if by_name.module_filter_fn(m, n)}, {'up'})
        with self.assertRaisesRegex(comp.SettingsError, '2 models are given'):
            comp.to_torchao(plan_file(*self.ODD), model={'a': net, 'b': net})

    def test_letters_alone_are_refused(self):
        path = os.path.join(tempfile.mkdtemp(), 'plan.json')
        with open(path, 'w') as file:
            json.dump({'comp_plan': 1, 'plan': '01'}, file)
        with self.assertRaisesRegex(comp.SettingsError, 'no operators'):
            comp.to_torchao(path)

    @unittest.skipUnless(importlib.util.find_spec('torchao'), 'torchao is not installed')
    def test_torchao_swaps_the_modules_of_the_plan_and_no_others(self):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        from torchao.float8.float8_linear import Float8Linear

        net = nn.ModuleDict({name: nn.Linear(16, 16) for name in ('up', 'down', 'head', 'gate')})
        said = comp.to_torchao(plan_file(*PLAN), model='net')
        config = Float8LinearConfig.from_recipe_name(said.recipe['recipe_name'])
        convert_to_float8_training(net, module_filter_fn=said.module_filter_fn, config=config)
        swapped = {name for name, module in net.named_modules() if isinstance(module, Float8Linear)}
        self.assertEqual(swapped, {'up', 'down'})

        net = self.odd_net()
        said = comp.to_torchao(plan_file(*self.ODD), model={'net': net})
        convert_to_float8_training(net, module_filter_fn=said.module_filter_fn, config=config)
        swapped = {name for name, module in net.named_modules() if isinstance(module, Float8Linear)}
        self.assertEqual(swapped, set(said.swapped))

    def test_each_product_has_its_quantizer_in_transformer_engine(self):
        layers = (
            ('up', 'linear', 'mxfp8'), ('down', 'linear', 'nvfp4'), ('head', 'linear', 'bf16'),
            ('up.input_gradient', 'linear', 'nvfp4'), ('up.weight_gradient', 'linear', 'bf16'),
            ('down.input_gradient', 'linear', 'nvfp4'), ('down.weight_gradient', 'linear', 'nvfp4'),
        )  # fmt: skip
        said = comp.to_transformer_engine(plan_file(*layers))
        self.assertEqual(said.left, ())
        products = {'forward': 'mxfp8', 'input_gradient': 'nvfp4', 'weight_gradient': 'bf16'}
        self.assertEqual(said.modules['up'], products)
        self.assertEqual(set(said.modules), {'up', 'down', 'head'})
        factories = types.ModuleType('quantizer_factories')
        for name in ('high_precision', 'current_scaling', 'float8_block_scaling', 'mxfp8', 'nvfp4'):
            setattr(factories, f'{name}_factory', lambda role, name=name: name)
        hybrid = types.ModuleType('hybrid_tensor')
        hybrid.HybridQuantizer = lambda rowwise_quantizer, columnwise_quantizer: (rowwise_quantizer, columnwise_quantizer)
        there = {
            'transformer_engine.pytorch.custom_recipes.quantizer_factories': factories,
            'transformer_engine.pytorch.tensor.hybrid_tensor': hybrid,
        }
        role = lambda *of: types.SimpleNamespace(**dict(zip(('module_type', 'tensor_type', 'name'), of)))
        with unittest.mock.patch.dict(sys.modules, there):
            made = {o: said.quantizer(role('linear', o, 'up')) for o in ('input', 'weight', 'grad_output')}
            self.assertEqual(made['input'], ('mxfp8', 'high_precision'))  # forward, gradient of the weight
            self.assertEqual(made['weight'], ('mxfp8', 'nvfp4'))  # forward, gradient of the input
            self.assertEqual(made['grad_output'], ('nvfp4', 'high_precision'))
            self.assertEqual(said.quantizer(role('linear', 'input', 'down')), 'nvfp4')
            for other in (role('linear', 'input', 'head'), role('linear', 'input', ''), role('dpa', 'qkv', 'up'), None):
                self.assertEqual(said.quantizer(other), 'high_precision')

    def test_what_transformer_engine_lacks_is_said(self):
        said = comp.to_transformer_engine(plan_file(*PLAN, ('net.last.linear', 'linear', 'mxfp4')), model='net')
        self.assertEqual(said.modules['down']['input_gradient'], 'fp8_e5m2')
        text = '\n'.join(said.left)
        self.assertIn('3 products are in mxfp4', text)
        self.assertIn('"down" is in fp8_e5m2 (its recipes have E5M2 for gradients only)', text)

    @unittest.skipUnless(importlib.util.find_spec('transformer_engine'), 'Transformer Engine is not installed')
    def test_transformer_engine_has_the_factories(self):
        """Its modules need a library that needs a GPU: they are read, not run."""
        folder = importlib.util.find_spec('transformer_engine').submodule_search_locations[0]

        def parsed(*path):
            with open(os.path.join(folder, *path)) as file:
                return ast.parse(file.read()).body

        made = {n.name: n for n in parsed('pytorch', 'custom_recipes', 'quantizer_factories.py') if isinstance(n, ast.FunctionDef)}
        for name in ('high_precision', *_exports._FACTORIES.values()):
            self.assertEqual([a.arg for a in made[f'{name}_factory'].args.args], ['role'])
        hybrid = next(n for n in parsed('pytorch', 'tensor', 'hybrid_tensor.py') if getattr(n, 'name', '') == 'HybridQuantizer')
        init = next(n for n in hybrid.body if getattr(n, 'name', '') == '__init__')
        self.assertLessEqual({'rowwise_quantizer', 'columnwise_quantizer'}, {a.arg for a in init.args.kwonlyargs})
        roles = next(n for n in parsed('pytorch', 'quantization.py') if getattr(n, 'name', '') == 'QuantizerRole')
        fields = {n.target.id for n in roles.body if isinstance(n, ast.AnnAssign)}
        self.assertLessEqual({'module_type', 'tensor_type', 'name'}, fields)


class OtherSystems(unittest.TestCase):
    def test_a_found_plan_is_held_against_the_rules_of_each(self):
        found = Classification().search()
        names = [name for name, _ in found.rules()]
        self.assertIn('tensorflow', names)
        self.assertIn('paddle O1', names)
        for name, letters in found.rules():
            self.assertEqual(len(letters), len(found.operators))
            differs = sum(a != b for a, b in zip(letters, found.plan))
            lines = [line for line in comp.compare(found, name).splitlines() if line.startswith('  ')]
            self.assertEqual(len(lines), differs, name)
        with self.assertRaisesRegex(comp.SettingsError, '"tvm"'):
            comp.compare(found, 'nobody')


if __name__ == '__main__':
    unittest.main()
