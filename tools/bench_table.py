#!/usr/bin/env python3
"""One table and one JSON file out of the benches' own JSON.

Usage: bench_table.py OUT.json IN.json...   Every input is what `deepinfer bench limits|kernels|decode|prefill --json`
prints: an object with results[] of {op, format, rows, threads, achieved, unit, limit, share}. Limits that were measured
again by a later bench are shown once. An input that is no such object is named and ends the run with exit code 1.
"""
import json
import sys

COLUMNS = ("operation", "format", "rows", "achieved", "limit", "unit", "share")


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def main(arguments):
    if len(arguments) < 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    results, profile, seen = [], "", set()
    for path in arguments[1:]:
        try:
            with open(path, encoding="utf-8") as file:
                bench = json.load(file)
            profile = bench.get("profile", profile)
            lines = bench["results"]
            for r in lines:
                key = (r["op"], r["format"], r["rows"], r["threads"], r["unit"])
                if r["op"] in ("read", "multiply_add") and key in seen:
                    continue
                seen.add(key)
                results.append(r)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            print(f"bench_table: {path} is not the JSON of a bench: {problem!r}", file=sys.stderr)
            return 1
    rows = [COLUMNS]
    for r in results:
        rows.append((r["op"], r["format"], str(r["rows"]), number(r["achieved"]), number(r["limit"]), r["unit"],
                     f"{100 * r['share']:.0f} %"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip())
    with open(arguments[0], "w", encoding="utf-8") as file:
        json.dump({"profile": profile, "results": results}, file, indent=1)
        file.write("\n")
    print(f"{len(results)} results in {arguments[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
