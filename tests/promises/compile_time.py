# SPDX-License-Identifier: Apache-2.0
# <comp/comp.hpp> compiles in under 3 s at -O0: the median of three, without a compiler cache.
# On a slow or busy machine seconds say little: there it may take RATIO times as long as the two largest headers that it
# includes anyway (fmt and nlohmann-json), timed in turns with it.
# Usage: compile_time.py COMPILER ARGUMENTS...
import statistics
import subprocess
import sys
import time

SECONDS = 3.0
RATIO = 3.0
OURS = '#include <comp/comp.hpp>\n'
REFERENCE = '#include <fmt/format.h>\n#include <nlohmann/json.hpp>\n'


def seconds(compiler, text):
    start = time.perf_counter()
    subprocess.run([*compiler, '-x', 'c++', '-O0', '-c', '-', '-o', '/dev/null'], input=text, text=True, check=True)
    return time.perf_counter() - start


compiler = [word for word in sys.argv[1:] if not word.endswith('ccache')]
pairs = [(seconds(compiler, OURS), seconds(compiler, REFERENCE)) for _ in range(3)]
ours = statistics.median(p[0] for p in pairs)
ratio = statistics.median(p[0] / p[1] for p in pairs)
verdict = f'<comp/comp.hpp>: {ours:.2f} s (at most {SECONDS}), {ratio:.2f} times fmt and nlohmann-json (at most {RATIO})'
print(verdict)
sys.exit(0 if ours < SECONDS or ratio < RATIO else verdict)
