# SPDX-License-Identifier: Apache-2.0
# The Python package is configured on a system without fmt, nlohmann-json and Boost: with headers that pip brought (stand-ins
# without content; fmt's are torch's), else it ends in a sentence that names them.
# Usage: pip_headers.py MESON COMP_ROOT PYTHON_WITH_TORCH COMPILER             (MESON: one word for the shell to split)
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

meson, root, python, compiler = sys.argv[1:]
HEADERS = {'boost_headers': 'boost/graph/boykov_kolmogorov_max_flow.hpp', 'nlohmann_json': 'nlohmann/json.hpp'}
OPTIONS = re.findall(r"'(-D[^']+)'", pathlib.Path(root, 'pyproject.toml').read_text())


def without_libraries(folder):
    """The compiler, which finds all that it finds otherwise but those three: its folders again, as links."""
    output = subprocess.run([compiler, '-E', '-v', '-x', 'c++', '/dev/null'], capture_output=True, text=True, check=True).stderr
    command = [compiler, '-nostdinc']
    for number, there in enumerate(re.search(r'#include <\.\.\.>.*?\n(.*?)\nEnd', output, re.DOTALL)[1].split()):
        here = folder / f'include{number}'
        here.mkdir()
        for entry in pathlib.Path(there).iterdir():
            if entry.name not in ('fmt', 'nlohmann', 'boost'):
                (here / entry.name).symlink_to(entry.resolve())
        command += ['-isystem', str(here)]
    return shlex.join(command)


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    for package, header in HEADERS.items():
        path = folder / 'pip' / package / 'include' / header
        path.parent.mkdir(parents=True)
        path.touch()
        (folder / 'pip' / package / '__init__.py').touch()
    environment = {**os.environ, 'CXX': without_libraries(folder), 'PKG_CONFIG_LIBDIR': str(folder), 'CMAKE': '/bin/false'}

    def configured(name, **more):
        return subprocess.run([*shlex.split(meson), 'setup', folder / name, root, *OPTIONS, f'-Dpython_path={python}'],
                              capture_output=True, text=True, env={**environment, **more})

    got = configured('with', PYTHONPATH=str(folder / 'pip'))
    if got.returncode != 0:
        sys.exit(got.stdout + got.stderr)
    arguments = [unit['command'] for unit in json.loads((folder / 'with/compile_commands.json').read_text()) if 'python/src' in unit['file']]
    for package in HEADERS:
        if not arguments or not all(f'-idirafter{folder}/pip/{package}/include' in command for command in arguments):
            sys.exit(f'headers of {package} are not given to all of {arguments}')
    got = configured('without', PYTHONPATH='')
    sentence = ('no <boost/graph/boykov_kolmogorov_max_flow.hpp> here (comp includes it): install fmt, nlohmann-json and Boost (./run does on '
                'Debian and Ubuntu), or, for the Python package, pip install nlohmann-json boost-headers')
    if got.returncode == 0 or sentence not in got.stdout:
        sys.exit(got.stdout + got.stderr)
