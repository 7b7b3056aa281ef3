# SPDX-License-Identifier: Apache-2.0
"""Trainings of two processes, searched as one, and what goes wrong on one of them. The processes meet in a file, as those
that torchrun starts meet in its store."""

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

os.environ.setdefault('OMP_NUM_THREADS', '1')

import torch
import torch.distributed as dist
from support import QUICK
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import comp

RANK = int(sys.argv[1]) if len(sys.argv) == 5 else 0
TIMEOUT = 8  # seconds that a rank may take to answer


def net(seed=1, width=256):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def batches(count=12, size=32):
    generator = torch.Generator().manual_seed(5)
    y = torch.randint(0, 4, (count, size), generator=generator)
    return list(zip(torch.randn(count, size, 64, generator=generator) + 0.3 * y[..., None], y))


class Training:
    """Each rank has its half of each batch of 32; a single process has the whole."""

    def __init__(self, ranks=2, wrapped=True, data=None, **extra):
        size = 32 // ranks
        here = slice(size * RANK, size * RANK + size)
        self.net = DistributedDataParallel(net(), **extra) if wrapped and ranks > 1 else net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.01, momentum=0.9)
        self.data = [(x[here], y[here]) for x, y in (data or batches())]
        self.steps = 0
        self.before_step = lambda plan, step: None

    def step(self, plan, batch):
        self.steps += 1
        self.before_step(plan, self.steps)
        x, y = batch
        with plan:
            loss = cross_entropy(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def search(self, **more):
        given = {'precisions': ['bf16'], **QUICK, **more}
        return comp.search(self.step, model=self.net, optimizer=self.optimizer, data=self.data, **given)

    def weights(self):
        return float(sum(p.detach().double().abs().sum() for p in self.net.parameters()))


def told(found, training):
    return {
        'plan': found.plan,
        'trained': found.trained_batches,
        'speedup': found.speedup,
        'weights': training.weights(),
        'warnings': found.warnings,
        'trials': [t.sample.message for t in found.trials],
        'losses': list(found.baseline.curve),
        'recalled': found.summary()['runs_from_ledger'],
    }


# What the processes do: each returns what the test looks at.


def is_searched():
    training = Training()
    found = training.search(ledger=os.path.join(FOLDER, 'ledger.jsonl'), report=os.path.join(FOLDER, 'report.html'))
    said = told(found, training)
    found.save(os.path.join(FOLDER, f'plan{RANK}.json'))
    result = found.train(epochs=20)
    return said | {'final': [e.loss for e in result.epochs][-1], 'epochs': len(result.epochs), 'end': training.weights()}


def is_trained_in_fp32():
    training = Training(ranks=dist.get_world_size() if dist.is_initialized() else 1)
    found = training.search(policy='all_fp32')
    result = found.train(epochs=20)
    return told(found, training) | {'final': [e.loss for e in result.epochs], 'plans': result.plan}


def is_stopped_by_a_callback():
    training = Training()
    result = training.search(policy='all_fp32').train(epochs=50, callbacks=[lambda progress: len(progress.epochs) >= 20])
    return {'epochs': len(result.epochs), 'weights': training.weights()}


def is_uneven():
    data = batches()
    training = Training(data=data[:10] if RANK == 1 else data)
    found = training.search(policy='all_fp32')
    return told(found, training) | {'epoch': found.batches_per_epoch}


def views_buckets():
    training = Training(gradient_as_bucket_view=True)
    return told(training.search(), training)


def has_a_static_graph():
    training = Training(static_graph=True)
    return told(training.search(), training)


def has_buffers_and_accumulates():
    training = Training()
    training.net = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(64), *net()))
    training.optimizer = torch.optim.AdamW(training.net.parameters(), 1e-3)

    def step(plan, batch):
        halves = [half.chunk(2) for half in batch]
        for at, (x, y) in enumerate(zip(*halves)):
            with training.net.no_sync() if at == 0 else contextlib.nullcontext():
                with plan:
                    loss = cross_entropy(training.net(x), y) / 2
                loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        return loss

    training.step = step
    return told(training.search(), training)


def sends(which, when):
    training = Training()

    def before_step(plan, step):
        if RANK == which and step == 20:
            os.kill(os.getpid(), when)

    training.before_step = before_step
    return training.search()


def loses_its_worker():
    return sends(1, signal.SIGKILL)


def loses_rank_0():
    return sends(0, signal.SIGKILL)


def waits_for_its_worker():
    return sends(1, signal.SIGSTOP)


