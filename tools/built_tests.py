# SPDX-License-Identifier: Apache-2.0
# The names of the tests of a Meson build folder whose program was built, one per line: Meson runs none while one is missing.
# Usage: meson introspect --tests FOLDER | built_tests.py
import json
import os
import shutil
import sys

for test in json.load(sys.stdin):
    program = test['cmd'][0]
    if os.path.exists(program) or shutil.which(program):
        print(test['name'])
