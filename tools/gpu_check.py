# SPDX-License-Identifier: Apache-2.0
# ./run gpu-check: on a machine with a GPU builds for it, runs every test on it, compute-sanitizer over the kernels, then the
# benchmarks. A part that fails does not keep the others from running. Writes out/gpu-check.json after each part, the output
# of each to out/gpu-check/, and the section of docs/benchmarks/cuda.md.
# If a machine is lent by the quarter of an hour: --first does what tells most in so many minutes, --only a slice or a part of
# one at a time, --limit ends in time, --rest does what that left out; the results add up as long as device, driver and sources
# stay the same. --render writes the section anew from out/gpu-check.json, which may come from another machine.
# What is outside of compilers' paths may travel: COMP_EXTRA_INCLUDE names folders of headers (fmt, nlohmann, range/v3, doctest),
# separated by colons; of cuDNN, cuBLASLt and cuSPARSE those that the toolkit is without come from the wheels of a Python.
import argparse
import datetime
import glob
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import gpu_report

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUERY = ['--query-gpu=name,driver_version,compute_cap,memory.total', '--format=csv,noheader,nounits']
WATCH = [f'--query-gpu={",".join(gpu_report.STATE)}', '--format=csv,noheader,nounits', '--loop=1']
DRIVER_FOLDERS = '/usr/local/nvidia/bin:/usr/lib/wsl/lib'  # where containers and WSL have the driver's programs
ASK_TORCH = """
try:
    import torch
    print(torch.cuda.is_available())
except ModuleNotFoundError as fault:
    print('none' if fault.name == 'torch' else fault)
except Exception as fault:
    print(fault)
"""
NO_GPU = 'There is no GPU here ({}): ./run test checks the CUDA backend without one.'
WHEEL_LIBRARIES = {'cudnn': 'cudnn.h', 'cublasLt': 'cublasLt.h', 'cusparse': 'cusparse.h'}
SOURCES = ('backends', 'bench', 'include', 'python', 'tests', 'tools', 'meson.build', 'meson_options.txt')
LARGE = '*/test_large.cpp'  # too large to be watched access by access
KERNELS = ('elementwise', 'row', 'table', 'pooling')  # tests/cuda_on_cpu/test_*_kernels.cpp
ROWS = ('steps transformer', 'torch gpt', 'steps vgg16')  # of the bench: products, PyTorch beside them, convolutions
BY_MODEL = ('steps', 'torch', 'python')  # benchmarks that list models and take one at a time
PYTHON_TESTS = ('trainings', 'training', 'state')  # tests/python/test_*.py whose trainings can be on a GPU
CUT = 'the end of --limit'  # status of a command that was ended because all time was over


def said_by(command, **more):
    """What a short command prints; None if it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, **more)  # torch from a cold disk takes minutes
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def find_smi():
    return shutil.which('nvidia-smi') or shutil.which('nvidia-smi', path=DRIVER_FOLDERS)


def find_device():
    """The first GPU, or the reason that there is none, as a pair."""
    smi = find_smi()
    if not smi:
        return None, 'nvidia-smi, which comes with the driver, is not installed'
    found = gpu_report.devices_of(said_by([smi, *QUERY]) or '')
    return (found[0], None) if found else (None, 'nvidia-smi lists none')


def find_tool(name, nvcc=None):
    """A tool of the CUDA toolkit: in PATH, beside nvcc, or in the toolkit's usual folders."""
    beside = [pathlib.Path(nvcc).resolve().parent] if nvcc else []
    folders = [*beside, *(f.parent / 'compute-sanitizer' for f in beside), pathlib.Path('/usr/local/cuda/bin'),
               pathlib.Path('/usr/local/cuda/compute-sanitizer')]
    return shutil.which(name) or next((str(f / name) for f in folders if os.access(f / name, os.X_OK)), None)


