# SPDX-License-Identifier: Apache-2.0
"""Plans as torchao, Transformer Engine and Megatron-LM take them, and beside other systems' rules."""

import ast
import dataclasses
import fnmatch
import importlib.util
import json
import os
import sys
import tempfile
import types
import unittest
import unittest.mock
import warnings

import torch
from torch import nn

import comp
from comp import _exports
from support import QUICK, Classification, training_step


def plan_file(*operators):
    path = os.path.join(tempfile.mkdtemp(), 'plan.json')
    with open(path, 'w') as file:
        fields = ({'name': n, 'kind': k if k in _exports._MOMENTS else f'aten::{k}', 'precision': p} for n, k, p in operators)
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
PRODUCTS = ('forward', 'input_gradient', 'weight_gradient')
APART = tuple(
    (name if product == 'forward' else f'{name}.{product}', 'linear', precision)
    for product, precisions in zip(PRODUCTS, (('fp8_e4m3', 'fp8_e4m3', 'mxfp8'), ('fp8_e4m3', 'fp8_e4m3', 'mxfp8'), ('fp8_e4m3', 'bf16', 'fp8_e4m3')))
    for name, precision in zip(('up', 'down', 'gate'), precisions)
)


class Exports(unittest.TestCase):
    def test_a_plan_that_changes_over_a_training_is_told(self):
        path = plan_file(PLAN[1])
        with open(path) as file:
            content = json.load(file)
        with open(path, 'w') as file:
            json.dump(content | {'later': [{'batch': 9, 'plan': 'b'}]}, file)
        for export in (comp.to_torchao, comp.to_transformer_engine, comp.to_megatron):
            self.assertIn('from batch 9 on the plan is another', export(path, model='net').left[0])

    def test_modules_have_their_precisions_and_what_is_left_is_said(self):
        export = comp.to_torchao(plan_file(*PLAN), model='net')
        self.assertEqual(export.swapped, {'up': PRODUCTS, 'down': PRODUCTS})
        self.assertEqual({n: set(of.values()) for n, of in export.modules.items()},
                         {'up': {'fp8_e4m3'}, 'down': {'fp8_e5m2'}, 'head': {'fp32'}, 'gate': {'bf16'}})
        text = '\n'.join(export.left)
        for part in ('"gate" is called in bf16 and in fp32', '1 operators in bf16', '"down" is in fp8_e5m2'):
            self.assertIn(part, text)
        self.assertIn('3 products of linear modules are in bf16: torchao.float8 leaves them', text)
        self.assertEqual(comp.to_torchao(plan_file(PLAN[1]), model='net').left, ())
        self.assertEqual(list(comp.to_torchao(plan_file(*PLAN), model='net', fp8=['bf16']).swapped), ['gate'])
        self.assertEqual(comp.to_torchao(plan_file(*PLAN), model='other').modules, {})

    def test_torchao_gets_the_products_that_are_in_fp8(self):
        export = comp.to_torchao(plan_file(*APART))
        self.assertEqual(export.swapped, {'up': PRODUCTS, 'down': ('forward', 'input_gradient'), 'gate': ('weight_gradient',)})
        self.assertEqual(export.left, ('1 products of linear modules are in bf16: torchao.float8 leaves them in the model\'s own type',
                                     '2 products of linear modules are in mxfp8: torchao.float8 leaves them in the model\'s own type'))

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
        export = comp.to_torchao(plan_file(*self.ODD), model={'net': net})
        self.assertEqual(list(export.swapped), ['up'])
        self.assertEqual(
            export.left,
            (
                '"odd" is in fp8_e4m3 and has a weight of 10 x 16 (FP8 products want multiples of 16): it stays as it is',
                '"own" is in fp8_e4m3 and is a Own, no nn.Linear: it stays as it is',
                '"seen.out_proj" is in fp8_e4m3 and is never called (its MultiheadAttention reads its weights): it stays as '
                'it is',
                '"gone" is in fp8_e4m3 and is no module of this model: it stays as it is',
            ),
        )
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
        from torchao.float8 import convert_to_float8_training
        from torchao.float8.float8_linear import Float8Linear

        def swapped(net, export):
            for module_filter_fn, config in export.conversions():
                convert_to_float8_training(net, module_filter_fn=module_filter_fn, config=config)
            return {name for name, module in net.named_modules() if isinstance(module, Float8Linear)}

        net = nn.ModuleDict({name: nn.Linear(16, 16) for name in ('up', 'down', 'head', 'gate')})
        self.assertEqual(swapped(net, comp.to_torchao(plan_file(*PLAN), model='net')), {'up', 'down'})
        for model in ({'net': self.odd_net()}, 'net'):
            self.assertEqual(swapped(self.odd_net(), comp.to_torchao(plan_file(*self.ODD), model=model)), {'up'})

    @unittest.skipUnless(importlib.util.find_spec('torchao'), 'torchao is not installed')
    def test_torchao_rounds_the_operands_of_the_products_in_fp8_and_of_no_others(self):
        from torchao.float8 import convert_to_float8_training

        torch.manual_seed(1)
        net = nn.ModuleDict({name: nn.Linear(32, 16, bias=False) for name in ('up', 'down', 'gate')})
        x, dy = torch.randn(8, 32), torch.randn(8, 16)

        def step(name):
            read = x.clone().requires_grad_()
            net.zero_grad()
            y = net[name](read)
            y.backward(dy)
            return dict(zip(PRODUCTS, (y.detach(), read.grad, net[name].weight.grad)))

        plain = {name: step(name) for name in net}
        export = comp.to_torchao(plan_file(*APART))
        for module_filter_fn, config in export.conversions():
            config = dataclasses.replace(config, emulate=True)  # the products of a GPU, in FP32
            convert_to_float8_training(net, module_filter_fn=module_filter_fn, config=config)
        for name in net:
            products = step(name)
            changed = tuple(p for p in PRODUCTS if not torch.equal(products[p], plain[name][p]))
            self.assertEqual(changed, export.swapped[name], name)

    def test_megatron_has_a_recipe_for_each_module_whose_products_agree(self):
        plan = plan_file(
            *((f'block{i}.attention.{n}', 'linear', p) for i, p in ((0, 'bf16'), (11, 'nvfp4')) for n in ('query', 'key')),
            ('block0.mlp.expand', 'linear', 'mxfp8'), ('block11.mlp.expand', 'linear', 'nvfp4'),
            ('block11.mlp.expand.weight_gradient', 'linear', 'bf16'), ('block0.mlp.shrink', 'linear', 'mxfp4'),
            ('block11.mlp.shrink', 'linear', 'fp8_e5m2'), ('head', 'linear', 'mxfp8'), ('last', 'linear', 'bf16'),
        )  # fmt: skip
        names = {
            'block{}.attention.query': 'decoder.layers.{}.self_attention.linear_qkv',
            'block{}.attention.key': 'decoder.layers.{}.self_attention.linear_qkv',
            'block{}.mlp.expand': 'decoder.layers.{}.mlp.linear_fc1',
            'block{}.mlp.shrink': 'decoder.layers.{}.mlp.linear_fc2',
        }
        export = comp.to_megatron(plan, names=names)
        layers = 'decoder.layers.'
        self.assertEqual(export.recipes, {f'{layers}11.self_attention.linear_qkv': 'nvfp4', f'{layers}0.mlp.linear_fc1': 'mxfp8',
                                        f'{layers}11.mlp.linear_fc2': 'fp8_e4m3'})
        self.assertEqual(export.left, (
            f'"block11.mlp.expand" is in bf16, nvfp4 (Megatron has one format for all of {layers}11.mlp.linear_fc1): '
            f'{layers}11.mlp.linear_fc1 stays in BF16',
            f'"block0.mlp.shrink" is in mxfp4 (Megatron has no recipe for it): {layers}0.mlp.linear_fc2 stays in BF16',
            f'"block11.mlp.shrink" is in fp8_e5m2 (Megatron has E5M2 for gradients only): {layers}11.mlp.linear_fc2 becomes E4M3',
            '"head" is in mxfp8 (names has no pattern for it): it stays in BF16',
        ))  # fmt: skip
        mixed = plan_file(('a1', 'linear', 'mxfp8'), ('b1', 'linear', 'bf16'))
        export = comp.to_megatron(mixed, names={'a{}': 'qkv.{}', 'b{}': 'qkv.{}'})
        self.assertEqual(export.left, ('"a1", "b1" are in bf16, mxfp8 (Megatron has one format for all of qkv.1): qkv.1 stays in BF16',))
        with self.assertRaisesRegex(comp.SettingsError, '"a{}" and "qkv" have not as many numbers'):
            comp.to_megatron(mixed, names={'a{}': 'qkv'})

    def test_the_first_matcher_of_megatrons_file_that_fits_has_the_modules_recipe(self):
        operators = [(f'layers.{i}.fc', 'linear', p) for i, p in enumerate(['bf16', *_exports._MEGATRON, 'nvfp4', *['mxfp8'] * 9])]
        export = comp.to_megatron(plan_file(*operators))
        path = os.path.join(tempfile.mkdtemp(), 'precisions.yaml')
        self.assertEqual(export.save(path), f'--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --te-precision-config-file {path}')
        with open(path) as file:
            written = json.load(file)
        for name, _, precision in (*operators, ('elsewhere', '', 'bf16')):
            first = next(m for m in written['matchers'].values() if m['enabled'] and fnmatch.fnmatch(name, m['pattern']))
            self.assertEqual(first['config'], precision, name)
            self.assertEqual(written['configs'][precision]['training_recipe'], _exports._MEGATRON.get(precision, {}))
        four = comp.to_megatron(plan_file(operators[4]))
        self.assertEqual(four.save(path), f'--bf16 --fp4-format e2m1 --fp4-recipe nvfp4 --te-precision-config-file {path}')
        self.assertEqual(comp.to_megatron(plan_file(operators[0])).save(path), f'--bf16 --te-precision-config-file {path}')

    @unittest.skipUnless(importlib.util.find_spec('megatron'), 'Megatron core is not installed')
    def test_megatron_reads_the_file(self):
        from megatron.core.quantization.quant_config import MatchContext, RecipeConfig

        path = os.path.join(tempfile.mkdtemp(), 'precisions.yaml')
        comp.to_megatron(plan_file(('layers.1.fc', 'linear', 'mxfp8'), ('layers.11.fc', 'linear', 'nvfp4'))).save(path)
        read = RecipeConfig.from_yaml_file(path)
        for name, config in (('layers.1.fc', 'mxfp8'), ('layers.11.fc', 'nvfp4'), ('layers.2.fc', 'bf16')):
            self.assertEqual(read.match(MatchContext(name, None)).config_key, config)

    def test_each_product_has_its_quantizer_in_transformer_engine(self):
        layers = (
            ('up', 'linear', 'mxfp8'), ('down', 'linear', 'nvfp4'), ('head', 'linear', 'bf16'),
            ('up.input_gradient', 'linear', 'nvfp4'), ('up.weight_gradient', 'linear', 'bf16'),
            ('down.input_gradient', 'linear', 'nvfp4'), ('down.weight_gradient', 'linear', 'nvfp4'),
        )  # fmt: skip
        export = comp.to_transformer_engine(plan_file(*layers))
        self.assertEqual(export.left, ())
        products = {'forward': 'mxfp8', 'input_gradient': 'nvfp4', 'weight_gradient': 'bf16'}
        self.assertEqual(export.modules['up'], products)
        self.assertEqual(set(export.modules), {'up', 'down', 'head'})
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
            quantizers = {o: export.quantizer(role('linear', o, 'up')) for o in ('input', 'weight', 'grad_output')}
            self.assertEqual(quantizers['input'], ('mxfp8', 'high_precision'))  # forward, gradient of the weight
            self.assertEqual(quantizers['weight'], ('mxfp8', 'nvfp4'))  # forward, gradient of the input
            self.assertEqual(quantizers['grad_output'], ('nvfp4', 'high_precision'))
            self.assertEqual(export.quantizer(role('linear', 'input', 'down')), 'nvfp4')
            for other in (role('linear', 'input', 'head'), role('linear', 'input', ''), role('dpa', 'qkv', 'up'), None):
                self.assertEqual(export.quantizer(other), 'high_precision')

    def test_adams_moments_go_where_an_optimizer_has_their_format(self):
        moments = [('optimizer.moment1', 'moment1', 'bf16'), ('optimizer.moment2', 'moment2', 'bf16')]
        there = dict(zip(('torchao', 'engine', 'megatron'), (comp.to_torchao, comp.to_transformer_engine, comp.to_megatron)))
        exports = {name: export(plan_file(PLAN[2], *moments), model='net') for name, export in there.items()}
        self.assertIn('exp_avg_sq is in bf16 (torchao', '\n'.join(exports['torchao'].left))
        self.assertEqual(exports['engine'].adam, {'exp_avg_dtype': torch.bfloat16, 'exp_avg_sq_dtype': torch.bfloat16})
        self.assertIn('exp_avg and exp_avg_sq in bf16 are rounded to the nearest there', exports['engine'].left[-1])
        arguments = exports['megatron'].save(os.path.join(tempfile.mkdtemp(), 'precisions.yaml'))
        self.assertRegex(arguments, '--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16$')
        blocks = [(name, kind, 'fp8_e4m3') for name, kind, _ in moments]
        exports = {name: export(plan_file(PLAN[2], *blocks), model='net') for name, export in there.items()}
        self.assertIn('both moments are in fp8_e4m3: AdamFp8 or AdamWFp8 of torchao.optim', '\n'.join(exports['torchao'].left))
        self.assertEqual(set(exports['engine'].adam.values()), {torch.uint8})
        self.assertIn('one scale there, here one for 256 values', exports['engine'].left[-1])
        self.assertEqual(exports['megatron'].moments, {'exp_avg': 'fp8_e4m3', 'exp_avg_sq': 'fp8_e4m3'})
        several = plan_file(PLAN[0], moments[0], ('optimizer.moment1.1', 'moment1', 'fp32'), ('optimizer.moment2', 'moment2', 'fp32'))
        engine = comp.to_transformer_engine(several, model='net')
        one = 'exp_avg is in bf16 and in fp32 (an optimizer there has one format for it): it stays in FP32'
        self.assertEqual((engine.adam, engine.left), ({}, (one,)))
        self.assertEqual(comp.to_torchao(several, model='net').left, (one,))
        for export in there.values():
            self.assertNotIn('exp_avg', '\n'.join(export(plan_file(PLAN[0], moments[0][:2] + ('fp32',)), model='net').left))

    def test_what_transformer_engine_lacks_is_said(self):
        export = comp.to_transformer_engine(plan_file(*PLAN, ('net.last.linear', 'linear', 'mxfp4')), model='net')
        self.assertEqual(export.modules['down']['input_gradient'], 'fp8_e5m2')
        text = '\n'.join(export.left)
        self.assertIn('3 products are in mxfp4', text)
        self.assertIn('"down" is in fp8_e5m2 (its recipes have E5M2 for gradients only)', text)

    @unittest.skipUnless(importlib.util.find_spec('transformer_engine'), 'Transformer Engine is not installed')
    def test_transformer_engine_has_the_factories(self):
        """Its modules need a library that needs a GPU: they are read, not run."""
        folder = importlib.util.find_spec('transformer_engine').submodule_search_locations[0]

        def parsed(*path):
            with open(os.path.join(folder, *path)) as file:
                return ast.parse(file.read()).body

        functions = {n.name: n for n in parsed('pytorch', 'custom_recipes', 'quantizer_factories.py') if isinstance(n, ast.FunctionDef)}
        for name in ('high_precision', *_exports._FACTORIES.values()):
            self.assertEqual([a.arg for a in functions[f'{name}_factory'].args.args], ['role'])
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

    def test_a_system_that_refuses_the_model_is_left_out_with_its_sentence(self):
        class Adapted(nn.Module):
            def __init__(self):
                super().__init__()
                self.base, self.adapter = nn.Linear(8, 8).bfloat16().requires_grad_(False), nn.Linear(8, 8)

            def forward(self, x):
                return self.base(x.bfloat16()).float() + self.adapter(x)

        net = Adapted()
        optimizer = torch.optim.SGD(net.adapter.parameters(), 0.1)
        step = training_step(optimizer, lambda plan: region_loss(plan, net))
        found = comp.search(step, model=net, optimizer=optimizer, data=[None] * 16, precisions=['bf16'], **QUICK)
        refused = r'^paddle O2 has no plan for this model: a parameter of operator \d \("base.linear"\) is bf16 already'
        with self.assertWarnsRegex(UserWarning, refused):
            names = [name for name, _ in found.rules()]
        self.assertEqual(names, ['pytorch', 'tensorflow', 'tvm', 'paddle OD', 'paddle O1'])
        with self.assertRaisesRegex(comp.SettingsError, refused):
            comp.compare(found, 'paddle O2')
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            comp.compare(found, 'tvm')


def region_loss(plan, net):
    with plan:
        return net(torch.ones(4, 8)).pow(2).mean()


if __name__ == '__main__':
    unittest.main()
