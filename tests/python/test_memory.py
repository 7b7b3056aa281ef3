# SPDX-License-Identifier: Apache-2.0
"""Memory that torch frees goes back to the system, also under a plan; kept memory is asked for, and goes back when no
step uses it. In processes of their own: an allocator is a process's."""

import os
import subprocess
import sys
import unittest

from torch import nn

from support import plan_file, small_net, some_images

CHILD = '''
import sys, time, torch, comp
from support import small_net, some_images
from torch.nn.functional import cross_entropy

keeps, path = sys.argv[1] == 'keeps', sys.argv[2]
net, (x, y) = small_net(), some_images(16)
plan = comp.plan(path, net, keep_memory=keeps)

def step():
    with plan:
        loss = cross_entropy(net(x), y)
    loss.backward()

def resident():  # [MiB]
    return int(open('/proc/self/statm').read().split()[1]) * 4096 >> 20

for _ in range(2):
    step()
before = resident()
held = [torch.ones(64 << 20, dtype=torch.uint8) for _ in range(4)]
most = resident() - before
del held
freed = resident() - before
end = time.monotonic() + 8
while time.monotonic() < end:  # steps go on, and have no use for it
    step()
    time.sleep(0.2)
print(most, freed, resident() - before)
'''


class Memory(unittest.TestCase):
    def resident(self, *arguments):
        net, (x, y) = small_net(), some_images(16)

        def run(plan):
            with plan:
                return nn.functional.cross_entropy(net(x), y)

        child = subprocess.run(
            [sys.executable, '-c', CHILD, *arguments, plan_file(net, run)],
            capture_output=True,
            text=True,
            env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
        )
        self.assertEqual(child.returncode, 0, child.stderr)
        return [int(word) for word in child.stdout.split()]

    def test_under_a_plan_memory_goes_back_as_without_comp(self):
        most, freed, later = self.resident('returns')
        self.assertGreater(most, 200)
        self.assertLess(max(freed, later), 40)

    def test_kept_memory_goes_back_when_no_step_has_used_it_for_a_while(self):
        most, freed, later = self.resident('keeps')
        self.assertGreater(min(most, freed), 200)
        self.assertLess(later, 40)


if __name__ == '__main__':
    unittest.main()
