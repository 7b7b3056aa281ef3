# SPDX-License-Identifier: Apache-2.0
# The C++ of a page compiles, in the order of the page: what names LibTorch with LibTorch's flags, if there are any.
# Usage: snippets.py PAGE REFUSE_FOLDER COMPILER ARGUMENTS... [--libtorch ARGUMENTS...]
import pathlib
import re
import subprocess
import sys

page, folder, *rest = sys.argv[1:]
compiler, torch = (rest[:rest.index('--libtorch')], rest[rest.index('--libtorch') + 1:]) if '--libtorch' in rest else (rest, [])
blocks = re.findall(r'^```cpp\n(.*?)^```', pathlib.Path(page).read_text(), re.M | re.S)
ours = [block for block in blocks if 'torch::' not in block]
theirs = [block for block in blocks if block not in ours]
assert ours and (theirs or not torch), 'the page has no programs any more'


def compiled(before, body, flags):
    program = f'{before}\nvoid program() {{\n{body}}}\n'
    got = subprocess.run([*compiler, *flags, f'-I{folder}', '-fsyntax-only', '-x', 'c++', '-'], input=program, text=True)
    if got.returncode:
        sys.exit(f'{page}: this does not compile:\n{program}')


compiled('#include <comp/comp.hpp>\n#include "whole.hpp"\nusing my_trainer = whole::capable_backend;', ''.join(ours), [])
if torch:
    compiled('#include <comp/comp.hpp>\n#include <comp_libtorch/train/planned_region.hpp>\n#include <torch/torch.h>\n'
             '#include <torch/csrc/inductor/aoti_package/model_package_loader.h>\nextern torch::Tensor x;\n'
             'struct batch_type { torch::Tensor data, target; };\n'
             'extern torch::nn::Sequential net;\nextern std::vector<batch_type>* loader;\nextern torch::optim::SGD optimizer;',
             ''.join(theirs), torch)
