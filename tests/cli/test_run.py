# SPDX-License-Identifier: Apache-2.0
# ./run, tools/setup.sh and tools/count_tests.py, with stand-ins for apt that write down what they are asked.
# Usage: test_run.py SOURCE_ROOT
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))


def bash(script, **environment):
    return subprocess.run(['/bin/bash', '-c', f'set -euo pipefail; source "{ROOT}/tools/setup.sh"; {script}'], text=True,
                          capture_output=True, env={**os.environ, **environment})


class Commands(unittest.TestCase):
    def run_with(self, *arguments):
        return subprocess.run([ROOT / 'run', *arguments], text=True, capture_output=True)

    def test_help_names_every_command(self):
        got = self.run_with('help')
        self.assertEqual(got.returncode, 0)
        for command in ('demo', 'test', 'bench', 'paper', 'gpu-check', 'clean', 'help'):
            self.assertIn(f'./run {command}', got.stdout)
        self.assertEqual(self.run_with().stdout, got.stdout)

    def test_an_area_is_built_and_run_alone(self):
        """In a copy whose Meson and ninja write down what they are asked."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / 'tests').symlink_to(ROOT / 'tests')
            for part in ('tools', 'run', 'meson_options.txt'):
                (folder / part).symlink_to(ROOT / part)
            (folder / 'bin').mkdir()
            asked = folder / 'asked'
            for command, says in (('meson', 'case $1 in --version) echo 1.12.1 ;; setup) mkdir -p $2 ;; introspect) echo "[]" ;; esac'),
                                  ('ninja', 'echo "tests/core/test_core: cpp_LINKER"; echo "tests/search/test_search: cpp_LINKER"')):
                program = folder / 'bin' / command
                program.write_text(f'#!/bin/bash\necho "{command} $*" >>{asked}\n{says}\n')
                program.chmod(0o755)
            script = f'cd {folder}; source run help >/dev/null; need_packages() {{ :; }}; compiler=g++; own_meson() {{ :; }}; need_torch() {{ false; }}; ' \
                     'run_tests search'
            got = subprocess.run(['/bin/bash', '-c', script], text=True, capture_output=True,
                                 env={**os.environ, 'JOBS': '', 'PATH': f'{folder / "bin"}:{os.environ["PATH"]}'})
            commands = asked.read_text().splitlines()
        self.assertIn('ninja -C build/test -k 0 tests/search/test_search', commands, got.stdout + got.stderr)
        self.assertFalse([line for line in commands if 'test_core' in line or 'sanitize' in line or 'clang' in line], commands)
        self.assertIn('Left to ./run test --all: the other areas; sanitizers', got.stdout)

    def test_a_word_that_test_does_not_know_is_refused_before_anything_is_built(self):
        got = self.run_with('test', '--al')
        self.assertEqual((got.returncode, got.stdout), (1, ''))
        self.assertIn('"--al" is nothing that test knows: it takes --all, nothing, or areas, which are autocast, cli, ', got.stderr)
        self.assertIn('"serch" is nothing that test knows', self.run_with('test', 'core', 'serch').stderr)

    def test_an_unknown_command_is_refused_by_name(self):
        got = self.run_with('tset')
        self.assertEqual(got.returncode, 1)
        self.assertIn('run: "tset" is no command of this script', got.stderr)


class SetUp(unittest.TestCase):
    """Rows of packages against stand-ins for apt-get, apt-cache and sudo."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = pathlib.Path(folder.name)
        self.asked = self.bin / 'asked'
        self.asked.touch()
        self.path = f'{self.bin}:{os.environ["PATH"]}'
        self.stand_in('sudo', '"$@"')
        self.archive({})

    def stand_in(self, name, script):
        (self.bin / name).write_text(f'#!/bin/bash\n{script}\n')
        (self.bin / name).chmod(0o755)

    def archive(self, versions):
        """Makes apt-cache know these versions, and apt-get install a command of the package's name."""
        candidates = '\n'.join(f'{name}) echo "  Candidate: {version}" ;;' for name, version in versions.items())
        self.stand_in('apt-cache', f'case $2 in\n{candidates}\n*) echo "  Candidate: (none)" ;;\nesac')
        self.stand_in('apt-get', f'echo "$@" >>{self.asked}\nfor word in "$@"; do [[ $word != can-* ]] || '
                                 f'install -m 755 /dev/null {self.bin}/$word; done')

    def need(self, *rows):
        quoted = ' '.join(f'"{row}"' for row in rows)
        return bash(f'need_packages {quoted}; echo went on', PATH=self.path)

    def test_what_is_missing_is_installed_by_name_with_its_reason(self):
        got = self.need('bash | command bash | a shell', "can-do | command can-do | a tool's tool")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn("can-do (a tool's tool)", got.stdout)
        installs = [line for line in self.asked.read_text().splitlines() if 'install' in line]
        self.assertEqual(len(installs), 1)
        self.assertTrue(installs[0].endswith(' can-do'), installs)

    def test_what_cannot_be_installed_is_named_and_ends_the_script(self):
        got = self.need('gone-1 | command gone-1 | first', 'gone-2 | header no/such.h | second')
        self.assertEqual(got.returncode, 1)
        self.assertIn('missing: gone-1 (first); gone-2 (second)', got.stderr)
        self.assertNotIn('went on', got.stdout)

