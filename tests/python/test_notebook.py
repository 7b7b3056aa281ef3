# SPDX-License-Identifier: Apache-2.0
"""The notebooks of examples/ run from their first cell to their last and carry no outputs: in a kernel if nbclient
is installed, else cell after cell here."""

import importlib.util
import json
import os
import pathlib
import shutil
import tempfile
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / 'examples'
KERNEL = all(importlib.util.find_spec(name) for name in ('nbclient', 'nbformat', 'ipykernel'))


class Notebooks(unittest.TestCase):
    def test_each_runs_and_has_no_outputs(self):
        notebooks = sorted(EXAMPLES.glob('*.ipynb'))
        self.assertTrue(notebooks)
        for path in notebooks:
            text = path.read_text()
            cells = [cell for cell in json.loads(text)['cells'] if cell['cell_type'] == 'code']
            self.assertFalse(any(cell['outputs'] or cell['execution_count'] for cell in cells), path.name)
            folder = tempfile.mkdtemp()
            shutil.copytree(EXAMPLES / 'data', pathlib.Path(folder) / 'data')
            if KERNEL:
                import nbclient
                import nbformat

                run = nbformat.reads(text, as_version=4)
                nbclient.NotebookClient(run, timeout=400, resources={'metadata': {'path': folder}}).execute()
                said = ''.join(o.get('text', '') for c in run.cells if c.cell_type == 'code' for o in c.outputs)
            else:
                said = self.said_by(cells, folder)
            self.assertIn('of the test digits are right', said)
            self.assertIn('2.div', said)

    def said_by(self, cells, folder):
        import contextlib
        import io

        before, names, out = os.getcwd(), {}, io.StringIO()
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(out):
                for cell in cells:
                    exec(''.join(cell['source']), names)
        finally:
            os.chdir(before)
        return out.getvalue()


if __name__ == '__main__':
    unittest.main()
