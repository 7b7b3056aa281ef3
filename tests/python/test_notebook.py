# SPDX-License-Identifier: Apache-2.0
"""The notebooks of examples/ and docs/ run from their first cell to their last, carry no outputs and print little: in a kernel
if nbclient is installed, else cell after cell here."""

import importlib.util
import json
import os
import pathlib
import shutil
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / 'examples'
WORDS = {  # by notebook: words that it prints
    'python_plan': ('of the test digits are right', '2.div'),
    'autocast_in_a_loop': ('batches, loss', 'cost of the search', 'head'),
    'hugging_face_trainer': ('steps, loss', 'plan.json: '),
    'potential_in_fp64': ('as written', 'pair.2.linear', 'weights are in torch.float64'),
}
NEEDS = {'hugging_face_trainer': ('transformers', 'accelerate')}
MOST = 6000  # characters that one prints
KERNEL = all(importlib.util.find_spec(name) for name in ('nbclient', 'nbformat', 'ipykernel'))


class Notebooks(unittest.TestCase):
    def test_each_runs_and_has_no_outputs(self):
        notebooks = sorted([*EXAMPLES.glob('*.ipynb'), *ROOT.glob('docs/notebooks/*.ipynb')])
        self.assertEqual({path.stem for path in notebooks}, set(WORDS))
        for path in notebooks:
            with self.subTest(path.stem):
                cells = [cell for cell in json.loads(path.read_text())['cells'] if cell['cell_type'] == 'code']
                self.assertFalse(any(cell['outputs'] or cell['execution_count'] for cell in cells))
                if not all(importlib.util.find_spec(name) for name in NEEDS.get(path.stem, ())):
                    self.skipTest(f'no {" and ".join(NEEDS[path.stem])} here')
                output = self.said_by(path, cells)
                self.assertLess(len(output), MOST)
                for words in WORDS[path.stem]:
                    self.assertIn(words, output)

    def said_by(self, path, cells):
        folder = tempfile.mkdtemp()
        shutil.copytree(EXAMPLES / 'data', pathlib.Path(folder) / 'data')
        if not KERNEL:
            return self.said_here(cells, folder)
        import nbclient
        import nbformat

        run = nbformat.reads(path.read_text(), as_version=4)
        nbclient.NotebookClient(run, timeout=400, resources={'metadata': {'path': folder}}).execute()
        return ''.join(o.get('text', '') for c in run.cells if c.cell_type == 'code' for o in c.outputs)

    def said_here(self, cells, folder):
        import contextlib
        import io

        import torch

        before, names, out, dtype = os.getcwd(), {}, io.StringIO(), torch.get_default_dtype()
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(out):
                for cell in cells:
                    exec(''.join(cell['source']), names)
        finally:
            os.chdir(before)
            torch.set_default_dtype(dtype)
        return out.getvalue()


if __name__ == '__main__':
    unittest.main()
