# SPDX-License-Identifier: Apache-2.0
# What tools/mutate plants is still there to be planted. That tests notice it is for tools/mutate itself, by hand.
# Usage: mutations.py SOURCE
import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop())
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader('mutate', str(SOURCE / 'tools/mutate'))
mutate = importlib.util.module_from_spec(importlib.util.spec_from_loader('mutate', loader))
loader.exec_module(mutate)


class Mutations(unittest.TestCase):
    def test_each_text_is_found_once_and_changes(self):
        wrong = []
        for m in mutate.MUTATIONS:
            try:
                self.assertNotEqual(mutate.planted_in(m, SOURCE), (SOURCE / m.file).read_text(encoding='utf-8'), m.name)
            except ValueError as e:
                wrong.append(str(e))
        self.assertEqual(wrong, [])

    def test_each_names_tests_that_are_there_and_itself_once(self):
        there = {path.name for path in (SOURCE / 'tests').rglob('test_*.cpp')}
        for m in mutate.MUTATIONS:
            self.assertLessEqual(set(m.tests.split()), there, m.name)
        names = [m.name for m in mutate.MUTATIONS]
        self.assertEqual(sorted(set(names)), sorted(names))

    def test_a_text_that_is_gone_or_there_twice_is_an_error_that_names_it(self):
        m = mutate.MUTATIONS[0]._replace(name='a bug', file='a.hpp', text='x = 1', planted='x = 2')
        with tempfile.TemporaryDirectory() as folder:
            def said():
                with self.assertRaises(ValueError) as refused:
                    mutate.planted_in(m, pathlib.Path(folder))
                return str(refused.exception)

            self.assertEqual(said(), '"a bug": a.hpp cannot be read (No such file or directory): say where it is now')
            for text, count in (('y = 1;', 0), ('x = 1; x = 1;', 2)):
                pathlib.Path(folder, 'a.hpp').write_text(text)
                self.assertEqual(said(), f'"a bug": its text is {count} times in a.hpp (it has to be once): '
                                         f'give the text that is there now')
            pathlib.Path(folder, 'a.hpp').write_text('int x = 1;')
            self.assertEqual(mutate.planted_in(m, pathlib.Path(folder)), 'int x = 2;')


if __name__ == '__main__':
    unittest.main()
