# SPDX-License-Identifier: Apache-2.0
# ./run demo: what tools/demo.py says of summaries, whole, odd and damaged, and what it does around trainings, which are
# stand-ins.
# Usage: test_demo.py SOURCE_ROOT
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(ROOT / 'tools'))
import demo  # noqa: E402


def ratio(value, low, high):
    return {'ratio': value, 'interval_95': [low, high]}


def summary(rules=(1.5, 1.4, 1.6), found=(1.8, 1.7, 1.9), beside=(1.2, 1.1, 1.3), comp='comp', rule_based='rules', accepted=True, **more):
    def plan(label, **figures):
        return {'label': label, 'seconds_per_batch': {'median': 0.0125}, 'loss_against_fp32': None, **figures}
    loss = {'difference': 0.0042, 'radius': 0.003, 'accepted': accepted}
    return {'plan': '1bbb', 'plan_name': 'all but loss in bf16', 'fp32': 'fp32', 'comp': comp, 'rule_based': rule_based,
            'contest': [plan('fp32'), plan('rules', loss_against_fp32=loss), plan('comp', loss_against_fp32=loss)],
            'ratios': {name: of and ratio(*of) for name, of in (('rule_based_over_fp32', rules), ('comp_over_fp32', found),
                                                               ('comp_over_rule_based', beside))},
            'hardware': {'name': 'a CPU', 'isa': ['avx2', 'avx512_bf16']}, 'overhead': {'seconds': 3.21, 'share_of_100_epochs': 0.0123}} | more


class Verdicts(unittest.TestCase):
    def says(self, words, **figures):
        self.assertEqual(demo.verdict(summary(**figures)), words)

    def test_the_found_plan_wins(self):
        self.says("The found plan is faster than FP32 and the rules: 1.20x (1.10 to 1.30) of the rules' speed, 1.80x (1.70 to 1.90) of FP32's.")
        self.says("The found plan is faster than FP32 and the rules: 1.20x (1.10 to 1.30) of the rules' speed, 1.80x (1.70 to 1.90) of FP32's. "
                  'The rules lose to FP32.', rules=(.9, .8, .99))
        self.says("The found plan is faster than the rules, and not shown to be faster than FP32: 1.20x (1.10 to 1.30) of the rules' speed, "
                  "1.05x (0.90 to 1.20) of FP32's.", found=(1.05, .9, 1.2))

    def test_the_rules_are_right(self):
        self.says("The rules are right: the search finds their plan, 1.50x (1.40 to 1.60) of FP32's speed.", comp='rules')
        self.says('The rules are right: the found plan is as fast within noise, 1.01x (0.98 to 1.04) of their speed.', beside=(1.01, .98, 1.04))

    def test_fp32_is_kept(self):
        self.says('The rules lose to FP32: their plan runs at 0.88x (0.80 to 0.92) of its speed. The search keeps FP32.', comp='fp32', rules=(.88, .8, .92))
        self.says('The rules gain nothing that can be shown over FP32, 1.02x (0.90 to 1.10). The search keeps FP32.', comp='fp32', rules=(1.02, .9, 1.1))
        self.says('The rules are faster than FP32, 1.50x (1.40 to 1.60), but their loss was not accepted. The search keeps FP32.', comp='fp32', accepted=False)

    def test_a_modelled_gpu_is_said_to_be_modelled(self):
        words = demo.verdict(summary(hardware={'name': 'modelled for H100', 'isa': []}))
        self.assertTrue(words.endswith("of FP32's. No H100 ran: its times are modelled, and the losses are those of this CPU."), words)

class Rows(unittest.TestCase):
    def test_the_figures_of_a_summary(self):
        self.assertEqual(demo.row('mlp', summary()), ['mlp', '12.5 ms', '1.50x (1.40 to 1.60)', '1.80x (1.70 to 1.90)', 'all but loss in bf16',
                                                      '+0.42% +- 0.30%', '3.2 s (1.2%)'])

    def test_what_was_not_measured_is_said(self):
        odd = summary(rules=None, comp='fp32', overhead={'seconds': 3, 'share_of_100_epochs': 'nan'})
        odd['contest'][0]['seconds_per_batch'] = {'median': None}
        self.assertEqual(demo.row('mlp', odd), ['mlp', 'not measured', 'not measured', '1.00x', 'all but loss in bf16', '-', '3 s'])


