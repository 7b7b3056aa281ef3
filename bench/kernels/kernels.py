# SPDX-License-Identifier: Apache-2.0
# What nvcc makes of the kernels, without a GPU: registers, spills and shared memory from ptxas, instructions per element
# and the bytes of a load and of a store (the widest of each) from the PTX. A regression shows as a failing check.
# Usage: kernels.py compile OUT.o OUT.json DEPFILE NVCC... SOURCE.cu
#        kernels.py check EXPECTED.json NVCC FAMILY.json...
#        kernels.py record EXPECTED.json NVCC FAMILY.json...
# Local memory is refused whatever the compiler; the other numbers are compared if the release of nvcc is the recorded one.
# Instructions are counted as the PTX has them: of a branch both sides.
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ACCESS = re.compile(r'\b(ld|st)\.(?:volatile\.|weak\.)?(global|local)(?:\.[\w:]+)*?(?:\.v(\d))?\.[bfsu](\d+)')

PACKS = {'update_tensors': 4, 'cast_tensors': 8}  # elements of one turn of a loop, for kernels whose names do not say it


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(' '.join(command) + '\n' + done.stdout + done.stderr)
    return done.stdout + done.stderr


def demangled(names):
    plain = run(['c++filt'], input='\n'.join(names)).split('\n')
    short = [re.sub(r'comp::(cuda|native::math)::(detail::)?', '', p) for p in plain]
    return [re.sub(r'^void ', '', s).rsplit('(', 1)[0] if s.endswith(')') else s for s in short]


def of_ptxas(log):
    """One row for each kernel and architecture."""
    rows = []
    for line in log.split('\n'):
        if found := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            rows.append({'name': found[1], 'arch': found[2], 'shared': 0})
        elif found := re.search(r'(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads', line):
            rows[-1] |= {'stack': int(found[1]), 'spills': int(found[2]) + int(found[3])}
        elif found := re.search(r'Used (\d+) registers', line):
            rows[-1]['registers'] = int(found[1])
            if found := re.search(r'(\d+) bytes smem', line):
                rows[-1]['shared'] = int(found[1])
    return rows


def instructions(body):
    """(label or None, text) of each line that is a label or an instruction."""
    for line in body.split('\n'):
        line = line.strip()
        if re.fullmatch(r'\$\w+:', line):
            yield line[:-1], ''
        elif line.endswith(';') and not line.startswith(('.', '//')):
            yield None, line


def bytes_of(text, kinds=('ld', 'st')):
    """Of an access to global memory; 0 for any other instruction, or one that is not of these kinds."""
    found = ACCESS.search(text)
    return int(found[3] or 1) * int(found[4]) // 8 if found and found[1] in kinds and found[2] == 'global' else 0


def widest_of(lines, kind):
    return max((bytes_of(text, (kind,)) for _, text in lines), default=0)


def loops_of(lines):
    """The innermost loops: spans from a label to a branch back to it."""
    at = {label: i for i, (label, _) in enumerate(lines) if label}
    spans = []
    for i, (_, text) in enumerate(lines):
        target = re.search(r'\bbra(?:\.uni)?\s+(\$\w+)', text)
        if target and at.get(target[1], i) < i:
            spans.append((at[target[1]], i))
    return [a for a in spans if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in spans)]


def per_element(name, lines):
    """Instructions per element: of the loops with the widest accesses, or of the whole kernel if there is none."""
    numbers = re.match(r'(?:over_elements|sum_by_blocks|bytes_looked_up|over_rows|middle_swapped|gradient\w+)<(\d+)(?:, (\d+))?', name)
    n = int(numbers[1]) if numbers else PACKS.get(name.split('<')[0], 1)
    held = int(numbers[2] or 0) if numbers else 0
    texts = [text for _, text in lines if text]
    widest = max((bytes_of(t) for t in texts), default=0)
    hot = []
    for first, last in loops_of(lines):
        inside = [text for _, text in lines[first:last + 1] if text]
        if not held and max((bytes_of(t) for t in inside), default=0) == widest:
            hot += [inside]
    if hot:
        return sum(map(len, hot)) / n
    return len(texts) / (n * max(held, 1))


