# SPDX-License-Identifier: Apache-2.0
# ./run gpu-check without a GPU: what it reads and renders, and whole runs in a folder of its own where nvidia-smi, nvcc,
# Meson, ninja, compute-sanitizer and the programs are stand-ins.
# Usage: test_gpu_check.py SOURCE_ROOT
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(ROOT / 'tools'))
import gpu_check  # noqa: E402
import gpu_report  # noqa: E402

STATE = '1755, 1980, 2619, 2619, 412.50, 700.00, 55\n'
CARD = 'NVIDIA H100 80GB HBM3, 580.65.06, 9.0, 81559\n'
DOCTEST = '[doctest] test cases:   44 |   44 passed | 0 failed | 0 skipped\n[doctest] Status: SUCCESS!\n'


def way(name, seconds, **more):
    return {'name': name, 'seconds': seconds, 'quartiles': [seconds * .9, seconds * 1.1], 'over_fp32': .01 / seconds,
            'over_fp32_bounds': [.009 / seconds, .011 / seconds], 'with_upload_seconds': seconds * 1.5,
            'in_epochs_seconds': seconds, 'peak_bytes': 2**28, **more}


def steps(found=.004, bounds=(.98, 1.1), captured=(1.1, 1.3)):
    return {'jobs': [{'model': 'vgg16', 'shape': 'batch 128', 'plan': '0b1', 'search_seconds': 3.5, 'ways': [
        way('FP32', .01), way('TF32', .008), way('rules BF16', .0041),
        way('found plan', found, over_rules=.0041 / found, over_rules_bounds=list(bounds), captured_seconds=found / 1.2,
            captured_over_plain=1.2, captured_over_plain_bounds=list(captured))]}]}


def kernel(name='relu', precision='FP32', bytes=2**30, of_copy=.9):
    return {'kernel': name, 'precision': precision, 'elements': 1, 'bytes': bytes, 'seconds': 1e-3, 'gb_per_s': of_copy * 4000,
            'of_copy': of_copy}


def library(own=1e-3, best=.99e-3):
    return {'operator': 'linear', 'direction': 'forward', 'shape': '8192x1024x4096', 'precision': 'BF16', 'library': 'cuBLASLt',
            'own_seconds': own, 'best_seconds': best, 'algorithms': 17}


def torch(*seconds, names=('autocast BF16', 'autocast BF16, torch.compile')):
    return {'version': '2.11.0+cu130', 'left_out': {'vgg16, autocast BF16, sdpa cudnn': 'no such kernel'},
            'rows': [{'model': 'vgg16', 'way': name, 'seconds': s, 'quartiles': [s, s], 'with_upload_seconds': s * 2,
                      'without_loss_seconds': s / 2, 'peak_bytes': 2**29} for name, s in zip(names, seconds or (.005,))]}


def in_python(over):
    return {'version': '2.11.0+cu130', 'jobs': [{'model': 'gpt2', 'plan': '30 of 60 low', 'search_seconds': 41.2, 'ways': [
        {'name': name, 'seconds': .01 * x, 'quartiles': [.009 * x, .011 * x], 'plan_over': x, 'plan_over_bounds': [.99 * x, 1.01 * x]}
        for name, x in (('fp32', 3), ('autocast', over), ('plan', 1))]}]}


