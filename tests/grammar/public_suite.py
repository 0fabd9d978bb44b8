"""The public JSON-Schema test suite, draft 2020-12 (npm package json-schema-test-suite) or draft 7 (Debian's package):
each schema is either compiled, and then its valid instances are reachable and its invalid ones are not, or refused
with the pointer of a keyword. Counted by file; a disagreement fails.

usage: public_suite.py PATH/grammar_batch FOLDER_WITH_TESTS...
"""
import glob
import json
import os
import subprocess
import sys

# What is left out on purpose, with the reason; docs/structured-output.md says the same.
DELIBERATE = {
    "integers are written without a point": lambda s, x: has(x, lambda v: isinstance(v, float) and v == int(v)),
    "numbers with bounds are written without an exponent": lambda s, x: has(x, lambda v: isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) >= 1e15),
    "lone surrogates are not text": lambda s, x: has(x, lambda v: isinstance(v, str) and any(0xD800 <= ord(c) < 0xE000 for c in v)),
    "format is asserted": lambda s, x: "format" in json.dumps(s),
}


def has(value, test):
    if isinstance(value, dict):
        return any(has(v, test) for v in value.values()) or any(test(k) for k in value)
    if isinstance(value, list):
        return any(has(v, test) for v in value)
    return test(value)


def main():
    program, folders = sys.argv[1], sys.argv[2:]
    folder = next((f for f in folders if os.path.isdir(f)), None)
    if folder is None:
        print("SKIPPED: the public suite is not installed (npm json-schema-test-suite, Debian json-schema-test-suite)")
        sys.exit(77)
    cases = []
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        for group in json.load(open(path, encoding="utf-8")):
            cases.append((os.path.basename(path), group))
    lines = []
    for _, group in cases:
        texts = [json.dumps(t["data"], ensure_ascii=False) if not has(t["data"], lambda v: isinstance(v, str) and any(0xD800 <= ord(c) < 0xE000 for c in v))
                 else json.dumps(t["data"]) for t in group["tests"]]
        lines.append(json.dumps({"schema": json.dumps(group["schema"]), "texts": texts, "any_order": True}))
    run = subprocess.run([program], input="\n".join(lines).encode() + b"\n", stdout=subprocess.PIPE)
    if run.returncode != 0:
        sys.exit(f"FAILED: grammar_batch ended with {run.returncode}")
    answers = [json.loads(l) for l in run.stdout.decode().split("\n") if l]
    totals = {"compiled": 0, "refused": 0, "instances": 0, "left out": 0}
    wrong, files = [], {}
    for (name, group), answer in zip(cases, answers):
        f = files.setdefault(name, [0, 0])
        if answer["status"] != "ok":
            totals["refused"] += 1
            f[1] += 1
            nothing = "matches nothing" in answer["message"]
            if nothing and any(t["valid"] for t in group["tests"]):
                wrong.append(f"{name}: {group['description']}: refused as empty")
            if not nothing and not answer["message"].startswith("#"):
                wrong.append(f"{name}: {group['description']}: no pointer in '{answer['message']}'")
            continue
        totals["compiled"] += 1
        f[0] += 1
        for t, reached in zip(group["tests"], answer["accept"]):
            totals["instances"] += 1
            if reached == t["valid"]:
                continue
            reason = next((r for r, test in DELIBERATE.items() if not reached and test(group["schema"], t["data"])), None)
            if reason is not None:
                totals["left out"] += 1
                continue
            wrong.append(f"{name}: {group['description']}: {t['description']}: valid {t['valid']}, reachable {reached}: {json.dumps(t['data'], ensure_ascii=False)[:100]} of {json.dumps(group['schema'])[:300]}")
    print(f"{folder}: {totals}")
    for name, (ok, refused) in files.items():
        print(f"  {name}: {ok} compiled, {refused} refused")
    for w in wrong:
        print("WRONG", w)
    if wrong:
        sys.exit(f"FAILED: {len(wrong)} disagreements")
    if totals["compiled"] < 150:
        sys.exit("FAILED: too few schemas of the suite are supported")


main()
