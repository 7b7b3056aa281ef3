# SPDX-License-Identifier: Apache-2.0
# comp as CMake users have it: installed, by find_package with these components, and those that are compiled from its sources by
# add_subdirectory. What is asked for and cannot be had is refused in a sentence.
# Usage: cmake.py MESON BUILD_FOLDER SOURCE_ROOT COMPILER LIBTORCH_PATH COMPONENT...   (MESON: one word for the shell to split)
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

meson, build, root, compiler, torch, *components = sys.argv[1:]
consumer = pathlib.Path(root, 'tests/promises/consumer')
version = re.search(r'comp_version = "(\d+\.\d+)', pathlib.Path(root, 'include/comp/files/plan_file.hpp').read_text())[1]


def configured(folder, *settings):
    return subprocess.run(['cmake', '-S', consumer, '-B', folder, f'-DCMAKE_CXX_COMPILER={compiler}', '-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror',
                           f'-DCOMP_LIBTORCH_PATH={torch}', *settings], text=True, capture_output=True)


def built_and_run(folder, parts, *settings):
    process = configured(folder, f'-DCOMP_COMPONENTS={";".join(parts)}', *settings)
    if process.returncode:
        sys.exit(process.stdout + process.stderr)
    subprocess.run(['cmake', '--build', folder], check=True)
    for program in ['consumer', *(f'consumer_{part}' for part in parts)]:
        print(subprocess.run([folder / program], check=True, text=True, stdout=subprocess.PIPE).stdout, end='')


def refused(folder, sentence, *settings):
    got = configured(folder, *settings)
    message = ' '.join(got.stderr.split())  # CMake breaks its lines
    if not got.returncode or sentence not in message:
        sys.exit(f'not refused with "{sentence}": {message}')


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    subprocess.run([*shlex.split(meson), 'install', '-C', build, '--no-rebuild', '--quiet', '--destdir', folder], check=True,
                   stdout=subprocess.DEVNULL)
    prefix = next(folder.rglob('comp-config.cmake')).parents[3]
    installed = f'-DCMAKE_PREFIX_PATH={prefix}'
    compiled = [part for part in components if part.endswith('compiled')]
    if compiled:
        built_and_run(folder / 'beside', compiled, f'-DCOMP_SOURCE={root}')
    if compiled and not list(prefix.rglob('libcomp.a')):  # this build does not install it
        refused(folder / 'none', 'this comp has no component compiled', installed, '-DCOMP_COMPONENTS=compiled')
        (prefix / 'lib').mkdir(exist_ok=True)
        for part in compiled:
            library = {'compiled': 'libcomp.a', 'libtorch_compiled': 'libcomp_libtorch.a'}[part]
            shutil.copy(next((folder / 'beside').rglob(f'libcomp_{part}.a')), prefix / 'lib' / library)
    built_and_run(folder / 'found', components, installed, f'-DCOMP_VERSION={version}')
    refused(folder / 'old', 'compatible with requested version "0.1"', installed, '-DCOMP_VERSION=0.1')
    refused(folder / 'no', 'this comp has no component mpi: it has compiled, host, libtorch and libtorch_compiled', installed, '-DCOMP_COMPONENTS=mpi')
    missing = 'no libtorch_cpu in COMP_LIBTORCH_PATH=/nowhere' if torch else 'this comp has no component libtorch'
    refused(folder / 'lost', missing, installed, '-DCOMP_COMPONENTS=libtorch', '-DCOMP_LIBTORCH_PATH=/nowhere')
