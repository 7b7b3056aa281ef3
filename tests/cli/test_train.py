# SPDX-License-Identifier: Apache-2.0
# examples/train as a user types it: what it writes, what it refuses and how, and that a search goes on after an end at
# any moment. Small jobs on the digits that come with the project.
# Usage: test_train.py TRAIN DIGITS
import json
import math
import os
import pathlib
import re
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

DIGITS = pathlib.Path(sys.argv.pop(2))
TRAIN = sys.argv.pop(1)
SECONDS = 300  # that any one run may take on a slow machine
os.environ['OMP_WAIT_POLICY'] = 'passive'  # or train tells of other programs, if there are any


def listen():
    """In a child: signals are as a terminal leaves them, whoever started these tests (nohup ignores SIGHUP)."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def safetensors(file):
    """Metadata and {name: (shape, bytes)} of a file, by the description of its format."""
    data = file.read_bytes()
    length, = struct.unpack('<Q', data[:8])
    header, data = json.loads(data[8:8 + length]), data[8 + length:]
    metadata = header.pop('__metadata__', {})
    tensors = {name: (of['shape'], data[slice(*of['data_offsets'])]) for name, of in header.items()}
    assert all(of['dtype'] == 'F32' for of in header.values())
    return metadata, tensors


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / 'out'

    def succeeds(self, *more, **what):
        got = self.train(*more, **what)
        self.assertEqual(got.returncode, 0, got.stderr)
        return got

    def refused(self, got, *sentences):
        self.assertEqual(got.returncode, 1, got.stdout + got.stderr)
        for sentence in sentences:
            self.assertIn(sentence, got.stderr)


class Train(Runs):
    def command(self, *more, model='mlp', data=DIGITS, limit='256', batch='64'):
        job = ['--model', model, '--data', str(data), '--epochs', '1', '--threads', '1']
        if model not in ('gcn', 'gat'):
            job += ['--limit', limit, '--batch', batch]
        return [TRAIN, *job, '--out', str(self.out), *more]

    def train(self, *more, **what):
        return subprocess.run(self.command(*more, **what), text=True, capture_output=True, timeout=SECONDS)

    def ledger(self):
        """Whole lines of the ledger; the last one may be cut off by a kill."""
        file = self.out / 'search.jsonl'
        text = file.read_text() if file.exists() else ''
        return [json.loads(line) for line in text[:text.rfind('\n') + 1].splitlines()]

    def runs(self):
        return [(line['stage'], line.get('purpose'), line['plan'], line.get('repeat')) for line in self.ledger() if 'stage' in line]

    def squad(self):
        """A folder of questions whose answers are a word of their text, and a vocabulary."""
        folder = self.folder / 'squad'
        folder.mkdir()
        words = ['alpha', 'beta', 'gamma', 'delta', 'epsilon', 'zeta', 'eta', 'theta']
        paragraphs = []
        for i in range(20):
            context = ' '.join(words[(i + k) % 8] for k in range(8))
            qas = [{'id': f'{i}-{word}', 'question': f'where {word}', 'is_impossible': False,
                    'answers': [{'text': word, 'answer_start': f' {context} '.index(f' {word} ')}]} for word in words]
            paragraphs.append({'context': context, 'qas': qas})
        (folder / 'dev.json').write_text(json.dumps({'data': [{'paragraphs': paragraphs}]}))
        (folder / 'vocab.txt').write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', 'where', *words]) + '\n')
        return folder

    def mnist(self):
        folder = self.folder / 'mnist'
        folder.mkdir()
        for part, count in (('train', 64), ('t10k', 32)):
            pixels = bytes((i * 31 + i // 784) % 256 for i in range(count * 784))
            (folder / f'{part}-images-idx3-ubyte').write_bytes(struct.pack('>4i', 2051, count, 28, 28) + pixels)
            labels = bytes(i % 10 for i in range(count))
            (folder / f'{part}-labels-idx1-ubyte').write_bytes(struct.pack('>2i', 2049, count) + labels)
        return folder

    def test_bert_and_a_gan_are_searched_trained_and_scored(self):
        squad, mnist = self.squad(), self.mnist()
        for model, data, more in (('bert', squad, ('--size', 'tiny')), ('gan', mnist, ())):
            with self.subTest(model):
                self.out = self.folder / model
                got = self.succeeds(*more, model=model, data=data, limit='16', batch='4')
                scores = [epoch['score'] for epoch in json.loads((self.out / 'training.json').read_text())['epochs'] if epoch['score'] is not None]
                self.assertTrue(scores and all(0 <= score <= 1 for score in scores), scores)  # a loss below 0 is what others have
                metadata, tensors = safetensors(self.out / 'checkpoint.safetensors')
                self.assertTrue(any(name.startswith('optimizer.second.') for name in tensors))
                one_more = got.stdout.count('\nepoch ') + 1
                again = self.succeeds(*more, '--epochs', str(one_more), '--resume', model=model, data=data, limit='16',
                                   batch='4')
                self.assertIn(f'epoch {one_more:3}:', again.stdout)
        self.out = self.folder / 'other'
        plan = str(self.folder / 'gan' / 'plan.json')
        other = self.train('--plan', plan, '--size', 'tiny', model='bert', data=squad, limit='16', batch='4')
        self.refused(other, 'plan.json')
        in_one = ('--attention', 'one', '--size', 'tiny')
        other = self.train('--plan', str(self.folder / 'bert' / 'plan.json'), *in_one, model='bert', data=squad,
                           limit='16', batch='4')
        self.refused(other, 'is for another model')
        self.succeeds(*in_one, model='bert', data=squad, limit='16', batch='4')
        self.assertIn('"block1.attention.heads"', (self.out / 'plan.json').read_text())
        other = self.train('--size', 'convolutional', model='gan', data=mnist, limit='16', batch='4')
        self.refused(other, 'use --backend libtorch')
        other = self.train('--accumulate', '2', model='gan', data=mnist, limit='16', batch='4')
        self.refused(other, '2 micro-batches for a step of 2 phases')

    def test_help_can_be_followed(self):
        got = subprocess.run([TRAIN, '--help-all'], text=True, capture_output=True)
        self.assertEqual(got.returncode, 0)
        for option in ('model', 'data', 'backend', 'policy', 'stage1', 'stage2', 'epochs', 'batch', 'tolerance',
                       'precisions', 'products', 'moments', 'target', 'rules', 'scaling', 'accumulate', 'out', 'resume', 'plan', 'seed', 'threads',
                       'gpu', 'captured', 'attention', 'level', 'budget', 'judge-by',
                       'memory-limit', 'slowdown', 'warm-start', 'weights', 'weights-out'):
            self.assertIn(f'--{option} ', got.stdout.replace('\n', ' '))
        self.assertIn('the same command with --resume goes on.', got.stdout)
        got = subprocess.run([TRAIN, '--version'], text=True, capture_output=True)
        self.assertEqual(got.returncode, 0)
        self.assertRegex(got.stdout, r'^comp \d+\.\d+\.\d+\n$')

    def test_a_search_writes_what_it_promises_and_its_plan_can_be_trained_with(self):
        self.succeeds()
        json.loads((self.out / 'plan.json').read_text())
        json.loads((self.out / 'summary.json').read_text())
        runs = self.runs()
        self.assertGreater(len(runs), 3)
        self.assertEqual(len(set(runs)), len(runs), 'a run was made twice')
        report = (self.out / 'report.html').read_text()
        for elsewhere in ('src="http', "src='http", 'href="http', '@import'):
            self.assertNotIn(elsewhere, report)
        self.assertNotIn('http-equiv="refresh"', report)
        drawn = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', report)[1])
        if set(json.loads((self.out / 'plan.json').read_text())['plan']) != {'1'}:  # on a busy machine FP32 may win
            used = subprocess.run(shlex.split(drawn['of']['use_command']), text=True, capture_output=True, timeout=SECONDS)
            self.assertEqual(used.returncode, 0, used.stderr)
            self.assertIn('epoch   1: ', used.stdout)
            self.assertNotIn('not heard', used.stderr)
            self.assertIn('epochs', drawn['training'])
        compared = subprocess.run([pathlib.Path(TRAIN).parent / 'comp', 'compare', self.out, self.out], text=True,
                                  capture_output=True, timeout=SECONDS)
        self.assertEqual(compared.returncode, 0, compared.stderr)
        self.assertIn(f'{self.out} has the plan of {self.out}.', compared.stdout)
        plan = self.folder / 'plan.json'
        shutil.copy(self.out / 'plan.json', plan)
        before = self.ledger()
        with_plan = self.succeeds('--plan', str(plan))
        self.assertEqual(self.ledger(), before)  # no search
        other_model = self.train('--plan', str(plan), batch='32')
        self.refused(other_model, 'is for another model')

    def summary(self):
        return json.loads((self.out / 'summary.json').read_text())

    def judged(self):
        """Runs of plans that were judged by their losses: no first looks."""
        return [line for line in self.ledger() if line.get('stage') == 'losses' and 'purpose' not in line]

    def test_each_epoch_s_loss_and_score_are_written(self):
        got = self.succeeds('--epochs', '30', '--policy', 'fp32')
        self.assertIn(f'{self.out}/training.json', got.stdout)
        training = json.loads((self.out / 'training.json').read_text())
        self.assertEqual([len(training[key]) for key in ('epochs', 'fallbacks', 'warnings')], [30, 0, 0])
        self.assertEqual(set(training['plan']), {'1'})
        for number, epoch in enumerate(training['epochs'], 1):
            self.assertIn(f"epoch {number:>3}: loss {epoch['loss']:.4f}, ", got.stdout)
            self.assertEqual(epoch['batches'], 4)
            self.assertGreater(epoch['seconds'], 0)
        self.assertIn(f", score {training['epochs'][-1]['score']:.4f}", got.stdout)

    def test_whole_epochs_or_scores_decide_when_asked_for(self):
        for judge_by, sentence in (('epochs', 'mean losses of whole epochs'), ('scores', 'scores after whole epochs')):
            got = self.succeeds('--judge-by', judge_by)
            self.assertIn(f'Plans were judged by {sentence}.', got.stdout)
            self.assertEqual(self.summary()['judged_by'], sentence)
            judged = [run['sample'] for run in self.judged() if run['sample']['status'] == 'ok']
            self.assertEqual({run['batches'] for run in judged}, {4})
        self.assertIn("below FP32's score", got.stdout)
        self.assertTrue(all(run['score'] > 0 for run in judged), judged)

    def test_the_least_memory_within_a_slowdown(self):
        self.succeeds('--slowdown', '5', '--memory-limit', '4GiB')
        rows = self.summary()['contest']
        found = next(row for row in rows if row['label'] == self.summary()['comp'])
        self.assertEqual(found['peak_bytes'], min(row['peak_bytes'] for row in rows))
        self.assertTrue(any(row['on_front'] for row in rows))
        self.assertNotEqual(self.train('--slowdown', '-1').returncode, 0)

    def test_strategies_that_do_not_go_together_are_refused(self):
        self.refused(self.train('--stage1', 'none', '--stage2', 'none'), 'both stages are none (there is nothing to search)')
        self.refused(self.train('--stage2', 'exhaustive'), '--stage2 exhaustive with --stage1 guided (guided does both stages): leave it out')
        self.assertFalse(self.out.exists())

    def test_a_search_starts_from_a_plan_of_another_batch_size(self):
        self.succeeds()
        plan = self.folder / 'plan.json'
        shutil.copy(self.out / 'plan.json', plan)
        self.refused(self.train('--plan', str(plan), batch='32'), 'is for another model')
        got = self.succeeds('--warm-start', str(plan), batch='32')
        self.assertNotIn('Note: ', got.stderr)
        text = json.loads(plan.read_text())
        text['operators'][0]['name'] = 'other'
        plan.write_text(json.dumps(text))
        got = self.succeeds('--warm-start', str(plan))
        self.assertIn('operators by name and kind: the search starts from FP32 for the others', got.stderr)
        page = shutil.copy(self.out / 'report.html', self.folder)
        self.refused(self.train('--warm-start', str(page)), 'report.html', 'no JSON')

    def test_data_that_cannot_be_read_is_named(self):
        half = self.folder / 'half.csv.gz'
        half.write_bytes(DIGITS.read_bytes()[:20000])
        empty = self.folder / 'empty.csv.gz'
        empty.touch()
        for data in (self.folder / 'none.csv.gz', half, empty, self.folder):
            with self.subTest(data.name):
                self.refused(self.train(data=data), f'train: --data: "{data}', '): ')
        self.refused(self.train(model='transformer', data=empty), str(empty))
        self.refused(self.train(limit='16'), '64', '16')  # a batch of 64
        self.refused(self.train(model='vgg16'), 'mlp reads any size')

    def test_models_that_make_up_their_data_are_searched_without_any(self):
        for model in ('gcn', 'gat', 'simplenet'):
            with self.subTest(model):
                small = ['--batch', '4', '--limit', '16'] if model == 'simplenet' else []
                line = [TRAIN, '--model', model, *small, '--epochs', '1', '--threads', '1']
                got = subprocess.run([*line, '--out', str(self.out / model)], text=True, capture_output=True, timeout=SECONDS)
                self.assertEqual(got.returncode, 0, got.stderr)
                json.loads((self.out / model / 'plan.json').read_text())
        self.refused(self.train(model='gat', data=self.folder / 'nowhere'), 'nowhere')
        edges = self.folder / 'graph'
        edges.mkdir()
        (edges / 'g.content').write_text(''.join(f'{paper}\t1\t0\tC{paper % 2}\n' for paper in range(50)))
        (edges / 'g.cites').write_text('0\t77\n')
        self.refused(self.train(model='gcn', data=edges), '1 citations of papers that', 'g.content')

    def test_a_backend_that_this_build_lacks_is_refused_with_what_it_needs(self):
        alone = self.folder / 'train'  # no train_libtorch and no train_cuda beside it
        shutil.copy(TRAIN, alone)
        for backend, sentences in (('libtorch', ('this build has no LibTorch', './run demo --backend libtorch')),
                                   ('cuda', ('this build has no CUDA', '-Dcuda=enabled', 'use --backend host'))):
            got = subprocess.run([alone, *self.command('--backend', backend)[1:]], text=True, capture_output=True)
            self.refused(got, *sentences)

    def test_a_recipe_below_16_bits_is_found_for_a_gpu_that_is_not_here_and_trained_with(self):
        job = ('--target', 'B200', '--precisions', 'mxfp8,nvfp4')
        got = self.succeeds(*job)
        self.assertIn(', times modelled for B200', got.stdout)
        self.assertIn('modelled for B200', (self.out / 'report.html').read_text())
        file = self.out / 'plan.json'
        plan = json.loads(file.read_text())
        self.assertEqual(plan['hardware']['name'], 'modelled for B200')
        self.assertEqual(plan['precisions'], ['fp32', 'bf16', 'mxfp8', 'nvfp4'])  # bf16 for what is no linear layer
        names = [op['name'] for op in plan['operators']]
        self.assertIn('layer1.linear.input_gradient', names)
        self.assertNotIn('layer0.linear.input_gradient', names)
        training = json.loads((self.out / 'training.json').read_text())
        self.assertEqual(training['machine'], 'modelled for B200')
        self.assertRegex(got.stdout, r'epoch   1: .* modelled for B200')
        self.succeeds('--plan', str(file))  # takes the products from the file
        self.assertNotEqual(self.train('--target', '').returncode, 0)
        self.refused(self.train('--plan', str(file), '--products', 'together'), '"layer0.linear.weight_gradient"')
        self.refused(self.train('--target', 'B20'), '"B20" is no GPU', 'did you mean "B200"')
        self.refused(self.train('--target', 'B200', '--backend', 'cuda'), 'only host and libtorch have it')

    def test_a_plan_changes_where_its_file_says_and_a_last_part_that_is_too_short_is_told(self):
        self.succeeds('--epochs', '3')
        found, changing = self.out / 'plan.json', self.folder / 'changing.json'
        plan = json.loads(found.read_text())
        linear = ''.join('b' if op['kind'] == 'linear' else '1' for op in plan.pop('operators'))
        plan['plan'] = '1' * len(linear)
        later = [{'batch': 6, 'plan': linear, 'reason': 'by hand'}, {'batch': 90, 'plan': plan['plan']}]
        changing.write_text(json.dumps(plan | {'later': later}))
        got = self.succeeds('--plan', str(changing), '--epochs', '3', '--finish', '0.1')
        self.assertIn('from batch 6 on: ', got.stdout)
        self.assertIn('; by hand\n', got.stdout)
        self.assertIn('Note: a higher precision for the last 1 batches was not tried (so few tell nothing)', got.stdout)
        training = json.loads((self.out / 'training.json').read_text())
        self.assertEqual(training['later'], later[:1])
        self.assertEqual(training['plan'], later[0]['plan'])
        self.assertEqual([epoch['batches'] for epoch in training['epochs']], [4, 4, 4])
        self.assertNotIn('later', json.loads(found.read_text()))  # the file says already when the plan changes
        changing.write_text(json.dumps(plan | {'later': later[::-1]}))
        self.refused(self.train('--plan', str(changing)), 'field later[1].batch is 6 (a whole number from 91 to')

    def test_the_plans_of_other_systems_are_held_against_the_found_one(self):
        # Long enough to search in: in a shorter training only the first system's plan is looked at.
        job = ('--precisions', 'bf16', '--accumulate', '2', '--scaling', 'paddle-guide')
        got = self.succeeds('--rules', 'all', *job, limit='512')
        contest = json.loads((self.out / 'summary.json').read_text())['contest']
        labels = [row['label'] for row in contest]
        self.assertEqual(len({row['plan'] for row in contest}), len(contest), labels)
        report = (self.out / 'report.html').read_text()
        for system in ('pytorch', 'tensorflow', 'tvm', 'paddle OD', 'paddle O1', 'paddle O2'):
            self.assertEqual(sum(f'{system} bf16' in label for label in labels), 1, labels)
            self.assertIn(f'{system} bf16', got.stdout)
            self.assertIn(f'{system} bf16', report)
        for row in contest:
            self.assertGreaterEqual(row['seconds_per_batch']['count'], 2, row)
            self.assertLessEqual(row['seconds_per_batch']['count'], 20, row)

    def test_an_unknown_system_and_an_unknown_loss_scaling_are_refused_with_what_there_is(self):
        got = self.train('--precisions', 'bf16,fp33')
        self.assertIn('"fp33" is no precision', got.stdout + got.stderr)
        got = self.train('--rules', 'apex')
        self.assertIn('"apex" is no system whose rules are known (they are pytorch, ', got.stderr)
        self.refused(self.train('--accumulate', '2', '--backend', 'libtorch'),
                     "--scaling pytorch --accumulate 2 with backend libtorch (which has pytorch's scaling or off, and no micro-batches): leave them out")
        self.refused(self.train('--attention', 'one', '--backend', 'libtorch'),
                     '--attention one with backend libtorch (only host and cuda have it): leave it out')
        self.refused(self.train('--captured', 'on'), '--captured on with backend host (only cuda has it): leave it out')
        self.refused(self.train('--side', '64'), '--side 64 with backend host (only libtorch has it): leave it out')
        self.refused(self.train('--gpu', '1'), '--gpu 1 with backend host (only cuda has it): leave it out')
        for model, option, value, why in (
                ('mlp', '--attention', 'one', 'only transformer and bert have it'),
                ('bert', '--layers', '4', 'only the transformer has them'), ('mlp', '--width', '64', 'only the transformer'),
                ('mlp', '--heads', '2', 'only the transformer'), ('bert', '--context', '64', 'only the transformer'),
                ('gcn', '--limit', '256', 'the whole graph'), ('gat', '--batch', '64', 'the whole graph'),
                ('mlp', '--size', 'tiny', 'bert has base, small and tiny'), ('gan', '--size', 'tiny', 'gan connected'),
                ('bert', '--size', 'connected', 'gan connected'), ('alexnet', '--size', 'plain', 'vgg16 plain'),
                ('bert', '--weights', str(DIGITS), 'with backend libtorch')):
            with self.subTest(f'{model} {option}'):
                self.refused(self.train(option, value, model=model), f'{option} {value} ', f'with model {model} (', why)
        got = self.train('--scaling', 'apex')
        self.assertIn('loss scaling "apex" (it is pytorch, ', got.stderr)

    def test_a_ledger_of_another_search_is_refused_with_what_differs(self):
        self.succeeds()
        self.refused(self.train('--resume', '--seed', '7'), 'checkpoint.safetensors', 'has seed 1, this one has seed 7')
        self.checkpoint().unlink()
        self.refused(self.train('--resume', '--seed', '7'), 'search.jsonl', 'seed')

    def test_an_interrupted_search_says_how_to_go_on_and_does(self):
        """Ends a search once a run is recorded; the same command with --resume must go on from there."""
        job = ('--tie', 'none', '--stage1', 'greedy')
        process = subprocess.Popen(self.command(*job, limit='1536'), text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, preexec_fn=listen)
        deadline = time.monotonic() + SECONDS
        while len(self.runs()) < 2 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertIn('--resume', complained)
        before = self.runs()
        self.assertGreaterEqual(len(before), 2)
        watched = (self.out / 'report.html').read_text()
        self.assertIn('<meta http-equiv="refresh"', watched)
        self.assertIn('<h1>Searching: ', watched)
        self.assertFalse(any('end' in line for line in self.ledger()), 'it ended by itself: make the job longer')
        resumed = self.succeeds('--resume', *job, limit='1536')
        self.assertNotIn('<h1>Searching: ', (self.out / 'report.html').read_text())
        after = self.runs()
        self.assertEqual(after[:len(before)], before)
        self.assertEqual(len(set(after)), len(after), 'a recorded run was made again')
        self.assertTrue(any('end' in line for line in self.ledger()))

    def test_numbers_that_are_none_wrap_or_are_out_of_range_are_refused_by_name(self):
        for option in ('--learning-rate', '--tolerance', '--level', '--budget', '--slowdown', '--finish'):
            for value in ('nan', 'inf', '-inf', '-1', '1e999', '0.1x', ''):
                with self.subTest(option + value):
                    self.not_taken(option, value)
        for option in ('--epochs', '--batch', '--limit', '--seed', '--threads', '--accumulate', '--gpu', '--layers',
                       '--width', '--heads', '--context'):
            for value in ('-1', 'nan', '1.5', '18446744073709551616', '-18446744073709551615', '0x10', ' 5', ''):
                with self.subTest(option + value):
                    self.not_taken(option, value)
        for value in ('-1', '-18446744073709551615', '9223372036854775808', '99999999999GiB', 'nan', '1.5GiB', 'inf', 'much'):
            with self.subTest('--memory-limit' + value):
                self.not_taken('--memory-limit', value)
        for option, value in (('--limit', '9223372036854775807'), ('--scaling', 'nan'), ('--level', '0.5'), ('--budget', '1.5')):
            self.not_taken(option, value)
        self.assertFalse(self.out.exists())

    def not_taken(self, option, value):
        got = self.train(f'{option}={value}')
        self.assertNotEqual(got.returncode, 0)
        self.assertIn(option, got.stdout + got.stderr)

    def test_a_leading_zero_means_no_octal_number(self):
        got = self.succeeds('--epochs', '010', '--policy', 'fp32')
        self.assertIn('epoch  10:', got.stdout)

    def test_outputs_that_cannot_be_written_are_refused_before_the_search_with_their_option(self):
        file = self.folder / 'file'
        file.write_text('mine')
        nowhere = self.folder / 'nowhere' / 'file'
        for option, path, reason in (('--weights-out', nowhere, 'No such file'),
                                     ('--weights-out', self.folder, 'Is a directory'),
                                     ('--weights-out', '/dev/full', 'No space left'),
                                     ('--out', file, 'directory'), ('--out', file / 'below', 'directory')):
            with self.subTest(f'{option} {path}'):
                self.refused(self.train(option, str(path)), f'train: {option}', str(path), reason)
                self.assertFalse((self.out / 'search.jsonl').exists())
        self.assertEqual(file.read_text(), 'mine')
        self.assertEqual(sorted(self.folder.rglob('*')), [file, self.out])

    def test_no_output_overwrites_an_input_or_another_output(self):
        data, plan, link = self.folder / 'data.csv.gz', self.folder / 'plan.json', self.folder / 'link'
        shutil.copy(DIGITS, data)
        plan.write_text('{}')
        link.symlink_to(data)
        hard = self.folder / 'hard'
        hard.hardlink_to(data)
        self.out.mkdir()
        before = {file: file.read_bytes() for file in (data, plan)}
        for output, written, other, read in (
                ('--weights-out', data, '--data', 'reads'), ('--weights-out', link, '--data', 'reads'),
                ('--weights-out', hard, '--data', 'reads'),
                ('--weights-out', plan, '--plan', 'reads'), ('--weights-out', self.out / 'plan.json', '--out', 'writes'),
                ('--weights-out', self.out / 'checkpoint.safetensors', '--out', 'writes'),
                ('--weights-out', self.out / 'checkpoint.safetensors.old', '--out', 'writes'),
                ('--weights-out', self.out / 'search.jsonl.old', '--out', 'writes'),
                ('--weights-out', self.out / '..' / 'out' / 'search.jsonl', '--out', 'writes')):
            with self.subTest(f'{output} {written}'):
                more = ['--plan', str(plan)] if other == '--plan' else []
                self.refused(self.train(output, str(written), *more, data=data), f'{output} would overwrite',
                             f'({other} {read} it)')
                self.assertEqual({file: file.read_bytes() for file in before}, before)
                self.assertEqual(list(self.out.iterdir()), [])
        mnist = self.mnist()
        images = mnist / 'train-images-idx3-ubyte'
        self.refused(self.train('--weights-out', str(images), data=mnist, limit='64', batch='16'), '--data reads it')

    def test_a_full_or_closed_stdout_is_noticed_before_the_search(self):
        for redirect, reason in (('> /dev/full', 'No space left'), ('>&-', 'Bad file descriptor')):
            with self.subTest(redirect):
                got = subprocess.run(['sh', '-c', f'"$@" {redirect}', 'sh', *self.command()], text=True,
                                     capture_output=True, timeout=SECONDS)
                self.refused(got, f'the output cannot be printed ({reason}')
                self.assertFalse(self.out.exists())

    def test_threads_that_the_machine_does_not_have_are_not_used(self):
        cores = len(os.sched_getaffinity(0))
        got = self.succeeds('--threads', str(cores + 1), '--policy', 'fp32')
        self.assertIn(f'Note: --threads {cores + 1} on a machine that runs {cores} at once: {cores} are used', got.stderr)
        self.assertEqual(self.summary()['hardware']['threads'], cores)

    def test_files_of_options_that_are_damaged_are_refused_with_the_option(self):
        bad = self.folder / 'bad.json'
        bad.write_text('{')
        for option in ('--plan', '--warm-start'):
            self.refused(self.train(option, str(bad)), f'train: {option}: "{bad}": no JSON')

    def checkpoint(self, which=''):
        return self.out / f'checkpoint{which}.safetensors'

    def trained(self, file=None):
        """Of a checkpoint: losses of its epochs, and all that counts."""
        metadata, _ = safetensors(file or self.checkpoint())
        about = json.loads(metadata['comp_training'])
        return [epoch['loss'] for epoch in about['progress']['so_far']['epochs']], about['numbers']

    def fp16_plan(self):
        """A plan to train with, so that nothing of a training depends on times; losses are scaled."""
        self.succeeds('--precisions', 'fp16')
        plan = max((row['plan'] for row in self.summary()['contest']), key=lambda letters: letters.count('0'))
        self.assertIn('0', plan)
        shutil.rmtree(self.out)
        file = self.folder / 'plan.json'
        file.write_text(json.dumps({'comp_plan': 1, 'plan': plan}))
        return file

    def test_steps_that_are_skipped_are_told(self):
        got = self.succeeds('--plan', str(self.fp16_plan()), '--scaling', str(2**40), '--epochs', '3')
        epochs = json.loads((self.out / 'training.json').read_text())['epochs']
        self.assertEqual(len(epochs), 3)
        for number, epoch in enumerate(epochs, 1):
            self.assertIn('4 steps skipped: FP16 gradients overflowed', epoch['message'])
            self.assertRegex(got.stdout, f"epoch {number:>3}: .*, {re.escape(epoch['message'])}\n")

    def written(self, got):
        line = got.stdout.splitlines()[-1]
        self.assertTrue(line.startswith('written: '), got.stdout)
        return [pathlib.Path(file.removesuffix(' (open it)')) for file in line.removeprefix('written: ').split(', ')]

    def test_the_last_line_names_what_was_written(self):
        weights, plan = self.folder / 'weights', self.folder / 'plan.json'
        got = self.succeeds('--policy', 'fp32')
        search = [self.out / name for name in ('plan.json', 'search.jsonl', 'summary.json', 'report.html')]
        training = [self.out / 'training.json', self.checkpoint()]
        self.assertEqual(self.written(got), [*search, *training])
        self.assertEqual(self.written(self.train('--policy', 'fp32', '--resume')), [*search, *training])
        shutil.copy(self.out / 'plan.json', plan)
        got = self.train('--plan', str(plan), '--weights-out', str(weights))
        self.assertEqual(self.written(got), [*training, weights])
        self.assertNotIn('Note: ', got.stderr)
        got = self.train('--plan', str(plan), '--warm-start', str(plan))
        self.assertIn('--warm-start is about a search, and none is made', got.stderr)

    def test_the_papers_search(self):
        got = self.succeeds('--search', 'paper', '--precisions', 'bf16')
        self.assertIn('Plans were judged by mean losses of whole epochs.', got.stdout)
        runs = [(line['stage'], line['sample']['batches']) for line in self.ledger() if 'stage' in line]
        self.assertEqual(runs[0], ('baseline', 4))
        self.assertIn(('losses', 4), runs)
        self.assertLessEqual(set(runs), {('baseline', 4), ('losses', 4), ('times', 1)})  # no stage 2 if FP32 was fastest
        self.refused(self.train('--search', 'paper', '--stage1', 'greedy'), 'the paper enumerates')
        self.refused(self.train('--search', 'paper', '--plans', '1'), 'exhaustive may try 1')

    def test_weights_are_written_as_any_reader_of_safetensors_wants_them(self):
        file = self.folder / 'weights.safetensors'
        got = self.succeeds('--weights-out', str(file), '--policy', 'fp32')
        self.assertIn(str(file), got.stdout)
        metadata, tensors = safetensors(file)
        self.assertEqual(metadata, {})
        self.assertEqual({name: shape for name, (shape, _) in tensors.items()},
                         {'layer0.linear.weight': [512, 64], 'layer0.linear.bias': [512],
                          'layer1.linear.weight': [512, 512], 'layer1.linear.bias': [512],
                          'head.weight': [10, 512], 'head.bias': [10]})
        for name, (shape, data) in tensors.items():
            self.assertEqual(len(data), 4 * math.prod(shape), name)
        kept = safetensors(self.checkpoint())[1]
        for name in tensors:
            self.assertEqual(kept[name], tensors[name])

    def test_a_training_that_ended_at_any_moment_goes_on_with_the_same_losses(self):
        plan, job = self.fp16_plan(), ['--epochs', '30', '--plan', str(self.folder / 'plan.json')]
        whole, resumed = self.folder / 'whole', self.folder / 'resumed'
        self.succeeds(*job, '--weights-out', str(whole))
        expected = self.trained()
        self.assertEqual(len(expected[0]), 30)
        for ending in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(ending.name):
                shutil.rmtree(self.out)
                code, complained = self.end_training(ending, job)
                self.assertEqual(code, -ending if ending == signal.SIGKILL else 128 + ending)
                if ending != signal.SIGKILL:
                    self.assertIn(f'--resume goes on from {self.checkpoint()}', complained)
                behind = len(self.trained()[0])
                self.assertGreater(behind, 0)
                self.assertLess(behind, 30, 'it ended by itself: make the job longer')
                got = self.succeeds(*job, '--resume', '--weights-out', str(resumed))
                self.assertIn(f'The training goes on after {behind} epochs', got.stdout)
                self.assertIn('epoch   1:', got.stdout)
                self.assertEqual(self.trained(), expected)
                self.assertEqual(resumed.read_bytes(), whole.read_bytes())
        self.assertTrue(plan.exists())

    def epochs_of(self, which):
        try:
            return len(self.trained(self.checkpoint(which))[0])
        except FileNotFoundError:
            return 0

    def end_training(self, ending, job):
        process = subprocess.Popen(self.command(*job), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=listen)
        deadline = time.monotonic() + SECONDS
        while not self.epochs_of('.previous') and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(ending)
        _, complained = process.communicate(timeout=SECONDS)
        if not self.checkpoint().exists():  # killed between two files
            shutil.copy(self.checkpoint('.previous'), self.checkpoint())
        return process.returncode, complained

    def test_a_folder_in_which_another_process_trains_is_refused(self):
        first = subprocess.Popen(self.command('--epochs', '100000', '--policy', 'fp32'), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        while not self.ledger() and first.poll() is None:
            time.sleep(0.002)
        before = self.ledger()
        for resume in ((), ('--resume',)):
            self.refused(self.train(*resume), f'--out "{self.out}" is in use')
        self.assertEqual(self.ledger()[:len(before)], before)

    def test_a_training_under_nohup_outlives_its_terminal(self):
        process = subprocess.Popen(self.command('--epochs', '10', '--plan', str(self.fp16_plan())), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        while not self.epochs_of('') and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGHUP)
        output, complained = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, complained)
        self.assertIn('epoch  10:', output)

    def test_a_training_after_a_search_goes_on_without_the_search_and_ends_as_the_one_that_was_not_ended(self):
        whole, resumed = self.folder / 'whole', self.folder / 'resumed'
        self.succeeds()
        searched = len(self.trained()[0])  # epochs that the search trained, as many as it needs on this machine
        job = ('--epochs', str(searched + 30), '--resume')
        process = subprocess.Popen(self.command(*job, '--weights-out', str(whole)), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        copy = self.folder / 'copy.safetensors'  # as a kill at that moment leaves it
        while process.poll() is None and (not copy.exists() or len(self.trained(copy)[0]) == searched):
            try:
                shutil.copy(self.checkpoint(), copy)
            except FileNotFoundError:
                continue
        _, complained = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, complained)
        expected, runs = self.trained(), self.runs()
        self.assertIn(len(self.trained(copy)[0]), range(searched + 1, searched + 30))
        shutil.copy(copy, self.checkpoint())
        self.succeeds(*job, '--weights-out', str(resumed))
        self.assertEqual(self.trained(), expected)
        self.assertEqual(resumed.read_bytes(), whole.read_bytes())
        self.assertEqual(self.runs(), runs)

    def test_of_a_damaged_checkpoint_the_one_before_is_taken(self):
        job = ['--plan', str(self.fp16_plan()), '--epochs', '4']
        self.succeeds(*job)
        expected = self.trained()
        self.assertEqual(len(self.trained(self.checkpoint('.previous'))[0]), 3)
        damaged = bytearray(self.checkpoint().read_bytes())
        damaged[-100] ^= 1
        half = self.out / 'checkpoint.safetensors.123.tmp'  # as a kill leaves it
        half.touch()
        self.checkpoint().write_bytes(damaged)
        got = self.succeeds(*job, '--resume')
        self.assertFalse(half.exists())
        self.assertIn('is damaged', got.stderr)
        self.assertIn('goes on after 3 epochs', got.stdout)
        self.assertEqual(self.trained(), expected)
        self.assertEqual(len(self.trained(self.checkpoint('.previous'))[0]), 3)  # the whole one, not the damaged one
        for which in ('', '.previous'):
            self.checkpoint(which).write_bytes(damaged[:1000])
        self.refused(self.train(*job, '--resume'), '--resume: ', 'is no whole safetensors file')

    def test_a_new_training_keeps_the_checkpoints_of_an_older_one_beside_and_goes_on_from_none(self):
        plan = self.fp16_plan()
        self.succeeds('--plan', str(plan), '--epochs', '3')
        old = self.checkpoint().read_bytes()
        self.succeeds('--plan', str(plan), '--epochs', '1')
        self.assertEqual((self.out / 'checkpoint.safetensors.old').read_bytes(), old)
        self.assertEqual(len(self.trained()[0]), 1)
        other = self.folder / 'other.json'
        other.write_text(plan.read_text().replace('0', '1', 1))
        self.refused(self.train('--plan', str(other), '--resume'), '--plan', 'is not what', 'leave out --plan')

    def test_a_checkpoint_that_cannot_be_written_does_not_end_the_training(self):
        def small_files_only():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        got = subprocess.run(self.command('--epochs', '3', '--policy', 'fp32'), text=True, capture_output=True,
                             timeout=SECONDS, preexec_fn=small_files_only)
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn('Note: no checkpoint after 2 epochs: ', got.stderr)
        self.assertIn('File too large', got.stderr)
        self.assertIn('epoch   3:', got.stdout)


@unittest.skipUnless(pathlib.Path(TRAIN).with_name('train_cuda').exists(), 'this build has no CUDA')
class TrainCuda(Runs):
    """--backend cuda: linked with CUDA's own libraries; what it does without a GPU, and on one if there is one."""

    def train(self, *more):
        job = ['--backend', 'cuda', '--epochs', '1', '--limit', '256', '--batch', '64', '--out', str(self.out)]
        return subprocess.run([TRAIN, *job, *more], text=True, capture_output=True, timeout=SECONDS)

    def test_without_a_gpu_one_sentence_names_the_alternative(self):
        got = self.train('--model', 'mlp', '--data', str(DIGITS))
        if got.returncode == 0:
            self.skipTest('there is a GPU')
        self.assertEqual((got.returncode, got.stdout), (1, ''), got.stderr)
        self.assertEqual(got.stderr, 'train: GPU 0 asked for (0 found by the CUDA driver): use one that is there, or the host '
                                     'device\n')
        self.assertFalse(self.out.exists())

    @unittest.skipUnless(pathlib.Path('/dev/nvidia0').exists(), 'there is no GPU')
    def test_on_a_gpu_a_search_writes_what_it_promises(self):
        self.succeeds('--model', 'mlp', '--data', str(DIGITS))
        json.loads((self.out / 'plan.json').read_text())
        self.assertEqual(json.loads((self.out / 'summary.json').read_text())['hardware']['kind'], 'cuda')


