# SPDX-License-Identifier: Apache-2.0
# ./run paper: what the driver (tools/paper.py) does around programs that measure, which are stand-ins with known output, and
# a real job where `train` is given.
# Usage: test_paper.py SOURCE_ROOT [TRAIN]
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
TRAIN = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 and '/' in sys.argv[1] else None
DIGITS = ROOT / 'examples/data/optdigits.csv.gz'
sys.path.insert(0, str(ROOT / 'tools'))
import paper  # noqa: E402
import paper_page  # noqa: E402


def listen():
    """In a child: signals are as a terminal leaves them, whoever started these tests (a shell's & ignores SIGINT)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


# Writes down what it is asked. FAKE says which call (a word of its command line) fails, hangs, or writes nonsense.
FAKE = '''#!/usr/bin/env python3
import json, os, pathlib, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(os.environ['ASKED'], 'a') as asked:
    asked.write(' '.join(sys.argv[1:]) + '\\n')
how, _, word = os.environ.get('FAKE', '').partition(':')
hit = word and word in ' '.join(sys.argv[1:])
if how == 'fail' and hit: sys.exit('train: the disk is full')
if how == 'hang' and hit: time.sleep(60)
out = pathlib.Path(given['--out'])
out.mkdir(parents=True, exist_ok=True)
plan = json.load(open(given['--plan']))['plan'] if '--plan' in given else 'b1'
score = {'11': 0.75, 'bb': 0.5, 'b1': 0.625}[plan] + int(given['--seed']) / 100
epochs = [{'loss': 2.5 / (e + 1), 'seconds': 0.001, 'batches': 4, 'score': score} for e in range(int(given['--epochs']))]
if how == 'nonsense' and hit: epochs = []
(out / 'training.json').write_text(json.dumps({'epochs': epochs, 'fallbacks': [], 'plan': plan}))
rows = [{'label': l, 'plan': p, 'peak_bytes': m << 20} for l, p, m in (('fp32', '11', 400), ('rules', 'bb', 300), ('comp', 'b1', 200))]
ratio = lambda r: {'ratio': r, 'interval_95': [r - .125, r + .125]}
(out / 'summary.json').write_text(json.dumps({'of': {'model': 'lenet5 on 9 images'}, 'plan': 'b1', 'contest': rows, 'fp32': 'fp32', 'rule_based': 'rules', 'comp': 'comp',
  'ratios': {'comp_over_fp32': ratio(1.5), 'comp_over_rule_based': ratio(1.25), 'rule_based_over_fp32': ratio(1.125)},
  'overhead': {'share_of_100_epochs': 0.02, 'search_seconds': 3.5, 'stages': {'baseline': {'seconds': 1.5}}}}))
'''


class Driver(unittest.TestCase):
    """LeNet-5 on MNIST by the stand-in: an epoch, a search, three trainings with its three plans, three searches of stages whose
    plan is the same again."""
    JOBS = 8

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out, self.asked, self.programs = (self.folder / name for name in ('out', 'asked', 'programs'))
        (self.programs / 'examples').mkdir(parents=True)
        self.program(FAKE)
        self.data = self.folder / 'data'
        (self.data / 'deep').mkdir(parents=True)
        for name in ('train-images-idx3-ubyte.gz', 'train-labels-idx1-ubyte', 't10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte'):
            (self.data / 'deep' / name).write_bytes(b'1234')

    def program(self, text):
        (self.programs / 'examples/train').write_text(text)
        (self.programs / 'examples/train').chmod(0o755)

    def command(self, *more, model='lenet5'):
        return [sys.executable, ROOT / 'tools/paper.py', '--programs', self.programs, '--out', self.out, '--quick', '--only', model,
                '--data', self.data, *more]

    def run_it(self, *more, fake='', **what):
        return subprocess.run(list(map(str, self.command(*more, **what))), text=True, capture_output=True, timeout=120,
                              env={**os.environ, 'ASKED': str(self.asked), 'FAKE': fake})

    def calls(self):
        return self.asked.read_text().splitlines() if self.asked.exists() else []

    def page(self):
        return (self.out / 'paper.html').read_text()

    def says(self, words):
        self.assertTrue(words in self.page(), words)

    def test_the_page_has_the_paper_s_numbers_ours_and_the_machine(self):
        got = self.run_it()
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        page = self.page()
        for words in ('1.88x (A100), 1.70x (RTX 4090)', '57.30%', '17201.88 MB', '6.49% (A100)',              # the paper's
                      '1.50x (1.38 to 1.62)', '1.25x (1.12 to 1.38)', '400, 300, 200 MiB', '50.0%',    # ours
                      '0.7600', '0.5100', '0.1250 below; one seed does not tell noise', '2.0%', '1 of 2', 'epochs of lenet5 on 9 images',
                      'A quick run', paper.machine_of(), '<svg class="chart"'):
            self.assertTrue(words in page, words)
        self.assertTrue('http' not in page and 'src=' not in page)  # nothing from outside

    def test_what_is_there_is_not_run_again_and_equal_plans_share_a_training(self):
        self.assertEqual(self.run_it().returncode, 0)
        self.assertEqual(len(self.calls()), self.JOBS)
        first = self.page()
        got = self.run_it()
        self.assertEqual(got.returncode, 0, got.stdout)
        self.assertEqual(len(self.calls()), self.JOBS)
        self.assertEqual(self.page(), first)

    def test_a_damaged_result_is_named_and_done_again(self):
        self.run_it()
        whole = sorted((self.out / 'results').glob('*.json'))
        whole[0].write_text(whole[0].read_text()[:100])
        edited = json.loads(whole[1].read_text())
        edited['checksum'] = '0'
        whole[1].write_text(json.dumps(edited))
        whole[2].write_text('[]')
        got = self.run_it()
        self.assertEqual(got.returncode, 0, got.stdout)
        for file in whole[:3]:
            self.assertIn(f'{file} is damaged', got.stdout)
        self.assertEqual(len(self.calls()), self.JOBS + 3)

    def test_other_data_under_the_same_names_are_other_jobs(self):
        self.run_it()
        (self.data / 'deep/train-labels-idx1-ubyte').write_bytes(b'12345')
        self.run_it()
        self.assertEqual(len(self.calls()), 2 * self.JOBS)

    def test_missing_data_are_named_with_where_to_get_them(self):
        (self.data / 'deep/train-images-idx3-ubyte.gz').unlink()
        got = self.run_it()
        self.assertEqual(got.returncode, 1)
        self.assertEqual(self.calls(), [])
        for text in (got.stdout, self.page()):
            self.assertTrue(f'no MNIST in {self.data}: get it from the MNIST page' in text, got.stdout)

    def test_a_job_that_fails_is_told_of_and_keeps_no_other_from_running(self):
        got = self.run_it(fake='fail:--stage1 none')
        self.assertEqual(got.returncode, 1)
        self.says('failed: it ended with 1: train: the disk is full')
        self.assertIn('1 failed', got.stdout)
        self.assertEqual(len(self.calls()), self.JOBS)
        self.assertEqual(self.run_it().returncode, 0)  # done again, and well
        self.assertEqual(len(self.calls()), self.JOBS + 1)
        self.assertFalse('the disk is full' in self.page())

    def test_without_a_search_its_trainings_are_not_measured(self):
        got = self.run_it(fake='fail:--seed 1 --epochs 1 --out')
        self.assertEqual(got.returncode, 1)
        self.says('the search that it needs gave nothing (it ended with 1')

    def test_figures_that_cannot_be_read_are_a_failure(self):
        got = self.run_it(fake='nonsense:--plan')
        self.assertEqual(got.returncode, 1)
        self.says('it wrote no figures that can be read (ValueError: training.json has no epoch')

    def test_a_job_that_takes_too_long_is_ended(self):
        began = time.monotonic()
        got = self.run_it('--job-limit', '2', fake='hang:--stage1 none')
        self.assertLess(time.monotonic() - began, 50)
        self.assertEqual(got.returncode, 1)
        self.says('slow: it took longer than 2 s')

    def test_a_run_ends_in_time_and_the_next_goes_on(self):
        got = self.run_it('--hours', '0.006', fake='hang:--stage1 none')  # 20 s
        self.assertEqual(got.returncode, 0, got.stdout)
        self.says('the time of this run was used up: the same command goes on')
        got = self.run_it()
        self.assertEqual((got.returncode, len(self.calls())), (0, self.JOBS + 1), got.stdout)

    def test_ctrl_c_keeps_what_there_is(self):
        process = subprocess.Popen(list(map(str, self.command())), text=True, stdout=subprocess.PIPE, preexec_fn=listen,
                                   env={**os.environ, 'ASKED': str(self.asked), 'FAKE': 'hang:--stage1 none'})
        while not any('--stage1 none' in call for call in self.calls()):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertIn('the same command goes on', said)
        before = len(self.calls())
        self.assertEqual(self.run_it().returncode, 0)
        self.assertEqual(len(self.calls()), before + 2)  # that one, and the one behind it

    def test_two_runs_in_one_folder_are_refused(self):
        first = subprocess.Popen(list(map(str, self.command())), stdout=subprocess.DEVNULL, preexec_fn=listen,
                                 env={**os.environ, 'ASKED': str(self.asked), 'FAKE': 'hang:--policy fp32'})
        while not self.calls():
            time.sleep(0.05)
        got = self.run_it()
        first.send_signal(signal.SIGTERM)
        self.assertEqual(first.wait(30), 128 + signal.SIGTERM)
        self.assertEqual(got.returncode, 1)
        self.assertIn('is in use (another ./run paper writes there)', got.stdout)

    def test_a_folder_that_is_somebody_else_s_is_left_alone(self):
        mine = self.out / 'data/mine'
        mine.mkdir(parents=True)
        got = self.run_it()
        self.assertEqual(got.returncode, 1)
        self.assertIn('has files that are not of ./run paper', got.stdout)
        self.assertTrue(mine.exists())
        got = self.run_it('--out', str(self.folder))
        self.assertEqual(got.returncode, 2)
        self.assertIn('is in --out', got.stderr)

    def test_what_makes_no_sense_is_refused_before_anything_runs(self):
        for more, sentence in ((['--only', 'resnet'], '--only resnet (there are alexnet,'), (['--write-docs'], 'a quick run says nothing'),
                               (['--data', str(self.folder / 'no')], 'is no folder'), (['--hours', 'nan'], 'must be above 0')):
            got = self.run_it(*more)
            self.assertEqual(got.returncode, 2)
            self.assertIn(sentence, got.stderr)
        self.assertEqual(self.calls(), [])

    def test_a_backend_that_is_not_built_is_named(self):
        self.assertIn('GAN on MNIST, libtorch: not measured (this build has no train_libtorch (backend libtorch))', self.run_it(model='gan').stdout)


class Sizes(unittest.TestCase):
    class Pair:
        def __init__(self, needs, least=0, weight=1):
            self.needs, self.least, self.weight, self.got = needs, least, weight, None

        def size(self, share):
            self.got = max(min(self.needs, share), self.least)
            return self.got

    def shared(self, seconds, *pairs):
        paper.share_out(pairs, seconds)
        return [pair.got for pair in pairs]

    def test_what_one_does_not_need_the_others_get(self):
        self.assertEqual(self.shared(90, self.Pair(1000), self.Pair(10), self.Pair(1000)), [40, 10, 40])
        self.assertEqual(self.shared(90, self.Pair(20), self.Pair(10)), [20, 10])
        self.assertEqual(self.shared(80, self.Pair(1000, weight=3), self.Pair(1000)), [60, 20])
        self.assertEqual(self.shared(10, self.Pair(1000, least=8), self.Pair(1000, least=8)), [8, 8])  # the least is done; time ends it
        self.assertEqual(self.shared(10), [])

    def test_fewer_examples_before_fewer_than_ten_epochs(self):
        facts = json.loads((ROOT / 'tools/paper.json').read_text())
        options = paper.argparse.Namespace(quick=False, only=None, programs=ROOT, data=None, epochs=100)
        pair = paper.Pair(next(p for p in facts['pairs'] if p['model'] == 'vgg16'), options, {}, facts)
        pair.probed = {'batch': 1.0, 'batches': 4, 'start': 1.0}
        for share in (1e9, 1e6, 1e5, 1e4):
            self.assertLessEqual(pair.size(share), share)
            self.assertTrue(pair.epochs == 100 or pair.limit == 50000 or pair.epochs == 10, (pair.epochs, pair.limit))
        self.assertEqual(pair.epochs, 10)
        self.assertLess(pair.limit, 50000)
        pair.size(math.inf)
        self.assertEqual((pair.epochs, pair.limit), (100, 50000))


class Pages(unittest.TestCase):
    class Pair:
        def __init__(self, fp32, comp):
            def trained(way, values):
                return {('train', way, s): {'figures': {'epochs': [{'score': v}], 'fallbacks': []}} for s, v in enumerate(values, 1)}
            self.results = trained('fp32', fp32) | trained('comp', comp)

    def test_a_score_below_fp32_s_beyond_noise_is_said(self):
        verdict = paper_page.verdict
        self.assertEqual(verdict(self.Pair([.7, .72, .74], [.73, .75, .75])), 'reached')
        self.assertEqual(verdict(self.Pair([.7, .72, .74], [.71, .7, .75])), 'reached within the noise (0.0100 below)')
        self.assertEqual(verdict(self.Pair([.7, .72, .74], [.6, .69, .7])), 'reached within the noise (0.0300 below)')
        self.assertEqual(verdict(self.Pair([.7, .72, .74], [.6, .69, .69])), 'NOT reached: 0.0300 below, FP32 varies by 0.0400')
        self.assertEqual(verdict(self.Pair([.7], [.65])), '0.0500 below; one seed does not tell noise')
        self.assertEqual(verdict(self.Pair([.7, .8], [.65, .8])), '0.0250 below; two seeds do not tell noise')
        self.assertEqual(verdict(self.Pair([.7, .7], [.7, .8])), 'not below, with two seeds')
        self.assertEqual(verdict(self.Pair([.7, .7], ['nan', .7])), 'NOT reached: not finite with 1 of 2 seeds')
        self.assertEqual(paper_page.over_seeds(['nan', .5], '{:.1f}'.format), '0.5, 1 not finite')
        self.assertEqual(paper_page.over_seeds(['nan'], '{:.1f}'.format), 'not finite')
        self.assertEqual(verdict(self.Pair([], [])), 'not measured')

    def test_how_many_operators_each_seed_s_plan_lowers(self):
        self.assertEqual(paper_page.lowered([{'plans': {'comp': plan}} for plan in ('1b0', '1b1@autocast', '111')]), '2, 1, 0 of 3')
        self.assertEqual(paper_page.lowered([]), 'not measured')

    def test_what_is_missing_stands_once_for_each_reason(self):
        class Named:
            why = ''

            def __init__(self, name, *results):
                self.name, self.results = name, {i: {'name': f'{name}: {job}', 'status': s, 'why': w} for i, (job, s, w) in enumerate(results)}

            def __str__(self):
                return self.name
        late = [('search', 'left', 'late'), ('train', 'left', 'late')]
        self.assertEqual(list(paper_page.missing([Named('A', ('race', 'ok', ''), *late), Named('B', *late), Named('C', ('race', 'failed', 'x'), late[0])])),
                         ['A; B: search; train: left: late', 'C: race: failed: x', 'C: search: left: late'])

    def test_every_pair_has_its_data_and_every_number_its_exhibit(self):
        facts = json.loads((ROOT / 'tools/paper.json').read_text())
        for pair in facts['pairs']:
            self.assertIn(pair['data'], facts['data'])
            self.assertTrue(set(pair) <= {'model', 'backend', 'data', 'name', 'batch', 'args', 'quick', 'score', 'note'}, pair)
            self.assertEqual(len(pair.get('args', []) + pair['quick']) % 2, 0)
        self.assertEqual(len({(p['model'], p['backend'], p['data']) for p in facts['pairs']}), len(facts['pairs']))
        for one in facts['numbers'] + facts['statements']:
            self.assertTrue(one['in'] in facts['exhibits'] or one['in'] == 'Tables 4 and 5', one)

    def test_the_section_of_the_documents_is_replaced_between_its_marks(self):
        facts = json.loads((ROOT / 'tools/paper.json').read_text())
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder, 'paper.md')
            page.write_text((ROOT / 'docs/benchmarks/paper.md').read_text())
            about = {'machine': 'M', 'version': 'V', 'date': 'D', 'command': './run paper'}
            for _ in range(2):
                paper_page.write_section(page, facts, [], about)
            got, was = page.read_text(), (ROOT / 'docs/benchmarks/paper.md').read_text()
        self.assertEqual(got.count(paper_page.BEGIN), 1)
        self.assertNotIn('The found plans', got)  # on the HTML page alone
        self.assertIn('The found plans', paper_page.html(facts, [], about | {'quick': False}, ROOT))
        self.assertIn('M; comp V; D; `./run paper`.', got)
        self.assertEqual(got.split(paper_page.BEGIN)[0], was.split(paper_page.BEGIN)[0])
        self.assertEqual(got.split(paper_page.END)[1], was.split(paper_page.END)[1])


@unittest.skipUnless(TRAIN, 'no train was given')
class Real(unittest.TestCase):
    def test_what_train_writes_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            jobs = paper.Jobs(pathlib.Path(folder), 'version', 'machine', time.monotonic() + 300, None)
            # times are modelled: a busy machine's may leave the rules' plan out of the contest
            job = ['--model', 'mlp', '--data', DIGITS, '--limit', '256', '--epochs', '30', '--target', 'A100', '--out', '{out}']
            got = jobs.get('real', [TRAIN, *job], [], paper.READ['probe'], 60)
        self.assertEqual(got['status'], 'ok', got)
        search, training = got['figures']
        self.assertEqual(set(search['plans']['fp32']), {'1'})
        self.assertGreater(search['peaks']['fp32'], 0)
        self.assertEqual(set(search['stages']), set(paper_page.STAGES))
        self.assertIsNotNone(search['plans']['amp'])
        self.assertEqual(training['fallbacks'], [])
        self.assertGreaterEqual(len(training['epochs']), 30)
        self.assertGreater(training['epochs'][-1]['score'], 0)
        for name in ('comp_over_fp32', 'comp_over_rule_based', 'rule_based_over_fp32'):
            self.assertIn('x (', paper_page.times(search['ratios'][name]))
        self.assertGreater(search['search_seconds'], 0)


if __name__ == '__main__':
    unittest.main()
