# SPDX-License-Identifier: Apache-2.0
# tools/wheels: what it reads and writes, and whole runs where Python, pip, the compiler and auditwheel are a stand-in.
# Usage: test_wheels.py SOURCE_ROOT
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader('wheels', str(ROOT / 'tools/wheels'))
wheels = importlib.util.module_from_spec(importlib.util.spec_from_loader('wheels', loader))
loader.exec_module(wheels)

# FAKE names the step that goes wrong. The trial has no other program in PATH, and writes which PATH it has.
FAKE = '''#!/bin/bash
called="${0##*/} $*"
[[ $called != *" --version" ]] || exit 0
echo "$called (${PATH%%:*})" >>"$ASKED"
case $called in
  *" -c "*) echo '[[3, 11], true]' ;;
  *"-m venv "*) mkdir -p "$3/bin"; for program in pip auditwheel python; do cp "$0" "$3/bin/$program"; done ;;
  "pip index "*) echo "Available versions: 2.12.1, 2.12.0, 2.11.0, 2.10.0" ;;
  "pip wheel "*) [[ $FAKE != compiler ]] || { echo 'c++: fatal error' >&2; exit 1; }
    mkdir -p built; grep -E '^(version|dependencies)' "${@: -1}/pyproject.toml" >built/comp.whl
    tail -n 3 "${@: -1}/LICENSE" >>built/comp.whl ;;
  *"pip install torch=="*) here=${0%/bin/*}/lib/python3/site-packages/nlohmann_json-3.dist-info; mkdir -p "$here"; echo MIT >"$here/LICENSE" ;;
  auditwheel*) mkdir -p built/tagged; cp built/comp.whl built/tagged/comp-manylinux.whl ;;
  "python "*) [[ "$FAKE $*" != "trial "*load ]] || { echo '1111 0x1'; exit; }
    echo 'b1b1 0x1' ;;
esac
'''


class Pieces(unittest.TestCase):
    def test_of_each_minor_version_the_newest_release_counts(self):
        said = 'torch (2.15.0)\nAvailable versions: 2.16.0rc1, 2.12.0, 2.12.10, 2.12.9, 2.11.0, 2.10.0, 1.13.1\n  INSTALLED: 2.13.0\n'
        self.assertEqual(wheels.releases(said), {(2, 11): '2.11.0', (2, 12): '2.12.10'})
        self.assertEqual(wheels.releases('ERROR: No matching distribution found for torch'), {})

    def test_a_torch_that_pypi_lacks_for_a_python_is_said(self):
        newest = {(2, 11): '2.11.0', (2, 12): '2.12.1'}
        self.assertEqual([wheels.chosen(v, newest, '3.10') for v in ('2.12', '2.12.0')], ['2.12.1', '2.12.0'])
        with self.assertRaises(wheels.Failed) as got:
            wheels.chosen('2.15', newest, '3.10')
        self.assertEqual(str(got.exception), 'PyPI has no torch 2.15 for Python 3.10 (it has 2.11.0, 2.12.1)')

    def test_a_pyproject_that_reads_otherwise_is_an_error(self):
        with self.assertRaises(ValueError) as got:
            wheels.pinned("dependencies = ['torch']", "project('comp', version: '1.0')", '2.11.0')
        self.assertEqual(str(got.exception), 'pyproject.toml has "\'torch >= 2.11\'" 0 times (it is replaced, once): say here how it reads now')