def pythons(path, without):
    """Every python3 of the path, but for those under a folder."""
    found = [pathlib.Path(folder, 'python3') for folder in path.split(':') if folder]
    return [str(p) for p in found if os.access(p, os.X_OK) and without not in p.parents]


def find_torch(path, without):
    """A Python whose torch sees a GPU, or the reason that there is none, as a pair."""
    reason = 'no Python here has torch'
    for python in pythons(path, without):
        said = (said_by([python, '-c', ASK_TORCH]) or 'none').strip()
        if said == 'True':
            return python, None
        if said == 'False':
            reason = 'the torch that is here has no CUDA or sees no GPU'
        elif said != 'none':
            reason = f'the torch that is here cannot be imported ({said.splitlines()[-1]})'
    return None, reason


def lacking(folders):
    """The libraries whose headers are in none of these folders."""
    return [name for name, header in WHEEL_LIBRARIES.items() if not any(pathlib.Path(f, header).exists() for f in folders)]


def from_wheels(wanted, sites, links):
    """Folders of headers and libraries that NVIDIA's wheels brought; a link of the name that linkers look for beside each."""
    include, library = [], []
    for name in wanted:
        header = WHEEL_LIBRARIES[name]
        headers = [h for s in sites for h in sorted(glob.glob(f'{s}/nvidia/*/include/{header}'))]
        libraries = [p for s in sites for p in sorted(glob.glob(f'{s}/nvidia/*/lib/lib{name}.so.*'))]
        if not headers or not libraries:
            continue
        include.append(os.path.dirname(headers[0]))
        library.append(os.path.dirname(libraries[0]))
        links.mkdir(parents=True, exist_ok=True)
        link = links / f'lib{name}.so'
        link.unlink(missing_ok=True)
        link.symlink_to(libraries[0])
    return list(dict.fromkeys(include)), list(dict.fromkeys(library))


def extended(environment, links, toolkit):
    """The environment of compilers and programs, with what travelled and what wheels brought behind what is there."""
    known = [toolkit / 'include', '/usr/include', f'/usr/include/{os.uname().machine}-linux-gnu']
    extra = [os.path.abspath(f) for f in environment.get('COMP_EXTRA_INCLUDE', '').split(':') if f]
    sites = []
    for python in pythons(environment.get('PATH', ''), ROOT / '.venv'):
        sites += (said_by([python, '-c', 'import site; print(*site.getsitepackages(), sep="\\n")']) or '').split()
    include, library = from_wheels(lacking([*known, *extra]), list(dict.fromkeys(sites)), links)
    made = dict(environment)

    def append(variable, folders):
        present = [f for f in made.get(variable, '').split(':') if f]
        if present + folders:
            made[variable] = ':'.join(dict.fromkeys(present + folders))
    append('CPATH', extra)
    append('CPLUS_INCLUDE_PATH', include)  # behind the toolkit's own headers, which a wheel may repeat
    append('LIBRARY_PATH', [str(links)] * bool(library))
    append('LD_LIBRARY_PATH', library)
    return made


def digest_of(root):
    """Of the sources' names and bytes."""
    hashed = hashlib.sha256()
    named = [root / name for name in SOURCES]
    for file in sorted([f for f in named if f.is_file()] + [f for folder in named for f in folder.rglob('*') if f.is_file()]):
        if '__pycache__' not in file.parts:
            hashed.update(f'{file.relative_to(root)}\n'.encode() + file.read_bytes())
    return hashed.hexdigest()[:10]


def commit_of(root):
    """What is measured; of sources that no commit names, or that git is not there to ask about, their digest."""
    commit = said_by(['git', '-C', root, 'rev-parse', '--short', 'HEAD'])
    if not commit:
        return f'sources {digest_of(root)}'
    changed = said_by(['git', '-C', root, 'status', '--porcelain', '--untracked-files=no', '--', '.', ':!docs/benchmarks/cuda.md'])
    return commit.strip() + (f' with changes (sources {digest_of(root)})' if changed else '')


