# SPDX-License-Identifier: Apache-2.0
# The names of those tests of a Meson build folder that belong to the given suites and whose program was built, one per
# line: Meson runs none at all while one is missing.
# Usage: meson introspect --tests FOLDER | built_tests.py SUITE...
import json
import shutil
import sys

for test in json.load(sys.stdin):
    suites = {suite.split(':')[-1] for suite in test['suite']}
    if suites & set(sys.argv[1:]) and shutil.which(test['cmd'][0]):
        print(test['name'])
