# SPDX-License-Identifier: Apache-2.0
# Copies the one header of range-v3 that nvcc cannot read into a folder, with the line that stops it replaced.
# nvcc 13.0 fails on `using ranges::reference_wrapper<T &>::operator T &;` of range-v3 0.12; put the folder first on
# nvcc's include path. A range-v3 without that line needs no copy, and none is made.
# Usage: patch_range_v3.py FOLDER COMPILER ARGUMENTS...
import pathlib
import subprocess
import sys

HEADER = 'range/v3/utility/semiregular_box.hpp'
STOPS_NVCC = 'using ranges::reference_wrapper<T &>::operator T &;'
SAME_FOR_NVCC = 'operator T &() const noexcept { return this->get(); }'

folder, *compiler = sys.argv[1:]
rule = subprocess.run([*compiler, '-x', 'c++', '-std=c++20', '-M', '-'], input=f'#include <{HEADER}>\n', check=True,
                      capture_output=True, text=True).stdout
found = next(word for word in rule.split() if word.endswith(HEADER))
text = pathlib.Path(found).read_text()
if STOPS_NVCC in text:
    copy = pathlib.Path(folder, HEADER)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(text.replace(STOPS_NVCC, SAME_FOR_NVCC))
