"""Generators, template and suites: exact rendering, disjoint held-out side, ids that equal encoding the whole text."""
import json
import os
import random
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import skills  # noqa: E402
import template  # noqa: E402
import words  # noqa: E402

MODEL = os.path.join(HERE, "..", "..", "models", "deepinfer-tiny")


def flat(messages, **options):
    return "".join(t for t, _ in template.render(messages, **options))


def test_rendering():
    """Request edge specification 3.4 and 3.5."""
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go"}]
    assert flat(chat) == ("<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>Yes?<｜end▁of▁sentence｜><｜User｜>Go<｜Assistant｜></think>")
    assert flat(chat[:1], thinking=True) == ("<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, the more "
                                             "thorough the reasoning)\n\n<｜User｜>Hi<｜Assistant｜><think>")
    call = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "calls": [("f", {"a": "b", "n": 2, "t": True})]},
            {"role": "tool", "content": "7"}]
    tools = [{"name": "f", "description": "d", "parameters": {"type": "object"}}]
    text = flat(call, tools=tools)
    assert "<｜System｜>\n\n## Tools\n" in text and "interact" not in text
    assert text.endswith('<｜User｜>x<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="a" string="true">b'
                         '</｜DSML｜ parameter>\n<｜DSML｜ parameter name="n" string="false">2</｜DSML｜ parameter>\n<｜DSML｜ parameter name="t" '
                         'string="false">true</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜>'
                         '<tool_result>7</tool_result><｜Assistant｜></think>')
    assert '{"name": "f", "description": "d", "parameters": {"type": "object"}}\n\nYou MUST' in text


@pytest.mark.parametrize("skill", ["arithmetic", "copy_edit", "json_extraction", "recall", "tool_call"])
def test_held_out_items_never_occur_in_training(skill):
    def prompts(held, n):
        rng = random.Random(held)
        return {s.messages[-2]["content"] for s in (skills.draw(rng, held, skill) for _ in range(n))}
    common = prompts(True, 300) & prompts(False, 3000)
    # Tool results may coincide ({"sent": true}); user prompts may not.
    assert not [c for c in common if not c.startswith("{")]


def test_lists_are_split():
    for train, test in words.LISTS.values():
        assert train and test and not set(train) & set(test)


def test_answers_are_right():
    rng = random.Random(4)
    for _ in range(200):
        s = skills.draw(rng, True, "json_extraction")
        json.loads(s.messages[-1]["content"])
        s = skills.draw(rng, False, "sorting")
        numbers = [x for x in s.messages[-1]["content"].split(", ")]
        assert all(n in s.messages[0]["content"] for n in numbers)


def test_suites_are_what_the_template_renders():
    tokenizers = pytest.importorskip("tokenizers")
    tok = tokenizers.Tokenizer.from_file(os.path.join(MODEL, "tokenizer.json"))
    folder = os.path.join(MODEL, "suites")
    hay = json.load(open(os.path.join(folder, "hay.json")))
    for name in json.load(open(os.path.join(folder, "index.json")))["suites"]:
        rows = [json.loads(line) for line in open(os.path.join(folder, name + ".jsonl"))][:20]
        for row in rows:
            ids = []
            for p in row["prompt"]:
                ids += hay[p[0]:p[0] + p[1]] if isinstance(p, list) else [p]
            text = tok.decode(ids, skip_special_tokens=False)
            assert tok.encode(text, add_special_tokens=False).ids == ids, name
            assert ids[0] == 0 and row["expect"][-1] == 1 and text.endswith(("</think>", "<think>"))