class Reading(unittest.TestCase):
    def test_devices_of_nvidia_smi(self):
        self.assertEqual(gpu_report.devices_of(CARD + 'NVIDIA T4, 535.1, 7.5, [N/A]\n'), [
            {'name': 'NVIDIA H100 80GB HBM3', 'driver': '580.65.06', 'compute_capability': '9.0', 'memory_mib': 81559},
            {'name': 'NVIDIA T4', 'driver': '535.1', 'compute_capability': '7.5', 'memory_mib': None}])

    def test_a_message_of_nvidia_smi_is_no_device(self):
        self.assertEqual(gpu_report.devices_of('No devices were found\n'), [])
        self.assertEqual(gpu_report.devices_of(''), [])

    def test_the_release_of_nvcc(self):
        self.assertEqual(gpu_report.release_of('Cuda compilation tools, release 13.0, V13.0.88'), '13.0')
        self.assertIsNone(gpu_report.release_of('what?'))

    def test_cases_of_doctest(self):
        self.assertEqual(gpu_report.counts_of(DOCTEST), (44, 0))
        self.assertEqual(gpu_report.counts_of('[doctest] test cases: 3 | 1 passed | 2 failed |'), (1, 2))
        self.assertIsNone(gpu_report.counts_of('Segmentation fault'))
        self.assertEqual(gpu_report.counts_of('Ran 9 tests in 3.1s\n\nFAILED (failures=2, errors=1, skipped=4)\n'), (2, 3))
        self.assertEqual(gpu_report.counts_of('Ran 1 test in 0.1s\n\nOK\n'), (1, 0))

    def test_memcheck(self):
        verdict = gpu_report.sanitizer_verdict
        self.assertIsNone(verdict('memcheck', 0, DOCTEST + '========= ERROR SUMMARY: 0 errors\n'))
        wrong = '========= Invalid __global__ read of size 4 bytes\n=========     at over_elements+0x70\n========= ERROR SUMMARY: 3 errors\n'
        self.assertEqual(verdict('memcheck', 86, wrong), 'memcheck reports 3: Invalid __global__ read of size 4 bytes')

    def test_racecheck(self):
        verdict = gpu_report.sanitizer_verdict
        self.assertIsNone(verdict('racecheck', 0, DOCTEST + '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n'))
        wrong = ('========= Error: Race reported between Write access at sums+0x10 and Read access\n'
                 '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n')
        self.assertEqual(verdict('racecheck', 86, wrong),
                         'racecheck reports 1: Error: Race reported between Write access at sums+0x10 and Read access')

    def test_a_sanitizer_that_could_not_look_found_not_nothing(self):
        verdict = gpu_report.sanitizer_verdict
        self.assertEqual(verdict('memcheck', 0, '========= Error: Device not supported. Please refer to the documentation'),
                         'memcheck says that it does not support this device')
        self.assertEqual(verdict('memcheck', 139, 'Segmentation fault'), 'memcheck ended with 139 and without a summary')
        self.assertIn('tests under it failed', verdict('memcheck', 1, '[doctest] test cases: 2 | 1 passed | 1 failed |\n'
                                                                      '========= ERROR SUMMARY: 0 errors'))
        self.assertIn('tests under it failed', verdict('memcheck', 0, '========= ERROR SUMMARY: 0 errors'))  # none ran


class Goals(unittest.TestCase):
    def missed(self, **bench):
        return list(gpu_report.missed_goals(bench))

    def test_nothing_measured_misses_nothing(self):
        self.assertEqual(self.missed(), [])

    def test_a_kernel_counts_at_its_largest_size(self):
        small, large = kernel(bytes=2**20, of_copy=.3), kernel(of_copy=.86)
        self.assertEqual(self.missed(kernels={'rows': [large, small]}), [])
        self.assertEqual(self.missed(kernels={'rows': [small, kernel(of_copy=.84)]}),
                         ['relu in FP32: 84% of the copy bandwidth at 1024 MiB (goal 85%)'])

    def test_a_library_that_would_be_faster_is_named(self):
        self.assertEqual(self.missed(libraries={'rows': [library()]}), [])
        self.assertEqual(self.missed(libraries={'rows': [library(best=.8e-3)]}),
                         ["linear forward 8192x1024x4096 in BF16: 80% of the speed of cuBLASLt's best (goal 95%)"])

    def test_steps_count_beyond_their_interval(self):
        self.assertEqual(self.missed(steps=steps()), [])
        self.assertEqual(self.missed(steps=steps(bounds=(.9, 1.0))), [])
        self.assertEqual(self.missed(steps=steps(found=.005, bounds=(.7, .9))), ["vgg16: the found plan is slower than the rules' (0.82x)"])
        self.assertEqual(self.missed(steps=steps(captured=(.7, .9))), ['vgg16, found plan: the captured step is slower than the plain one (1.20x)'])

    def test_too_few_rounds_for_an_interval_miss_nothing(self):
        few = steps(bounds=(None, None), captured=(None, None))
        few['jobs'][0]['ways'][0]['over_fp32_bounds'] = [None, None]
        self.assertEqual(self.missed(steps=few), [])
        self.assertIn('| FP32 | 10 ms (9 ms to 11 ms) | 1.00x | 15 ms | 10 ms |  | 256 MiB |', gpu_report.steps_section(few))

    def test_pytorchs_fastest_way_where_it_is_faster(self):
        self.assertEqual(self.missed(steps=steps(), torch=torch()), [])
        self.assertEqual(self.missed(steps=steps(), torch=torch(.005, .002)), ["vgg16: 0.60x the speed of PyTorch's autocast BF16, torch.compile"])
        self.assertEqual(self.missed(steps=steps(), torch=torch(.002, .005)), ["vgg16: 0.60x the speed of PyTorch's autocast BF16"])
        self.assertEqual(self.missed(steps=steps(), torch=torch(.0035)), [])  # slower than captured steps, which a training keeps


    def test_a_plan_that_autocast_beats_in_python_is_named(self):
        self.assertEqual(self.missed(python=in_python(1.2)), [])
        self.assertEqual(self.missed(python=in_python(.9)), ['gpt2 in Python: the found plan has 0.90x the speed of autocast'])


