# SPDX-License-Identifier: Apache-2.0
# Makes one unit for the compiler of a program's files, which then reads their headers and makes their templates once: all
# that they include comes first, then each file in a namespace of its own, so that two may use the same name, inside
# the one that it opens if it opens one.
# Usage: one_unit.py OUTPUT FILE...
import pathlib
import re
import sys

INCLUDE = re.compile(r'^#include (?:"(.+)"|<.+>).*$', re.MULTILINE)
NAMED = re.compile(r'^namespace ([\w:]+) \{', re.MULTILINE)

output, *names = sys.argv[1:]
headers, bodies = {}, []
for file in map(pathlib.Path, names):
    file = file.resolve()

    def moved(line):
        path = line[1] and file.parent / line[1]
        text = f'#include "{path.resolve()}"' if path and path.exists() else line[0]
        if text.endswith('.inc"'):
            return text  # lines of a table
        headers[text] = None
        return ''

    text = f'#line 1 "{file}"\n{INCLUDE.sub(moved, file.read_text())}'
    text, opened = NAMED.subn(rf'namespace \1::{file.stem} {{', text, count=1)
    bodies.append(text if opened else f'namespace {file.stem} {{\n{text}}}\n')
pathlib.Path(output).write_text('\n'.join([*headers, *bodies]))