def raises_on_rank_1():
    training = Training()

    def before_step(plan, step):
        if RANK == 1 and step == 5:  # in FP32
            raise ValueError('the sample is broken')

    training.before_step = before_step
    return training.search()


def has_no_bf16_kernel_on_rank_1():
    training = Training()

    def refuse_bf16(module, inputs):
        if inputs[0].dtype == torch.bfloat16:
            raise RuntimeError('no BF16 on this rank')

    if RANK == 1:
        training.net.module[2].register_forward_pre_hook(refuse_bf16)
    return told(training.search(), training)


def has_another_model():
    training = Training(wrapped=False)
    if RANK == 1:
        training.net = nn.Sequential(nn.Linear(64, 4), nn.Tanh())
        training.optimizer = torch.optim.SGD(training.net.parameters(), 0.05)
    return training.search()


def is_sharded():
    training = Training(wrapped=False)
    fully_shard(training.net, mesh=init_device_mesh('cpu', (2,)))
    return training.search()


def goes_on_from_a_ledger():
    """Twice: the worker is killed in the first search, by a file that is there from then on."""
    training, ledger, killed = Training(), os.path.join(FOLDER, 'ledger.jsonl'), os.path.join(FOLDER, 'killed')

    def before_step(plan, step):
        if RANK == 1 and step == 40 and not os.path.exists(killed):
            open(killed, 'w').close()
            os.kill(os.getpid(), signal.SIGKILL)

    training.before_step = before_step
    return told(training.search(ledger=ledger), training)


def keeps_a_checkpoint():
    training = Training()
    return training.search(policy='all_fp32').train(epochs=6, checkpoint=os.path.join(FOLDER, 'training.pt'))


def has_no_process_group():
    os.environ['WORLD_SIZE'] = '2'
    return Training(ranks=1).search()


def main():
    """One of the processes."""
    if FOLDER_HAS_STORE:
        dist.init_process_group(
            'gloo',
            init_method='file://' + os.path.join(FOLDER, 'store'),
            rank=RANK,
            world_size=2,
            timeout=datetime.timedelta(seconds=TIMEOUT),
        )
    began = time.monotonic()
    try:
        said = globals()[sys.argv[3]]()
    except Exception as error:
        said = {'error': type(error).__name__, 'words': str(error)}
    print(json.dumps(said | {'seconds': time.monotonic() - began}), flush=True)
    os._exit(0)  # a rank that lost another may not be able to leave the group in order


if len(sys.argv) == 5:
    FOLDER, FOLDER_HAS_STORE = sys.argv[2], sys.argv[4] == 'ranks'
    main()