class Section(unittest.TestCase):
    def result(self, **bench):
        part = {'name': 'kernels', 'slice': 'tests', 'passed': 44, 'failed': 0, 'seconds': 2.0, 'why': ''}
        return {'device': gpu_report.devices_of(CARD)[0] | {'cuda': '13.0'}, 'commit': 'abc1234', 'date': '2026-11-21',
                'parts': {'tests: kernels': part}, 'bench': bench}

    def test_names_device_driver_cuda_commit_and_date(self):
        self.assertIn('NVIDIA H100 80GB HBM3 (compute capability 9.0, 81559 MiB), driver 580.65.06, CUDA 13.0, comp abc1234, 2026-11-21',
                      gpu_report.section(self.result()))

    def test_every_figure_has_its_table(self):
        text = gpu_report.section(self.result(steps=steps(), kernels={'rows': [kernel(), kernel(precision='BF16', of_copy=.5)]},
                                              libraries={'rows': [library()]}, torch=torch(), python=in_python(1.2)))
        for line in ('| FP32 | 10 ms (9 ms to 11 ms) | 1.00x (0.90 to 1.10) | 15 ms | 10 ms |  | 256 MiB |',
                     '| found plan | 4 ms (3.6 ms to 4.4 ms) | 2.50x (2.25 to 2.75) | 6 ms | 4 ms | 3.33 ms (1.20x) | 256 MiB |',
                     '| relu | 3600 GB/s, 90% | 2000 GB/s, **50%** |',
                     '| linear forward | 8192x1024x4096 | BF16 | 1 ms | 990 us | 99% | 17 |',
                     '| vgg16 | autocast BF16 | 5 ms (5 ms to 5 ms) | 10 ms | 2.5 ms | 512 MiB | 1.25x (found plan) | 1.67x |',
                     'Left out: vgg16, autocast BF16, sdpa cudnn (no such kernel).',
                     '| gpt2 | 30 of 60 low | 41 s | autocast | 12 ms (10.8 ms to 13.2 ms) | 1.20x (1.19 to 1.21) |',
                     'The search took 3.5 s; plan 0b1.',
                     '- relu in BF16: 50% of the copy bandwidth at 1024 MiB (goal 85%)'):
            self.assertIn(line, text.splitlines())

    def test_what_was_not_run_is_said(self):
        text = gpu_report.section(self.result(torch={'rows': [], 'why': 'no Python here has torch'}))
        self.assertIn('compute-sanitizer over the kernels: not run.', text)
        self.assertIn('PyTorch was not measured: no Python here has torch.', text)
        self.assertNotIn('No goal was missed', text)
        self.assertIn('No goal was missed', gpu_report.section(self.result(libraries={'rows': [library()]})))

    def test_a_slice_that_was_left_out_has_its_reason(self):
        result = self.result()
        result['parts']['sanitizer: compute-sanitizer'] = {'name': 'compute-sanitizer', 'slice': 'sanitizer', 'passed': 0, 'failed': 0,
                                                           'seconds': 0, 'why': 'it is not installed'}
        self.assertIn('compute-sanitizer over the kernels: left out (it is not installed).', gpu_report.section(result))

    def test_numbers_on_both_sides_are_compared_with_numbers(self):
        job = steps()
        job['jobs'][0]['ways'].append(way('found plan, FP32 images', .005))
        text = '\n'.join(gpu_report.torch_section(torch(.01, names=['autocast BF16, FP32 images']), job))
        self.assertIn('| 2.00x (found plan, FP32 images) |', text)

    def test_versions_and_the_state_of_the_gpu_are_told(self):
        result = self.result()
        states = gpu_report.ranges_of(gpu_report.states_of(STATE + STATE.replace('1755', '1410').replace('412.50', '[N/A]')))
        result['parts']['bench: steps'] = {'name': 'steps', 'slice': 'bench', 'passed': 1, 'failed': 0, 'seconds': 1., 'why': '',
                                           'gpu': states, 'libraries': 'cuDNN 9.19.0'}
        text = gpu_report.section(result)
        self.assertIn('Libraries: cuDNN 9.19.0.', text)
        self.assertIn('clocks.sm 1410 to 1755 MHz, clocks.max.sm 1980 MHz,', text)
        self.assertIn('power.draw 412.5 W, power.limit 700 W, temperature.gpu 55 C.', text)

    def test_failures_are_named(self):
        result = self.result()
        result['parts']['tests: kernels'] |= {'failed': 2, 'why': 'ERROR: CHECK( a == b )'}
        self.assertIn('Failed: kernels: ERROR: CHECK( a == b )', gpu_report.section(result))

    def test_it_replaces_the_one_before_and_nothing_else(self):
        first = gpu_report.with_section('# Benchmarks\n\ntext\n', gpu_report.section(self.result()))
        self.assertTrue(first.startswith('# Benchmarks\n\ntext\n\n## On a GPU\n'))
        after = first + '\n## Last\n'
        second = gpu_report.with_section(after, gpu_report.section(self.result(steps=steps())))
        self.assertEqual(second.count(gpu_report.BEGIN), 1)
        self.assertTrue(second.endswith('\n## Last\n'))
        self.assertIn('vgg16', second)
        self.assertEqual(gpu_report.with_section(second, gpu_report.section(self.result())), after)

    def test_the_page_of_this_project_has_the_markers(self):
        page = (ROOT / 'docs/benchmarks/cuda.md').read_text()
        self.assertEqual((page.count(gpu_report.BEGIN), page.count(gpu_report.END)), (1, 1))


