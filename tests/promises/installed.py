# SPDX-License-Identifier: Apache-2.0
# Installs into an empty folder and builds programs against it as a stranger does: with pkg-config's flags. Of comp-cuda also
# a family of kernels, from the installed source, for an architecture that the installed library has no code for.
# Usage: installed.py MESON BUILD_FOLDER PACKAGE=PROGRAM... -- COMPILER ARGUMENTS...    (MESON: one word for the shell to split)
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

split = sys.argv.index('--')
meson, build, *programs = sys.argv[1:split]
compiler = sys.argv[split + 1:]


def output_of(*command, **more):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def ask(folder, package, *what):
    """What pkg-config says of an installed package, its prefix being the folder that it was installed to."""
    pc = next(pathlib.Path(folder).rglob(package + '.pc'))
    entry = next(line for line in pc.read_text().splitlines() if line.startswith('prefix='))
    prefix = folder + entry[len('prefix='):]
    flags = output_of('pkg-config', f'--define-variable=prefix={prefix}', *what, package,
                      env={**os.environ, 'PKG_CONFIG_PATH': str(pc.parent)})
    if prefix not in flags:
        sys.exit(f'pkg-config does not lead to what was installed for {package}: {flags}')
    return shlex.split(flags)


def compile_kernels(folder):
    nvcc = os.environ['NVCC']
    source = pathlib.Path(*ask(folder, 'comp-cuda', '--variable=kernels'), 'transpose.cu')
    output_of(nvcc, '-std=c++20', '-arch=sm_86', '-ccbin', compiler[0], '-DFMT_USE_CONSTEXPR=1', str(source), '-c',
              *ask(folder, 'comp-cuda', '--cflags'), '-o', f'{folder}/transpose.o')


with tempfile.TemporaryDirectory() as folder:
    output_of(*shlex.split(meson), 'install', '-C', build, '--no-rebuild', '--quiet', '--destdir', folder)
    for package, program in (word.split('=', 1) for word in programs):
        output_of(*compiler, program, *ask(folder, package, '--cflags', '--libs'), '-o', f'{folder}/consumer')
        print(output_of(f'{folder}/consumer'), end='')
        if package == 'comp-cuda':
            compile_kernels(folder)
