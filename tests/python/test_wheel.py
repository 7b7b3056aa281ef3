# SPDX-License-Identifier: Apache-2.0
"""What the compiled module may not hold, since wheels go to other machines."""

import pathlib
import unittest

import torch

import comp


class Module(unittest.TestCase):
    def test_it_loads_no_library_of_fmt_and_no_torch_by_its_place(self):
        module = pathlib.Path(comp._comp.__file__).read_bytes()
        self.assertNotIn(b'libfmt.so', module)
        self.assertNotIn(str(pathlib.Path(torch.__file__).parent / 'lib').encode(), module)


if __name__ == '__main__':
    unittest.main()