class Wheels(unittest.TestCase):
    def test_headers_and_libraries_of_wheels_are_found_and_linked(self):
        with tempfile.TemporaryDirectory() as folder:
            site = pathlib.Path(folder, 'site-packages')
            for file in ('nvidia/cudnn/include/cudnn.h', 'nvidia/cudnn/lib/libcudnn.so.9', 'nvidia/cu13/include/cublasLt.h'):
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                (site / file).touch()
            links = pathlib.Path(folder, 'links')
            include, library = gpu_check.from_wheels(['cudnn', 'cublasLt'], [str(site)], links)
            self.assertEqual((include, library), ([f'{site}/nvidia/cudnn/include'], [f'{site}/nvidia/cudnn/lib']))
            self.assertEqual([p.name for p in links.iterdir()], ['libcudnn.so'])  # cuBLASLt has a header, but no library
            self.assertTrue((links / 'libcudnn.so').exists())

    def test_what_the_toolkit_has_is_not_taken_from_wheels(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, 'cublasLt.h').touch()
            self.assertEqual(gpu_check.lacking(['/nowhere', folder]), ['cudnn', 'cusparse'])

    def test_headers_that_travelled_come_behind_those_that_are_set(self):
        with tempfile.TemporaryDirectory() as folder:
            made = gpu_check.extended({'COMP_EXTRA_INCLUDE': '/a:b', 'CPATH': '/c', 'PATH': ''}, pathlib.Path(folder), pathlib.Path('/nowhere'))
            self.assertEqual(made['CPATH'], f'/c:/a:{os.getcwd()}/b')  # compilers run in the build folder
            self.assertNotIn('LIBRARY_PATH', made)


class Torch(unittest.TestCase):
    def reason(self, module):
        with tempfile.TemporaryDirectory() as folder:
            if module is not None:
                pathlib.Path(folder, 'torch.py').write_text(module)
            python = pathlib.Path(folder, 'python3')
            python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S -B "$@"\n')
            python.chmod(0o755)
            found, why = gpu_check.find_torch(folder, pathlib.Path('/nowhere'))
            return why if found is None else found == str(python)

    def test_the_torch_of_a_python_is_found_or_the_reason_told(self):
        sees = 'class cuda:\n    is_available = lambda: {}\n'
        self.assertIs(self.reason(sees.format(True)), True)
        self.assertIn('sees no GPU', self.reason(sees.format(False)))
        self.assertEqual(self.reason(None), 'no Python here has torch')
        self.assertEqual(self.reason('raise ImportError("libcufile.so.0: cannot open")'),
                         'the torch that is here cannot be imported (libcufile.so.0: cannot open)')

    def test_without_torch_or_a_gpu_it_says_why_and_is_no_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, 'torch.json')
            got = subprocess.run([sys.executable, '-B', ROOT / 'bench/cuda/torch_steps.py', file], text=True, capture_output=True,
                                 env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})
            figures = json.loads(file.read_text())
        self.assertEqual((got.returncode, figures['rows'], got.stderr), (0, [], ''))
        self.assertEqual(got.stdout, f"PyTorch measures nothing here: {figures['why']}.\n")
        self.assertIn('torch', figures['why'])


