# SPDX-License-Identifier: Apache-2.0
"""Trainings of two processes, searched as one, and what goes wrong on one of them. The processes meet in a file, as those
that torchrun starts meet in its store."""

import contextlib
import copy
import datetime
import hashlib
import json
import multiprocessing
import os
import pathlib
import pickle
import shutil
import signal
import tempfile
import time
import unittest
import warnings

os.environ.setdefault('OMP_NUM_THREADS', '1')

import torch
import torch.distributed as dist
from support import QUICK
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import comp

RANK, FOLDER = 0, ''  # of a process that run() starts
TIMEOUT = 8  # seconds that a rank may take to answer


def net(seed=1, width=256):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def epochs_in(part):
    return torch.load(part, weights_only=False)['set']['epochs']


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
        return float(sum(whole(p).detach().double().abs().sum() for p in self.net.parameters()))


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, 'full_tensor') else tensor


def shard(net, **how):
    """Linear layers one by one, and then what is left."""
    mesh = init_device_mesh('cpu', (2,))
    for layer in [part for part in net.modules() if isinstance(part, nn.Linear)]:
        fully_shard(layer, mesh=mesh, **how)
    return fully_shard(net, mesh=mesh, **how)


class LooksAtFormats(nn.Linear):
    """As some layers of transformers do."""

    def forward(self, x):
        return super().forward(x if x.dtype == self.weight.dtype else x.to(self.weight.dtype))


class Averaged(Training):
    """Averages its weights, and names the averages to nobody."""

    def __init__(self, wrap):
        super().__init__(wrapped=False)
        self.net = wrap(nn.Sequential(nn.LayerNorm(64), *self.net[:-1], LooksAtFormats(256, 4)))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-3)
        self.averages = [p.detach().clone() for p in self.net.parameters()]

    def step(self, plan, batch):
        loss = super().step(plan, batch)
        for average, weight in zip(self.averages, self.net.parameters()):
            average.lerp_(weight.detach(), 0.1)
        return loss

    def end(self):
        return [self.weights(), float(sum(whole(each).double().abs().sum() for each in self.averages))]


class Sharded(Averaged):
    def __init__(self, **how):
        super().__init__(lambda net: shard(net, **how))


class Unsharded(Averaged):
    def __init__(self):
        super().__init__(DistributedDataParallel)


class ViewsBuckets(Averaged):
    def __init__(self):
        super().__init__(lambda net: DistributedDataParallel(net, gradient_as_bucket_view=True))


def facts(found, training):
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
    data = facts(found, training)
    found.save(os.path.join(FOLDER, f'plan{RANK}.json'))
    searched = found.trained_batches // found.batches_per_epoch  # more on a busy machine
    result = found.train(epochs=searched + 4)
    return data | {'final': result.epochs[-1].loss, 'epochs': len(result.epochs) - searched, 'end': training.weights()}


def is_trained_in_fp32():
    training = Training(ranks=dist.get_world_size() if dist.is_initialized() else 1)
    found = training.search(policy='all_fp32')
    result = found.train(epochs=20)
    return facts(found, training) | {'final': [e.loss for e in result.epochs], 'plans': result.plan}


def is_stopped_by_a_callback():
    training = Training()
    result = training.search(policy='all_fp32').train(epochs=50, callbacks=[lambda progress: len(progress.epochs) >= 20])
    return {'epochs': len(result.epochs), 'weights': training.weights()}


def has_a_static_graph_and_views_buckets():
    training = Training(static_graph=True, gradient_as_bucket_view=True)
    return facts(training.search(), training)


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
    return facts(training.search(), training)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = net()

    def forward(self, x):
        return self.layers(x)


def is_examined():
    """As PyTorch 104336: parameters that are converted lose the hooks by which gradients are averaged."""
    found = {}
    for name, convert in {'sound': lambda net: net, 'converted': lambda net: net.double().float()}.items():
        training = Training()
        convert(training.net)
        report = comp.doctor(training.step, training.data, model=training.net, steps=12)
        found[name] = [f.kind for f in report.faults]
    return found