def wanted_of(only):
    """{slice: its parts that are wanted, none for all}, of words like bench and bench:torch; all slices if none is given."""
    wanted = {}
    for slice_name, _, part in (word.partition(':') for word in only or gpu_report.SLICES):
        wanted.setdefault(slice_name, set()).add(part)
    return {name: set() if '' in parts else parts for name, parts in wanted.items()}


class Check:
    def __init__(self, root, device, environment, wanted, part_limit=560, limit=math.inf, rest=False):
        self.root, self.build, self.out = root, root / 'build/gpu', root / 'out/gpu-check'
        self.environment, self.wanted, self.rest = environment, wanted, rest
        self.part_limit, self.ends = part_limit, time.monotonic() + limit
        self.file = root / 'out/gpu-check.json'
        self.result = {'device': device, 'commit': commit_of(root), 'parts': {}, 'bench': {}}
        self.take_earlier()
        self.result['date'] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        self.ran, self.left = [], []
        self.python = find_torch(environment.get('PATH', ''), root / '.venv')  # and the reason if there is none

    def take_earlier(self):
        """What an earlier run found counts on, if it is about the same device, driver and commit."""
        try:
            earlier = json.loads(self.file.read_text())
        except (OSError, ValueError):
            return
        if all(earlier.get(key) == self.result[key] for key in ('device', 'commit')):
            self.result |= {key: earlier[key] for key in ('parts', 'bench')}

    def save(self):
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(json.dumps(self.result, indent=1) + '\n')

    def takes(self, slice_name, name):
        """Whether this part is asked for. One named "steps" takes "steps mlp" too."""
        earlier = self.result['parts'].get(f'{slice_name}: {name}', {})
        if self.rest and earlier.get('passed') and not earlier['failed']:
            return False
        parts = self.wanted.get(slice_name, set())
        return not parts or name in parts or name.split(' ')[0] in parts

    def has_time(self, slice_name, name):
        """A part that would not begin in time is left for the next run."""
        if self.ends - time.monotonic() >= 10:
            return True
        self.left.append(f'{slice_name}: {name}')
        return False

    def was_cut(self, slice_name, name, status):
        """A part for which the time did not suffice is left for the next run, too."""
        if status == CUT:
            self.left.append(f'{slice_name}: {name}')
        return status == CUT

    def note(self, slice_name, name, passed, failed, seconds, why='', **more):
        part = {'name': name, 'slice': slice_name, 'passed': passed, 'failed': failed, 'seconds': round(seconds, 1), 'why': why, **more}
        self.result['parts'][f'{slice_name}: {name}'] = part
        self.ran.append(part)
        print(f"{name}: {'failed' if failed else 'passed' if passed else 'left out'}{', ' if why else ''}{why}", flush=True)
        self.save()

    def forget(self, slice_name):
        """What stood in the way of a slice when it ran before is looked for again."""
        for name in ('configure', 'programs', 'compute-sanitizer', 'gpu_check.py'):
            self.result['parts'].pop(f'{slice_name}: {name}', None)

    def run(self, name, command, **more):
        """Status, output and seconds; the output goes to a file too. A command that takes too long is ended whole."""
        return self.end(self.start(name, command, **more), self.part_limit)

    def start(self, name, command, **more):
        self.out.mkdir(parents=True, exist_ok=True)
        log = self.out / (re.sub(r'\W+', '-', name) + '.log')
        print(f'== {name}', flush=True)
        with log.open('w') as to:
            process = subprocess.Popen([str(c) for c in command], stdout=to, stderr=subprocess.STDOUT, cwd=self.root,
                                       env=self.environment | more, start_new_session=True)
        return process, log, time.monotonic()

    @staticmethod
    def stop(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end(self, started, part_limit=math.inf):
        """What run() returns, of what start() did."""
        process, log, begin = started
        until = min(self.ends, begin + part_limit)
        try:
            status = process.wait(max(until - time.monotonic(), 1) if math.isfinite(until) else None)
        except subprocess.TimeoutExpired:
            status = CUT if until == self.ends else f'a limit of {part_limit:.0f} s'
        finally:  # also if this script is interrupted
            self.stop(process)
        return status, log.read_text(errors='replace'), time.monotonic() - begin

    # Each of these notes one part or several, and returns nothing else.

    def configure(self, slice_name):
        """Returns: whether there is a build folder to go on with. One that was made elsewhere, or with other headers at hand, is
        made anew: Meson remembers what it found."""
        architecture = self.result['device']['compute_capability'].replace('.', '')
        options = ['--buildtype=release', '-Dcuda=enabled', f'-Dgpu_architectures={architecture}', '-Dtests=auto', '-Dbench=auto',
                   '-Dexamples=auto', '-Dnvcc=disabled', *self.torch_options()]
        surroundings = json.dumps([self.environment.get(key) for key in ('CXX', 'CPATH', 'CPLUS_INCLUDE_PATH', 'LIBRARY_PATH', 'PATH')] + options)
        made_by, status = self.build / 'made_by', 'untried'
        if made_by.exists() and made_by.read_text() == surroundings:
            status, text, seconds = self.run('configure', ['meson', 'setup', '--reconfigure', self.build, *options])
        if status:
            shutil.rmtree(self.build, ignore_errors=True)
            status, text, seconds = self.run('configure', ['meson', 'setup', self.build, *options])
            self.build.mkdir(parents=True, exist_ok=True)
            made_by.write_text(surroundings if not status else '')
        if status and not self.was_cut(slice_name, 'build', status):
            errors = re.findall(r'ERROR: (.*)', text)
            self.note(slice_name, 'configure', 0, 1, seconds, errors[-1] if errors else f'meson ended with {status}')
        return not status

    def torch_options(self):
        """LibTorch and the Python package are built for the torch that sees the GPU."""
        python, _ = self.python
        folder = python and said_by([python, '-c', 'import torch; print(torch.__path__[0])'])
        return ['-Dlibtorch=auto', f'-Dlibtorch_path={folder.strip()}', '-Dpython=auto', f'-Dpython_path={python}'] if folder \
            else ['-Dlibtorch=disabled', '-Dpython=disabled']

    def programs(self, kind):
        """What Meson knows of this suite: [(name, command)]. Of the Python package it is the compiled part."""
        def asked(what):
            return json.loads(said_by(['meson', 'introspect', f'--{what}', str(self.build)], env=self.environment) or '[]')
        if kind == 'demo':
            return [('demo', t['filename']) for t in asked('targets') if t['name'] == 'train_cuda']
        if kind == 'python':
            return [('python', t['filename']) for t in asked('targets') if t['name'].startswith('_comp')]
        return [(p['name'].removeprefix('gpu '), p['cmd']) for p in asked(kind) if p['name'].startswith('gpu ')]

    def building(self, name, programs):
        folder = str(self.build.resolve()) + '/'
        targets = [c[0].removeprefix(folder) for _, c in programs if c[0].startswith(folder)] or ['build.ninja']  # not all there is
        jobs = ['-j', os.environ['JOBS']] if os.environ.get('JOBS') else []
        return self.start(name, ['ninja', '-C', self.build, '-k', '0', *jobs, *targets])

    def note_build(self, slice_name, name, started):
        """Waits for a build, however long a part may take. Returns: whether there was time for it."""
        status, text, seconds = self.end(started)
        if self.was_cut(slice_name, name, status):
            return False
        why = '' if not status else next((line for line in text.splitlines() if 'error:' in line or 'FAILED' in line), f'ninja ended with {status}')
        self.note(slice_name, name, int(not status), int(bool(status)), seconds, why)
        return True

    def there(self, slice_name, programs):
        """Those that were built; one that is missing is noted."""
        found = [(name, command) for name, command in programs if shutil.which(command[0], os.F_OK)]
        for name, command in programs:
            if slice_name != 'build' and (name, command) not in found:
                self.note(slice_name, name, 0, 1, 0, 'was not built')
        return found

    def built(self, slice_name, kinds, wants):
        """The programs of these kinds whose names are wanted, built as far as they can be; none if the time did not suffice."""
        if not self.has_time(slice_name, 'build') or not self.configure(slice_name):
            return []
        known = [program for kind in kinds for program in self.programs(kind)]
        if not known:
            self.note(slice_name, 'programs', 0, 1, 0, 'the build folder has none: see out/gpu-check/configure.log')
        programs = [(name, command) for name, command in known if wants(name)]
        if not programs or not self.note_build(slice_name, 'build', self.building('build', programs)):
            return []
        return self.there(slice_name, programs)

    def build_all(self):
        self.built('build', ['tests', 'benchmarks', 'demo', 'python'], lambda name: True)

    def first(self):
        """What tells most, in the order in which each minute does; while the programs of one stage run, those of the next are built.
        What is whole here is a part of its slice, which --rest then leaves out."""
        if not self.has_time('first', 'build') or not self.configure('first'):
            return
        tests, benches, demo, python = (dict(self.programs(kind)) for kind in ('tests', 'benchmarks', 'demo', 'python'))
        rows = {name.split(' ')[0] for name in ROWS if self.takes('bench', name)}
        stages = [('kernels', {name: tests[name] for name in tests if name == 'kernels'}, self.first_kernels),
                  ('tests', {name: tests[name] for name in tests if name not in ('kernels', 'libtorch')}, self.first_tests),
                  ('bench', demo | {name: benches[name] for name in benches if name in rows}, self.first_bench),
                  *([('python', python, self.first_python)] if python else [])]
        building = None
        try:
            for number, (stage, programs, run) in enumerate(stages):
                building = building or self.building(f'build {stage}', programs.items())
                if not self.note_build('first', f'build {stage}', building):
                    self.left += [f'first: build {later}' for later, _, _ in stages[number + 1:]]
                    return
                building = None
                for following, following_programs, _ in stages[number + 1:number + 2]:
                    building = self.building(f'build {following}', following_programs.items())
                run(dict(self.there('first', programs.items())))
        finally:
            if building:
                self.stop(building[0])

    def first_kernels(self, there):
        for family in KERNELS if 'kernels' in there else ():
            self.test('first', f'{family} kernels', [*there['kernels'], f'--source-file=*test_{family}_kernels*'], COMP_TEST_SMALL='1')

    def first_tests(self, there):
        if 'operators' in there:
            self.test('first', 'contract', [*there['operators'], '--source-file=*native/devices*'], COMP_TEST_SMALL='1')
        if 'training' in there:
            self.test('first', 'models beside the host', [*there['training'], '--test-case=one step of each model*'])
        self.note_missing()

    def first_bench(self, there):
        if 'demo' in there:
            self.demo(there['demo'])
        for name in ROWS:
            program, _, model = name.partition(' ')
            if program == 'torch':
                self.torch(model)
            elif program in there:
                self.bench_of(program, there[program], name)

    def first_python(self, there):
        if there:
            self.test_python('trainings')
            self.bench_python('gpt2')

    def test(self, slice_name, name, command, **more):
        if not self.takes(slice_name, name) or not self.has_time(slice_name, name):
            return
        status, text, seconds = self.run(f'test {name}', command, **more)
        if self.was_cut(slice_name, name, status):
            return
        passed, failed = gpu_report.counts_of(text) or (0, 0)
        if status == 77:
            failed, why = 1, 'the program found no GPU'
        elif status or failed:
            said = [line for line in text.splitlines() if line.strip()]
            first = next((line for line in said if 'ERROR:' in line or 'error' in line), None)
            failed, why = max(failed, 1), first or ': '.join([f'ended with {status}', *said[-1:]])
        else:
            why = '' if passed else 'ran no test case'
            failed = int(not passed)
        self.note(slice_name, name, passed, failed, seconds, why, libraries=gpu_report.libraries_of(text))

    def tests(self):
        for name, command in self.built('tests', ['tests', 'demo', 'python'], self.takes_any_of):
            if name == 'demo':
                self.demo(command)
            elif name == 'python':
                for file in PYTHON_TESTS:
                    self.test_python(file)
            else:
                self.test('tests', name, command)
        if (self.build / 'build.ninja').exists():
            self.note_missing()

    def note_missing(self):
        without_torch = self.python[1] or 'Meson left it out, see out/gpu-check/configure.log'
        for name, kind, why in (('training', 'tests', 'trainings beside the host device, which needs oneDNN 2.6 or newer (dnnl): not here'),
                                ('demo', 'demo', 'train --backend cuda needs CLI11, zlib, libzip, utf8proc and libjpeg: not here'),
                                ('libtorch', 'tests', f'LibTorch on the GPU: {without_torch}'),
                                ('python', 'python', f'the Python package on the GPU: {without_torch}')):
            if self.takes('tests', name) and name not in dict(self.programs(kind)):
                self.note('tests', name, 0, 0, 0, why)

    def takes_any_of(self, name):
        return self.takes('tests', name) or name == 'python' and any(self.takes('tests', f'python {file}') for file in PYTHON_TESTS)

    def python_needs(self):
        """The environment of a script: the package as it lies in the build folder, modules of its tests, torch's own libraries."""
        folders = [self.build / 'python', self.root / 'tests/python', self.root / 'bench/python']
        return {'PYTHONPATH': ':'.join(map(str, folders)), 'LD_LIBRARY_PATH': os.environ.get('LD_LIBRARY_PATH', ''), 'PYTHONWARNINGS': 'ignore',
                'COMP_TEST_DEVICE': 'cuda', 'CUBLAS_WORKSPACE_CONFIG': ':4096:8'}  # with the latter cuBLAS repeats its bits

    def test_python(self, file):
        self.test('tests', f'python {file}', [self.python[0], str(self.root / f'tests/python/test_{file}.py')], **self.python_needs())

    def bench_python(self, model=None):
        self.bench_of('python', [self.python[0], str(self.root / 'bench/python/on_gpu.py')], f'python {model}' if model else None,
                      **self.python_needs())

    def demo(self, command):
        """The search of ./run demo --backend cuda, on text that is in the project."""
        if not self.takes('tests', 'demo') or not self.has_time('tests', 'demo'):
            return
        status, text, seconds = self.run('demo', [*command, '--model', 'transformer', '--data', 'CHANGELOG.md', '--limit', '2400',
                                                  '--epochs', '5', '--out', self.out / 'demo'])
        if self.was_cut('tests', 'demo', status):
            return
        last = next((line for line in reversed(text.splitlines()) if line.strip()), '')
        self.note('tests', 'demo', int(not status), int(bool(status)), seconds, f'ended with {status}: {last}' if status else '')

    def sanitizer(self):
        tool = find_tool('compute-sanitizer', find_tool('nvcc'))
        if not tool:
            return self.note('sanitizer', 'compute-sanitizer', 0, 0, 0,
                             'it is not installed: it is part of the CUDA toolkit (package cuda-sanitizer)')
        checks = [check for check in ('memcheck', 'racecheck') if self.takes('sanitizer', f'{check} kernels')]
        for name, command in self.built('sanitizer', ['tests'], lambda name: name == 'kernels') if checks else []:
            for check in checks:
                if not self.has_time('sanitizer', f'{check} {name}'):
                    continue
                status, text, seconds = self.run(f'{check} {name}', [tool, '--tool', check, '--error-exitcode', '86', *command,
                                                                     f'--source-file-exclude={LARGE}'], COMP_TEST_SMALL='1')
                if self.was_cut('sanitizer', f'{check} {name}', status):
                    continue
                why = gpu_report.sanitizer_verdict(check, status, text)
                self.note('sanitizer', f'{check} {name}', int(not why), int(bool(why)), seconds, why or '')

    def bench(self):
        programs = {part.split(' ')[0] for part in self.wanted['bench']}  # none if all are wanted
        if programs != {'torch'}:
            for name, command in self.built('bench', ['benchmarks', 'python'], lambda name: not programs or name in programs):
                if name == 'python':
                    self.bench_python()
                else:
                    self.bench_of(name, command)
        if not programs or 'torch' in programs:
            self.torch()

    def torch(self, model=None):
        if not self.has_time('bench', f'torch {model}' if model else 'torch'):
            return
        python, reason = self.python
        if python:  # with its own libraries, not those that were found for the backend
            self.bench_of('torch', [python, str(self.root / 'bench/cuda/torch_steps.py')], f'torch {model}' if model else None,
                          LD_LIBRARY_PATH=os.environ.get('LD_LIBRARY_PATH', ''))
        else:
            if not self.result['bench'].get('torch', {}).get('rows'):
                self.result['bench']['torch'] = {'rows': [], 'why': reason}
            self.note('bench', 'torch', 0, 0, 0, reason)

    def bench_of(self, name, command, only=None, **more):
        """A benchmark; one that lists models by the model, so that none takes another's time or device along."""
        models = (said_by([*command, '--models'], env=self.environment | more) or '').split() if name in BY_MODEL else []
        if models:
            self.result['parts'].pop(f'bench: {name}', None)  # of a time when it could not list them
        parts = {f'{name} {model}': [*command, f'--model={model}'] for model in models} or {name: command}
        for part, line in parts.items():
            if only in (None, part) and self.takes('bench', part) and self.has_time('bench', part):
                self.measure(part, line, **more)

    def watch(self):
        """A program that writes each second what the GPU is like; measure() ends it."""
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / 'state.csv').open('w') as to:
            return subprocess.Popen([find_smi(), *WATCH], stdout=to, stderr=subprocess.DEVNULL)

    def measure(self, name, command, **more):
        """Runs `command FILE`, which writes JSON."""
        file = self.out / (name.replace(' ', '-') + '.json')
        file.unlink(missing_ok=True)
        watching = self.watch()
        try:
            status, text, seconds = self.run(f'bench {name}', [*command, file], **more)
        finally:
            watching.kill()
            watching.wait()
        if self.was_cut('bench', name, status):
            return
        last = next((line for line in reversed(text.splitlines()) if line.strip()), '')
        bench, figures_of = self.result['bench'], name.split(' ')[0]
        try:
            bench[figures_of] = gpu_report.merged(bench.get(figures_of), json.loads(file.read_text()))
        except (OSError, ValueError):
            status = status or 'no figures'
        states = gpu_report.ranges_of(gpu_report.states_of((self.out / 'state.csv').read_text()))
        self.note('bench', name, int(not status), int(bool(status)), seconds, f'ended with {status}: {last}' if status else '', gpu=states,
                  libraries=gpu_report.libraries_of(text))