def run(scenario, ranks=2, wait_for=(0, 1), folder=None):
    """Starts the processes. Returns: by rank what each said, None for one that was killed or not waited for; the files
    that they made."""
    if folder is None:
        with tempfile.TemporaryDirectory() as made:
            return run(scenario, ranks, wait_for, made)
    kind = 'ranks' if ranks > 1 else 'alone'
    running = [
        subprocess.Popen(
            [sys.executable, '-W', 'ignore', __file__, str(rank), folder, scenario, kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
        )
        for rank in range(ranks)
    ]
    said = []
    try:
        for rank, each in enumerate(running):
            out, complained = each.communicate(timeout=150) if rank in wait_for else ('', '')
            if rank in wait_for and each.returncode == 0 and not out:
                raise AssertionError(complained)
            said.append(json.loads(out) if out else None)
    finally:
        for each in running:
            each.kill()
            each.communicate()
    return said, sorted(os.listdir(folder))


class Ranks(unittest.TestCase):
    def test_two_ranks_find_one_plan_and_train_the_same_weights(self):
        (first, second), files = run('is_searched')
        self.assertEqual(first.pop('seconds') > 0, second.pop('seconds') > 0)
        self.assertEqual(first, second)
        self.assertGreater(first['trained'], 8)
        self.assertEqual(first['epochs'], 20)
        self.assertIn('plan0.json', files)
        self.assertNotIn('plan1.json', files)  # rank 0 writes
        self.assertIn('report.html', files)
        self.assertIn('ledger.jsonl', files)

    def test_the_losses_are_those_of_one_process_with_the_whole_batch(self):
        (first, second), _ = run('is_trained_in_fp32')
        ((alone,), _) = run('is_trained_in_fp32', ranks=1, wait_for=(0,))
        self.assertEqual(first['weights'], second['weights'])
        for here, there in zip(first['losses'], alone['losses'], strict=True):
            self.assertAlmostEqual(here, there, delta=1e-5 * there)
        for here, there in zip(first['final'], alone['final'], strict=True):
            self.assertAlmostEqual(here, there, delta=1e-3 * there)  # roundings grow from step to step

    def test_a_callback_of_rank_0_ends_the_training_on_both(self):
        (first, second), _ = run('is_stopped_by_a_callback')
        self.assertEqual(first.pop('seconds') > 0, second.pop('seconds') > 0)
        self.assertEqual(first, second)
        self.assertEqual(first['epochs'], 20)

    def test_epochs_end_with_the_shortest(self):
        said, _ = run('is_uneven')
        for each in said:
            self.assertEqual(each['epoch'], 10)
            self.assertEqual(sum('from 10 to 12 batches' in w for w in each['warnings']), 1, each['warnings'])
        self.assertEqual(said[0]['weights'], said[1]['weights'])

    def test_other_ways_of_buckets(self):
        for scenario in 'views_buckets', 'has_a_static_graph', 'has_buffers_and_accumulates':
            (first, second), _ = run(scenario)
            self.assertEqual(first['plan'], second['plan'], scenario)
            self.assertEqual(first['weights'], second['weights'], scenario)

    def test_a_plan_that_fails_on_one_rank_has_failed_on_both(self):
        (first, second), _ = run('has_no_bf16_kernel_on_rank_1')
        self.assertEqual(first['plan'], second['plan'])
        self.assertIn('rank 1: no BF16 on this rank', first['trials'])
        self.assertNotIn('b', first['plan'][2])


class Faults(unittest.TestCase):
    """Each ends within three timeouts: torch's own wait in a step, and that of comp, which is twice as long."""

    def expect(self, said, kind, words):
        self.assertEqual(said.get('error'), kind, said)
        for each in words:
            self.assertIn(each, said['words'])
        self.assertLess(said['seconds'], 60 + 3 * TIMEOUT)

    def test_a_worker_is_killed(self):
        said, _ = run('loses_its_worker')
        self.assertIsNone(said[1])
        self.expect(said[0], 'RankError', ['rank 1 does not answer rank 0'])

    def test_rank_0_is_killed(self):
        said, _ = run('loses_rank_0')
        self.assertIsNone(said[0])
        self.expect(said[1], 'RankError', ['rank 0 does not answer rank 1'])

    def test_a_search_goes_on_from_the_ledger_of_one_that_lost_its_worker(self):
        with tempfile.TemporaryDirectory() as folder:
            said, _ = run('goes_on_from_a_ledger', folder=folder)
            self.expect(said[0], 'RankError', ['rank 1 does not answer rank 0'])
            with open(os.path.join(folder, 'ledger.jsonl')) as ledger:
                before = len(ledger.readlines())
            self.assertGreater(before, 2)
            os.unlink(os.path.join(folder, 'store'))
            (first, second), _ = run('goes_on_from_a_ledger', folder=folder)
        self.assertEqual(first['plan'], second['plan'])
        self.assertEqual(first['recalled'], before - 1)  # a line says whose runs they are

    def test_a_sharded_model_is_refused(self):
        said, _ = run('is_sharded')
        for each in said:
            self.expect(each, 'SettingsError', ['the model is sharded by FSDP'])

    def test_a_worker_stops(self):
        said, _ = run('waits_for_its_worker', wait_for=(0,))
        self.expect(said[0], 'RankError', ['rank 1 does not answer rank 0', f'more than {2 * TIMEOUT} s'])

    def test_a_step_raises_on_one_rank(self):
        said, _ = run('raises_on_rank_1')
        self.expect(said[1], 'ValueError', ['the sample is broken'])
        self.assertLess(max(each['seconds'] for each in said), TIMEOUT)  # nobody waits for its backward
        self.expect(said[0], 'RankError', ['rank 1: ValueError: the sample is broken'])

    def test_another_model(self):
        said, _ = run('has_another_model')
        for each in said:
            self.expect(each, 'SettingsError', ['rank 1 has 3 operators and rank 0 6', 'build the same model on all ranks'])

    def test_a_checkpoint_is_refused(self):
        said, _ = run('keeps_a_checkpoint')
        for each in said:
            self.expect(each, 'SettingsError', ['a checkpoint on 2 ranks'])

    def test_processes_without_a_process_group_are_told_what_to_do(self):
        said, _ = run('has_no_process_group', ranks=1, wait_for=(0,))
        self.expect(said[0], 'SettingsError', ['WORLD_SIZE is 2', 'init_process_group before comp.search'])


if __name__ == '__main__':
    unittest.main()
