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
    return subprocess.run(['/bin/bash', '-c', f'set -euo pipefail; source {ROOT}/tools/setup.sh; {script}'], text=True,
                          capture_output=True, env={**os.environ, **environment})


class Commands(unittest.TestCase):
    def run_with(self, *arguments):
        return subprocess.run([ROOT / 'run', *arguments], text=True, capture_output=True)

    def test_help_names_every_command(self):
        got = self.run_with('help')
        self.assertEqual(got.returncode, 0)
        for command in ('demo', 'test', 'bench', 'clean', 'help'):
            self.assertIn(f'./run {command}', got.stdout)

    def test_no_command_is_a_call_for_help(self):
        self.assertEqual(self.run_with().stdout, self.run_with('help').stdout)

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

    def test_a_machine_that_misses_nothing_is_not_asked_for_apt(self):
        got = self.need('bash | command bash | a shell', 'python3 | python json | reads logs')
        self.assertEqual(got.stdout, 'went on\n')
        self.assertEqual(self.asked.read_text(), '')

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

    def test_what_is_not_required_is_not_waited_for(self):
        got = self.need('jargon-text | file /no/such/file | text')
        self.assertEqual(got.returncode, 0)
        self.assertIn('went on', got.stdout)

    def test_without_apt_everything_missing_is_named(self):
        got = bash('need_packages "no-such | command no-such | a reason"', PATH='/nonexistent')
        self.assertEqual(got.returncode, 1)
        self.assertIn('missing: no-such (a reason); this machine has no apt-get: install these', got.stderr)

    def test_each_release_gets_its_own_names(self):
        releases = {
            'Debian 12': ({'g++': '4:12.2.0-3', 'clang-19': '1:19.1.7-3~deb12u1', 'libclang-rt-19-dev': '1:19.1.7',
                           'clang-16': '1:16.0.6', 'libdnnl-dev': '2.6.3-1'},
                          'g++;clang-19 libclang-rt-19-dev;libdnnl-dev;zlib1g-dev'),
            'Ubuntu 22.04': ({'g++': '4:11.2.0-1ubuntu1', 'g++-12': '12.3.0-1ubuntu1~22.04', 'clang-15': '1:15.0.7',
                              'libdnnl-dev': '2.2.4+ds-2'}, 'g++-12;;;zlib1g-dev'),
            'Ubuntu 24.04': ({'g++': '4:13.2.0-7ubuntu1', 'clang-18': '1:18.1.3', 'libclang-rt-18-dev': '1:18.1.3',
                              'libdnnl-dev': '3.1.1-2'}, 'g++;clang-18 libclang-rt-18-dev;;zlib1g-dev'),
        }
        for release, (versions, expected) in releases.items():
            with self.subTest(release):
                self.archive(versions)
                got = bash('for p in g++ clang libdnnl-dev zlib1g-dev; do echo $(names_of $p); done', PATH=self.path)
                self.assertEqual(got.stdout.strip().split('\n'), expected.split(';'), got.stderr)


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

    def test_cases_are_counted_not_programs(self):
        self.assertEqual(self.count([{'result': 'OK', 'stdout': self.doctest.format(71, 71, 0)}, {'result': 'OK'}]),
                         ('72 passed, 0 failed', 0))
        self.assertEqual(self.count([{'result': 'OK', 'stderr': '\nRan 12 tests in 0.1s\n\nOK\n'}]),
                         ('12 passed, 0 failed', 0))

    def test_failed_cases_are_counted_one_by_one(self):
        self.assertEqual(self.count([{'result': 'FAIL', 'stdout': self.doctest.format(5, 3, 2)}]),
                         ('3 passed, 2 failed', 1))
        self.assertEqual(self.count([{'result': 'FAIL', 'stderr': 'Ran 9 tests in 1s\nFAILED (failures=2, errors=1)'}]),
                         ('6 passed, 3 failed', 1))

    def test_a_program_that_crashed_after_good_cases_failed(self):
        self.assertEqual(self.count([{'result': 'FAIL', 'stdout': self.doctest.format(5, 5, 0)}]),
                         ('5 passed, 1 failed', 1))
        self.assertEqual(self.count([{'result': 'TIMEOUT'}]), ('0 passed, 1 failed', 1))

    def test_a_skipped_program_is_neither(self):
        self.assertEqual(self.count([{'result': 'OK'}, {'result': 'SKIP'}]), ('1 passed, 0 failed', 0))

    def test_what_went_wrong_outside_the_tests_counts(self):
        self.assertEqual(self.count([{'result': 'OK'}], 'build/x did not build whole'), ('1 passed, 1 failed', 1))

    def test_nothing_run_is_no_success(self):
        self.assertEqual(self.count([]), ('0 passed, 0 failed', 1))


if __name__ == '__main__':
    unittest.main()