def render(root, result):
    page = root / 'docs/benchmarks/cuda.md'
    page.write_text(gpu_report.with_section(page.read_text(), gpu_report.section(result)))


def render_again(root):
    file = root / 'out/gpu-check.json'
    try:
        render(root, json.loads(file.read_text()))
    except (OSError, ValueError, KeyError) as fault:
        print(f'{file.relative_to(root)} could not be rendered ({type(fault).__name__}: {fault}): run ./run gpu-check on a machine with '
              'a GPU, or bring the file from one.')
        return 1
    print('written: docs/benchmarks/cuda.md')
    return 0


def slice_or_part(word):
    if word.partition(':')[0] not in gpu_report.SLICES:
        raise argparse.ArgumentTypeError(f'{word!r} (slices are {", ".join(gpu_report.SLICES)}): name one, or a part of it as bench:torch')
    return word


def seconds_of(word):
    """Of 90, 90s and 10m."""
    found = re.fullmatch(r'(\d+(?:\.\d+)?)([sm]?)', word)
    if not found:
        raise argparse.ArgumentTypeError(f'{word!r}: write seconds (580) or minutes (10m)')
    return float(found[1]) * (60 if found[2] == 'm' else 1)


def arguments():
    asked = argparse.ArgumentParser(prog='./run gpu-check', description='Builds, tests and measures the CUDA backend on the GPU of this machine.')
    what = asked.add_mutually_exclusive_group()
    what.add_argument('--first', type=seconds_of, metavar='TIME',
                      help='what tells most in that time (10m), in that order: each family of kernels, what every device must do, models '
                           f'beside the host, a search, and of the bench {", ".join(ROWS)}; then --rest')
    what.add_argument('--only', type=slice_or_part, action='append', metavar='SLICE[:PART]',
                       help='this slice (build, tests, sanitizer, bench) or part (tests:kernels, sanitizer:racecheck, bench:steps, '
                            '"bench:steps mlp", bench:torch); may be given again')
    asked.add_argument('--rest', action='store_true', help='only the parts that have not passed yet')
    asked.add_argument('--limit', type=seconds_of, default=math.inf, metavar='TIME', help='ends by then; what did not end is left for --rest')
    asked.add_argument('--part-limit', type=seconds_of, default=560, metavar='TIME',
                       help='a part that takes longer fails, but for a build (default: %(default)s)')
    asked.add_argument('--find', action='store_true', help='only say whether there is a GPU')
    asked.add_argument('--render', action='store_true', help='only write the section of docs/benchmarks/cuda.md, from out/gpu-check.json; needs no GPU')
    return asked.parse_args()