class Torch(unittest.TestCase):
    """tools/get_torch.py with stand-ins for pip and ldd: a wheel of a few bytes, and a loader that finds no CUDA."""

    PIP = """
import pathlib, sys, zipfile
to = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])
requirements = [word for word in sys.argv if '==' in word]
with open({asked!r}, 'a') as asked:
    print(*requirements, sep='\\n', file=asked)
metadata = '''Requires-Dist: cuda-toolkit[cudart,cupti]==13.0.2; platform_system == "Linux"
Requires-Dist: nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"
'''
for number, what in enumerate(requirements):
    with zipfile.ZipFile(to / (str(number) + '.whl'), 'w') as wheel:
        if what.startswith('torch=='):
            wheel.writestr('torch-1.dist-info/METADATA', metadata)
            for name in ('include/ATen/ATen.h', 'lib/libtorch_cpu.so', 'lib/libc10.so', 'lib/libtorch_cuda.so',
                         'lib/libtorch_python.so', '__init__.py'):
                wheel.writestr('torch/' + name, name)
        elif '{lacking}' not in what:
            wheel.writestr('nvidia/cu13/lib/lib' + what.split('[')[1].split(']')[0] + '.so.13', what)
    if '{breaks}' and what.startswith('{breaks}'):
        sys.exit(7)
"""
    LDD = """
cd "${1%%/torch/lib/*}"
case $1 in */libtorch_cpu.so)
  [[ -e nvidia/cu13/lib/libcudart.so.13 || -e torch/lib/libcudart.so.13 ]] || echo "	libcudart.so.13 => not found"
  [[ -e nvidia/cu13/lib/libcupti.so.13 || -e torch/lib/libcupti.so.13 ]] || echo "	libcupti.so.13 => not found"
esac
"""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.asked = self.root / 'asked'
        self.asked.touch()
        self.torch = self.root / '.torch' / '1.2'
        (self.root / 'bin').mkdir()
        ldd = self.root / 'bin' / 'ldd'
        ldd.write_text('#!/bin/bash\n' + self.LDD)
        ldd.chmod(0o755)

    def get(self, *more, breaks='', lacking='nothing', toolkit=''):
        pip = self.root / 'pip'
        pip.mkdir(exist_ok=True)
        (pip / '__init__.py').touch()
        (pip / '__main__.py').write_text(self.PIP.format(asked=str(self.asked), breaks=breaks, lacking=lacking))
        script = f'import sys; sys.path.insert(0, "{ROOT}/tools"); sys.argv[0] = "get_torch"; import get_torch; ' \
                 f'get_torch.TOOLKIT = ["{toolkit or self.root / "none"}"]; get_torch.main()'
        return subprocess.run([sys.executable, '-B', '-c', script, '1.2', self.torch, *more], text=True, capture_output=True,
                              env={**os.environ, 'PYTHONPATH': str(self.root),
                                   'PATH': f'{self.root / "bin"}:{os.environ["PATH"]}'})

    def files(self):
        return sorted(str(f.relative_to(self.torch)) for f in self.torch.rglob('*') if not f.is_dir())

    def test_headers_libraries_and_what_they_need_come_and_nothing_else(self):
        got = self.get()
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(self.files(), ['nvidia/cu13/lib/libcudart.so.13', 'nvidia/cu13/lib/libcupti.so.13',
                                        'torch-1.dist-info/METADATA', 'torch/include/ATen/ATen.h', 'torch/lib/libc10.so',
                                        'torch/lib/libtorch_cpu.so'])
        self.assertIn('torch==1.2', self.asked.read_text())
        self.assertIn('cuda-toolkit[cudart]==13.0.2', self.asked.read_text())  # the version that torch was built with

    def test_a_download_that_fails_leaves_nothing(self):
        for what in ('torch', 'cuda-toolkit'):
            with self.subTest(what):
                got = self.get(breaks=what)
                self.assertEqual(got.returncode, 1)
                self.assertIn('torch 1.2 was not fetched', got.stderr)
                self.assertEqual(list(self.torch.parent.iterdir()), [])

    def test_one_of_the_users_own_is_taken_by_path_or_refused(self):
        own = self.root / 'own'
        (own / 'lib').mkdir(parents=True)
        got = bash('need_torch', COMP_TORCH_PATH=str(own))
        self.assertEqual(got.returncode, 1)
        self.assertIn(f'no lib/libtorch_cpu.so in COMP_TORCH_PATH={own}: give the folder', got.stderr)
        (own / 'lib' / 'libtorch_cpu.so').touch()
        got = bash('need_torch; torch_options; echo "${with_torch[@]}"', COMP_TORCH_PATH=str(own))
        self.assertEqual(got.stdout, f'-Dlibtorch=enabled -Dlibtorch_path={own}\n', got.stderr)

