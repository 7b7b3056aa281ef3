# SPDX-License-Identifier: Apache-2.0
# bench/kernels/kernels.py: what it reads in the words of ptxas and in PTX, and which changes it calls a regression.
# Usage: test_kernel_report.py SOURCE_ROOT
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv.pop(1), 'bench/kernels')))
import kernels  # noqa: E402

PTXAS = """ptxas info    : Compiling entry function '_Z3sum' for 'sm_90'
ptxas info    : Function properties for _Z3sum
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 2080 bytes smem
ptxas info    : Compiling entry function '_Z3sum' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 28 registers
"""
PTX = """.visible .entry _Z3sum(
\t.param .u64 a
)
{
\t.reg .b64 \t%rd<3>;
\tld.param.u64 \t%rd1, [a];
$L__BB0_1:
\tld.global.nc.L1::no_allocate.v4.u32 \t{%r1,%r2,%r3,%r4}, [%rd1];
\tadd.f32 \t%f1, %f2, %f3;
\tst.global.v2.f32 \t[%rd2], {%f1,%f1};
\t@%p1 bra \t$L__BB0_1;
\tst.global.u8 \t[%rd2], %rs1;
\tst.shared.v4.f32 \t[%r9], {%f1,%f1,%f1,%f1};
\tret;

}
"""


def kernel(**changed):
    return {'registers': {'sm_90': 30}, 'instructions_per_element': 4.0, 'load_bytes': 16, 'store_bytes': 8, 'shared': 0} | changed


class Report(unittest.TestCase):
    def test_registers_spills_and_shared_memory_of_each_architecture(self):
        self.assertEqual(kernels.of_ptxas(PTXAS), [
            {'name': '_Z3sum', 'arch': 'sm_90', 'shared': 2080, 'stack': 8, 'spills': 16, 'registers': 30},
            {'name': '_Z3sum', 'arch': 'sm_80', 'shared': 0, 'stack': 0, 'spills': 0, 'registers': 28}])

    def test_bytes_of_loads_and_stores_of_global_memory(self):
        lines = kernels.of_ptx(PTX)['_Z3sum']
        self.assertEqual((kernels.widest_of(lines, 'ld'), kernels.widest_of(lines, 'st')), (16, 8))
        self.assertEqual(kernels.bytes_of('ld.local.v4.f32 {%f1}, [%rd1];'), 0)

    def test_instructions_are_those_of_the_loop_for_each_element_of_its_pack(self):
        lines = kernels.of_ptx(PTX)['_Z3sum']
        self.assertEqual(kernels.per_element('sum_by_blocks<4, float>', lines), 1)  # load, add, store, branch
        self.assertEqual(kernels.per_element('once', [line for line in lines if 'bra' not in line[1]]), 7)  # no loop: all

    def test_local_memory_and_what_gets_worse_are_named_with_what_it_was(self):
        self.assertEqual(list(kernels.local_memory(kernels.of_ptxas(PTXAS))), ['_Z3sum (sm_90) uses local memory: 8 bytes, 16 spilled'])
        recorded = {'sum': kernel(), 'old': kernel()}
        now = {'sum': kernel(instructions_per_element=5, registers={'sm_90': 20}), 'new': kernel()}
        self.assertEqual(set(kernels.regressions(now, recorded)),
                         {'sum: 5 instructions per element, recorded 4.0', 'new is not recorded: run kernels.py record',
                          'old is recorded and gone: run kernels.py record'})


unittest.main()
