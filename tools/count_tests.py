# SPDX-License-Identifier: Apache-2.0
# Sums what the test programs of several Meson build folders said; the last line is "N passed, N failed".
# A doctest or unittest program counts its test cases, any other program counts one; a program that crashed or was not
# built failed.
# Usage: count_tests.py FOLDER... -- SENTENCE...     (each sentence says what else went wrong, and counts as a failure)
import json
import pathlib
import re
import sys

DOCTEST = re.compile(r'test cases:\s*\d+\s*\|\s*(\d+) passed\s*\|\s*(\d+) failed')
UNITTEST = re.compile(r'^Ran (\d+) tests? in', re.MULTILINE)
UNITTEST_FAULTS = re.compile(r'(?:failures|errors)=(\d+)')
UNITTEST_SKIPPED = re.compile(r'skipped=(\d+)')


def cases_of(test):
    """Pairs of passed and failed cases, one per summary that the program printed."""
    said, complained = test.get('stdout') or '', test.get('stderr') or ''
    pairs = [(int(passed), int(failed)) for passed, failed in DOCTEST.findall(said)]
    for ran in UNITTEST.findall(complained):
        failed = sum(int(number) for number in UNITTEST_FAULTS.findall(complained))
        skipped = sum(int(number) for number in UNITTEST_SKIPPED.findall(complained))
        pairs.append((int(ran) - failed - skipped, failed))
    return pairs


def count(test):
    """Passed, failed and skipped of one program."""
    if test['result'] == 'SKIP':
        return 0, 0, 1
    good = test['result'] in ('OK', 'EXPECTEDFAIL')
    cases = cases_of(test)
    if not cases:
        return int(good), int(not good), 0
    failed = sum(f for _, f in cases)
    return sum(p for p, _ in cases), max(failed, int(not good)), 0


def main():
    arguments = sys.argv[1:]
    split = arguments.index('--')
    broken = arguments[split + 1:]
    total_passed, total_failed = 0, len(broken)
    print()
    for folder in arguments[:split]:
        log = pathlib.Path(folder, 'meson-logs', 'testlog.json')
        tests = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        counts = [count(test) for test in tests]
        passed, failed, skipped = (sum(c[i] for c in counts) for i in range(3))
        seconds = sum(test['duration'] for test in tests)
        print(f'{folder}: {len(tests)} programs, {passed} passed, {failed} failed, {skipped} skipped, {seconds:.0f} s')
        for test, (_, bad, skip) in zip(tests, counts):
            if bad or skip:
                print(f'  {"failed" if bad else "skipped"}: {test["name"]} ({test["result"]})')
        total_passed, total_failed = total_passed + passed, total_failed + failed
    for sentence in broken:
        print(f'  failed: {sentence}')
    print(f'{total_passed} passed, {total_failed} failed')
    return 1 if total_failed or not total_passed else 0


sys.exit(main())
