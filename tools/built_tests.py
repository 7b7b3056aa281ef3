# SPDX-License-Identifier: Apache-2.0
# Of those tests of a Meson build folder that belong to the given suites, one per line: "programs" are ninja's names of
# what they run, as far as the folder has it; "built" are the names of those whose program was built (Meson runs none at
# all while one is missing).
# Usage: meson introspect --tests FOLDER | built_tests.py programs|built FOLDER SUITE...
import json
import pathlib
import shutil
import sys

_, what, folder, *wanted = sys.argv
folder = pathlib.Path(folder).resolve()
for test in json.load(sys.stdin):
    program = pathlib.Path(test['cmd'][0])
    if {suite.split(':')[-1] for suite in test['suite']}.isdisjoint(wanted):
        continue
    if what == 'built' and shutil.which(program):
        print(test['name'])
    if what == 'programs' and program.is_relative_to(folder):
        print(program.relative_to(folder))
