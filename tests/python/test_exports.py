# SPDX-License-Identifier: Apache-2.0
"""Plans as torchao and Transformer Engine take them, and beside other systems' rules."""

import ast
import importlib.util
import json
import os
import sys
import tempfile
import unittest
import unittest.mock

import torch
from torch import nn

import comp
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
        for export, recipe in (
            (comp.to_torchao, {'recipe_name': 'tensorwise'}),
            (comp.to_transformer_engine, {'fp8_format': 'HYBRID'}),
        ):
            said = export(plan_file(*PLAN), model='net')
            self.assertEqual(said.swapped, ('up', 'down'))
            self.assertEqual(said.modules, {'up': 'fp8_e4m3', 'down': 'fp8_e5m2', 'head': 'fp32', 'gate': 'bf16'})
            self.assertEqual(said.recipe, recipe)
            text = '\n'.join(said.left)
            for part in ('"gate" is called in bf16 and in fp32', '1 operators in bf16', '"down" is in fp8_e5m2'):
                self.assertIn(part, text)
            self.assertIn('1 linear modules are in bf16 and not swapped', text)
        self.assertEqual(comp.to_torchao(plan_file(PLAN[1]), model='net').left, ())
        self.assertEqual(comp.to_torchao(plan_file(*PLAN), model='net', fp8=['bf16']).swapped, ('gate',))
        self.assertEqual(comp.to_torchao(plan_file(*PLAN), model='other').modules, {})

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

    @unittest.skipUnless(importlib.util.find_spec('transformer_engine'), 'Transformer Engine is not installed')
    def test_transformer_engine_has_the_recipe_and_takes_it(self):
        """Its recipes are Python alone, without the library that needs a GPU; its autocast is read, not run."""
        folder = importlib.util.find_spec('transformer_engine').submodule_search_locations[0]
        spec = importlib.util.spec_from_file_location('recipe', os.path.join(folder, 'common', 'recipe', '__init__.py'))
        recipes = importlib.util.module_from_spec(spec)
        with unittest.mock.patch.dict(sys.modules, {'recipe': recipes}):
            spec.loader.exec_module(recipes)
            said = comp.to_transformer_engine(plan_file(*PLAN), model='net')
            recipe = recipes.DelayedScaling(**{field: recipes.Format[word] for field, word in said.recipe.items()})
            self.assertEqual((recipe.fp8_format.value.max_fwd, recipe.fp8_format.value.max_bwd), (448, 57344))
            with self.assertRaisesRegex(Exception, 'E5M2'):  # what `left` says of it
                recipes.DelayedScaling(fp8_format=recipes.Format.E5M2)
        with open(os.path.join(folder, 'pytorch', 'quantization.py')) as file:
            classes = [n for n in ast.parse(file.read()).body if isinstance(n, ast.ClassDef) and n.name == 'autocast']
        made = next(n for n in classes[0].body if isinstance(n, ast.FunctionDef) and n.name == '__init__')
        self.assertLessEqual({'enabled', 'recipe'}, {a.arg for a in made.args.args})


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