@unittest.skipUnless(pathlib.Path(TRAIN).with_name('train_libtorch').exists(), 'this build has no LibTorch')
class TrainLibTorch(Runs):
    """--backend libtorch: the same program to the user, on made-up data if none is named."""

    def train(self, *more):
        job = ['--backend', 'libtorch', '--batch', '16', '--limit', '64', '--epochs', '1', '--threads', '1']
        return subprocess.run([TRAIN, *job, '--out', str(self.out), *more], text=True, capture_output=True, timeout=SECONDS)

    def test_a_search_writes_what_it_promises_and_its_plan_can_be_trained_with(self):
        self.succeeds('--model', 'gan')
        for file in ('plan.json', 'summary.json'):
            json.loads((self.out / file).read_text())
        self.assertTrue((self.out / 'report.html').exists())
        ledger = (self.out / 'search.jsonl').read_text()
        again = self.succeeds('--model', 'gan', '--plan', str(self.out / 'plan.json'))
        self.assertEqual((self.out / 'search.jsonl').read_text(), ledger)  # no search

    def test_weights_are_written_as_libtorch_reads_them(self):
        for model, modules in (('simplenet', 1), ('gan', 2)):
            with self.subTest(model):
                file = self.out.parent / model
                self.succeeds('--model', model, '--weights-out', str(file))
                with zipfile.ZipFile(file) as archive:  # LibTorch's archives are zip files
                    self.assertIsNone(archive.testzip())
                    self.assertGreater(sum('/data/' in name for name in archive.namelist()), modules)

    def test_a_model_that_it_lacks_is_refused_with_those_it_has(self):
        self.refused(self.train('--model', 'mlp'), 'mlp is no model of backend libtorch (it trains alexnet, vgg16, gan,')

    def test_weights_that_cannot_be_used_are_named(self):
        self.refused(self.train('--model', 'bert', '--weights', str(DIGITS)), 'train: --data or --weights: ', 'is no whole safetensors file')
        self.refused(self.train('--model', 'gan', '--weights', str(DIGITS)), 'only bert has it')


if __name__ == '__main__':
    unittest.main()
