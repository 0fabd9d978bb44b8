"""Test of run_mutations.py with a stand-in for compiler and tests: what must make the run fail does."""
import contextlib
import io
import pathlib
import tempfile
import unittest

import run_mutations as runner


def entry(**changes):
    return {"name": "n", "why": "w", "file": "a.cc", "edits": [["x + 1", "x - 1"]], "tests": ["a_test"], **changes}


class FakeWorker(runner.Worker):
    """The test passes as long as the file contains what `needs` says."""

    def __init__(self, tree, needs, compiles=True):
        self.tree, self.needs, self.compiles = tree, needs, compiles

    def compile(self, tests):
        return type("Done", (), {"returncode": 0 if self.compiles else 1, "stdout": "error"})

    def run_test(self, test):
        return self.needs in (self.tree / "a.cc").read_text(), test


class Runner(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.tree = pathlib.Path(self.folder.name)
        (self.tree / "a.cc").write_text("int f(int x) { return x + 1; }\nint g(int y) { return y; }\n")

    def tearDown(self):
        self.folder.cleanup()

    def failures(self, worker, *entries):
        with contextlib.redirect_stdout(io.StringIO()):
            return runner.run_all(list(entries), [worker])

    def test_noticed(self):
        before = (self.tree / "a.cc").read_text()
        self.assertEqual(self.failures(FakeWorker(self.tree, "x + 1"), entry()), [])
        self.assertEqual((self.tree / "a.cc").read_text(), before)

    def test_survivor_fails(self):
        found = self.failures(FakeWorker(self.tree, "return"), entry())
        self.assertEqual(len(found), 1)
        self.assertIn("SURVIVED", found[0])

    def test_failing_baseline_fails(self):
        self.assertIn("the unchanged copy fails", self.failures(FakeWorker(self.tree, "z"), entry())[0])

    def test_not_compiling_fails(self):
        found = self.failures(FakeWorker(self.tree, "x + 1", compiles=False), entry())
        self.assertIn("does not compile", found[0])

    def test_list_problems(self):
        good = entry()
        self.assertEqual(list(runner.check_entries([good], self.tree)), [])
        for bad, text in ((entry(edits=[["gone", ""]]), "0 times"), (entry(edits=[["return", ""]]), "2 times"), (entry(edits=[["x + 1", "x + 1"]]), "equal"),
                          (entry(tests=[]), "one test"), (entry(edits=[]), "one edit"), (entry(file="b.cc"), "0 times")):
            found = list(runner.check_entries([bad], self.tree))
            self.assertEqual(len(found), 1, found)
            self.assertIn(text, found[0])
        self.assertEqual(len(list(runner.check_entries([good, good], self.tree))), 2)


if __name__ == "__main__":
    unittest.main()
