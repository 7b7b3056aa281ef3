# SPDX-License-Identifier: Apache-2.0
"""The doctor over PyTorch models: faults by name, none in sound models, and two runs that part."""

import os
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu

import comp
import doctor_trainings as trainings
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


def closed_row(h):
    mask = torch.zeros_like(h, dtype=torch.bool)
    mask[2] = True
    return h.masked_fill(mask, -torch.inf).softmax(-1)


FAULTS = {  # others, on the same code: libtorch/test_doctor.cpp
    'eps': (lambda h: h / (h.square().mean(-1, keepdim=True) + 1e-8).sqrt(), 'constant', 'first.add'),
    'closed row': (closed_row, 'nan', 'first.softmax'),
    'slope': (lambda h: h + h.relu().sqrt(), 'infinity', 'first.sqrt'),
}


class Doctor(unittest.TestCase):
    def test_faults_are_found_by_name(self):
        for what, (fault, kind, name) in FAULTS.items():
            found = examined(fault).faults
            self.assertTrue(found, what)
            self.assertEqual((found[0].kind, found[0].name), (kind, name), what)
        self.assertEqual(examined(FAULTS['closed row'][0]).first_nan, 'first.softmax')
        self.assertTrue(examined(FAULTS['slope'][0]).faults[0].backward)
        self.assertIsNone(examined(FAULTS['eps'][0]).first_nan)

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
            report = comp.doctor(net, batch, loss=loss, low='fp16')
            self.assertEqual(report.faults, [], str(report))
            self.assertIn('nothing is wrong', str(report))
            self.assertTrue(torch.equal(random, torch.get_rng_state()))
            self.assertTrue(all(torch.equal(before[name], value) for name, value in net.state_dict().items()))
            self.assertTrue(all(p.grad is None for p in net.parameters()))

    def test_a_step_of_ones_own_is_examined_to_the_bits_of_the_plain_one(self):
        def gradients(plan):
            training = Classification()
            x, y = next(iter(training.loader))

            def step(plan, batch):
                with plan:
                    loss = cross_entropy(training.net(batch[0]), batch[1])
                loss.backward()

            report = comp.doctor(step, (x, y), model=training.net) if plan is None else step(plan, (x, y))
            return report, [p.grad for p in training.net.parameters()]

        from support import NoPlan

        report, examined_gradients = gradients(None)
        _, plain = gradients(NoPlan())
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(examined_gradients, plain)))
        names = [e.name for e in report.entries]
        self.assertIn('0.conv2d', names)
        conv = report.entries[names.index('0.conv2d')]
        self.assertEqual(conv.shape, [16, 8, 8, 8])
        self.assertEqual(conv.values.count, 16 * 8 * 8 * 8)
        self.assertLess(conv.error, 0.02)
        self.assertGreater(conv.error, 1e-4)
        self.assertEqual([e.name for e in report.worst(3)], [e.name for e in report.worst(9)][:3])

    def test_transforms_of_torch_func_are_passed_over(self):
        net = nn.Linear(4, 1)

        def step(plan, x):
            with plan:
                slopes = torch.func.vmap(torch.func.grad(lambda row: net(row).sum().square()))(x)
                loss = net(x).square().sum() + slopes.sum()
            loss.backward()

        entries = comp.doctor(step, torch.randn(3, 4), model=net).entries
        self.assertEqual([e.name for e in entries if e.kind == 'aten::linear'][-1].partition('_')[0], 'linear')
        self.assertGreater(entries[-1].values.count, 0)

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
        process = subprocess.run([*command, a, b], capture_output=True, text=True)
        self.assertIn('the runs part at "second.linear"', process.stdout)
        process = subprocess.run([*command, a], capture_output=True, text=True)
        self.assertIn('first.gelu', process.stdout)
        process = subprocess.run([*command, __file__], capture_output=True, text=True)
        self.assertEqual((process.returncode, process.stdout), (1, ''))

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

    def many(self, make, steps=40, **more):
        torch.manual_seed(5)
        step, batches, net = make()
        return comp.doctor(step, batches, model=net, steps=steps, **more)

    def test_sound_trainings_have_no_fault_in_many_steps(self):
        for name, make in trainings.SOUND.items():
            with self.subTest(name):
                self.assertEqual([f.text for f in self.many(make).faults], [])

    def test_bugs_that_raise_nothing_are_named(self):
        for what, (make, kind, name) in trainings.BUGS.items():
            with self.subTest(what):
                found = [(f.kind, f.name) for f in self.many(make).faults]
                self.assertTrue(found)
                self.assertIn(found[0], [(each, name or found[0][1]) for each in (kind if isinstance(kind, tuple) else [kind])])

    def test_many_steps_give_the_bits_of_a_plain_training(self):
        from support import NoPlan

        def weights(examined):
            torch.manual_seed(5)
            step, batches, net = trainings.SOUND['transformer']()
            if examined:
                comp.doctor(step, batches, model=net, steps=8)
            else:
                for n in range(8):
                    step(NoPlan(), batches[n % len(batches)])
            return list(net.parameters())

        self.assertTrue(all(torch.equal(a, b) for a, b in zip(weights(True), weights(False))))

    def test_a_history_says_since_when_and_gives_numbers_to_a_logger(self):
        logged = []
        report = self.many(trainings.evaluation_mode_stays, log=lambda numbers, step: logged.append((step, numbers)))
        self.assertEqual(report.faults[0].step, 10)
        self.assertIn('since step 10', str(report))
        self.assertEqual([step for step, _ in logged], list(range(40)))
        self.assertTrue(all(isinstance(value, float) for _, numbers in logged for value in numbers.values()))
        last = logged[-1][1]
        self.assertLess(last['loss'], logged[0][1]['loss'])
        self.assertEqual((logged[0][1]['findings'], last['findings']), (0, 1))
        self.assertGreater(last['0.weight/gradient'], 0)
        self.assertGreater(last['0.linear/nvfp4 weight flush'], last['0.linear/mxfp8 weight flush'])
        numbers = self.many(trainings.SOUND['transformer'], steps=2).numbers  # a product of another shape, another node
        self.assertIn('body.layers.0.self_attn.linear/mxfp8 gradient clamp', numbers)
        path = os.path.join(tempfile.mkdtemp(), 'doctor.html')
        report.page(path)
        with open(path) as page:
            self.assertIn('trains in evaluation mode since step 10', page.read())

    def test_many_steps_need_a_step_and_data(self):
        step, batches, net = trainings.SOUND['mlp']()
        with self.assertRaisesRegex(comp.SettingsError, 'steps=3 of a Sequential'):
            comp.doctor(net, batches, steps=3)
        with self.assertRaisesRegex(comp.SettingsError, 'no batch left'):
            comp.doctor(step, iter(batches), model=net, steps=5)
        with self.assertRaisesRegex(comp.SettingsError, 'without a region'):
            comp.doctor(lambda plan, batch: None, batches, model=net, steps=1)


if __name__ == '__main__':
    unittest.main()
