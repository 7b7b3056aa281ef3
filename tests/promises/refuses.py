# SPDX-License-Identifier: Apache-2.0
# Passes when the compiler refuses each part of a program with the sentences that its comments expect and with no other
# error: the first sentence among the first lines, and no screenful without one.
# `// expect: nothing` is the counter-proof: that program must compile.
# Usage: refuses.py SOURCE COMPILER ARGUMENTS...
import collections
import pathlib
import re
import subprocess
import sys

LINES_AT_MOST = 25
SENTENCE_WITHIN = 8

source, *compiler = sys.argv[1:]
text = pathlib.Path(source).read_text()
expected = re.findall(r'// expect: (.+)', text)
got = subprocess.run([*compiler, source], capture_output=True, text=True)
messages = (got.stderr + got.stdout).splitlines()  # nvcc writes to both
print(*messages, sep='\n')
if expected == ['nothing']:
    sys.exit(f'refused, but it must compile: {source}' if got.returncode else 0)
if not got.returncode:
    sys.exit(f'it compiled: {source}')
errors = [(place, line) for place, line in enumerate(messages) if re.search(r'\berror: ', line)]
for sentence, times in collections.Counter(expected).items():
    found = sum(sentence in line for _, line in errors)
    if found != times:
        sys.exit(f'refused with the sentence "{sentence}" {found} times, not {times}: {source}')
if len(errors) > len(expected) + text.count('static_assert(comp::'):  # which fails, too
    sys.exit(f'{len(errors)} errors for {len(expected)} faults: {source}')
places = [place for place, line in errors if any(sentence in line for sentence in expected)]
if places[0] >= SENTENCE_WITHIN:
    sys.exit(f'the first sentence comes in line {places[0] + 1} (at most {SENTENCE_WITHIN}): {source}')
for place, following in zip(places, [*places[1:], len(messages)]):
    if following - place > LINES_AT_MOST:
        sys.exit(f'lines {place + 1} to {following + 1} have no sentence (at most {LINES_AT_MOST}): {source}')
print(f'{len(places)} sentences, the first in line {places[0] + 1} of {len(messages)}')
