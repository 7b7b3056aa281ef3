# SPDX-License-Identifier: Apache-2.0
# Each row of docs/look-up/coming-from.md names the test that backs it: this one fails when there is no test of that name.
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

faults, rows = [], 0
for line in (root / 'docs/look-up/coming-from.md').read_text().splitlines():
    cells = [cell.strip() for cell in line.strip('|').split(' | ')]
    if not line.startswith('| ') or cells[-1] == 'test' or line.startswith('|--'):
        continue
    rows += 1
    if len(cells) != 3:
        faults.append(f'not three columns: {line}')
        continue
    faults += [f'no test is called: {name}' for name in cells[2].strip(' |').split('<br>') if name not in known]
print(f'{rows} rows, {len(known)} tests')
sys.exit('\n'.join(faults) if faults or rows == 0 else 0)
