# SPDX-License-Identifier: Apache-2.0
# Of the random graphs that pytorch_typed.py writes, those in which some operator,
# at some setting, has a type, types read or types of its readers that no graph kept before has: the most telling ones first,
# and in the order in which they were written. Comments stay.
# Usage: pytorch_typed.py | distinct_graphs.py [words for each setting] > pytorch_typed.inc
import sys


def types(line):
    """What a graph shows: its operators and, for each setting that does not refuse it, the type of each."""
    graph, results = (part.split() for part in line.strip().strip('",').split(' | '))
    operators, shown = [operator.split(',') for operator in graph], set()
    for setting, letters in enumerate(results[:: int((sys.argv + ['1'])[1])]):
        for at, (kind, *reads) in enumerate(operators if letters != '-' else []):
            read = frozenset(letters[int(i)] if i.isdigit() else i[0] for i in reads)
            readers = frozenset(letter for letter, other in zip(letters, operators) if str(at) in other[1:])
            shown |= {(setting, kind, letters[at], read), (setting, letters[at], readers, read)}
    return shown


lines = sys.stdin.readlines()
left = {line: types(line) for line in lines if line.startswith('"')}
kept, shown = set(), set()
while left and (new := left.pop(best := max(left, key=lambda line: len(left[line] - shown))) - shown):
    shown |= new
    kept.add(best)
sys.stdout.writelines(line for line in lines if line in kept or not line.startswith('"'))