def of_ptx(text):
    found = {}
    for entry in re.finditer(r'\.entry (\w+)\((.*?)\n\}\n', text, re.DOTALL):
        found[entry[1]] = list(instructions(entry[2]))
    return found


def compile_family(out, report, depfile, *command):
    with tempfile.TemporaryDirectory() as kept:
        log = run([*command, '-Xptxas', '-v', '--keep', '--keep-dir', kept, '-MD', '-MF', depfile, '-c', '-o', out])
        ptx = of_ptx(max(pathlib.Path(kept).glob('*.ptx')).read_text())
    rows = of_ptxas(log)
    names = dict(zip(ptx, demangled(list(ptx))))
    for row in rows:
        lines = ptx[row['name']]
        row |= {'instructions_per_element': round(per_element(names[row['name']], lines), 2), 'load_bytes': widest_of(lines, 'ld'),
                'store_bytes': widest_of(lines, 'st'), 'name': names[row['name']]}
    pathlib.Path(report).write_text(json.dumps(rows, indent=1))


def gathered(files):
    rows = [row for f in files for row in json.loads(pathlib.Path(f).read_text())]
    table = {}
    for row in rows:
        kept = ('instructions_per_element', 'load_bytes', 'store_bytes', 'shared')
        entry = table.setdefault(row['name'], {'registers': {}} | {key: row[key] for key in kept})
        entry['registers'][row['arch']] = row['registers']
    return rows, dict(sorted(table.items()))


def release_of(nvcc):
    return re.search(r'release ([\d.]+)', run([nvcc, '--version']))[1]


def local_memory(rows):
    for row in rows:
        if row['stack'] or row['spills']:
            yield f"{row['name']} ({row['arch']}) uses local memory: {row['stack']} bytes, {row['spills']} spilled"


def regressions(table, expected):
    for name in sorted(table.keys() ^ expected.keys()):
        yield f'{name} is {"not recorded" if name in table else "recorded and gone"}: run kernels.py record'
    for name in sorted(table.keys() & expected.keys()):
        now, then = table[name], expected[name]
        if now['instructions_per_element'] > 1.1 * then['instructions_per_element'] + 0.5:
            yield f"{name}: {now['instructions_per_element']} instructions per element, recorded {then['instructions_per_element']}"
        for key, kind in (('load_bytes', 'loads'), ('store_bytes', 'stores')):
            if now[key] < then[key]:
                yield f'{name}: {kind} of {now[key]} bytes, recorded {then[key]}'
        for arch, registers in now['registers'].items():
            if registers > 1.1 * then['registers'].get(arch, 255) + 2:
                yield f"{name} ({arch}): {registers} registers, recorded {then['registers'][arch]}"


def main(task, *arguments):
    if task == 'compile':
        return compile_family(*arguments)
    expected, nvcc, files = pathlib.Path(arguments[0]), release_of(arguments[1]), arguments[2:]
    rows, table = gathered(files)
    if task == 'record':
        lines = [f'  {json.dumps(name)}: {json.dumps(entry)}' for name, entry in table.items()]
        expected.write_text(f'{{\n "nvcc": "{nvcc}",\n "kernels": {{\n' + ',\n'.join(lines) + '\n }\n}\n')
        return 0
    recorded = json.loads(expected.read_text())
    wrong = list(local_memory(rows))
    if recorded['nvcc'] == nvcc:
        wrong += regressions(table, recorded['kernels'])
    else:
        print(f'nvcc {nvcc}, recorded with {recorded["nvcc"]}: only local memory is checked')
    print(f'{len(table)} kernels on {len({r["arch"] for r in rows})} architectures')
    return '\n'.join(wrong) if wrong or not table else 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
