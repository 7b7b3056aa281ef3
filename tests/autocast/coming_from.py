# SPDX-License-Identifier: Apache-2.0
# Each row of docs/look-up/coming-from.md has tests that back it, which coming_from.txt names: this one fails when a row has none, or no
# test has such a name.
# Usage: coming_from.py SOURCE_ROOT
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
CASE = re.compile(r'TEST_CASE(?:_TEMPLATE\(|_FIXTURE\(\s*[\w:]+,|\()\s*((?:"[^"\n]*"\s*)+)[,)*]')
known = set()
for source in (root / 'tests').rglob('*.cpp'):
    for found in CASE.findall(source.read_text()):
        known.add(''.join(re.findall(r'"([^"\n]*)"', found)))

backed, row = {}, None
for line in (root / 'tests/autocast/coming_from.txt').read_text().splitlines()[2:]:
    if line.startswith('  '):
        backed[row].append(line.strip())
    elif line:
        row = line
        backed[row] = []

rows = [line.strip('|').split(' | ')[0].strip() for line in (root / 'docs/look-up/coming-from.md').read_text().splitlines() if line.startswith('| ')]
rows = [row for row in rows if row not in ('PyTorch', 'Paddle', 'TensorFlow', 'TVM')]  # heads of the tables
faults = [f'no test backs: {row}' for row in rows if not backed.get(row)]
faults += [f'the page has no row: {row}' for row in backed if row not in rows]
faults += [f'no test is called: {name}' for names in backed.values() for name in names if name not in known]
print(f'{len(rows)} rows, {len(known)} tests')
sys.exit('\n'.join(faults) if faults or not rows else 0)