class Runs(unittest.TestCase):
    def setUp(self):
        there = tempfile.TemporaryDirectory()
        self.addCleanup(there.cleanup)
        self.folder = pathlib.Path(there.name)
        self.asked, self.out = self.folder / 'asked', self.folder / 'out'
        (self.folder / 'bin').mkdir()
        self.python = self.folder / 'bin/python3.11'
        self.python.write_text(FAKE)
        self.python.chmod(0o755)

    def run_with(self, *arguments, fake=''):
        environment = {**os.environ, 'ASKED': str(self.asked), 'FAKE': fake}
        return subprocess.run([sys.executable, ROOT / 'tools/wheels', '--out', self.out, '--jobs', '1', *arguments], text=True,
                              capture_output=True, env=environment)

    def fails_with(self, sentence, *arguments):
        got = self.run_with(*arguments)
        self.assertNotEqual(got.returncode, 0)
        self.assertEqual(got.stderr.splitlines()[-1], sentence)

    def test_wrong_input_is_refused_in_a_sentence(self):
        older = self.folder / 'bin/python3.9'
        older.write_text("#!/bin/bash\necho '[[3, 9], true]'\n")
        bare = self.folder / 'bin/bare'
        bare.write_text("#!/bin/bash\necho '[[3, 12], false]'\n")
        for program in (older, bare):
            program.chmod(0o755)
        for version in ('2.10', '2', 'newest', '2.11.0+cu130'):
            self.fails_with(f'wheels: error: --torch "{version}" (comp needs torch 2.11 or newer): give a version as 2.12 or 2.12.0',
                            '--torch', version)
        self.fails_with('wheels: error: --jobs 0 (something has to compile): give 1 or more', '--jobs', '0')
        self.fails_with(f'wheels: "{older}" is Python 3.9 (comp needs 3.10): name a newer one', '--python', older)
        self.fails_with(f'wheels: "{bare}" has no Python.h (what is compiled includes it): install python3.12-dev', '--python', bare)
        self.fails_with('wheels: "/no/python" does not run as Python ([Errno 2] No such file or directory: \'/no/python\'): '
                        'name a program of Python 3.10 or newer', '--python', '/no/python')
        self.assertFalse(self.out.exists())

    def test_help_says_what_a_wheel_requires(self):
        got = self.run_with('--help')
        self.assertEqual((got.returncode, got.stderr), (0, ''))
        self.assertIn('A wheel requires the torch that it was compiled against', got.stdout)

    def test_list_builds_nothing(self):
        got = self.run_with('--list', '--python', self.python)
        self.assertEqual(got.stdout, 'torch   Python  wheel\n2.11.0  3.11    would be built\n2.12.1  3.11    would be built\n')
        self.assertNotIn('pip wheel', self.asked.read_text())

    def test_a_wheel_is_built_tried_without_a_compiler_and_kept(self):
        got = self.run_with('--torch', '2.12', '--torch', '2.15', '--python', self.python)
        wheel = self.out / 'comp-manylinux.whl'
        self.assertEqual(got.stdout.splitlines()[-2:], [
            f'2.12.1  3.11    {os.path.relpath(wheel)}',
            '2.15    3.11    not built: PyPI has no torch 2.15 for Python 3.11 (it has 2.11.0, 2.12.1)'])
        self.assertEqual(got.returncode, 0)
        self.assertRegex(wheel.read_text(), r"^dependencies = \['torch == 2\.12\.1'\]\nversion = '\d\S*\+torch2\.12\.1'\n.*, in what is compiled:\n\nMIT\n$")
        asked = self.asked.read_text()
        self.assertRegex(asked, r'pip install torch==2\.12\.1 .*boost-headers .*nlohmann-json ')
        self.assertRegex(asked, r'auditwheel repair --exclude=libtorch\* --exclude=libc10\*')
        self.assertRegex(asked, r'pip install \S*comp-manylinux\.whl .*\n.*python -W ignore \S*wheels_trial\.py search \(\S*/environment/bin\)')
        self.assertEqual(sorted(p.name for p in self.out.iterdir()), ['comp-manylinux.whl', 'wheels.log'])

    def test_a_wheel_that_does_not_compile_or_fails_its_trial_is_a_row_and_no_file(self):
        log = self.out / 'wheels.log'
        for fake, why in (('compiler', f'compiling failed (c++: fatal error): see {log}'),
                          ('trial', f'the plan gives 1111 0x1 in a new process (saved as b1b1 0x1): see {log}')):
            got = self.run_with('--torch', '2.11', '--python', self.python, fake=fake)
            self.assertEqual((got.returncode, got.stdout.splitlines()[-1]), (1, f'2.11.0  3.11    not built: {why}'))
            self.assertEqual([p.name for p in self.out.iterdir()], ['wheels.log'])


if __name__ == '__main__':
    unittest.main()