def main():
    options = arguments()
    if options.render:
        return render_again(ROOT)
    device, reason = find_device()
    if not device:
        print(NO_GPU.format(reason))
        return 1
    if options.find:
        return 0
    nvcc = find_tool('nvcc')
    device['cuda'] = gpu_report.release_of(said_by([nvcc, '--version']) or '') if nvcc else None
    if not device['cuda']:
        print(f"{device['name']} is here, but no nvcc (in PATH or /usr/local/cuda/bin): install the CUDA toolkit and run again.")
        return 1
    environment = extended(os.environ, ROOT / 'build/gpu-libraries', pathlib.Path(nvcc).resolve().parent.parent)
    wanted = {'first': set()} if options.first else wanted_of(options.only)
    check = Check(ROOT, device, environment, wanted, options.part_limit, min(options.limit, options.first or math.inf), options.rest)
    slices = {'first': check.first, 'build': check.build_all, 'tests': check.tests, 'sanitizer': check.sanitizer, 'bench': check.bench}
    for name in [name for name in slices if name in wanted]:
        check.forget(name)
        try:
            slices[name]()
        except Exception as fault:  # a fault of this script in one slice leaves the others their turn
            check.note(name, 'gpu_check.py', 0, 1, 0, f'{type(fault).__name__}: {fault}')
    check.save()
    render(ROOT, check.result)
    print('', *gpu_report.report(check.result, [*wanted, *(part['slice'] for part in check.ran)]), f'written: {check.file.relative_to(ROOT)}, docs/benchmarks/cuda.md', sep='\n')
    if check.left:
        print(f"left for want of time, to be done by --rest: {', '.join(check.left)}")
    print(gpu_report.summary_line(check.ran))
    return int(any(part['failed'] for part in check.ran) or not (options.rest or check.ran))


if __name__ == '__main__':
    sys.exit(main())
