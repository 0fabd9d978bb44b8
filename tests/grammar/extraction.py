"""Extraction requests with a schema through the serving engine and the small model: every answer is a valid instance by
an independent validator, and the same seeds give the same answers with and without drafts.

usage: extraction.py PATH/deepinfer COUNT

The requests go through `deepinfer batch`, which answers as the server does, in one process per run.
"""
import decimal
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import jsonschema
except ImportError as missing:
    print(f"SKIPPED: {missing}; tools/test_env.sh says why it could not be installed")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def closed(properties, required=None):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required, "additionalProperties": False}


# What people extract: bounded, so that the small model, which knows no facts, comes to an end.
NAME = {"type": "string", "minLength": 1, "maxLength": 12}
SCHEMAS = [
    closed({"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "email": {"type": ["string", "null"], "maxLength": 16}}),
    closed({"date": {"type": "string", "pattern": "^20[0-9]{2}-0[1-9]-[12][0-9]$"}, "amount": {"type": "number", "minimum": 0, "maximum": 1000, "multipleOf": 0.01},
            "currency": {"enum": ["EUR", "USD", "GBP"]}, "paid": {"type": "boolean"}}),
    closed({"tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "minItems": 1, "maxItems": 3},
            "rating": {"type": "integer", "enum": [1, 2, 3, 4, 5]}}),
    closed({"kind": {"const": "person"}, "address": closed({"street": NAME, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, ["zip"])}, ["kind"]),
    {"anyOf": [closed({"found": {"const": True}, "value": {"type": "integer", "minimum": -9, "maximum": 9}}), closed({"found": {"const": False}})]},
    {"type": "array", "items": closed({"id": {"type": "integer", "minimum": 1, "maximum": 99}, "color": {"enum": ["red", "green", "blue", None]}}),
     "minItems": 1, "maxItems": 3},
    {"$ref": "#/$defs/node", "$defs": {"node": closed({"label": {"type": "string", "maxLength": 4}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]}}),
                                       "leaf": closed({"label": {"type": "string", "maxLength": 4}})}},
    closed({"id": {"type": "string", "format": "uuid"}, "ip": {"type": "string", "format": "ipv4"}}, ["ip"]),
]
TEXTS = ["Ada Lovelace, 36, wrote the first program; write to ada@example.org.", "Invoice of 3 May 2024 over 49.90 EUR, paid.",
         "The red door has code 4711, the blue one 12.", "Bob lives in Mill Lane, 12345; no e-mail.", "Server 10.0.0.7 stopped at 12:30:00Z."]


def body(rng, i):
    schema = SCHEMAS[i % len(SCHEMAS)]
    b = {"model": "deepinfer-tiny", "max_tokens": 4000, "temperature": rng.choice([0, 0.7, 1, 1.3]), "seed": rng.randrange(1 << 40),
         "messages": [{"role": "system", "content": "Extract the data as json."}, {"role": "user", "content": rng.choice(TEXTS)}]}
    if i % 3:
        b["response_format"] = {"type": "json_schema", "json_schema": {"name": "data", "strict": True, "schema": schema}}
    else:
        b["guided_json"] = schema
    # Reasoning of a small model may never end, least of all the most likely one; every fifth request reasons, drawn freely, and is made to stop soon.
    b["thinking"] = {"type": "enabled" if i % 5 == 0 else "disabled"}
    if i % 5 == 0:
        b["temperature"] = max(b["temperature"], 1)
    return b


def run(program, folder, requests, name, flags):
    source, target = os.path.join(folder, "in.jsonl"), os.path.join(folder, name)
    with open(source, "w") as f:
        for i, b in enumerate(requests):
            f.write(json.dumps({"custom_id": str(i), "url": "/v1/chat/completions", "body": b}) + "\n")
    subprocess.run([program, "batch", source, target, "--model", os.path.join(ROOT, "models", "deepinfer-tiny"), "--concurrency", "32", "--quiet"] + flags, check=True)
    answers = {}
    with open(target) as f:
        for line in f:
            a = json.loads(line)
            assert a["response"]["status_code"] == 200, a
            answers[int(a["custom_id"])] = a["response"]["body"]
    assert len(answers) == len(requests)
    return answers


def main():
    program, count = sys.argv[1], int(sys.argv[2])
    rng = random.Random(20)
    # The id of </think>, to end reasoning soon; those of white space, of which the small model likes to write as much as it may:
    # every eighth request lets it.
    with open(os.path.join(ROOT, "models", "deepinfer-tiny", "tokenizer.json")) as f:
        tokenizer = json.load(f)
    close = next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == "</think>")
    blanks = [i for token, i in tokenizer["model"]["vocab"].items() if set(token) <= set("\u0120\u010a\u0109\u010d")]
    requests = []
    for i in range(count):
        b = body(rng, i)
        b["logit_bias"] = {} if i % 8 == 0 else {str(i): -30 for i in blanks}
        if b["thinking"]["type"] == "enabled":
            b["logit_bias"][str(close)] = 9
        requests.append(b)
    with tempfile.TemporaryDirectory() as folder:
        with_drafts = run(program, folder, requests, "a.jsonl", [])
        without = run(program, folder, requests, "b.jsonl", ["--no-speculate"])
    tokens = whole = reasoned = 0
    for i, request in enumerate(requests):
        choice = with_drafts[i]["choices"][0]
        message = choice["message"]
        assert message == without[i]["choices"][0]["message"] and choice["finish_reason"] == without[i]["choices"][0]["finish_reason"], (i, message, without[i])
        tokens += with_drafts[i]["usage"]["completion_tokens"]
        assert choice["finish_reason"] == "stop", (i, choice)
        whole += 1
        reasoned += bool(message.get("reasoning_content"))
        schema = request["guided_json"] if "guided_json" in request else request["response_format"]["json_schema"]["schema"]
        # In exact decimals: 129.08 is a multiple of 0.01.
        value = json.loads(message["content"], parse_float=decimal.Decimal)
        schema = json.loads(json.dumps(schema), parse_float=decimal.Decimal)
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(value)
    assert reasoned > 0
    print(f"{whole} of {count} answers are whole and valid, the same with and without drafts; {reasoned} after reasoning, {tokens} tokens")


main()
