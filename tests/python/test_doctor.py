# SPDX-License-Identifier: Apache-2.0
"""The doctor over PyTorch models: ten faults by name, none in sound models, and two runs that part."""

import os
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, layer_norm

import comp
from support import Classification, small_net


class Faulty(nn.Module):
    """Sound but for what is between its layers."""

    def __init__(self, fault):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 4)
        self.fault = fault

    def forward(self, x):
        return self.second(self.fault(self.first(x)))


def examined(fault, **more):
    torch.manual_seed(4)
    batch = torch.randn(8, 16), torch.randint(4, (8,))
    return comp.doctor(Faulty(fault), batch, loss=cross_entropy, **more)


def empty_mean(h):
    mask = torch.zeros_like(h)
    return (h * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True) + h


def closed_row(h):
    mask = torch.zeros_like(h, dtype=torch.bool)
    mask[2] = True
    return h.masked_fill(mask, -torch.inf).softmax(-1)


FAULTS = {
    'log of 0': (lambda h: h.relu().log(), 'infinity', 'first.log'),
    'exp': (lambda h: (h.abs() + 11.5).exp() / 1e5, 'overflow', 'first.exp'),
    'eps': (lambda h: h / (h.square().mean(-1, keepdim=True) + 1e-8).sqrt(), 'constant', 'first.add'),
    'empty mask': (empty_mean, 'nan', 'first.div'),
    'closed row': (closed_row, 'nan', 'first.softmax'),
    'lost gradients': (lambda h: h.detach() + h * 1e-13, 'underflow', 'first.mul'),
    'sum': (lambda h: h + (h.abs() * 4000).sum() * 1e-6, 'overflow', 'first.sum'),
    'scale': (lambda h: layer_norm(h * 1e6, (16,)), 'overflow', 'first.mul'),
    'slope': (lambda h: h + h.relu().sqrt(), 'infinity', 'first.sqrt'),
}