# Leaves the summary that FAKE has, as it is; "fail" or "Ctrl-C" in its place: ends so.
FAKE = '''#!/usr/bin/env python3
import json, os, pathlib, signal, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name = given.get('--model', pathlib.Path(sys.argv[0]).name) + given.get('--target', '')
print('words of', name)
left = json.loads(os.environ['FAKE'])[name]
if left == 'fail': sys.exit('train: the disk is full')
if left == 'Ctrl-C': sys.exit(os.kill(os.getppid(), signal.SIGINT) or 130)
if left is not None: pathlib.Path(given['--out'], 'summary.json').write_text(left)
'''


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.out = pathlib.Path(folder.name), pathlib.Path(folder.name, 'out')
        for name in ('train', 'potential'):
            (self.folder / name).write_text(FAKE)
            (self.folder / name).chmod(0o755)

    def demo(self, **left):
        whole = json.dumps(summary())
        fake = json.dumps({'mlp': whole, 'gat': whole, 'transformer': whole, 'potential': whole} | left)
        return subprocess.run([sys.executable, '-B', ROOT / 'tools/demo.py', 'text.txt', self.out, self.folder], text=True, capture_output=True,
                              env={**os.environ, 'FAKE': fake})

    def page(self):
        return (self.out / 'report.html').read_text()

    def test_one_table_a_sentence_each_and_one_page(self):
        got = self.demo(gat=json.dumps(summary(comp='fp32', rules=(.88, .8, .92))))
        self.assertEqual((got.returncode, got.stderr), (0, ''))
        self.assertEqual(got.stdout.count('12.5 ms'), 4)
        for words in ('The rules lose to FP32: their plan runs at 0.88x (0.80 to 0.92) of its speed.', 'The found plan is faster than FP32 and the rules'):
            self.assertIn(words, got.stdout)
            self.assertIn(words, self.page())
        self.assertNotIn('words of', got.stdout)
        self.assertTrue(got.stdout.endswith('\n4 passed, 0 failed\n'))
        for name in ('mlp', 'gat', 'transformer', 'potential'):
            self.assertEqual((self.out / name / 'train.txt').read_text(), f'words of {name}\n')
            self.assertIn(f'<iframe src="{name}/report.html"', self.page())

    def test_a_modelled_gpu_is_searched_for_only_without_a_fast_format_here(self):
        self.assertEqual(self.demo().stdout.count('H100'), 0)
        slow, gpu = (json.dumps(summary(hardware=of)) for of in ({'name': 'a CPU', 'isa': ['avx2']}, {'name': 'modelled for H100', 'isa': []}))
        got = self.demo(transformer=slow, transformerH100=gpu)
        self.assertEqual((got.returncode, got.stderr), (0, ''))
        self.assertIn('5 of 5: narrow transformer, modelled H100', got.stdout)
        self.assertEqual(got.stdout.count('12.5 ms'), 5)
        self.assertEqual(got.stdout.count('No H100 ran'), 1)
        self.assertIn('<iframe src="transformer_H100/report.html"', self.page())

    def test_a_training_that_fails_leaves_the_others(self):
        self.assertEqual(self.demo().returncode, 0)
        got = self.demo(gat='fail')  # an earlier run's summary is not taken for this one's
        self.assertEqual(got.returncode, 1)
        self.assertIn('the disk is full', got.stderr)
        self.assertTrue(got.stdout.endswith('\n3 passed, 1 failed\n'))
        self.assertEqual(got.stdout.count('12.5 ms'), 3)
        self.assertIn('gat/summary.json says nothing of this training (it is missing): see', got.stdout)

    def test_damaged_summaries_are_named(self):
        for left in ('', '{', '[]', '{}', '7', json.dumps(summary() | {'ratios': None}), json.dumps(summary() | {'comp': 'gone'}),
                     json.dumps(summary() | {'contest': [None]}), json.dumps(summary() | {'overhead': {'seconds': 'x'}})):
            with self.subTest(left):
                got = self.demo(mlp=left)
                self.assertEqual(got.stderr, '')
                self.assertIn('mlp/summary.json says nothing of this training (it is damaged: ', got.stdout)
                self.assertEqual(got.stdout.count('12.5 ms'), 3)

    def test_words_of_a_summary_cannot_become_markup(self):
        self.demo(mlp=json.dumps(summary(plan_name='<script>')))
        self.assertIn('&lt;script&gt;', self.page())
        self.assertNotIn('<script>', self.page())

    def test_a_training_that_was_stopped_ends_the_demo(self):
        got = self.demo(gat='Ctrl-C')
        self.assertEqual((got.returncode, got.stderr), (130, ''))
        self.assertIn('The demo was stopped; ./run demo begins anew.', got.stdout)
        self.assertFalse((self.out / 'transformer').exists())


if __name__ == '__main__':
    unittest.main()
