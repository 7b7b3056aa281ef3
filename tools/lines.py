#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lines of code and of comments by folder, without blank ones, the share of comment lines with "where" (CONTRIBUTING: 2%), and the words of docs/ (a number or a table's bar is none).

Usage: lines.py"""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ['include', 'backends', 'python', 'examples', 'bench', 'tools', 'run']
C_FAMILY = ('.hpp', '.cpp', '.cu', '.cuh', '.h', '.inc')
OTHERS = ('.py', '.pyi', '.sh', 'run', 'wheels')


def count(path, text):
    """[code, comments, comments with "where"] of a file; zeros if it is neither C++ nor a script."""
    if path.endswith(C_FAMILY):
        mark, text = '//', re.sub(r'/\*.*?\*/', '', text, flags=re.S)
    elif path.endswith(OTHERS):
        mark = '#'
    else:
        return [0, 0, 0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    comments = [line for line in lines if line.startswith(mark)]
    return [len(lines) - len(comments), len(comments), sum(bool(re.search(r'\bwhere\b', line, re.I)) for line in comments)]


def main():
    listed = subprocess.run(['git', '-C', str(ROOT), 'ls-files'], capture_output=True, text=True).stdout.splitlines()
    counts = {folder: [0, 0, 0] for folder in [*PRODUCT, 'tests']}
    for path in listed or [str(p.relative_to(ROOT)) for p in ROOT.rglob('*')]:
        if path.split('/')[0] in counts and (ROOT / path).is_file():
            of_file = count(path, (ROOT / path).read_text(errors='ignore'))
            counts[path.split('/')[0]] = [a + b for a, b in zip(counts[path.split('/')[0]], of_file)]
    counts['product'] = [sum(counts[folder][i] for folder in PRODUCT) for i in range(3)]
    print(f'{"lines of":10}{"code":>8}{"comments":>10}{"where":>8}')
    for folder, (code, comments, where) in counts.items():
        print(f'{folder:10}{code:8}{comments:10}{where / max(comments, 1):8.1%}')
    words = sum(len(re.findall(r'\S*[A-Za-z]\S*', page.read_text())) for page in (ROOT / 'docs').rglob('*.md'))
    print(f'{"docs":10}{words:8} words')


main()
