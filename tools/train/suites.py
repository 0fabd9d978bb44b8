"""Writes the evaluation suites: pre-rendered token ids with the expected output ids, held-out items only.

    python tools/train/suites.py [OUT]           (default models/deepinfer-tiny/suites)

<suite>.jsonl: one item per line, {"prompt": [...], "expect": [...]}. An element of `prompt` is a token id or a list
[start, count]: that slice of hay.json (a flat list of ids, filler text of the needle items). `expect` ends with EOS (id 1).
A greedy decode must produce exactly `expect`. prose.jsonl and code.jsonl hold long texts, {"tokens": [...]}. index.json lists
suites with item counts and the longest prompt, and the texts.
"""
import glob
import json
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import corpus  # noqa: E402
import skills  # noqa: E402
import skills_json  # noqa: E402
import skills_text  # noqa: E402
import template  # noqa: E402
from data import BOS_ID, EOS_ID, Encoder  # noqa: E402
from words import Words  # noqa: E402

SHORT = ["arithmetic", "copy_edit", "json_extraction", "tool_call", "recall", "counting", "sorting", "world"]
NEEDLES = {"needle_1k": (1000, 100), "needle_4k": (4000, 300), "needle_8k": (8000, 300)}
FAR, FAR_ITEMS = 6000, 100     # of the suites that ask whether the candidate pool loses distant evidence
ITEMS, HAY_SENTENCES = 300, 3000


def short_suite(encoder, name, items):
    rng, seen = random.Random(f"suite {name}"), set()
    while len(seen) < items:
        sample = skills.draw(rng, True, name)
        prompt, expected = sample.prompt()
        text = "".join(t for t, _ in prompt)
        if text in seen:
            continue
        seen.add(text)
        yield {"prompt": encoder.sample(prompt)[0], "expect": encoder.ids(expected) + [EOS_ID]}


def hay(encoder):
    """Filler sentences as ids, each starting with a space, and where they begin."""
    w = Words(random.Random("hay"), True)
    ids, starts = [], []
    for _ in range(HAY_SENTENCES):
        starts.append(len(ids))
        ids += encoder.ids(" " + skills_text.filler(w))
    return ids, starts


def slice_of(rng, starts, tokens):
    """[start, count] of whole filler sentences, about `tokens` long."""
    while True:
        i = rng.randrange(len(starts))
        k = i
        while k + 1 < len(starts) and starts[k + 1] - starts[i] < tokens:
            k += 1
        if starts[k] - starts[i] >= tokens - 40:
            return [starts[i], starts[k] - starts[i]]


def sentence(fact):
    text = fact[0].format(x=fact[2], v=fact[3])
    return " " + text[0].upper() + text[1:]


def distinct_facts(w, count, accept=lambda fact: True):
    facts = []
    while len(facts) < count:
        f = skills_text.needle_fact(w)
        if f[2] not in [g[2] for g in facts] and accept(f):
            facts.append(f)
    return facts


def needle_suite(encoder, name, distance, items, starts):
    """One fact about `distance` tokens before the question, two other facts elsewhere."""
    rng = random.Random(f"suite {name}")
    for _ in range(items):
        w = Words(rng, True)
        facts = distinct_facts(w, 3)
        text = [encoder.ids(sentence(f)) for f in facts]
        head = encoder.ids(template.BOS + template.USER + "Text:")
        # The full stop before the blank line is one piece with it, so the last slice leaves its own to the tail.
        tail = encoder.ids(f".\n\n{facts[0][1].format(x=facts[0][2])}" + template.ASSISTANT + template.END_THINK)
        part = distance // 4
        last = slice_of(rng, starts, distance - 3 * part)
        prompt = head + [slice_of(rng, starts, rng.randint(60, 200))] + text[1] + text[0] + [slice_of(rng, starts, part)] + \
            [slice_of(rng, starts, part)] + text[2] + [slice_of(rng, starts, part)] + [[last[0], last[1] - 1]] + tail
        answer = facts[0][4].format(x=facts[0][2], v=facts[0][3])
        yield {"prompt": prompt, "expect": encoder.ids(answer) + [EOS_ID]}


