#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/look-up/reference.md: the fields of what users read and set, from the comments of the headers that declare them.

Usage: reference.py [--check]   (--check: says what differs from the page that is there, and writes nothing)"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / 'docs/look-up/reference.md'
HEADERS = {  # in this order on the page; of `enum NAME` its values
    'search/settings.hpp': ('search_settings', 'enum criterion', 'enum tie', 'enum stages', 'enum loss_direction', 'race_settings'),
    'search/outcome.hpp': ('outcome', 'contestant', 'loss_verdict', 'op_evidence', 'op_reason', 'stage_cost'),
    'core/trial.hpp': ('trial', 'enum stage'),
    'core/sample.hpp': ('sample', 'enum status'),
    'core/op_info.hpp': ('op_info', 'tensor_info'),
    'search/post_training.hpp': ('post_training',),
    'search/training/guard.hpp': ('guard_settings',),
    'core/training_progress.hpp': ('training_result', 'training_fallback'),
    'files/plan_file.hpp': ('loaded_plan',),
    'core/hardware.hpp': ('hardware',),
}
VALUE = r'\w+(?: = (?:\{[^}]*\}|[^,;]*))?'
FIELD = re.compile(rf'  (?!using|static|return|friend|template|require)(\S[^;(=]*?) ({VALUE}(?:, {VALUE})*);(?:\s*// (.*))?$')
FUNCTION = re.compile(r'  ([\w:<>&\s]+ \w+\([^)]*\)(?: const)?)(?:;| \{.*)$')


def declared(text, name):
    """Of `struct name`: the comment above it, and (declaration, comment) of each public member."""
    at = re.search(rf'((?:^///[^\n]*\n)*)^struct {name} (?:final )?\{{\n(.*?)^\}};', text, re.M | re.S)
    if at is None:
        sys.exit(f'reference.py: no struct {name}: say in HEADERS where it is now')
    above = ' '.join(line[4:] for line in at[1].splitlines())
    members, said = [], []
    lines = at[2].split('\n private:')[0].splitlines()
    for number, line in enumerate(lines):
        if line.startswith('  ///'):
            said.append(line[6:])
            continue
        while number + 1 < len(lines) and re.match(r'\s+// ', lines[number + 1]) and ' // ' in line:  # a remark of two lines
            line = f'{line} {lines.pop(number + 1).strip()[3:]}'
        field = FIELD.match(line)
        if not field and line.endswith(' =') and number + 1 < len(lines):  # its value stands in the next line
            field = FIELD.match(f'{line} {lines[number + 1].strip()}')
        function = FUNCTION.match(line)
        if field:
            members.append((f'{field[1]} {field[2]}'.replace(' = {}', ''), ' '.join(said) or field[3] or ''))
        elif function and said:
            members.append((function[1].strip(), ' '.join(said)))
        said = []
    return above, members


def values(text, name):
    """Of `enum class name`: the comment above it, and (value, comment) of each."""
    at = re.search(rf'((?:^///[^\n]*\n)*)^enum class {name} : [\w:]+ \{{\n(.*?)^\}};', text, re.M | re.S)
    if at is None:
        sys.exit(f'reference.py: no enum {name}: say in HEADERS where it is now')
    return ' '.join(line[4:] for line in at[1].splitlines()), re.findall(r'^  (\w+),?\s+// (.*)$', at[2], re.M)


def page():
    text = ('# Reference\n\nFields of what a user sets and reads, from the comments of the headers (`tools/reference.py` writes this page).\n')
    for header, names in HEADERS.items():
        source = (ROOT / 'include/comp' / header).read_text(encoding='utf-8')
        for name in names:
            kind, _, name = name.rpartition(' ')
            above, members = (values if kind else declared)(source, name)
            text += f'\n## {name}\n\n`comp/{header}`. {above}'.rstrip() + '\n\n'
            text += ''.join(f'- `{declaration}`' + (f': {said}' if said else '') + '\n' for declaration, said in members)
    return text


if sys.argv[1:] == ['--check']:
    if PAGE.read_text(encoding='utf-8') != page():
        sys.exit('docs/look-up/reference.md is not what the headers say: run tools/reference.py')
else:
    PAGE.write_text(page(), encoding='utf-8')
