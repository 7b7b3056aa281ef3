# SPDX-License-Identifier: Apache-2.0
# Every program for a GPU, hidden from them all: says in one sentence that there is none, and ends as skipped.
# Usage: without_gpu.py PROGRAM...
import os
import subprocess
import sys
import unittest

programs, sys.argv[1:] = sys.argv[1:], []


class WithoutGpu(unittest.TestCase):
    def test_each_says_so_and_counts_as_skipped(self):
        self.assertTrue(programs)
        for program in programs:
            with self.subTest(program=os.path.basename(program)):
                got = subprocess.run([program], text=True, capture_output=True, env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''})
                self.assertEqual(got.returncode, 77, got.stdout + got.stderr)
                self.assertRegex(got.stdout, r'^There is no GPU here \(the CUDA driver found none\): .*\.\n$')


unittest.main()
