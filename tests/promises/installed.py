# SPDX-License-Identifier: Apache-2.0
# Installs into an empty folder and builds a program against it as a stranger does: with pkg-config's flags.
# Usage: installed.py MESON BUILD_FOLDER PROGRAM COMPILER ARGUMENTS...         (MESON: one word for the shell to split)
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

meson, build, program, *compiler = sys.argv[1:]


def output_of(*command, **more):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **more).stdout


with tempfile.TemporaryDirectory() as folder:
    output_of(*shlex.split(meson), 'install', '-C', build, '--no-rebuild', '--quiet', '--destdir', folder)
    pc = next(pathlib.Path(folder).rglob('comp.pc'))
    said = next(line for line in pc.read_text().splitlines() if line.startswith('prefix='))
    prefix = folder + said[len('prefix='):]
    flags = output_of('pkg-config', f'--define-variable=prefix={prefix}', '--cflags', '--libs', 'comp',
                      env={**os.environ, 'PKG_CONFIG_PATH': str(pc.parent)})
    if prefix not in flags:
        sys.exit(f'pkg-config does not lead to the installed headers: {flags}')
    output_of(*compiler, program, *shlex.split(flags), '-o', f'{folder}/consumer')
    print(output_of(f'{folder}/consumer'))
