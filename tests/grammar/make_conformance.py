"""Writes conformance.jsonl: schemas of realistic kinds and families around every boundary, each with texts that must be
reachable and texts that must not. Expectations are stated here, by the family that makes them; the independent validator
of the test environment only cross-checks them (a disagreement stops the writing).

usage: make_conformance.py > conformance.jsonl
"""
import json
import random
import sys

try:
    import jsonschema
except ImportError:
    jsonschema = None

OUT = []


def add(schema, valid, invalid, raw_invalid=(), **options):
    """valid and invalid are values; raw_invalid are texts that are no JSON, or JSON in a form that is not written."""
    if jsonschema is not None:
        v = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(formats=["ipv4", "ipv6", "date", "uuid"]))
        for x in valid:
            assert v.is_valid(x), (schema, x)
        for x in invalid:
            assert not v.is_valid(x) or "format" in json.dumps(schema), (schema, x)
    text = lambda x, i=0: json.dumps(x, ensure_ascii=False, **({"separators": (",", ":")} if i % 2 else {}), **({"indent": 2} if i % 5 == 4 else {}))
    line = {"schema": json.dumps(schema, ensure_ascii=False), "valid": [text(x, i) for i, x in enumerate(valid)],
            "invalid": [text(x, i) for i, x in enumerate(invalid)] + list(raw_invalid)}
    line.update(options)
    OUT.append(line)


def obj(properties, required=None, **more):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required, "additionalProperties": False, **more}