def is_compiled():
    """What is inside of DistributedDataParallel, and what is around it. Compilation takes longer on rank 1."""
    results = []
    for inside in True, False:
        training, graphs = Training(), []

        def backend(graph, inputs):
            graphs.append(graph)
            time.sleep(0.2 * RANK)
            return aot_eager(graph, inputs)

        def compiled(module):
            return torch.compile(module, backend=backend)

        training.net = Classifier()
        training.optimizer = torch.optim.SGD(training.net.parameters(), 0.01)
        if inside:
            training.net = DistributedDataParallel(compiled(training.net))
        else:
            training.net = compiled(DistributedDataParallel(training.net))
        found = training.search(planned_epochs=10000)  # so that the contest may compile
        by_search = len(graphs)
        result = found.train(epochs=10)
        results.append([found.compiled, by_search > 1, found.plan, result.plan, training.weights()])
    return {'said': results}


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
    return facts(training.search(), training)


def is_sharded():
    results = {}
    for kind in Sharded, Unsharded:
        training = kind()
        found = training.search(policy='all_fp32')
        result = found.train(epochs=12)
        losses = [*found.baseline.curve, *(e.loss for e in result.epochs)]
        results[kind.__name__] = [found.fingerprint, losses, training.end(), any('averages' in e for e in found.also_saved)]
    return results


def runs_a_plan_sharded():
    """Steps of two micro-batches, and between them forwards without gradients, outside of the plan and under it."""
    path = os.path.join(FOLDER, 'plan.json')
    Unsharded().search(policy=in_bf16).save(path)
    choose(path, lambda op: 'bf16' if 'linear' in op['name'] else 'fp32')
    results = {}
    for kind in Sharded, Unsharded:
        training, sizes = kind(), []
        plan, layer = comp.plan(path, training.net), [m for m in training.net.modules() if isinstance(m, nn.Linear)][1]
        layer.register_forward_pre_hook(lambda module, inputs: sizes.append(module.weight.element_size()))
        losses = []
        for batch in training.data[:4]:
            for i, (x, y) in enumerate(zip(*[half.chunk(2) for half in batch])):
                sync = i == 1 or kind is Sharded
                if kind is Sharded:
                    training.net.set_requires_gradient_sync(i == 1)
                with contextlib.nullcontext() if sync else training.net.no_sync():
                    with plan:
                        loss = cross_entropy(training.net(x), y)
                    loss.backward()
                losses.append(float(loss))
            training.optimizer.step()
            training.optimizer.zero_grad()
            with torch.no_grad():
                losses.append(float(training.net(batch[0]).sum()))
                with plan:
                    training.net(batch[0])
            losses.append(training.weights())
        results[kind.__name__] = losses
        results['formats of ' + kind.__name__] = sizes[-4:]
        results['left of ' + kind.__name__] = plan.left
    return results


def choose(path, precision):
    """Gives each operator of the file the precision that `precision(operator)` returns, whatever was fastest."""
    if RANK == 0:
        with open(path) as file:
            content = json.load(file)
        for each in content['operators']:
            each['precision'] = precision(each)
        content['plan'] = ''.join('b' if each['precision'] == 'bf16' else '1' for each in content['operators'])
        with open(path, 'w') as file:
            json.dump(content, file)
    dist.barrier()


def exchanges_by_a_plan():
    """Gradients of one backward, and what they are to be; and those of a backward outside of the plan."""
    path = os.path.join(FOLDER, 'plan.json')
    found = Unsharded().search()
    found.save(path)
    results = {'last': [found.operators[-1].name, found.operators[-1].kind], 'equal': [], 'outside': []}
    for name, format in ('fp32', torch.float32), ('bf16', torch.bfloat16):
        choose(path, lambda op: name if op['kind'] == 'all_reduce' else 'fp32')
        for make in Sharded, Unsharded, ViewsBuckets:
            training, plain = make(), Averaged(lambda net: net)
            plan = comp.plan(path, training.net)
            for inside in True, False:
                x, y = training.data[inside]
                with plan if inside else contextlib.nullcontext():
                    loss = cross_entropy(training.net(x), y)
                loss.backward()
                cross_entropy(plain.net(x), y).backward()
                sums = [(p.grad / 2).to(format if inside else torch.float32) for p in plain.net.parameters()]
                for each in sums:
                    dist.all_reduce(each)
                same = [torch.equal(whole(p.grad), s.float()) for p, s in zip(training.net.parameters(), sums)]
                results['equal' if inside else 'outside'].append(all(same))
                training.optimizer.zero_grad()
                plain.optimizer.zero_grad()
    return results


