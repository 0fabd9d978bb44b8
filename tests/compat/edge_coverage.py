"""Every test that docs/request-edge.md names for a rule exists, and no rule stands there without one.

usage: edge_coverage.py ROOT
"""
import pathlib
import re
import sys


def main():
    root = pathlib.Path(sys.argv[1])
    known = set()
    for source in root.glob("src/*/*_test.cc"):
        known |= {".".join(pair) for pair in re.findall(r"^TEST(?:_P|_F)?\((\w+), (\w+)\)", source.read_text(), re.M)}
    known |= set(re.findall(r"^di_compat\((\w+)", (root / "tests/compat/CMakeLists.txt").read_text(), re.M))
    text = (root / "docs/request-edge.md").read_text()
    rows = [line for line in text[text.index("## Which test holds which rule"):].splitlines() if line.startswith("| ")]
    faults, named = [], 0
    for row in rows:
        rule, tests = [cell.strip() for cell in row.strip("|").split("|")][:2]
        if tests == "tests":
            continue
        names = re.findall(r"`([\w.]+)`", tests)
        named += len(names)
        faults += [f"{rule}: no test" for _ in [0] if not names]
        faults += [f"{rule}: {name} does not exist" for name in names if name not in known]
    if len(rows) < 80:
        faults.append(f"only {len(rows)} rows: the table was not found")
    print("\n".join(faults) if faults else f"{len(rows)} rows name {named} tests, all there")
    sys.exit(1 if faults else 0)


main()
