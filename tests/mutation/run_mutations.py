#!/usr/bin/env python3
"""Shows that the tests can fail: applies one deliberate fault at a time and demands that a test notices.

run_mutations.py                 all entries of mutations.json
run_mutations.py --only NAME...  some of them
run_mutations.py --check         only that every entry's text is in the source exactly once (fast, no build)

An entry: name, why (the rule that the fault breaks), file, edits: pairs of exact text, once in the file, and its replacement, tests:
programs of the build, each with an optional GoogleTest filter after a colon. The faults are applied to copies of the tree under build/mutation, never to
the tree itself. The run fails if the unchanged copy fails, if an entry's text is gone, if a fault does not compile, or if the named tests
pass in spite of it. Does not know what any fault means; mutations.json does.
"""
import argparse
import collections
import concurrent.futures
import filecmp
import json
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = pathlib.Path(__file__).resolve().with_name("mutations.json")
KEYS = {"name", "why", "file", "edits", "tests"}
BUILD_TIMEOUT_S = 1800
TEST_TIMEOUT_S = 600  # a fault may make a loop endless; running out of time counts as noticed

Outcome = collections.namedtuple("Outcome", "killed detail")


def check_entries(entries, root):
    """Problems of the list itself, one line each."""
    names = collections.Counter(e.get("name") for e in entries)
    for e in entries:
        name = e.get("name", "?")
        if set(e) != KEYS or not e["tests"] or not e["edits"]:
            yield f"{name}: needs exactly the members {', '.join(sorted(KEYS))}, with at least one edit and one test"
            continue
        if names[name] > 1:
            yield f"{name}: the name is used twice"
        path = root / e["file"]
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for old, new in e["edits"]:
            if text.count(old) != 1:
                yield f"{name}: the text to replace stands {text.count(old)} times in {e['file']}, not once: {old!r}"
            if old == new:
                yield f"{name}: old and new text are equal"


def source_list(root):
    """Files of the tree, without what is built or ignored."""
    try:
        out = subprocess.run(["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"], check=True,
                             capture_output=True).stdout
        return sorted(p for p in out.decode().split("\0") if p and (root / p).is_file())
    except (OSError, subprocess.CalledProcessError):
        skip = {"build", ".git", ".cache", "__pycache__"}
        return sorted(str(p.relative_to(root)) for p in root.rglob("*")
                      if p.is_file() and not skip.intersection(p.relative_to(root).parts))


def sync(root, tree, files):
    """Makes `tree` an exact copy; untouched files keep their time, so that little is compiled again."""
    wanted = set(files)
    for old in [p for p in tree.rglob("*") if p.is_file() and p.relative_to(tree).parts[0] != "build"]:
        if str(old.relative_to(tree)) not in wanted:
            old.unlink()
    for name in files:
        target = tree / name
        if not target.is_file() or not filecmp.cmp(root / name, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, target)


class Worker:
    """One copy of the tree with its own build folder."""

    def __init__(self, root, folder, files):
        self.tree, self.build = folder, folder / "build" / "release"
        self.tree.mkdir(parents=True, exist_ok=True)
        sync(root, self.tree, files)
        # The same relative paths as in the tree's own release build: all of them share compiler cache entries.
        self.env = {**os.environ, "CCACHE_BASEDIR": str(folder)}
        if not (self.build / "build.ninja").is_file():
            self.call(["cmake", "-S", str(self.tree), "-B", str(self.build), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"],
                      check=True)

    def call(self, command, check=False, timeout=BUILD_TIMEOUT_S):
        done = subprocess.run(command, env=self.env, text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")
        return done

    def compile(self, tests):
        programs = sorted({t.split(":")[0] for t in tests})
        return self.call(["ninja", "-C", str(self.build), "-j", "1" if len(programs) == 1 else "2", *programs])

    def run_test(self, test):
        """(passed, last words). No test selected counts as an error of the list."""
        program, _, wanted = test.partition(":")
        command = [str(self.build / "bin" / program), "--gtest_fail_fast"]
        if wanted:
            command.append(f"--gtest_filter={wanted}")
        try:
            done = self.call(command, timeout=TEST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return False, f"no end within {TEST_TIMEOUT_S} s"
        if done.returncode == 0 and "[  PASSED  ] 0 tests" in done.stdout:
            raise RuntimeError(f"{test} selects no test")
        failed = [line for line in done.stdout.splitlines() if line.startswith("[  FAILED  ]")]
        last = failed[0] if failed else done.stdout.strip().splitlines()[-1:] or [""]
        return done.returncode == 0, f"{program}: {last if isinstance(last, str) else last[0]}"

    def baseline(self, tests):
        built = self.compile(tests)
        if built.returncode != 0:
            return Outcome(False, "the unchanged copy does not compile:\n" + built.stdout[-4000:])
        for test in tests:
            passed, words = self.run_test(test)
            if not passed:
                return Outcome(False, f"the unchanged copy fails: {words}")
        return Outcome(True, "")

    def mutate(self, entry):
        path = self.tree / entry["file"]
        original = path.read_text(encoding="utf-8")
        text = original
        for old, new in entry["edits"]:
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        try:
            built = self.compile(entry["tests"])
            if built.returncode != 0:
                return Outcome(False, "does not compile:\n" + built.stdout[-2000:])
            for test in entry["tests"]:
                passed, words = self.run_test(test)
                if not passed:
                    return Outcome(True, words)
            return Outcome(False, "SURVIVED: " + ", ".join(entry["tests"]) + " passed in spite of it")
        finally:
            path.write_text(original, encoding="utf-8")


def run_all(entries, workers):
    """Failures, one line each; prints as it goes."""
    tests = sorted({t for e in entries for t in e["tests"]})
    for worker in workers:  # one after the other: the second finds the first one's objects in the compiler cache
        base = worker.baseline(tests)
        if not base.killed:
            print(base.detail, flush=True)
            return [base.detail]
    print(f"the unchanged copy passes {len(tests)} tests", flush=True)
    free = queue.Queue()
    for worker in workers:
        free.put(worker)

    def one(entry):
        worker = free.get()
        start = time.monotonic()
        try:
            outcome = worker.mutate(entry)
        except Exception as problem:  # one broken entry must not hide the others
            outcome = Outcome(False, str(problem))
        finally:
            free.put(worker)
        verdict = "noticed" if outcome.killed else "FAILED "
        print(f"{verdict} {entry['name']} ({time.monotonic() - start:.0f} s): {outcome.detail}", flush=True)
        return [] if outcome.killed else [f"{entry['name']}: {outcome.detail}"]

    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        return [line for lines in pool.map(one, entries) for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "mutation")
    args = parser.parse_args()
    entries = json.loads(LIST.read_text(encoding="utf-8"))
    problems = list(check_entries(entries, ROOT))
    if args.check or problems:
        print("\n".join(problems) or f"{len(entries)} mutations, every text found once")
        return 1 if problems else 0
    if args.only:
        unknown = set(args.only) - {e["name"] for e in entries}
        if unknown:
            print("no such mutation: " + ", ".join(sorted(unknown)))
            return 2
        entries = [e for e in entries if e["name"] in args.only]
    files = source_list(ROOT)
    workers = [Worker(ROOT, args.work / str(i), files) for i in range(max(1, min(args.jobs, len(entries))))]
    failures = run_all(entries, workers)
    print(f"{len(entries) - len(failures)} of {len(entries)} mutations noticed" if failures else
          f"all {len(entries)} mutations noticed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