def exchanges_as_is_fast():
    """Gradients in the slow format take 20 ms more. Returns: the format that the search found, by the slow one."""
    results, all_reduce = {}, dist.all_reduce
    for slow in torch.float32, torch.bfloat16:

        def slowed(tensor, **more):
            time.sleep(0.02 * (tensor.dtype is slow))
            return all_reduce(tensor, **more)

        dist.all_reduce = slowed
        training = Training()
        found = training.search()
        results[str(slow)] = found.plan.partition('@')[0][-1]
    dist.all_reduce = all_reduce
    return results


def has_an_exchange_of_its_own():
    path = os.path.join(FOLDER, 'plan.json')
    Training().search().save(path)
    choose(path, lambda op: 'bf16')
    results = {'refused': []}
    hooked, reduced = Training(), Sharded(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    hooked.net.register_comm_hook(None, allreduce_hook)
    for each in hooked, reduced:
        try:
            each.search(exchange=True)
        except comp.SettingsError as error:
            results['refused'].append(str(error))
    results['kinds'] = [training.search().operators[-1].kind for training in (hooked, reduced)]
    results['left out'] = Training().search(exchange=False).operators[-1].kind
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter('always')
        comp.plan(path, hooked.net)
    results['warned'] = [str(each.message) for each in messages]
    return results


def loops(training, steps, **more):
    """A loop that searches while it runs, until a plan is found. A plan saves time for each operator that is low, on rank 1 less."""
    given = {'precisions': ['bf16'], 'batches_per_epoch': 16, 'race': QUICK['race']} | more
    plan = comp.autocast(training.net, optimizer=training.optimizer, **given)
    letters = []
    for k in range(steps):
        loss = training.step(plan, training.data[k % len(training.data)])
        letters.append(plan.letters)
        plan.step(loss, seconds=100.0 + 7.0 * RANK - (2 - RANK) * plan.letters.count('b'))
        if plan.found is not None:
            break
    return plan, letters


def searches_in_its_loop():
    results = {}
    for kind in Unsharded, Sharded:
        file = os.path.join(FOLDER, kind.__name__ + '.json')
        training = kind()
        training.optimizer.param_groups[0]['lr'] = 1e-5  # or these few batches are soon known by heart
        plan, letters = loops(training, 900, file=file)
        dist.barrier()
        again, _ = loops(training, 18, file=file, forced=True)
        results[kind.__name__] = {
            'letters': letters,
            'found': plan.found.plan,
            'exchange': plan.found.operators[-1].kind,
            'used': again.letters,
            'weights': training.weights(),
        }
    return results


def harms_rank_1_in_its_loop():
    results = {}
    for kind in Training, Sharded:
        training = kind()
        layer = [m for m in training.net.modules() if isinstance(m, nn.Linear)][1]

        def harm(module, inputs, out):
            return out * float('nan') if out.dtype == torch.bfloat16 and RANK == 1 else out

        layer.register_forward_hook(harm)
        plan, letters = loops(training, 900, tune=False)
        at = [i for i, op in enumerate(plan.found.operators) if 'linear' in op.kind][1]
        results[kind.__name__] = [letters, plan.batches_undone, plan.found.plan[at], training.weights()]
    return results


def has_a_plan_on_rank_0_alone():
    file = os.path.join(FOLDER, f'plan{RANK}.json')
    if RANK == 0:
        pathlib.Path(file).touch()
    training = Training()
    return comp.autocast(training.net, optimizer=training.optimizer, file=file)


def copies_what_was_searched():
    """Returns: whether gradients of the copies travel in the plan's format."""
    path = os.path.join(FOLDER, 'plan.json')
    training, results = Training(), {}
    training.search().save(path)
    choose(path, lambda op: 'bf16' if op['kind'] == 'all_reduce' else 'fp32')
    for name, copied in ('copied', copy.deepcopy(training.net)), ('pickled', pickle.loads(pickle.dumps(training.net))):
        plan = comp.plan(path, copied)
        x, y = training.data[0]
        with plan:
            loss = cross_entropy(copied(x), y)
        loss.backward()
        results[name] = all(torch.equal(p.grad, p.grad.bfloat16().float()) for p in copied.parameters())
    return results


def fails_sharded():
    """In BF16, in the midst of the forward. Then the training is put back to its start."""
    training = Sharded()

    def refuse_bf16(module, inputs):
        if torch.is_grad_enabled() and module.weight.element_size() == 2:
            raise RuntimeError('no BF16 here')

    training.net[3].register_forward_pre_hook(refuse_bf16)
    before = [whole(p).tolist() for p in training.net.parameters()]
    x, y = training.data[0]

    def loss():
        with torch.no_grad():
            return float(cross_entropy(training.net(x), y))  # it leaves the root's parameters whole

    def step(plan, batch, ordinary=training.step):
        result = ordinary(plan, batch)
        loss()
        return result

    training.step = step
    first = loss()
    found = training.search(keep=False)
    again = loss()
    training.net.reshard()
    after = [whole(p).tolist() for p in training.net.parameters()]
    return {'trials': [t.sample.message for t in found.trials], 'losses': [first, again], 'same': before == after}


def is_spread_otherwise():
    """In ways that are refused. Returns: what is said."""

    def lowered():
        return Sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))

    def in_parts():
        training = Training(wrapped=False)
        parallelize_module(training.net, init_device_mesh('cpu', (2,)), {'0': ColwiseParallel()})
        return training

    errors = []
    for make in lowered, in_parts:
        try:
            make().search()
        except comp.SettingsError as error:
            errors.append(str(error))
    return {'said': errors}


