"""Random schemas with random instances: every finished walk through the masks must satisfy the schema by an independent
validator (no under-constraint), and every instance that the validator accepts, written in schema order, must be
reachable (no over-constraint); instances it rejects must not be.

usage: random_schemas.py PATH/grammar_batch COUNT [SEED]
"""
import decimal
import json
import random
import subprocess
import sys

try:
    import jsonschema
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/test_env.sh says why it could not be installed")
    sys.exit(77)

WORDS = ["a", "b", "ab", "key", "é", "q\"", "x y", "name", "漢", "\\", "1", ""]
PATTERNS = ["^a", "b$", "^[a-z]+$", "^.{2,4}$", "[0-9]", "^(ab|c)*$", "^a?b?$", "\\d{2}"]


class Maker:
    def __init__(self, rng):
        self.rng = rng

    def schema(self, depth, defs):
        r = self.rng
        kind = r.randrange(14) if depth > 0 else r.randrange(7)
        if kind == 0:
            return r.choice([{"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}, {"type": ["integer", "boolean"]}])
        if kind == 1:
            return {"enum": [self.value(1) for _ in range(r.randrange(1, 5))]}
        if kind == 2:
            return {"const": self.value(1)}
        if kind in (3, 4):
            s = {"type": "string"}
            if r.random() < 0.4:
                s["minLength"] = r.randrange(3)
            if r.random() < 0.4:
                s["maxLength"] = s.get("minLength", 0) + r.randrange(4)
            if r.random() < 0.3:
                s["pattern"] = r.choice(PATTERNS)
            return s
        if kind in (5, 6):
            s = {"type": r.choice(["integer", "number"])}
            if r.random() < 0.5:
                s[r.choice(["minimum", "exclusiveMinimum"])] = r.choice([-12, -1, 0, 3, 0.5, 9.75, 99])
            if r.random() < 0.5:
                s[r.choice(["maximum", "exclusiveMaximum"])] = r.choice([-3, 0, 2.25, 10, 101, 1000])
            if r.random() < 0.2:
                s["multipleOf"] = r.choice([1, 2, 3, 5, 0.5, 0.25])
            return s
        if kind in (7, 8):
            s = {"type": "array"}
            if r.random() < 0.3:
                s["prefixItems"] = [self.schema(depth - 1, defs) for _ in range(r.randrange(1, 3))]
            if r.random() < 0.8:
                s["items"] = self.schema(depth - 1, defs)
            if r.random() < 0.3:
                s["minItems"] = r.randrange(3)
            if r.random() < 0.4:
                s["maxItems"] = s.get("minItems", 0) + r.randrange(3)
            if r.random() < 0.2:
                s["contains"] = self.schema(0, defs)
                if r.random() < 0.4:
                    s["minContains"] = r.randrange(3)
            return s
        if kind in (9, 10, 11):
            return self.object(depth, defs)
        if kind == 12:
            s = {r.choice(["anyOf", "anyOf", "oneOf"]): [self.schema(depth - 1, defs) for _ in range(r.randrange(1, 4))]}
            if r.random() < 0.2:
                s.update(self.schema(0, defs))
            return s
        if r.random() < 0.5 and defs:
            return {"$ref": "#/$defs/" + r.choice(defs)}
        if r.random() < 0.5:
            return {"allOf": [self.schema(depth - 1, defs), self.schema(0, defs)]}
        return {"not": self.schema(0, defs)}

    def object(self, depth, defs):
        r = self.rng
        names = r.sample(WORDS, r.randrange(0, 4))
        s = {"type": "object", "properties": {n: self.schema(depth - 1, defs) for n in names}}
        s["required"] = [n for n in names if r.random() < 0.4]
        if r.random() < 0.5:
            s["additionalProperties"] = r.choice([False, False, {"type": "integer"}, True])
        if r.random() < 0.15:
            s["patternProperties"] = {r.choice(PATTERNS[:3]): self.schema(0, defs)}
        if r.random() < 0.1:
            s["propertyNames"] = {"maxLength": r.randrange(1, 4)}
        if r.random() < 0.15:
            s["maxProperties"] = r.randrange(1, 4)
        if r.random() < 0.1:
            s["minProperties"] = r.randrange(0, 2)
        if r.random() < 0.1 and len(names) > 1:
            s["dependentRequired"] = {names[0]: [names[1]]}
        return s

    def value(self, depth):
        r = self.rng
        kind = r.randrange(8 if depth > 0 else 6)
        if kind == 0:
            return r.choice([None, True, False])
        if kind in (1, 2):
            return r.choice(WORDS + ["ababc", "12", "bb", "z" * 5])
        if kind in (3, 4):
            return r.choice([0, 1, -1, 2, 3, 7, 10, 99, 100, -12, 1000])
        if kind == 5:
            return r.choice([0.5, -0.25, 2.25, 9.75, 1.5, 100.125])
        if kind == 6:
            return [self.value(depth - 1) for _ in range(r.randrange(4))]
        return {n: self.value(depth - 1) for n in r.sample(WORDS, r.randrange(4))}

    # An instance near the schema: follows it most of the time.
    def near(self, s, root, depth):
        r = self.rng
        if depth == 0 or not isinstance(s, dict) or r.random() < 0.05:
            return self.value(1)
        if "$ref" in s:
            return self.near(root["$defs"][s["$ref"].split("/")[-1]], root, depth - 1)
        for k in ("anyOf", "oneOf", "allOf"):
            if k in s:
                return self.near(r.choice(s[k]), root, depth - 1)
        if "enum" in s:
            return r.choice(s["enum"])
        if "const" in s:
            return s["const"]
        t = s.get("type")
        if isinstance(t, list):
            t = r.choice(t)
        if t == "object":
            out = {}
            for n, p in s["properties"].items():
                if n in s["required"] or r.random() < 0.6:
                    out[n] = self.near(p, root, depth - 1)
            if r.random() < 0.3:
                n = r.choice(WORDS + ["other"])
                if n not in out:
                    out[n] = self.value(1)
            return out
        if t == "array":
            prefix = s.get("prefixItems", [])
            n = r.randrange(s.get("minItems", 0), s.get("maxItems", s.get("minItems", 0) + 3) + 1)
            return [self.near(prefix[i] if i < len(prefix) else s.get("items", True), root, depth - 1) for i in range(n)]
        if t in ("integer", "number"):
            return r.choice([0, 1, -1, 3, 10, 5, 99, 100, -2, 4, 0.5, 2.25, 9.75, -0.75])
        if t == "string":
            return "".join(r.choice("abz1é") for _ in range(r.randrange(6)))
        return {"boolean": True, "null": None}.get(t, self.value(1))


def exactly(text):
    return json.loads(text, parse_float=decimal.Decimal)


def main():
    decimal.getcontext().prec = 2000
    program, count = sys.argv[1], int(sys.argv[2])
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 20261129)
    make = Maker(rng)
    jobs = []
    for i in range(count):
        defs = ["d0", "d1"]
        schema = make.schema(3, defs)
        schema["$defs"] = {d: make.schema(2, defs) for d in defs}
        instances = [make.near(schema, schema, 6) for _ in range(12)] + [make.value(2) for _ in range(4)]
        jobs.append((schema, instances))
    lines = []
    for i, (schema, instances) in enumerate(jobs):
        spaced = [json.dumps(x, ensure_ascii=False, separators=rng.choice([(",", ":"), (", ", ": ")])) for x in instances]
        # Any order first (the instances' own orders count), then schema order by the grammar's own default.
        lines.append({"schema": json.dumps(schema), "texts": spaced, "samples": 3, "seed": i, "any_order": True})
        lines.append({"schema": json.dumps(schema), "texts": spaced, "samples": 3, "seed": i + 1000000})
    text = "".join(json.dumps(l) + "\n" for l in lines)
    run = subprocess.run([program], input=text.encode(), stdout=subprocess.PIPE)
    if run.returncode != 0:
        sys.exit(f"FAILED: grammar_batch ended with {run.returncode}")
    answers = [json.loads(l) for l in run.stdout.decode().split("\n") if l]  # not splitlines: U+2028 stands in strings
    assert len(answers) == len(lines)
    stats = {"ok": 0, "empty": 0, "unsupported": 0, "walks": 0, "unfinished": 0, "reached": 0, "kept out": 0, "circular": 0}
    for i, (schema, instances) in enumerate(jobs):
        # Exact arithmetic on both sides: the validator's floats would disagree about multiples of large numbers.
        validator = jsonschema.Draft202012Validator(exactly(json.dumps(schema)))
        for ordered in (0, 1):
            answer = answers[2 * i + ordered]
            where = f"schema {json.dumps(schema, ensure_ascii=False)}"
            try:
                valid = [validator.is_valid(exactly(json.dumps(x))) for x in instances]
            except RecursionError:  # a reference to itself: the validator does not end, ours says that nothing matches
                stats["circular"] += 1
                continue
            if answer["status"] != "ok":
                key = "unsupported" if answer["status"] in ("unsupported", "resource exhausted") else "empty"
                stats[key] += 1
                if key == "empty" and any(valid):
                    sys.exit(f"FAILED: refused as empty or invalid: {answer['message']}\n{where}\n{instances[valid.index(True)]}")
                continue
            stats["ok"] += 1
            for x, ok, reached in zip(instances, valid, answer["accept"]):
                if reached and not ok:
                    sys.exit(f"FAILED: accepts {json.dumps(x, ensure_ascii=False)}\n{where}")
                # In schema order only instances in that order are reachable: asserted in any-order mode.
                if ok and not reached and ordered == 0 and not has_integral_float(x):
                    sys.exit(f"FAILED: cannot reach {json.dumps(x, ensure_ascii=False)}\n{where}")
                stats["reached" if reached else "kept out"] += 1
            for sample in answer["samples"]:
                stats["walks"] += 1
                if sample is None:
                    stats["unfinished"] += 1
                    continue
                try:
                    value = exactly(sample)
                except ValueError:
                    sys.exit(f"FAILED: not JSON: {sample!r}\n{where}")
                if not validator.is_valid(value):
                    sys.exit(f"FAILED: the masks led to {sample}\n{where}")
    print(stats)
    if stats["ok"] < count or stats["walks"] < 3 * count or stats["unfinished"] * 20 > stats["walks"]:
        sys.exit("FAILED: too few schemas compiled or walks finished to mean anything")


def has_integral_float(x):
    if isinstance(x, float):
        return x == int(x)
    if isinstance(x, list):
        return any(map(has_integral_float, x))
    return isinstance(x, dict) and any(map(has_integral_float, x.values()))


main()