def numbers():
    for lo in (-1000, -37, -10, -1, 0, 1, 5, 99, 100, 1234):
        for span in (0, 1, 8, 95, 10000):
            hi = lo + span
            add({"type": "integer", "minimum": lo, "maximum": hi}, sorted({lo, (lo + hi) // 2, hi}), [lo - 1, hi + 1, lo - 1000000, hi + 77777], [f"0{abs(hi)}", "", "+1", f"{hi}."])
    for lo, hi in ((0, 1), (-1, 1), (0.5, 2.5), (-0.25, 0), (1.05, 1.1), (99.99, 100.01), (-1000.5, -999.5)):
        mid = round((lo + hi) / 2, 4)
        add({"type": "number", "minimum": lo, "maximum": hi}, [lo, mid, hi], [lo - 0.001, hi + 0.001, hi + 10], ["1e0"])
        add({"type": "number", "exclusiveMinimum": lo, "exclusiveMaximum": hi}, [mid], [lo, hi, hi + 1])
    for m in (2, 3, 7, 10, 25, 60):
        add({"type": "integer", "multipleOf": m}, [0, m, -m, 17 * m], [1, m + 1, -m - 1])
        add({"type": "integer", "multipleOf": m, "minimum": m, "maximum": 5 * m}, [m, 5 * m], [0, 6 * m, m + 1])
    for m in (0.5, 0.01, 0.25):
        add({"type": "number", "multipleOf": m}, [0, m, 3 * m, 12], [round(m / 2, 5), round(m + m / 2, 5)])
    for n in range(1, 9):  # integers by their number of digits
        add({"type": "integer", "minimum": 10 ** (n - 1), "maximum": 10 ** n - 1}, [10 ** (n - 1), 10 ** n - 1], [10 ** n, 10 ** (n - 1) - 1, -1])
        add({"type": "number", "maximum": 10 ** n, "minimum": -(10 ** n)}, [0.5, -(10 ** n), 10 ** n - 0.5], [10 ** n + 0.5, -(10 ** n) - 1])
    for lo in (-5, 0, 3, 10):
        add({"type": "integer", "minimum": lo}, [lo, lo + 1, 10 ** 12], [lo - 1, -10 ** 9])
        add({"type": "integer", "exclusiveMaximum": lo}, [lo - 1, -10 ** 12], [lo, lo + 1, 10 ** 9])


def strings():
    for lo in range(0, 4):
        for hi in (lo, lo + 1, lo + 5, 40):
            ok = ["x" * lo, "é" * hi, "漢" * ((lo + hi) // 2)] + (["😀" * lo] if lo else [])
            add({"type": "string", "minLength": lo, "maxLength": hi}, ok, ["y" * (hi + 1)] + (["y" * (lo - 1)] if lo else []), ["\"a", "'a'"])
    patterns = {"^[a-z]+$": (["a", "hello"], ["", "A", "a1"]), "^[A-Z]{2}[0-9]{4}$": (["AB1234"], ["AB123", "ab1234", "AB12345"]),
                "^\\d{3}-\\d{4}$": (["555-1234"], ["5551234", "555-12345"]), "^(red|green|blue)$": (["red", "blue"], ["redd", "yellow"]),
                "^#[0-9a-fA-F]{6}$": (["#00ffAA"], ["#00ffA", "00ffAA"]), "foo": (["foo", "a foo b"], ["fo", "bar"]), "^\\w+@\\w+\\.com$": (["me@site.com"], ["me@site.org", "@.com"]),
                "^v?\\d+\\.\\d+\\.\\d+$": (["1.2.3", "v10.0.1"], ["1.2", "v1.2.x"]), "^[^\\s]+$": (["ab", "é漢"], ["a b", ""]), "^$": ([""], ["a"]),
                "^(?:a|b)*c$": (["c", "abac"], ["ab", "d"]), "[0-9]{2,}$": (["a12", "123"], ["1", "12a"]), "^\\p{Lu}\\p{Ll}+$": (["Éa", "Zoo"], ["aé", "Z1"]), "^[\\u4e00-\\u9fff]+$": (["漢字"], ["abc"])}
    for p, (yes, no) in patterns.items():
        s = {"type": "string", "pattern": p}
        if "\\p" in p:
            OUT.append({"schema": json.dumps(s), "valid": [json.dumps(x, ensure_ascii=False) for x in yes], "invalid": [json.dumps(x, ensure_ascii=False) for x in no]})
            continue
        add(s, yes, no)
        add({"type": "string", "pattern": p, "maxLength": 12}, [x for x in yes if len(x) <= 12], no + ["q" * 13])
        add({"type": ["string", "null"], "pattern": p}, yes + [None], no + [1])
        add(obj({"v": s, "w": s}), [{"v": yes[0], "w": yes[-1]}], [{"v": no[0], "w": yes[0]}, {"v": yes[0]}])
    formats = {"date": (["2024-02-29", "1999-01-31"], ["2023-02-29", "2024-1-1"]), "time": (["12:30:00Z", "23:59:59.5+01:00"], ["25:00:00Z", "12:30"]),
               "date-time": (["2024-06-01T10:00:00Z"], ["2024-06-01"]), "uuid": (["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]), "ipv4": (["10.0.0.1"], ["10.0.0", "300.1.1.1"]),
               "ipv6": (["::1", "fe80::1"], ["1:2", ":::"]), "email": (["a.b+c@mail.example.org"], ["a@", "x"]), "hostname": (["www.example.com"], ["-x.com"]),
               "uri": (["https://example.com/a?b=c"], ["not a uri"]), "duration": (["P1D", "PT1H30M"], ["1D"]), "json-pointer": (["/a/0/b~1c", ""], ["a"]), "uri-reference": (["/a/b", "../x"], ["a b"])}
    for f, (yes, no) in formats.items():
        add({"type": "string", "format": f}, yes, no)
        add(obj({"when": {"type": "string", "format": f}, "n": {"type": "integer"}}, ["when"]), [{"when": yes[0]}, {"when": yes[0], "n": 3}], [{"when": no[0]}, {"n": 3}])
        add({"type": "array", "items": {"type": "string", "format": f}, "maxItems": 2}, [[], yes[:2]], [[no[0]], yes[:1] * 3])


def arrays():
    for lo in range(3):
        for hi in (lo, lo + 1, lo + 3):
            for item, good, bad in (({"type": "integer"}, 5, "x"), ({"type": "string"}, "s", 1), ({"type": "boolean"}, True, None), (obj({"k": {"type": "integer"}}), {"k": 1}, {})):
                add({"type": "array", "items": item, "minItems": lo, "maxItems": hi}, [[good] * lo, [good] * hi], [[good] * (hi + 1), [good] * hi + [bad]] + ([[good] * (lo - 1)] if lo else []), ["[,]", "[1"])
    for n in range(1, 4):
        prefix = [{"const": i} for i in range(n)]
        add({"type": "array", "prefixItems": prefix, "items": False}, [list(range(n)), list(range(n - 1))], [list(range(n)) + [9], [7]])
        add({"type": "array", "prefixItems": prefix, "items": {"type": "string"}, "minItems": n}, [list(range(n)), list(range(n)) + ["a", "b"]], [list(range(n - 1)), list(range(n)) + [1]])
        add({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 10}, "minContains": n}, [[10] * n, [1] + [11] * n + [2]], [[10] * (n - 1), [1, 2, 3]])
        add({"type": "array", "items": {"enum": ["a", "b", "c", "d"]}, "uniqueItems": True, "minItems": n}, [list("abcd")[:n], list("dcba")[:n]], [list("aabb"), list("abcd")[:n - 1]])


def objects():
    kinds = [("integer", 3, "x"), ("string", "t", 4), ("boolean", False, 0), ("null", None, 1), ("number", 2.5, "2.5"), ("array", [1], {}), ("object", {"z": 1}, [])]
    names = ["id", "name", "ok", "nothing", "size", "list", "data"]
    for n in range(1, 8):
        props = {names[i]: {"type": kinds[i][0]} for i in range(n)}
        full = {names[i]: kinds[i][1] for i in range(n)}
        for required in ([], names[:1], names[:n], [names[n - 1]]):
            need = {k: v for k, v in full.items() if k in required}
            broken = [{**full, names[i]: kinds[i][2]} for i in range(n)]
            missing = [{k: v for k, v in full.items() if k != r} for r in required]
            add(obj(props, required), [full, need], broken + missing + [{**full, "extra": 1}], ["{,}", "{\"id\" 3}"])
            add({"type": "object", "properties": props, "required": required}, [full, {**need, "extra": [None]}], broken + missing)
            add(obj(props, required), [dict(reversed(full.items())), full, need], broken + missing, any_order=True)
    for n in range(1, 4):
        add({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": n}, [{}, {chr(97 + i): i for i in range(n)}], [{chr(97 + i): i for i in range(n + 1)}, {"a": "b"}])
        add(obj({chr(97 + i): {"type": "integer"} for i in range(4)}, [], minProperties=n), [{chr(97 + i): 1 for i in range(n)}], [{chr(97 + i): 1 for i in range(n - 1)}])
    add({"type": "object", "patternProperties": {"^n_": {"type": "integer"}, "^s_": {"type": "string"}}, "additionalProperties": False}, [{}, {"n_a": 1, "s_b": "x"}], [{"n_a": "x"}, {"other": 1}])
    add({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "boolean"}}, [{"abc": True}], [{"abcd": True}, {"A": True}])
    add({"type": "object", "properties": {"card": {"type": "string"}, "address": {"type": "string"}}, "dependentRequired": {"card": ["address"]}, "additionalProperties": False},
        [{}, {"address": "x"}, {"card": "1", "address": "x"}], [{"card": "1"}])


def combined():
    for a, b in (("integer", "string"), ("boolean", "null"), ("array", "object")):
        add({"anyOf": [{"type": a}, {"type": b}]}, [{"integer": 1, "boolean": True, "array": []}[a], {"string": "s", "null": None, "object": {}}[b]], [1.5])
        add({"oneOf": [{"type": a}, {"type": b}]}, [{"integer": 1, "boolean": True, "array": []}[a], {"string": "s", "null": None, "object": {}}[b]], [1.5])
    for k in range(2, 6):
        branches = [obj({"kind": {"const": f"k{i}"}, f"v{i}": {"type": "integer"}}) for i in range(k)]
        good = [{"kind": f"k{i}", f"v{i}": i} for i in range(k)]
        add({"oneOf": branches}, good, [{"kind": "k0", "v1": 1}, {"kind": "zz"}, {}])
        add({"type": "array", "items": {"anyOf": branches}}, [[], good], [[{"kind": "k1", "v0": 0}]])
        add({"enum": list(range(k)) + ["x" * k, None]}, [0, k - 1, "x" * k, None], [k, "x", "x" * (k + 1), False])
    add({"allOf": [obj({"a": {"type": "integer"}, "b": {"type": "integer"}}), {"properties": {"a": {"minimum": 3}}}]}, [{"a": 3, "b": 0}], [{"a": 2, "b": 0}])
    add({"not": {"type": ["string", "number"]}}, [None, [], {}], ["a", 1])
    add({"type": "integer", "not": {"enum": [1, 2, 3]}}, [0, 4, 10, -1], [1, 2, 3])
    add({"type": "string", "not": {"pattern": "^a"}}, ["", "ba"], ["a", "ab"])
    add({**obj({"t": {"enum": ["x", "y"]}, "n": {"type": "integer"}}, ["t"]), "if": {"properties": {"t": {"const": "x"}}}, "then": {"required": ["n"]}, "else": {"properties": {"n": False}}},
        [{"t": "x", "n": 1}, {"t": "y"}], [{"t": "x"}, {"t": "y", "n": 1}])
    tree = {"$defs": {"node": obj({"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}})}, "$ref": "#/$defs/node"}
    add(tree, [{"value": 1, "children": []}, {"value": 1, "children": [{"value": 2, "children": [{"value": 3, "children": []}]}]}], [{"value": 1}, {"value": 1, "children": [{"value": "2", "children": []}]}])
    linked = {"$defs": {"n": obj({"v": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}})}, "$ref": "#/$defs/n"}
    add(linked, [{"v": "a", "next": None}, {"v": "a", "next": {"v": "b", "next": {"v": "c", "next": None}}}], [{"v": "a"}, {"v": "a", "next": 1}])
    expression = {"$defs": {"e": {"anyOf": [{"type": "number"}, obj({"op": {"enum": ["+", "*"]}, "args": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 2, "maxItems": 2}})]}}, "$ref": "#/$defs/e"}
    add(expression, [1, {"op": "+", "args": [1, {"op": "*", "args": [2, 3]}]}], [{"op": "-", "args": [1, 2]}, {"op": "+", "args": [1]}])


PLACES = ["Paris", "São Paulo", "東京", "New York City", "Kraków"]
SENTENCES = ["The committee approved the budget after a long discussion.", "Delivery is expected within three to five working days; please keep the receipt.",
             "She said \"yes\" and signed.\nThen everybody left.", "El perro corre por el parque todas las mañanas.", "这个产品的质量非常好，我很满意。"]


def realistic():
    s, i, n, b = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
    person = obj({"name": s, "age": {"type": "integer", "minimum": 0, "maximum": 130}, "email": {"type": "string", "format": "email"}, "tags": {"type": "array", "items": s, "maxItems": 8}}, ["name", "age"])
    add(person, [{"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "tags": ["maths", "engines"]}, {"name": "José", "age": 0}], [{"name": "x", "age": 131}, {"name": "x", "age": 3, "email": "no"}, {"age": 3}])
    invoice = obj({"invoice_id": {"type": "string", "pattern": "^INV-[0-9]{6}$"}, "date": {"type": "string", "format": "date"}, "currency": {"enum": ["EUR", "USD", "JPY"]},
                   "lines": {"type": "array", "minItems": 1, "items": obj({"description": s, "quantity": {"type": "integer", "minimum": 1}, "unit_price": {"type": "number", "minimum": 0}})}, "total": {"type": "number", "minimum": 0}, "paid": b, "notes": {"type": ["string", "null"]}})
    good = {"invoice_id": "INV-000123", "date": "2024-05-17", "currency": "EUR", "lines": [{"description": "Printer paper, A4, 500 sheets", "quantity": 12, "unit_price": 4.75}, {"description": "Toner", "quantity": 1, "unit_price": 89}], "total": 146.0 + 0.5, "paid": False, "notes": None}
    add(invoice, [good], [{**good, "currency": "GBP"}, {**good, "lines": []}, {**good, "invoice_id": "INV-12"}])
    weather = obj({"location": s, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}}, ["location"])
    for p in PLACES:
        add(weather, [{"location": p}, {"location": p, "unit": "celsius", "days": 3}], [{"location": p, "days": 15}, {"unit": "celsius"}])
    for text in SENTENCES:
        review = obj({"summary": {"type": "string", "maxLength": 400}, "sentiment": {"enum": ["positive", "neutral", "negative"]}, "score": {"type": "number", "minimum": 0, "maximum": 1}, "topics": {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 5}, "language": {"type": "string", "pattern": "^[a-z]{2}$"}})
        good = {"summary": text, "sentiment": "positive", "score": 0.87, "topics": ["quality", "delivery time"], "language": "en"}
        add(review, [good], [{**good, "score": 1.01}, {**good, "sentiment": "mixed"}, {**good, "language": "eng"}])
        add({"type": "object", "properties": {"title": s, "body": s, "meta": {"type": "object"}}, "required": ["title", "body"]}, [{"title": text[:20], "body": text * 3, "meta": {"source": "web", "n": [1, 2, {"deep": None}]}}, {"title": "", "body": text}], [{"title": text}])
        add(obj({"question": s, "options": {"type": "array", "items": s, "minItems": 4, "maxItems": 4}, "answer": {"type": "integer", "minimum": 0, "maximum": 3}, "explanation": s}), [{"question": text, "options": ["yes", "no", "perhaps", "never"], "answer": 2, "explanation": text[:40]}], [{"question": text, "options": ["a"], "answer": 2, "explanation": ""}])
    search = obj({"query": {"type": "string", "minLength": 1, "maxLength": 200}, "filters": obj({"after": {"type": "string", "format": "date"}, "site": {"type": "string", "format": "hostname"}, "kinds": {"type": "array", "items": {"enum": ["news", "paper", "blog"]}, "uniqueItems": True}}, []), "limit": {"type": "integer", "minimum": 1, "maximum": 100}}, ["query"])
    add(search, [{"query": "mixture of experts inference on CPUs", "filters": {"after": "2024-01-01", "site": "example.org", "kinds": ["paper", "news"]}, "limit": 25}, {"query": "x", "filters": {}}], [{"query": ""}, {"query": "x", "limit": 0}, {"query": "x", "filters": {"kinds": ["news", "news"]}}])
    patch = obj({"path": {"type": "string", "pattern": "^[A-Za-z0-9_./-]+$"}, "edits": {"type": "array", "items": obj({"start_line": {"type": "integer", "minimum": 1}, "end_line": {"type": "integer", "minimum": 1}, "text": s})}, "dry_run": b}, ["path", "edits"])
    add(patch, [{"path": "src/main.cc", "edits": [{"start_line": 10, "end_line": 12, "text": "int main() {\n  return 0;\n}\n"}], "dry_run": True}], [{"path": "src main", "edits": []}, {"path": "a", "edits": [{"start_line": 0, "end_line": 1, "text": ""}]}])
    calendar = obj({"title": s, "start": {"type": "string", "format": "date-time"}, "end": {"type": "string", "format": "date-time"}, "attendees": {"type": "array", "items": {"type": "string", "format": "email"}}, "recurrence": {"anyOf": [{"type": "null"}, obj({"every": {"enum": ["day", "week", "month"]}, "count": {"type": "integer", "minimum": 1, "maximum": 365}})]}})
    add(calendar, [{"title": "Planning", "start": "2024-05-17T09:00:00Z", "end": "2024-05-17T09:30:00+02:00", "attendees": ["a@example.com", "b.c@example.org"], "recurrence": {"every": "week", "count": 10}}], [{"title": "x", "start": "tomorrow", "end": "2024-05-17T09:30:00Z", "attendees": [], "recurrence": None}])
    graph = {"$defs": {"id": {"type": "string", "pattern": "^n[0-9]+$"}}, **obj({"nodes": {"type": "array", "items": obj({"id": {"$ref": "#/$defs/id"}, "label": s, "weight": n})}, "edges": {"type": "array", "items": obj({"from": {"$ref": "#/$defs/id"}, "to": {"$ref": "#/$defs/id"}})}})}
    add(graph, [{"nodes": [{"id": "n1", "label": "start", "weight": 0.5}, {"id": "n2", "label": "end", "weight": -1e-7 * 10 ** 7}], "edges": [{"from": "n1", "to": "n2"}]}], [{"nodes": [], "edges": [{"from": "x", "to": "n1"}]}])
    wide = obj({f"field_{k:02}": [s, i, n, b][k % 4] for k in range(40)}, [f"field_{k:02}" for k in range(0, 40, 3)])
    full = {f"field_{k:02}": ["text", 7, 1.5, True][k % 4] for k in range(40)}
    add(wide, [full, {k: v for k, v in full.items() if int(k[-2:]) % 3 == 0}], [{**full, "field_03": 3}])
    deep = i
    value = 1
    for k in range(12):
        deep, value = obj({f"level_{k}": deep}), {f"level_{k}": value}
    add(deep, [value], [{"level_11": 1}])
    countries = [f"Country {chr(65 + k // 26)}{chr(65 + k % 26)}" for k in range(200)]
    add(obj({"country": {"enum": countries}, "rank": i}), [{"country": c, "rank": 1} for c in countries[::40]], [{"country": "Country", "rank": 1}])


def main():
    random.seed(1)
    for family in (numbers, strings, arrays, objects, combined, realistic):
        family()
    for line in OUT:
        print(json.dumps(line, ensure_ascii=False))
    print(f"{len(OUT)} schemas, {sum(len(l['valid']) for l in OUT)} valid and {sum(len(l['invalid']) for l in OUT)} invalid texts", file=sys.stderr)


main()