def goes_on_from_a_ledger():
    """Twice: the worker is killed in the first search, when two runs are in the ledger. A file says that it was."""
    training, ledger, killed = Training(), os.path.join(FOLDER, 'ledger.jsonl'), os.path.join(FOLDER, 'killed')

    def before_step(plan, step):
        if RANK == 1 and not os.path.exists(killed) and os.path.exists(ledger) and len(open(ledger).readlines()) > 2:
            open(killed, 'w').close()
            os.kill(os.getpid(), signal.SIGKILL)

    training.before_step = before_step
    return facts(training.search(ledger=ledger), training)


class Kept(Training):
    """Has generators and an order of data of its own on each rank, and a checkpoint."""

    def __init__(self):
        super().__init__(wrapped=False)
        self.net = nn.Sequential(*net(), nn.Dropout(0.1))
        if os.path.exists(os.path.join(FOLDER, 'sharded')):
            shard(self.net)
        elif dist.is_initialized():
            self.net = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-3)
        self.average = next(self.net.parameters()).detach().clone()  # named to nobody
        torch.manual_seed(100 + RANK)
        self.data = torch.utils.data.DataLoader(self.data, batch_size=None, shuffle=True)
        self.path = os.path.join(FOLDER, 'training.pt')

    def step(self, plan, batch):
        loss = super().step(plan, batch)
        self.average.lerp_(next(self.net.parameters()).detach(), 0.1)
        return loss

    def part(self, path=None):
        return (path or self.path) + ('.rank1' if RANK else '')

    def resume(self, path=None, **more):
        given = {'model': self.net, 'optimizer': self.optimizer, 'data': self.data, 'epochs': EPOCHS, 'progress': False}
        return comp.resume(path or self.path, self.step, **given | more)

    def end(self, result):
        tensors = [*map(whole, [*self.net.state_dict().values(), self.average]), torch.get_rng_state()]
        weights = hashlib.sha256(b''.join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()
        return {'end': weights, 'epochs': len(result.epochs), 'plan': result.plan, 'loss': result.epochs[-1].loss}


EPOCHS = 45  # a search on a busy machine may train dozens of them


def in_bf16(op):
    return comp.fixed('bf16') if 'linear' in op.kind else comp.follow()


def to_the_end(training, **how):
    """Keeps copies of both ranks' parts as they were at first and in the midst of the training."""

    def before_step(plan, step):
        if not os.path.exists(training.part()):
            return
        first, begun = (training.part(os.path.join(FOLDER, name)) for name in ('first.pt', 'begun.pt'))
        if not os.path.exists(first):
            shutil.copy(training.part(), first)
        if epochs_in(training.part()) == EPOCHS - 5:
            shutil.copy(training.part(), begun)

    training.before_step = before_step
    found = training.search(**how)
    return training.end(found.train(epochs=EPOCHS, checkpoint=training.path)) | {'trained': found.trained_batches}


def trains_to_the_end_in_fp32():
    return to_the_end(Kept(), policy='all_fp32')


def trains_to_the_end_in_bf16():
    return to_the_end(Kept(), policy=in_bf16)


def goes_on():
    """From training.pt. A file "kill" says which rank kills itself, and when: once."""
    training, killing = Kept(), os.path.join(FOLDER, 'kill')
    plan = open(killing).read() if os.path.exists(killing) else ''

    def die():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(killing)
        os.kill(os.getpid(), signal.SIGKILL)

    begun = []

    def before_step(plan_, step):
        begun.append(step)
        if plan == f'rank {RANK} in an epoch' and len(begun) == 30:
            die()

    def replace(old, new, replace=os.replace):
        if plan == f'rank {RANK} before its file is named' and new == training.part() and epochs_in(old) == EPOCHS - 3:
            die()
        replace(old, new)

    training.before_step = before_step
    os.replace = replace
    return training.end(training.resume())


def is_refused():
    """Each time with other files, which are there before. Then from the one that is whole."""
    results = {}
    for name in sorted(os.listdir(FOLDER)):
        if not name.endswith('.pt'):
            continue
        try:
            results[name] = Kept().resume(os.path.join(FOLDER, name), epochs=1).plan
        except comp.Error as error:
            results[name] = f'{type(error).__name__}: {error}'
    return results


def has_a_full_disk_from_the_start():
    training = Kept()
    if RANK == 1:
        os.symlink('/dev/full', os.path.join(FOLDER, 'training.pt.rank1.new.tmp'))
    return training.end(training.search(policy='all_fp32').train(epochs=EPOCHS, checkpoint=training.path))


def has_no_process_group():
    os.environ['WORLD_SIZE'] = '2'
    return Training(ranks=1).search()


def serve(rank, folder, scenario, ranks, answer):
    """One of the processes."""
    global RANK, FOLDER
    RANK, FOLDER = rank, folder
    if ranks > 1:
        dist.init_process_group(
            'gloo',
            init_method='file://' + os.path.join(FOLDER, 'store'),
            rank=RANK,
            world_size=ranks,
            timeout=datetime.timedelta(seconds=TIMEOUT),
        )
    began = time.monotonic()
    try:
        results = globals()[scenario]()
    except Exception as error:
        results = {'error': type(error).__name__, 'words': str(error)}
    answer.send(json.dumps(results | {'seconds': time.monotonic() - began}))
    os._exit(0)  # a rank that lost another may not be able to leave the group in order


def run(scenario, ranks=2, wait_for=(0, 1), folder=None):
    """Starts the processes, as forks: importing torch anew would take most of the time. Returns: by rank what each said,
    None for one that was killed or not waited for; the files that they made."""
    if folder is None:
        with tempfile.TemporaryDirectory() as directory:
            return run(scenario, ranks, wait_for, directory)
    forks, running, answers = multiprocessing.get_context('fork'), [], []
    try:
        for rank in range(ranks):
            hears, answer = forks.Pipe(duplex=False)
            running.append((forks.Process(target=serve, args=(rank, folder, scenario, ranks, answer)), hears))
            running[-1][0].start()
            answer.close()
        for rank, (process, hears) in enumerate(running):
            if rank in wait_for and not hears.poll(150):
                raise AssertionError(f'rank {rank} of {scenario} says nothing for 150 s')
            try:
                answers.append(json.loads(hears.recv()) if rank in wait_for else None)
            except EOFError:
                process.join()
                if process.exitcode != -signal.SIGKILL:
                    raise AssertionError(f'rank {rank} of {scenario} ended with {process.exitcode}: see above') from None
                answers.append(None)
    finally:
        for process, _ in running:
            process.kill()
            process.join()
    return answers, sorted(os.listdir(folder))


class Ranks(unittest.TestCase):
    def test_two_ranks_find_one_plan_and_train_the_same_weights(self):
        (first, second), files = run('is_searched')
        self.assertEqual(first.pop('seconds') > 0, second.pop('seconds') > 0)
        self.assertEqual(first, second)
        self.assertGreater(first['trained'], 8)
        self.assertEqual(first['epochs'], 4)
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

    def test_other_ways_of_buckets(self):
        for scenario in 'has_a_static_graph_and_views_buckets', 'has_buffers_and_accumulates':
            (first, second), _ = run(scenario)
            self.assertEqual(first['plan'], second['plan'], scenario)
            self.assertEqual(first['weights'], second['weights'], scenario)

    def test_compiled_models_are_compared_compiled_and_train_compiled(self):
        (first, second), _ = run('is_compiled')
        self.assertEqual(first.get('said'), second.get('said'), (first, second))
        for each in first['said']:
            self.assertEqual(each[:2], [True, True])

    def test_a_plan_that_fails_on_one_rank_has_failed_on_both(self):
        (first, second), _ = run('has_no_bf16_kernel_on_rank_1')
        self.assertEqual(first['plan'], second['plan'])
        self.assertIn('rank 1: no BF16 on this rank', first['trials'])
        self.assertNotIn('b', first['plan'][2])

    def test_the_doctor_names_weights_that_part(self):
        for answer in run('is_examined')[0]:
            self.assertEqual((answer['sound'], answer['converted']), ([], ['rank_difference']))

    def test_loops_search_as_one_and_change_their_plan_at_the_same_batch(self):
        (first, second), files = run('searches_in_its_loop')
        for kind in 'Unsharded', 'Sharded':
            here, there = first[kind], second[kind]
            self.assertEqual(here, there, kind)
            self.assertIn('b', here['found'])
            self.assertEqual(here['exchange'], 'all_reduce')
            self.assertIn('b', here['used'])
            self.assertIn(kind + '.json', files)

    def test_a_plan_of_a_loop_that_harms_one_rank_is_undone_on_all(self):
        (first, second), _ = run('harms_rank_1_in_its_loop')
        for kind in 'Training', 'Sharded':
            letters, undone, precision, weights = first[kind]
            self.assertEqual(first[kind], second[kind])
            self.assertGreater(undone, 0)
            self.assertEqual(precision, '1')
            self.assertGreater(weights, 0)  # and so no NaN

    def test_a_plan_file_that_one_rank_lacks_is_told_on_all(self):
        for each in run('has_a_plan_on_rank_0_alone')[0]:
            self.assertEqual(each.get('error'), 'FileError', each)
            self.assertIn('is on rank 0 and not on rank 1 (all ranks train under one plan)', each['words'])


class Faults(unittest.TestCase):
    """Each ends within three timeouts: torch's own wait in a step, and that of comp, which is twice as long."""

    def expect(self, answer, kind, words):
        self.assertEqual(answer.get('error'), kind, answer)
        for each in words:
            self.assertIn(each, answer['words'])
        self.assertLess(answer['seconds'], 60 + 3 * TIMEOUT)

    def test_a_search_goes_on_from_the_ledger_of_one_that_lost_its_worker(self):
        with tempfile.TemporaryDirectory() as folder:
            answers, _ = run('goes_on_from_a_ledger', folder=folder)
            self.assertIsNone(answers[1])
            self.expect(answers[0], 'RankError', ['rank 1 does not answer rank 0'])
            with open(os.path.join(folder, 'ledger.jsonl')) as ledger:
                before = len(ledger.readlines())
            self.assertGreater(before, 2)
            os.unlink(os.path.join(folder, 'store'))
            (first, second), _ = run('goes_on_from_a_ledger', folder=folder)
        self.assertEqual(first['plan'], second['plan'])
        self.assertEqual(first['recalled'], before - 1)  # a line says whose runs they are

    def test_a_step_raises_on_one_rank(self):
        answers, _ = run('raises_on_rank_1')
        self.expect(answers[1], 'ValueError', ['the sample is broken'])
        self.assertLess(max(each['seconds'] for each in answers), TIMEOUT)  # nobody waits for its backward
        self.expect(answers[0], 'RankError', ['rank 1: ValueError: the sample is broken'])

    def test_processes_without_a_process_group_are_told_what_to_do(self):
        answers, _ = run('has_no_process_group', ranks=1, wait_for=(0,))
        self.expect(answers[0], 'SettingsError', ['WORLD_SIZE is 2', 'init_process_group before comp.search'])


class ShardedModels(unittest.TestCase):
    """By fully_shard, on two ranks: their sums are those of DistributedDataParallel."""

    def test_a_search_trains_to_the_bits_of_an_unsharded_one(self):
        for answer in run('is_sharded')[0]:
            self.assertEqual(answer['Sharded'], answer['Unsharded'])
            self.assertTrue(answer['Sharded'][-1])  # its averages were found

    def test_weights_are_gathered_in_the_formats_of_the_plan_and_train_to_the_same_bits(self):
        for answer in run('runs_a_plan_sharded')[0]:
            self.assertEqual(answer['Sharded'], answer['Unsharded'])
            self.assertEqual(answer['formats of Sharded'], [2, 2, 4, 2])  # bytes of a number
            self.assertEqual(answer['formats of Unsharded'], [4] * 4)
            self.assertEqual(answer['left of Sharded'], [0, ''])

    def test_whole_parameters_of_another_moment_are_not_read(self):
        for answer in run('fails_sharded')[0]:
            self.assertTrue(any('rank 1: no BF16 here' in each for each in answer['trials']))
            self.assertTrue(answer['same'])
            self.assertEqual(*answer['losses'])

    def test_models_that_are_spread_otherwise_are_refused(self):
        for each in run('is_spread_otherwise')[0]:
            lowered, in_parts = each['said']
            self.assertIn('is sharded with MixedPrecisionPolicy(param_dtype=torch.bfloat16)', lowered)
            self.assertIn('the forward reads a part of parameter "0.weight"', in_parts)


class GradientExchange(unittest.TestCase):
    def test_gradients_are_exchanged_in_the_format_of_the_plan_whose_region_the_forward_ran_in(self):
        for answer in run('exchanges_by_a_plan')[0]:
            self.assertEqual(answer['last'], ['gradients.all_reduce', 'all_reduce'])
            self.assertEqual(answer['equal'], [True] * 6)
            self.assertEqual(answer['outside'], [True] * 6)

    def test_a_search_finds_the_format_that_is_fast(self):
        for answer in run('exchanges_as_is_fast')[0]:
            self.assertEqual(answer['torch.float32'], 'b')
            self.assertEqual(answer['torch.bfloat16'], '1')

    def test_a_communication_hook_and_a_reduce_dtype_stay(self):
        for answer in run('has_an_exchange_of_its_own')[0]:
            hooked, reduced = answer['refused']
            self.assertIn('DistributedDataParallel has a communication hook, allreduce_hook', hooked)
            self.assertIn('MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)', reduced)
            self.assertEqual([*answer['kinds'], answer['left out']], ['aten::cross_entropy_loss'] * 3)
            self.assertIn('the plan has gradients exchanged in bf16, and they are not', answer['warned'][0])

    def test_copies_of_a_model_that_was_searched_follow_plans_too(self):
        for answer in run('copies_what_was_searched')[0]:
            self.assertEqual([answer['copied'], answer['pickled']], [True, True], answer)


class Checkpoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_in_folder(self, scenario, **more):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path('store'))
        return run(scenario, folder=self.folder, **more)

    def begin_again(self, begun, kill):
        for end in '', '.rank1':
            shutil.copy(self.path(begun + end), self.path('training.pt' + end))
        with open(self.path('kill'), 'w') as file:
            file.write(kill)

    def check_that_it_ends_alike(self, whole, kill, killed, begun='begun.pt'):
        self.begin_again(begun, kill)
        answers, _ = self.run_in_folder('goes_on')
        self.assertIsNone(answers[killed], kill)
        self.assertEqual(answers[1 - killed]['error'], 'RankError', kill)
        self.assertIn(f'rank {killed} does not answer rank {1 - killed}', answers[1 - killed]['words'])
        self.assertLess(answers[1 - killed]['seconds'], 60 + 3 * TIMEOUT)
        self.assertFalse(os.path.exists(self.path('kill')))
        again, files = self.run_in_folder('goes_on')
        for rank in 0, 1:
            for what in 'end', 'epochs', 'plan', 'loss':
                self.assertEqual(again[rank][what], whole[rank][what], (kill, rank, what))
        self.assertEqual([name for name in files if '.new' in name], [])

    def test_a_training_goes_on_to_the_same_bits_whichever_rank_was_killed(self):
        whole, files = self.run_in_folder('trains_to_the_end_in_bf16')
        self.assertIn('b', whole[0]['plan'])
        self.assertIn('training.pt.rank1', files)
        self.assertNotEqual(whole[0]['end'], whole[1]['end'])  # generators are of each rank
        self.check_that_it_ends_alike(whole, 'rank 0 in an epoch', 0)
        self.check_that_it_ends_alike(whole, 'rank 1 before its file is named', 1, 'first.pt')

    def test_a_training_of_a_sharded_model_goes_on_to_the_same_bits(self):
        open(self.path('sharded'), 'w').close()
        whole, _ = self.run_in_folder('trains_to_the_end_in_bf16')
        self.assertIn('b', whole[0]['plan'])
        self.check_that_it_ends_alike(whole, 'rank 1 in an epoch', 1)

    def test_files_that_are_not_of_one_moment_are_refused_on_all_ranks(self):
        self.run_in_folder('trains_to_the_end_in_fp32')
        os.unlink(self.path('first.pt'))
        for name in 'training.pt', 'training.pt.rank1':
            with open(self.path(name), 'rb') as file:
                whole = file.read()
            with open(self.path(name.replace('training', 'damaged')), 'wb') as file:
                file.write(whole[: len(whole) // 2] if name.endswith('1') else whole)
        shutil.copy(self.path('training.pt'), self.path('alone.pt'))
        shutil.copy(self.path('training.pt'), self.path('mixed.pt'))
        shutil.copy(self.path('begun.pt.rank1'), self.path('mixed.pt.rank1'))
        (first, second), _ = self.run_in_folder('is_refused')
        words = {
            'damaged.pt': ('FileError', 'damaged.pt.rank1" is no whole checkpoint'),
            'alone.pt': ('FileError', 'alone.pt.rank1" cannot be read (No such file or directory)'),
            'mixed.pt': (
                'FileError',
                f'mixed.pt.rank1" was not written with "{self.path("mixed.pt")}" (this is of rank 1 after {EPOCHS - 5} '
                f'epochs, that of {EPOCHS}; all ranks go on from one moment of one training)',
            ),
        }
        for name, (kind, why) in words.items():
            self.assertIn(kind + ': rank 1: ', first[name])
            for message in first[name], second[name]:
                self.assertTrue(message.startswith(kind), message)
                self.assertIn(why, message)
        self.assertEqual(first['training.pt'], '1' * len(first['training.pt']))
        self.assertEqual(second['training.pt'], first['training.pt'])
        ((alone,), _) = self.run_in_folder('is_refused', ranks=1, wait_for=(0,))
        refused = 'SettingsError: .* is of a training on 2 ranks, and there are 1 here .*: start 2'
        self.assertRegex(alone['training.pt'], refused)

    def test_a_first_part_that_cannot_be_written_is_an_error_on_all_ranks(self):
        answers, files = self.run_in_folder('has_a_full_disk_from_the_start')
        for each in answers:
            self.assertEqual(each['error'], 'FileError', each)
            self.assertIn('rank 1: ', each['words'])
            self.assertIn('training.pt.rank1" cannot be written (No space left on device)', each['words'])
        self.assertNotIn('training.pt', files)


if __name__ == '__main__':
    unittest.main()
