# SPDX-License-Identifier: Apache-2.0
# ./run gpu-check without a GPU: a whole run in a folder of its own in which nvidia-smi, nvcc, Meson, ninja, compute-sanitizer and
# the programs are stand-ins.
# Usage: test_gpu_check.py SOURCE_ROOT
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1))
STATE = '1755, 1980, 2619, 2619, 412.50, 700.00, 55\n'
CARD = 'NVIDIA H100 80GB HBM3, 580.65.06, 9.0, 81559\n'
DOCTEST = '[doctest] test cases:   44 |   44 passed | 0 failed | 0 skipped\n[doctest] Status: SUCCESS!\n'


def kernel(name='relu', precision='FP32', bytes=2**30, of_copy=.9):
    return {'kernel': name, 'precision': precision, 'elements': 1, 'bytes': bytes, 'seconds': 1e-3, 'gb_per_s': of_copy * 4000,
            'of_copy': of_copy}


class Whole(unittest.TestCase):
    """Runs of the script in a folder of its own, in which every tool is a stand-in."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.bin = pathlib.Path(folder.name, 'project'), pathlib.Path(folder.name, 'bin')
        self.bin.mkdir()
        for name in ('tools/gpu_check.py', 'tools/gpu_report.py', 'docs/benchmarks/cuda.md'):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.stand_in('nvidia-smi', f'case $1 in *name*) echo "{CARD.strip()}" ;; *) echo "{STATE.strip()}"; exec sleep 600 ;; esac')
        self.stand_in('nvcc', 'echo "Cuda compilation tools, release 13.0, V13.0.88"')
        self.stand_in('compute-sanitizer', 'shift 4; "$1"; status=$?; echo "========= ERROR SUMMARY: 0 errors"; '
                                           'echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"; exit $status')
        self.programs = self.root / 'programs'
        self.programs.mkdir()
        self.program('tests', 'kernels', f'printf "{DOCTEST.strip()}"')
        self.program('benchmarks', 'kernels', f"echo '{json.dumps({'rows': [kernel()]})}' >$1")
        # Meson knows the programs, ninja makes them.
        build = self.root / 'build/gpu'
        self.stand_in('meson', f'case $1 in setup) mkdir -p {build}; touch {build}/build.ninja; echo "$@" >>{self.root}/options ;; '
                               f'introspect) cat {self.programs}/$2.json ;; esac')
        self.stand_in('ninja', f'shift 4; for name; do [ ! -f {self.programs}/$name ] || cp {self.programs}/$name {build}; done')

    def stand_in(self, name, script):
        (self.bin / name).write_text(f'#!/bin/bash\n{script}\n')
        (self.bin / name).chmod(0o755)

    def program(self, kind, name, script):
        known = self.programs / f'--{kind}.json'
        all_known = json.loads(known.read_text()) if known.exists() else []
        all_known.append({'name': f'gpu {name}', 'cmd': [f'{self.root}/build/gpu/{kind}_{name}']})
        known.write_text(json.dumps(all_known))
        if script:
            (self.programs / f'{kind}_{name}').write_text(f'#!/bin/bash\n{script}\n')
            (self.programs / f'{kind}_{name}').chmod(0o755)

    def check(self, *arguments):
        environment = {**os.environ, 'PATH': f'{self.bin}:/usr/bin:/bin'}
        got = subprocess.run([sys.executable, self.root / 'tools/gpu_check.py', *arguments], text=True, capture_output=True,
                             env=environment, cwd=self.root)
        self.assertEqual(got.stderr, '')
        return got.returncode, got.stdout.splitlines()

    def kept(self):
        return json.loads((self.root / 'out/gpu-check.json').read_text())

    def test_all_slices_pass(self):
        status, lines = self.check()
        self.assertEqual((status, lines[-1]), (0, '51 passed, 0 failed'))  # 44 cases, 2 checks, a benchmark, 4 builds
        self.assertIn('-Dgpu_architectures=90', (self.root / 'options').read_text())
        kept = self.kept()
        self.assertEqual(kept['device']['cuda'], '13.0')
        self.assertEqual(kept['bench']['kernels']['rows'][0]['kernel'], 'relu')
        page = (self.root / 'docs/benchmarks/cuda.md').read_text()
        self.assertIn('| relu | 3600 GB/s, 90% |', page)
        self.assertIn('compute-sanitizer over the kernels: 3 passed, 0 failed.', page)


if __name__ == '__main__':
    unittest.main()