class Whole(unittest.TestCase):
    """Runs of the script in a folder of its own, where every tool is a stand-in."""

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

    def test_without_a_gpu_it_says_so_in_one_sentence(self):
        self.stand_in('nvidia-smi', 'echo "No devices were found"; exit 6')
        for arguments in ((), ('--find',), ('--only', 'bench')):
            self.assertEqual(self.check(*arguments), (1, ['There is no GPU here (nvidia-smi lists none): ./run test checks the CUDA '
                                                          'backend without one.']))
        self.assertFalse((self.root / 'out').exists())

    def test_without_nvcc_it_says_so_in_one_sentence(self):
        self.stand_in('nvcc', 'exit 1')
        status, said = self.check()
        self.assertEqual((status, len(said)), (1, 1))
        self.assertIn('install the CUDA toolkit', said[0])

    def test_all_slices_pass(self):
        status, said = self.check()
        self.assertEqual((status, said[-1]), (0, '51 passed, 0 failed'))  # 44 cases, 2 checks, a benchmark, 4 builds
        self.assertIn('-Dgpu_architectures=90', (self.root / 'options').read_text())
        kept = self.kept()
        self.assertEqual(kept['device']['cuda'], '13.0')
        self.assertEqual(kept['bench']['kernels']['rows'][0]['kernel'], 'relu')
        page = (self.root / 'docs/benchmarks/cuda.md').read_text()
        self.assertIn('| relu | 3600 GB/s, 90% |', page)
        self.assertIn('compute-sanitizer over the kernels: 3 passed, 0 failed.', page)

    def test_slices_add_up(self):
        self.check('--only', 'tests')
        status, said = self.check('--only', 'bench')
        self.assertEqual((status, said[-1]), (0, '2 passed, 0 failed'))
        self.assertIn('tests: kernels', self.kept()['parts'])
        self.stand_in('nvidia-smi', 'echo "Another, 1.2, 8.0, 1024"')
        self.check('--only', 'bench')
        self.assertNotIn('tests: kernels', self.kept()['parts'])  # another device: its figures stand alone

    def test_a_part_that_fails_hides_no_other(self):
        self.program('tests', 'broken', 'echo "a.cpp:3: ERROR: CHECK( 1 == 2 )"; echo "test cases: 2 | 1 passed | 1 failed |"; exit 1')
        self.program('tests', 'crashes', 'kill -SEGV $$')
        self.program('tests', 'missing', '')
        self.program('tests', 'sees_none', 'exit 77')
        self.program('benchmarks', 'steps', 'exit 3')
        status, said = self.check()
        self.assertEqual((status, said[-1]), (1, '52 passed, 5 failed'))
        why = {name: part['why'] for name, part in self.kept()['parts'].items() if part['failed']}
        self.assertEqual(why, {'tests: broken': 'a.cpp:3: ERROR: CHECK( 1 == 2 )', 'tests: crashes': 'ended with -11',
                               'tests: missing': 'was not built', 'tests: sees_none': 'the program found no GPU',
                               'bench: steps': 'ended with 3: '})

    def test_a_build_folder_that_is_not_configured_is_a_failure_with_mesons_words(self):
        self.stand_in('meson', 'echo "meson.build:3:0: ERROR: cuda: no cuDNN"; exit 1')
        status, said = self.check('--only', 'tests')
        self.assertEqual((status, said[-1]), (1, '0 passed, 1 failed'))
        self.assertIn('configure: failed, cuda: no cuDNN', said)

    def test_a_sanitizer_that_is_missing_is_named(self):
        (self.bin / 'compute-sanitizer').unlink()
        status, said = self.check('--only', 'sanitizer')
        if not gpu_check.find_tool('compute-sanitizer'):
            self.assertEqual((status, said[-1]), (0, '0 passed, 0 failed'))
            self.assertIn('compute-sanitizer: left out, it is not installed: it is part of the CUDA toolkit (package cuda-sanitizer)', said)

    def test_torch_that_sees_the_gpu_has_its_tests_and_benchmark(self):
        # A Python with a torch of its own, which runs the package's scripts once its compiled part is there.
        scripts = (f"case $1 in -c) case $2 in *__path__*) echo /torch ;; *) echo True ;; esac ;; esac\n"
                   f"case $1 in *test_*) ls {self.root}/build/gpu/_comp.so >&2 && printf 'Ran 2 tests in 1s\\n\\nOK\\n' ;;\n"
                   f"*on_gpu.py) case $2 in --models) echo gpt2 ;; *) echo $COMP_TEST_DEVICE >{self.root}/device; "
                   f"echo '{json.dumps(in_python(1.2))}' >$3 ;; esac ;; esac")
        self.stand_in('python3', scripts)
        self.program('tests', 'libtorch', f'printf "{DOCTEST.strip()}"')
        (self.programs / '--targets.json').write_text(json.dumps(
            [{'name': '_comp.cpython-312-x86_64-linux-gnu', 'filename': [f'{self.root}/build/gpu/_comp.so']}]))
        (self.programs / '_comp.so').touch()
        self.check('--only', 'tests:libtorch', '--only', 'tests:python')
        parts = self.kept()['parts']
        self.assertEqual([parts[f'tests: python {file}']['passed'] for file in gpu_check.PYTHON_TESTS], [2] * len(gpu_check.PYTHON_TESTS))
        self.assertEqual(parts['tests: libtorch']['passed'], 44)
        self.assertIn('-Dlibtorch_path=/torch', (self.root / 'options').read_text())
        self.check('--only', 'bench:python')
        self.assertEqual((self.root / 'device').read_text(), 'cuda\n')
        self.assertIn('| gpt2 | 30 of 60 low |', (self.root / 'docs/benchmarks/cuda.md').read_text())

    def test_a_part_of_a_slice_is_run_alone(self):
        self.program('tests', 'operators', f'printf "{DOCTEST.strip()}"')
        self.check('--only', 'tests:operators', '--only', 'sanitizer:racecheck')
        self.assertEqual([*self.kept()['parts']], ['tests: build', 'tests: operators', 'sanitizer: build', 'sanitizer: racecheck kernels'])
        got = subprocess.run([sys.executable, self.root / 'tools/gpu_check.py', '--only', 'test'], text=True, capture_output=True)
        self.assertIn("'test' (slices are build, tests, sanitizer, bench): name one", got.stderr)

    def test_a_run_ends_in_time_and_the_rest_goes_on(self):
        status, said = self.check('--limit', '1')
        self.assertEqual((status, said[-2:]), (1, ['left for want of time, to be done by --rest: build: build, tests: build, sanitizer: build, '
                                                   'bench: build, bench: torch', '0 passed, 0 failed']))
        self.check('--only', 'tests')
        status, said = self.check('--rest')
        self.assertEqual((status, said[-1]), (0, '6 passed, 0 failed'))  # all but the 44 cases, for which nothing is built
        self.assertNotIn('== test kernels', said)

    def test_what_the_limit_cuts_is_left_for_the_rest_and_has_not_failed(self):
        device = gpu_report.devices_of(CARD)[0] | {'cuda': '13.0'}
        check = gpu_check.Check(self.root, device, dict(os.environ), gpu_check.wanted_of([]), part_limit=.5, limit=1)
        with contextlib.redirect_stdout(None), unittest.mock.patch.dict(os.environ, PATH=f'{self.bin}:{os.environ["PATH"]}'):
            self.assertFalse(check.note_build('build', 'build', check.start('build', ['sleep', '600'])))  # however short a part may be
            check.has_time = lambda *part: True
            check.part_limit = 560
            check.test('tests', 'hangs', ['sleep', '600'])
            check.measure('hangs', ['bash', '-c', 'exec sleep 600'])
        self.assertEqual(check.left, ['build: build', 'tests: hangs', 'bench: hangs'])
        self.assertEqual((check.ran, check.result['parts']), ([], {}))
        self.assertEqual(self.check('--only', 'build', '--rest')[0], 0)

    def test_the_first_minutes_tell_most_first_and_the_rest_does_the_rest(self):
        kernels = f'case $1 in *elementwise*) echo >{self.root}/fifo ;; esac; printf "{DOCTEST.strip()}"'
        (self.programs / '--tests.json').unlink()
        self.program('tests', 'kernels', kernels)
        self.program('tests', 'operators', f'echo "libraries: cuDNN 9.19.0"; printf "{DOCTEST.strip()}"')
        self.program('tests', 'training', f'printf "{DOCTEST.strip()}"')
        job = steps()['jobs'][0]
        self.program('benchmarks', 'steps', 'case $1 in --models) echo mlp; echo vgg16; echo transformer ;; '
                                            f"*) echo '{json.dumps({'jobs': [job]})}' | sed s/vgg16/${{1#*=}}/ >$2 ;; esac")
        (self.programs / '--targets.json').write_text(json.dumps([{'name': 'train_cuda', 'filename': [f'{self.root}/build/gpu/train_cuda']}]))
        (self.programs / 'train_cuda').write_text('#!/bin/bash\nexit 0\n')
        (self.programs / 'train_cuda').chmod(0o755)
        # The second build ends only when the first family of kernels has run: it is made beside them.
        os.mkfifo(self.root / 'fifo')
        good = (self.bin / 'ninja').read_text()
        self.stand_in('ninja', f'case "$*" in *operators*) read <{self.root}/fifo ;; esac; {good.partition(chr(10))[2]}')
        status, said = self.check('--first', '1m')
        begun = [line[3:] for line in said if line.startswith('== ')]
        self.assertEqual((status, said[-1]), (0, '270 passed, 0 failed'))  # 6 times 44 cases, 3 builds, the demo, 2 rows (PyTorch is not there)
        self.assertEqual(begun, ['configure', 'build kernels', 'build tests', *(f'test {family} kernels' for family in gpu_check.KERNELS),
                                 'build bench', 'test contract', 'test models beside the host', 'demo', 'bench steps transformer', 'bench steps vgg16'])
        kept = self.kept()
        self.assertEqual(kept['parts']['first: contract']['libraries'], 'cuDNN 9.19.0')
        self.assertEqual(kept['parts']['bench: steps vgg16']['gpu']['temperature.gpu'], [55, 55])
        self.assertNotIn('bench_kernels', str([*(self.root / 'build/gpu').iterdir()]))  # which no row is of
        (self.bin / 'ninja').write_text(good)
        (self.programs / 'tests_kernels').write_text(f'#!/bin/bash\nprintf "{DOCTEST.strip()}"\n')
        status, said = self.check('--rest')
        begun = [line[3:] for line in said if line.startswith('== ')]
        self.assertEqual(status, 0)
        self.assertIn('test kernels', begun)  # whole
        self.assertIn('bench steps mlp', begun)
        for done in ('demo', 'bench steps transformer', 'bench steps vgg16'):
            self.assertNotIn(done, begun)

    def test_every_family_of_kernels_has_its_file_and_every_row_its_model(self):
        files = (ROOT / 'tests/cuda_on_cpu').glob('test_*_kernels.cpp')
        self.assertEqual(sorted(file.name[5:-12] for file in files), sorted(gpu_check.KERNELS))
        self.assertIn('one step of each model', (ROOT / 'tests/cuda_on_gpu/test_like_host.cpp').read_text())
        for row, file in zip(gpu_check.ROWS, ('steps.cpp', 'torch_steps.py', 'steps.cpp')):
            name = row.split(' ')[1]
            self.assertRegex((ROOT / 'bench/cuda' / file).read_text(), f'''{{"{name}", {name}}}|'{name}': ''')

    def test_times_are_seconds_or_minutes(self):
        self.assertEqual([gpu_check.seconds_of(word) for word in ('90', '90s', '10m', '0.5m')], [90, 90, 600, 30])
        self.assertRaises(gpu_check.argparse.ArgumentTypeError, gpu_check.seconds_of, 'soon')

    def test_what_is_mended_no_longer_counts_as_failed(self):
        good = (self.bin / 'meson').read_text()
        self.stand_in('meson', 'echo "ERROR: cuda: no cuDNN"; exit 1')
        self.check('--only', 'tests')
        (self.bin / 'meson').write_text(good)
        self.assertEqual(self.check('--only', 'tests')[0], 0)
        self.assertEqual([name for name, part in self.kept()['parts'].items() if part['failed']], [])

    def test_a_build_folder_that_another_meson_made_is_made_anew(self):
        self.check('--only', 'tests')
        (self.root / 'build/gpu/left').touch()
        good = (self.bin / 'meson').read_text().replace('setup)', 'setup) [ "$2" != --reconfigure ] || exit 1; ')
        (self.bin / 'meson').write_text(good)
        self.assertEqual(self.check('--only', 'tests')[0], 0)
        self.assertFalse((self.root / 'build/gpu/left').exists())

    def test_a_build_folder_made_with_other_headers_at_hand_is_made_anew(self):
        self.check('--only', 'tests')
        (self.root / 'build/gpu/left').touch()
        self.check('--only', 'tests')
        self.assertTrue((self.root / 'build/gpu/left').exists())
        os.environ['COMP_EXTRA_INCLUDE'] = 'headers'
        self.addCleanup(os.environ.pop, 'COMP_EXTRA_INCLUDE')
        self.check('--only', 'tests')
        self.assertFalse((self.root / 'build/gpu/left').exists())

    def test_steps_run_by_the_model_and_their_figures_stand_together(self):
        def job(model):
            return json.dumps({'jobs': [steps()['jobs'][0] | {'model': model}]})
        self.program('benchmarks', 'steps', 'exit 3')
        self.check('--only', 'bench:steps')
        self.assertEqual(self.kept()['parts']['bench: steps']['failed'], 1)
        (self.programs / '--benchmarks.json').unlink()
        self.program('benchmarks', 'steps', f"case $1 in --models) echo mlp; echo gpt ;; --model=mlp) echo '{job('mlp')}' >$2 ;; *) exit 3 ;; esac")
        status, said = self.check('--only', 'bench:steps')
        self.assertEqual((status, said[-1]), (1, '2 passed, 1 failed'))
        self.assertEqual([j['model'] for j in self.kept()['bench']['steps']['jobs']], ['mlp'])
        (self.programs / 'benchmarks_steps').write_text(f"#!/bin/bash\ncase $1 in --models) echo mlp; echo gpt ;; *) echo '{job('gpt')}' >$2 ;; esac\n")
        status, said = self.check('--only', 'bench:steps gpt')
        self.assertEqual((status, said[-1]), (0, '2 passed, 0 failed'))
        self.assertNotIn('bench: steps', self.kept()['parts'])
        self.assertEqual([j['model'] for j in self.kept()['bench']['steps']['jobs']], ['mlp', 'gpt'])

    def test_pytorch_runs_by_the_model_too_and_first_of_all(self):
        row = torch()['rows'][0]
        figures = json.dumps(torch() | {'rows': [row | {'model': 'MODEL'}]})
        self.stand_in('python3', 'case "$1 $2" in -c*torch*) echo True ;; *--models) echo mlp; echo gpt ;; '
                                 f"*--model=*) echo 'libraries: PyTorch'; echo '{figures}' | sed s/MODEL/${{2#*=}}/ >$3 ;; esac")
        status, said = self.check('--only', 'bench:torch gpt')  # in a folder that nothing was built in
        self.assertEqual((status, said[-1]), (0, '1 passed, 0 failed'))
        status, said = self.check('--only', 'bench:torch', '--rest')
        self.assertEqual((status, said[-1]), (0, '1 passed, 0 failed'))
        self.assertEqual([row['model'] for row in self.kept()['bench']['torch']['rows']], ['gpt', 'mlp'])
        self.assertEqual(self.kept()['parts']['bench: torch mlp']['libraries'], 'PyTorch')

    def test_trainings_that_could_not_be_built_are_named(self):
        self.check('--only', 'tests')
        self.assertIn('needs oneDNN', self.kept()['parts']['tests: training']['why'])
        self.assertIn('needs CLI11', self.kept()['parts']['tests: demo']['why'])
        self.program('tests', 'training', f'printf "{DOCTEST.strip()}"')
        self.check('--only', 'tests')
        self.assertEqual(self.kept()['parts']['tests: training']['passed'], 44)

    def test_without_git_results_add_up_as_long_as_the_sources_stay(self):
        self.stand_in('git', 'exit 128')
        self.check('--only', 'tests')
        self.check('--only', 'bench')
        self.assertIn('tests: kernels', self.kept()['parts'])
        self.assertRegex(self.kept()['commit'], '^sources [0-9a-f]{10}$')
        (self.root / 'meson.build').write_text('changed')
        self.check('--only', 'bench')
        self.assertNotIn('tests: kernels', self.kept()['parts'])

    def test_the_section_is_written_from_another_machines_file(self):
        self.check('--only', 'bench')
        shutil.copy(ROOT / 'docs/benchmarks/cuda.md', self.root / 'docs/benchmarks/cuda.md')
        self.stand_in('nvidia-smi', 'exit 6')
        self.assertEqual(self.check('--render'), (0, ['written: docs/benchmarks/cuda.md']))
        self.assertIn('| relu | 3600 GB/s, 90% |', (self.root / 'docs/benchmarks/cuda.md').read_text())
        (self.root / 'out/gpu-check.json').unlink()
        status, said = self.check('--render')
        self.assertEqual((status, len(said)), (1, 1))
        self.assertIn('bring the file from one', said[0])

    def test_what_takes_too_long_is_ended_and_named(self):
        self.program('tests', 'hangs', 'sleep 600 & sleep 600')
        status, said = self.check('--only', 'tests', '--part-limit', '1')
        self.assertEqual(status, 1)
        self.assertIn('hangs: failed, ended with a limit of 1 s', said)
        self.assertIn('kernels: passed', said)

    def test_an_earlier_figure_is_not_taken_for_a_new_one(self):
        self.check('--only', 'bench')
        (self.programs / 'benchmarks_kernels').write_text('#!/bin/bash\ntrue\n')
        status, said = self.check('--only', 'bench')
        self.assertEqual(status, 1)
        self.assertIn('kernels: failed, ended with no figures: ', said)


if __name__ == '__main__':
    unittest.main()
