# SPDX-License-Identifier: Apache-2.0
"""The first Python of README.md and of each page of docs/ runs, on a small training, with the names that the pages share; the rest of
a page's Python is Python. Usage: test_documents.py [PAGE]"""

import contextlib
import io
import os
import pathlib
import re
import sys
import tempfile
import unittest

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import comp
from support import DEVICE, plan_file, small_net, some_images

ROOT = pathlib.Path(__file__).resolve().parents[2]


def shared():
    """The names of a training that pages do not introduce."""
    torch.manual_seed(3)
    net = small_net()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    images, labels = some_images(256)
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)

    def step(plan, batch):
        x, y = batch
        with plan:
            loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def forward(plan):
        with plan:
            return cross_entropy(net(images[:16]), labels[:16])

    return {'torch': torch, 'nn': nn, 'comp': comp, 'cross_entropy': cross_entropy, 'DataLoader': DataLoader, 'DistributedSampler': DistributedSampler,
            'net': net, 'model': net, 'optimizer': optimizer, 'scheduler': torch.optim.lr_scheduler.StepLR(optimizer, 100), 'loader': loader, 'step': step, 'forward': forward,
            'data': loader.dataset, 'x': images[:16], 'y': labels[:16]}


def pages():
    for page in [ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md'))]:
        blocks = re.findall(r'^```python\n(.*?)^```', page.read_text(encoding='utf-8'), re.M | re.S)
        if blocks and (len(sys.argv) < 2 or page.match(sys.argv[1])):
            yield str(page.relative_to(ROOT)), blocks


class Documents(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def test_the_first_python_of_a_page_runs_and_all_of_it_is_python(self):
        os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', MASTER_PORT='29562')
        found = list(pages())
        self.assertTrue(len(found) > 10 or len(sys.argv) > 1, 'the documents have no Python any more')
        for page, blocks in found:
            names = shared()
            for number, block in enumerate(blocks):
                compile(block, f'{page}, block {number + 1}', 'exec')
            with self.subTest(page), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                if '"plan.json", net' in blocks[0]:
                    os.replace(plan_file(names['net'], names['forward']), 'plan.json')
                if 'comp.resume' in blocks[0]:
                    comp.search(names['step'], model=names['net'], optimizer=names['optimizer'], data=names['loader']).train(epochs=1, checkpoint='training.pt')
                exec(compile(blocks[0], page, 'exec'), names)  # noqa: S102
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            for file in pathlib.Path().iterdir():
                file.unlink()


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1])
