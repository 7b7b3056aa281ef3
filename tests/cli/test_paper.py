# SPDX-License-Identifier: Apache-2.0
# ./run paper: the page that tools/paper.py makes of programs that measure, which are stand-ins with known output.
# Usage: test_paper.py SOURCE_ROOT
import csv
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(ROOT / 'tools'))
import paper  # noqa: E402
import paper_page  # noqa: E402

# What `train` writes of a search and of a training with a plan. It refuses to enumerate stage 2 alone, and FP16 without scaling is NaN.
FAKE = '''#!/usr/bin/env python3
import json, pathlib, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
out = pathlib.Path(given['--out'])
out.mkdir(parents=True, exist_ok=True)
if '--search' in given and '--stage1' in given:
    sys.exit('train: search space has 128 plans in 7 groups (exhaustive may try 64): tie operators')
plan = json.load(open(given['--plan']))['plan'] if '--plan' in given else 'b1'
score = {'11': 0.75, 'bb': 0.5, 'b1': 0.625}[plan] + int(given['--seed']) / 100
epochs = [{'loss': 2.5 / (e + 1), 'seconds': 0.001, 'batches': 4, 'score': score} for e in range(int(given['--epochs']))]
(out / 'training.json').write_text(json.dumps({'epochs': epochs, 'plan': plan,
  'fallbacks': [{'epoch': 2, 'why': 'not_finite', 'to': '11'}] if given.get('--scaling') == 'off' else []}))
rows = [{'label': l, 'plan': p, 'peak_bytes': m << 20} for l, p, m in (('fp32', '11', 400), ('rules', 'bb', 300), ('comp', 'b1', 200))]
ratio = lambda r: {'ratio': r, 'interval_95': [r - .125, r + .125]}
(out / 'summary.json').write_text(json.dumps({'of': {'model': 'lenet5 on 9 images'}, 'plan': 'b1', 'contest': rows, 'fp32': 'fp32', 'rule_based': 'rules', 'comp': 'comp',
  'ratios': {'comp_over_fp32': ratio(1.5), 'comp_over_rule_based': ratio(1.25), 'rule_based_over_fp32': ratio(1.125)},
  'overhead': {'share_of_100_epochs': 0.02, 'search_seconds': 3.5, 'stages': {'baseline': {'seconds': 1.5}}}}))
'''


class Page(unittest.TestCase):
    """LeNet-5 on MNIST and GCN on Cora by the stand-in: an epoch, a search, three trainings with its three plans, searches of stages
    and in FP16 whose plan is the same again."""

    def test_it_has_the_paper_s_numbers_ours_and_the_machine(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            train, data = folder / 'programs/examples/train', folder / 'data'
            train.parent.mkdir(parents=True)
            train.write_text(FAKE)
            train.chmod(0o755)
            data.mkdir()
            for file in ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte', 't10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte', 'cora.npz'):
                (data / file).write_bytes(b'1234')
            got = subprocess.run([sys.executable, ROOT / 'tools/paper.py', '--programs', folder / 'programs', '--out', folder / 'out',
                                  '--quick', '--only', 'lenet5', '--only', 'gcn', '--data', data], text=True, capture_output=True, timeout=120)
            self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
            page = (folder / 'out/paper.html').read_text()
        for words in ('1.88x (A100), 1.70x (RTX 4090)', '57.30%', '17201.88 MB', '6.49% (A100)',              # the paper's
                      '1.50x (1.38 to 1.62)', '1.25x (1.12 to 1.38)', '400, 300, 200 MiB', '50.0%',    # ours
                      '0.7600', '0.5100', '0.1250 below; one seed does not tell noise', '2.0%', '1 of 2', 'epochs of lenet5 on 9 images',
                      '1.50x, enumerated; NaN in epoch 2', '1.50x, greedy; NaN in epoch 2', '1.50x, greedy; 0.6350, loss ',     # in FP16
                      '1.25x, mean of 1</td><td class="e">not measured</td><td class="e">1.25x, mean of 1</td><td class="e">held<',
                      'A quick run', paper.machine_of(), '<svg class="chart"'):
            self.assertTrue(words in page, words)
        self.assertTrue('http' not in page and 'src=' not in page)  # nothing from outside

    def test_the_documents_have_the_claims_on_the_page_and_the_other_tables_as_files(self):
        facts = json.loads((ROOT / 'tools/paper.json').read_text())
        with tempfile.TemporaryDirectory() as name:
            page = pathlib.Path(name) / 'paper.md'
            page.write_text(f'Above.\n{paper_page.BEGIN}\nan older section\n{paper_page.END}\nBelow.\n')
            paper_page.write_section(page, facts, [], {'machine': 'a machine', 'version': '1', 'date': '2026-01-01', 'command': './run paper'})
            text = page.read_text()
            for kind, of in facts['tables'].items():
                self.assertEqual(('| ' + ' | '.join(of['header'])) in text, kind == 'claim', kind)
                if kind in ('speed', 'memory', 'score', 'cost', 'ablation', 'fp16'):
                    self.assertTrue(f'(tables/paper_{kind}.csv)' in text, kind)
                    self.assertEqual(next(csv.reader((page.parent / f'tables/paper_{kind}.csv').open())), of['header'])
            self.assertTrue(text.startswith('Above.') and text.endswith('Below.\n') and 'an older section' not in text)


if __name__ == '__main__':
    unittest.main()