def far_suite(encoder, name, facts_before, facts_after, items, starts):
    """The asked fact among others of its neighbourhood, FAR tokens back; `facts_after` more recent ones compete for the selection."""
    rng = random.Random(f"suite {name}")
    for _ in range(items):
        w = Words(rng, True)
        facts = distinct_facts(w, 1 + facts_before + facts_after)
        asked, before, after = facts[0], facts[1:1 + facts_before], facts[1 + facts_before:]
        early = [encoder.ids(sentence(f)) for f in before]
        early.insert(rng.randint(0, len(early)), encoder.ids(sentence(asked)))
        prompt = encoder.ids(template.BOS + template.USER + "Text:") + [slice_of(rng, starts, 150)] + sum(early, [])
        for f in after:
            prompt += [slice_of(rng, starts, FAR // (len(after) + 1))] + encoder.ids(sentence(f))
        last = slice_of(rng, starts, FAR // (len(after) + 1))
        tail = encoder.ids(f".\n\n{asked[1].format(x=asked[2])}" + template.ASSISTANT + template.END_THINK)
        yield {"prompt": prompt + [[last[0], last[1] - 1]] + tail,
               "expect": encoder.ids(asked[4].format(x=asked[2], v=asked[3])) + [EOS_ID]}


def tool_steps_suite(encoder, items, starts):
    """A tool call with its result and answer, then a long text with a question, then a call of another tool whose schema is FAR back."""
    rng = random.Random("suite multi_step_tool")
    for _ in range(items):
        w = Words(rng, True)
        first, second = rng.sample(list(skills_json.TOOLS), 2)
        steps = []
        for name in (first, second):
            _, properties, makers, requests, result, answer = skills_json.TOOLS[name]
            arguments = {k: makers[k](w) for k in properties}
            request = w.template(requests).format(**{k: skills_json.shown(v) for k, v in arguments.items()})
            outcome = result(w, arguments)
            steps.append((name, arguments, request, outcome, answer.format(**{**arguments, **outcome})))
        name, arguments, request, outcome, answer = steps[0]
        opening = [{"role": "user", "content": request}, {"role": "assistant", "content": "", "calls": [(name, arguments)]},
                   {"role": "tool", "content": template.pj(outcome)}, {"role": "assistant", "content": answer}]
        tools = [skills_json.schema_of(n) for n in rng.sample([first, second], 2)]
        head = encoder.sample(template.render(opening, False, tools))[0]
        fact = distinct_facts(w, 1)[0]
        half = FAR // 2
        last = slice_of(rng, starts, half)
        reply = fact[4].format(x=fact[2], v=fact[3])
        middle = encoder.ids(template.USER + "Text:") + [slice_of(rng, starts, half)] + encoder.ids(sentence(fact)) + [[last[0], last[1] - 1]]
        tail = encoder.ids(f".\n\n{fact[1].format(x=fact[2])}" + template.ASSISTANT + template.END_THINK) + encoder.ids(reply) + \
            encoder.ids(template.EOS + template.USER + steps[1][2] + template.ASSISTANT + template.END_THINK)
        call = "\n\n" + template.call_block([(steps[1][0], steps[1][1])])
        yield {"prompt": head + middle + tail, "expect": encoder.ids(call) + [EOS_ID]}


def long_texts(encoder, pieces, length, count):
    """`count` token sequences of `length`: pieces joined by blank lines, BOS first."""
    at = 0
    for _ in range(count):
        ids = [BOS_ID]
        while len(ids) < length and at < len(pieces):
            ids += encoder.ids(pieces[at] + "\n\n")
            at += 1
        if len(ids) >= length:
            yield {"tokens": ids[:length]}


def prose_pieces():
    """Held-out parts of the Python documentation (its licence permits redistribution; see the model card)."""
    for path in sorted(glob.glob(corpus.SOURCES[1][1], recursive=True)):
        for i, piece in enumerate(corpus.parts(corpus.read(path))):
            if corpus.held_out(path, i):
                yield piece


def code_pieces(root):
    """Sources of this project, which the model never saw."""
    for path in sorted(glob.glob(os.path.join(root, "src", "**", "*.cc"), recursive=True)):
        yield from corpus.parts(corpus.read(path))


def write_texts(out, encoder, length=16640, count=4):
    """prose.jsonl and code.jsonl: {"tokens": [...]} for perplexity by context and for bounded replay against exact state."""
    report = {}
    for name, pieces in (("prose", list(prose_pieces())), ("code", list(code_pieces(os.path.join(HERE, "..", ".."))))):
        random.Random(name).shuffle(pieces)
        rows = list(long_texts(encoder, pieces, length, count))
        with open(os.path.join(out, name + ".jsonl"), "w") as f:
            for row in rows:
                f.write(json.dumps(row, separators=(",", ":")) + "\n")
        report[name] = {"items": len(rows), "tokens": length}
    return report


def write(out, encoder):
    os.makedirs(out, exist_ok=True)
    ids, starts = hay(encoder)
    with open(os.path.join(out, "hay.json"), "w") as f:
        json.dump(ids, f, separators=(",", ":"))
    index = {}

    def save(name, items):
        longest = 0
        with open(os.path.join(out, name + ".jsonl"), "w") as f:
            for n, item in enumerate(items, 1):
                longest = max(longest, sum(p[1] if isinstance(p, list) else 1 for p in item["prompt"]))
                f.write(json.dumps(item, separators=(",", ":")) + "\n")
        index[name] = {"items": n, "longest_prompt": longest}
    for name in SHORT:
        save(name, short_suite(encoder, name, ITEMS))
    for name, (distance, items) in NEEDLES.items():
        save(name, needle_suite(encoder, name, distance, items, starts))
    save("distant_evidence", far_suite(encoder, "distant_evidence", 2, 3, FAR_ITEMS, starts))
    save("rare_reference", far_suite(encoder, "rare_reference", 11, 0, FAR_ITEMS, starts))
    save("multi_step_tool", tool_steps_suite(encoder, FAR_ITEMS, starts))
    texts = write_texts(out, encoder)
    with open(os.path.join(out, "index.json"), "w") as f:
        json.dump({"suites": index, "texts": texts}, f, indent=1)
        f.write("\n")
    return index


if __name__ == "__main__":
    folder = os.path.join(HERE, "..", "..", "models", "deepinfer-tiny")
    print(json.dumps(write(sys.argv[1] if len(sys.argv) > 1 else os.path.join(folder, "suites"), Encoder(os.path.join(folder, "tokenizer.json"))), indent=1))
