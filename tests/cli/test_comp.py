# SPDX-License-Identifier: Apache-2.0
# examples/comp as a user types it, beside the verbs of python -m comp, and the help of train.
# Usage: test_comp.py COMP SOURCE_ROOT
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(2))
COMP = pathlib.Path(sys.argv.pop(1))
TRAIN = COMP.with_name('train')
SCREEN = (24, 100)  # lines and columns

spec = importlib.util.spec_from_file_location('python_comp', ROOT / 'python/comp/__main__.py')
python_comp = importlib.util.module_from_spec(spec)
spec.loader.exec_module(python_comp)


def run(*arguments):
    return subprocess.run([str(each) for each in arguments], text=True, capture_output=True)


def plan(name, precision):
    return {'comp_plan': 1, 'operators': [{'name': 'stem.' + name, 'kind': 'conv2d', 'precision': precision},
                                         {'name': 'loss', 'kind': 'nll_loss', 'precision': 'fp32'}]}


def step(value):
    counts = {'values': 1, 'zeros': 0, 'nans': 0, 'infinities': 0, 'smallest': value, 'largest': value, 'sum': value, 'bits': 1,
              'first_exponent': 0, 'exponents': [1]}
    return {'comp_doctor': 1, 'low': 'bf16', 'entries': [{'name': 'stem.linear', 'kind': 'aten::linear', 'shape': [1], 'inputs': [],
                                                          'values': counts, 'sample': [value]}]}


class Comp(unittest.TestCase):
    def file(self, name, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / name
        path.write_text(json.dumps(text))
        return path

    def says(self, *arguments):
        got = run(COMP, *arguments)
        self.assertEqual(got.returncode, 0, got.stderr)
        return got.stdout

    def fits_a_screen(self, text):
        lines = text.splitlines()
        self.assertLessEqual(len(lines), SCREEN[0], text)
        self.assertEqual([line for line in lines if len(line) > SCREEN[1]], [])

    def test_both_programs_have_the_same_verbs_in_the_same_words_on_one_screen(self):
        help = self.says('--help')
        self.fits_a_screen(help)
        self.fits_a_screen(python_comp.USAGE)
        for verb, (_, _, _, does) in python_comp.VERBS.items():
            self.assertRegex(help, rf'\n  {verb} +{does}\n')
        self.assertRegex(help, r'\n  train ')
        self.assertIn('train is not here', python_comp.USAGE)

    def test_show_and_compare(self):
        low, high, other = (self.file('plan.json', plan(*each)) for each in (('conv', 'bf16'), ('conv', 'fp32'), ('pool', 'fp32')))
        self.assertEqual(self.says('show', low), '2 operators: 1 fp32, 1 bf16\n  stem.conv  bf16      conv2d\n  loss       fp32      nll_loss\n')
        self.assertEqual(self.says('compare', low, high), 'stem:\n  stem.conv  bf16  fp32  conv2d\n')
        self.assertEqual(self.says('compare', low, low), 'the same precisions\n')
        for files, words in (((low, other), 'not the same (they are for different models)'), ((low, high, high), '3 files, of which'),
                             ((low, '/none'), '/none')):
            got = run(COMP, 'compare', *files)
            self.assertEqual((got.returncode, got.stdout), (1, ''))
            self.assertIn(words, got.stderr)

    def test_doctor_says_what_a_step_has_and_where_two_part(self):
        here, there = self.file('here.json', step(1.0)), self.file('there.json', step(1.5))
        self.assertIn('stem.linear', self.says('doctor', here))
        self.assertIn('the runs part at "stem.linear"', self.says('doctor', here, there))
        self.assertEqual(run(COMP, 'doctor', __file__).returncode, 1)

    @unittest.skipUnless(TRAIN.exists(), 'this build has no train')
    def test_train_becomes_the_program_beside_it_and_its_help_fits_a_screen(self):
        help = run(TRAIN, '--help').stdout
        self.assertEqual(self.says('train', '--help'), help)
        self.fits_a_screen(help)
        self.assertIn('--help-all', help)
        self.assertIn('--model', help)
        self.assertNotIn('--captured', help)
        self.assertRegex(run(TRAIN, '--help-all').stdout, r'\n  --captured TEXT:\{off,measured,on\}=measured\n')


if __name__ == '__main__':
    unittest.main()
