# SPDX-License-Identifier: Apache-2.0
# Builds and runs a Meson project that has comp as its subproject: neither comp's tests nor its examples may come along.
# Usage: subproject.py MESON COMP_ROOT CONSUMER_FOLDER                         (MESON: one word for the shell to split)
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

meson, root, consumer = sys.argv[1:]
meson = shlex.split(meson)

with tempfile.TemporaryDirectory() as folder:
    project = shutil.copytree(consumer, pathlib.Path(folder, 'consumer'))
    comp = project / 'subprojects' / 'comp'
    comp.mkdir(parents=True)
    for part in pathlib.Path(root).iterdir():
        if part.name not in ('build', 'out', '.git', '.venv', '.torch'):
            (comp / part.name).symlink_to(part)
    build = str(project / 'build')
    subprocess.run([*meson, 'setup', build, str(project)], check=True)
    subprocess.run([*meson, 'test', '-C', build, '--print-errorlogs'], check=True)
    targets = subprocess.run([*meson, 'introspect', '--targets', build], check=True, capture_output=True, text=True).stdout
    names = [target['name'] for target in json.loads(targets) if target['build_by_default']]
    if names != ['consumer']:
        sys.exit(f'the consumer builds more than itself: {names}')
