# SPDX-License-Identifier: Apache-2.0
# Passes when the compiler refuses a program with the sentences that its comments expect and with no other error: the
# first sentence among the first lines, and all in a screenful at most.
# `// expect: nothing` is the counter-proof: that program must compile.
# Usage: refuses.py SOURCE COMPILER ARGUMENTS...
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
messages = got.stderr + got.stdout  # nvcc writes to both
lines = messages.count('\n')
print(messages)
if expected == ['nothing']:
    sys.exit(f'refused, but it must compile: {source}' if got.returncode else 0)
if not got.returncode:
    sys.exit(f'it compiled: {source}')
for sentence in expected:
    if sentence not in messages:
        sys.exit(f'refused without the sentence "{sentence}": {source}')
errors = len(re.findall(r'\berror: ', messages))
if errors > len(expected) + text.count('static_assert(comp::'):  # which fails, too
    sys.exit(f'{errors} errors for {len(expected)} faults: {source}')
place = messages[:messages.index(expected[0])].count('\n') + 1
if place > SENTENCE_WITHIN:
    sys.exit(f'the sentence comes in line {place} (at most {SENTENCE_WITHIN}): {source}')
if lines > LINES_AT_MOST:
    sys.exit(f'the sentence is lost in {lines} lines (at most {LINES_AT_MOST}): {source}')
print(f'line {place} of {lines}: {expected[0]}')