class Doctor(unittest.TestCase):
    def test_nine_faults_are_found_by_name(self):
        for what, (fault, kind, name) in FAULTS.items():
            found = examined(fault).faults
            self.assertTrue(found, what)
            self.assertEqual((found[0].kind, found[0].name), (kind, name), what)
        self.assertEqual(examined(FAULTS['closed row'][0]).first_nan, 'first.softmax')
        self.assertTrue(examined(FAULTS['slope'][0]).faults[0].backward)
        self.assertIsNone(examined(FAULTS['scale'][0]).first_nan)

    def test_a_weight_that_is_infinite_is_the_tenth(self):
        net = Faulty(gelu)
        with torch.no_grad():
            net.second.weight[1, 2] = torch.inf
        seen = comp.doctor(net, torch.randn(8, 16))
        self.assertEqual(seen.first_nan, 'second.weight')

    def test_sound_models_have_none_and_stay_as_they_were(self):
        transformer = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        x = torch.randn(32, 3, 8, 8)
        for net, batch, loss in (
            (small_net(), (x, torch.randint(4, (32,))), cross_entropy),
            (nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)), torch.randn(8, 16), None),
            (transformer, {'src': torch.randn(3, 5, 16), 'mask': mask}, None),
        ):
            before = {name: value.clone() for name, value in net.state_dict().items()}
            random = torch.get_rng_state()
            seen = comp.doctor(net, batch, loss=loss, low='fp16')
            self.assertEqual(seen.faults, [], str(seen))
            self.assertIn('nothing is wrong', str(seen))
            self.assertTrue(torch.equal(random, torch.get_rng_state()))
            self.assertTrue(all(torch.equal(before[name], value) for name, value in net.state_dict().items()))
            self.assertTrue(all(p.grad is None for p in net.parameters()))

    def test_fp64_and_complex_values_are_examined(self):
        def wide(h):
            return torch.complex(h, h.relu().log()).abs()

        def huge(h):
            return (h.abs().sum(1, keepdim=True, dtype=torch.float64) + 1e300).log().float() + h

        for double in (False, True):
            net = Faulty(wide).double() if double else Faulty(wide)
            seen = comp.doctor(net, torch.ones(8, 16, dtype=torch.float64 if double else torch.float32))
            self.assertEqual(seen.first_nan, 'first.log', str(seen))
            values = {e.name: e.values for e in seen.entries}
            self.assertEqual(values['first.complex'].infinities, values['first.log'].infinities)
            self.assertTrue(all(e.gradients.count > 0 for e in seen.entries if e.kind == 'aten::linear'))
        in_fp32 = comp.doctor(Faulty(wide).double(), torch.ones(8, 16, dtype=torch.float64), low='fp32')
        errors = [e.error for e in in_fp32.entries if e.kind == 'aten::linear']
        self.assertTrue(all(1e-9 < error < 1e-5 for error in errors), errors)
        seen = comp.doctor(Faulty(huge), torch.ones(8, 16))
        self.assertIsNone(seen.first_nan)
        entry = {e.name: e for e in seen.entries}
        self.assertEqual(entry['first.add'].values.count, 8)
        self.assertNotEqual(entry['first.sum'].error, 0)  # FP64 is made there: there is nothing to compare

    def test_a_step_of_ones_own_is_examined_to_the_bits_of_the_plain_one(self):
        def gradients(plan):
            training = Classification()
            x, y = next(iter(training.loader))

            def step(plan, batch):
                with plan:
                    loss = cross_entropy(training.net(batch[0]), batch[1])
                loss.backward()

            seen = comp.doctor(step, (x, y), model=training.net) if plan is None else step(plan, (x, y))
            return seen, [p.grad for p in training.net.parameters()]

        from support import NoPlan

        seen, examined_gradients = gradients(None)
        _, plain = gradients(NoPlan())
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(examined_gradients, plain)))
        names = [e.name for e in seen.entries]
        self.assertIn('0.conv2d', names)
        conv = seen.entries[names.index('0.conv2d')]
        self.assertEqual(conv.shape, [16, 8, 8, 8])
        self.assertEqual(conv.values.count, 16 * 8 * 8 * 8)
        self.assertLess(conv.error, 0.02)
        self.assertGreater(conv.error, 1e-4)
        self.assertEqual([e.name for e in seen.worst(3)], [e.name for e in seen.worst(9)][:3])

    def test_two_runs_part_at_the_module_that_differs(self):
        folder = tempfile.mkdtemp()
        a, b = os.path.join(folder, 'a.json'), os.path.join(folder, 'b.json')
        examined(gelu).save(a)
        examined(lambda h: gelu(h, approximate='tanh') * 1.01).save(b)
        self.assertIsNone(comp.doctor.compare(a, a, 0).first)
        parted = comp.doctor.compare(a, b)
        self.assertEqual(parted.only_second, ['first.mul'])
        self.assertEqual(parted.first, 'second.linear')
        self.assertEqual(comp.doctor.compare(a, b, 1e-5).first, 'first.gelu')
        command = [sys.executable, '-m', 'comp', 'doctor']
        said = subprocess.run([*command, a, b], capture_output=True, text=True)
        self.assertIn('the runs part at "second.linear"', said.stdout)
        said = subprocess.run([*command, a], capture_output=True, text=True)
        self.assertIn('first.gelu', said.stdout)
        said = subprocess.run([*command, __file__], capture_output=True, text=True)
        self.assertEqual((said.returncode, said.stdout), (1, ''))

    def test_a_page_is_written(self):
        path = os.path.join(tempfile.mkdtemp(), 'doctor.html')
        examined(FAULTS['closed row'][0]).page(path)
        with open(path) as page:
            self.assertIn('makes 16 NaN of 128 values', page.read())

    def test_what_it_is_not_for_is_refused_and_leaves_no_region_open(self):
        net = Faulty(gelu)
        with self.assertRaisesRegex(comp.SettingsError, 'needs a target'):
            comp.doctor(net, torch.ones(2, 16), loss=cross_entropy)
        with self.assertRaisesRegex(comp.SettingsError, 'without a model'):
            comp.doctor(lambda plan, batch: None, None)
        with self.assertRaisesRegex(comp.SettingsError, 'never entered the plan'):
            comp.doctor(lambda plan, batch: net(batch), torch.ones(2, 16), model=net)
        with self.assertRaisesRegex(comp.SettingsError, 'fp8_e4m3'):
            comp.doctor(net, torch.ones(2, 16), low='fp8_e4m3')
        with self.assertRaisesRegex(RuntimeError, 'mat1 and mat2'):
            comp.doctor(net, torch.ones(2, 5))
        self.assertEqual(comp._region.depth(), 0)
        comp.doctor(net, torch.ones(2, 16))


if __name__ == '__main__':
    unittest.main()
