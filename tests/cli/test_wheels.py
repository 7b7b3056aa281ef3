# SPDX-License-Identifier: Apache-2.0
# tools/wheels: a whole run, with a stand-in for Python, pip, the compiler and auditwheel.
# Usage: test_wheels.py SOURCE_ROOT
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))

# The trial has no other program in PATH, and writes which PATH it has.
FAKE = '''#!/bin/bash
called="${0##*/} $*"
[[ $called != *" --version" ]] || exit 0
echo "$called (${PATH%%:*})" >>"$ASKED"
case $called in
  *" -c "*) echo '[[3, 11], true]' ;;
  *"-m venv "*) mkdir -p "$3/bin"; for program in pip auditwheel python; do cp "$0" "$3/bin/$program"; done ;;
  "pip index "*) echo "Available versions: 2.12.1, 2.12.0, 2.11.0, 2.10.0" ;;
  "pip wheel "*) mkdir -p built; grep -E '^(version|dependencies)' "${@: -1}/pyproject.toml" >built/comp.whl
    tail -n 3 "${@: -1}/LICENSE" >>built/comp.whl ;;
  *"pip install torch=="*) here=${0%/bin/*}/lib/python3/site-packages/nlohmann_json-3.dist-info; mkdir -p "$here"; echo MIT >"$here/LICENSE" ;;
  auditwheel*) mkdir -p built/tagged; cp built/comp.whl built/tagged/comp-manylinux.whl ;;
  "python "*) echo 'b1b1 0x1' ;;
esac
'''


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

    def run_with(self, *arguments):
        environment = {**os.environ, 'ASKED': str(self.asked)}
        return subprocess.run([sys.executable, ROOT / 'tools/wheels', '--out', self.out, '--jobs', '1', *arguments], text=True,
                              capture_output=True, env=environment)

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
        self.assertRegex(asked, r'pip install \S*comp-manylinux\.whl .*\n.*python -W ignore .*wheels_trial\.py search \(\S*/environment/bin\)')
        self.assertEqual(sorted(p.name for p in self.out.iterdir()), ['comp-manylinux.whl', 'wheels.log'])


if __name__ == '__main__':
    unittest.main()
