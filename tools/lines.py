#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lines of code and of comments by folder; blank lines are left out.

Usage: lines.py"""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ['include', 'backends', 'python', 'examples', 'bench', 'tools', 'run']
C_FAMILY = ('.hpp', '.cpp', '.cu', '.cuh', '.h', '.inc')
OTHERS = ('.py', '.pyi', '.sh', 'run', 'wheels')


def counted(path, text):
    """(code, comments) of a file; nothing where it is neither."""
    if path.endswith(C_FAMILY):
        mark, text = '//', re.sub(r'/\*.*?\*/', '', text, flags=re.S)
    elif path.endswith(OTHERS):
        mark = '#'
    else:
        return 0, 0
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    comments = sum(line.startswith(mark) for line in lines)
    return len(lines) - comments, comments


def main():
    listed = subprocess.run(['git', '-C', str(ROOT), 'ls-files'], capture_output=True, text=True).stdout.splitlines()
    found = {folder: [0, 0] for folder in [*PRODUCT, 'tests']}
    for path in listed or [str(p.relative_to(ROOT)) for p in ROOT.rglob('*')]:
        if path.split('/')[0] in found and (ROOT / path).is_file():
            code, comments = counted(path, (ROOT / path).read_text(errors='ignore'))
            of = found[path.split('/')[0]]
            of[0], of[1] = of[0] + code, of[1] + comments
    found['product'] = [sum(found[folder][i] for folder in PRODUCT) for i in (0, 1)]
    print(f'{"lines of":10}{"code":>8}{"comments":>10}')
    for folder, (code, comments) in found.items():
        print(f'{folder:10}{code:8}{comments:10}')


main()