class Count(unittest.TestCase):
    def count(self, tests, *broken):
        with tempfile.TemporaryDirectory() as folder:
            logs = pathlib.Path(folder, 'meson-logs')
            logs.mkdir()
            lines = [json.dumps({'name': 'a', 'duration': 1, 'stdout': '', 'stderr': '', **test}) for test in tests]
            (logs / 'testlog.json').write_text('\n'.join(lines))
            got = subprocess.run([sys.executable, ROOT / 'tools/count_tests.py', folder, '--', *broken], text=True,
                                 capture_output=True)
            return got.stdout.splitlines()[-1], got.returncode

    doctest = '[doctest] test cases:   {} |   {} passed | {} failed | 0 skipped'

    def test_cases_are_counted_not_programs_and_what_crashed_or_did_not_build_failed(self):
        ran = self.doctest.format
        for tests, last, status in (
                ([{'result': 'OK', 'stdout': ran(71, 71, 0)}, {'result': 'OK'}], '72 passed, 0 failed', 0),
                ([{'result': 'OK', 'stderr': '\nRan 12 tests in 0.1s\n\nOK\n'}], '12 passed, 0 failed', 0),
                ([{'result': 'FAIL', 'stdout': ran(5, 3, 2)}], '3 passed, 2 failed', 1),
                ([{'result': 'FAIL', 'stderr': 'Ran 9 tests in 1s\nFAILED (failures=2, errors=1)'}], '6 passed, 3 failed', 1),
                ([{'result': 'FAIL', 'stdout': ran(5, 5, 0)}], '5 passed, 1 failed', 1),
                ([{'result': 'TIMEOUT'}], '0 passed, 1 failed', 1),
                ([{'result': 'OK'}, {'result': 'SKIP'}], '1 passed, 0 failed', 0),
                ([{'result': 'OK', 'stderr': 'Ran 9 tests in 1s\n\nOK (skipped=2)'}], '7 passed, 0 failed', 0),
                ([], '0 passed, 0 failed', 1)):
            with self.subTest(tests):
                self.assertEqual(self.count(tests), (last, status))
        self.assertEqual(self.count([{'result': 'OK'}], 'build/x did not build whole'), ('1 passed, 1 failed', 1))


if __name__ == '__main__':
    unittest.main()
