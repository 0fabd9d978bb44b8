"""Generators, template and suites: exact rendering, disjoint held-out side, ids that equal encoding the whole text."""
import hashlib
import json
import os
import random
import re
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import phrasings  # noqa: E402
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


def test_numbers_of_a_held_out_subtraction_are_never_swapped_into_training():
    w = words.Words(random.Random(3), False)
    for _ in range(3000):
        a, b = skills.pair(w, 0, 99)
        close = skills.near(w, a, b)
        for x, y in ((a, b), (b, a), (a, close), (close, a)):
            assert not words.held_out(f"{x},{y}", 8)
        assert close == b or 0 <= a - close <= 12


# SHA-256 (first 16 digits) of 150 held-out items per skill and of the generator's state behind them. They stood before the
# training side was widened; a change here changes every score that was ever published.
HELD_DIGESTS = {
    "arithmetic": "7b31d13a21467ed6", "copy_edit": "667ea2ec233ed592", "counting": "46f71a2b67646f07",
    "sorting": "28c895fa2a992185", "json_extraction": "0fd37a003fb81e59", "tool_call":
    "9455d5ed236cf7c3", "recall": "e3b3a83a05bff781", "story": "7ee6249ebe3c3eb1", "world":
    "370ba09301b65230", "chat": "5d53932816ad944f", "needle": "5dcd63a1dec6a654",
}


@pytest.fixture
def supply():
    """A small supply of training words; the lists are restored afterwards."""
    before = dict(words.POOLS)
    rng = random.Random(5)
    found = {"".join(rng.choice("aeioubcdfghklmnprst") for _ in range(rng.randint(3, 9))) for _ in range(3000)}
    words.set_supply([w for w in sorted(found) if words.never_held(w)])
    yield
    words.POOLS.update(before)


@pytest.mark.parametrize("skill", list(skills.GENERATORS))
def test_held_out_side_is_unchanged(skill, supply):
    rng, digest = random.Random(f"digest {skill}"), hashlib.sha256()
    for _ in range(150):
        s = skills.draw(rng, True, skill)
        digest.update(json.dumps([s.messages, s.thinking, s.tools], sort_keys=True).encode())
    digest.update(str(rng.random()).encode())
    assert digest.hexdigest()[:16] == HELD_DIGESTS[skill]


def test_training_never_draws_held_out_words(supply):
    w = words.Words(random.Random(6), False)
    known = {x for train, _ in words.LISTS.values() for x in train}
    held = {x for _, test in words.LISTS.values() for x in test}
    drawn = set()
    for _ in range(20000):
        drawn |= {w.word(), w.name(), w.place(), w.pseudo(), w.pseudo(True), w.odd(True), *w.person().split()}
    new = drawn - known
    assert len(new) > 10000 and not drawn & held
    assert not [x for x in new if words.held_out(x.lower()) or x.capitalize() in held]


def lists_in_use():
    """{first template: (templates, texts drawn on the training side)} over many items of every skill."""
    seen = {}

    class Spy(words.Words):
        def template(self, templates):
            text = super().template(templates)
            seen.setdefault(templates[0], (templates, set()))[1].add(text)
            return text
    original, skills.Words = skills.Words, Spy
    try:
        for name in skills.GENERATORS:
            rng = random.Random(name)
            for _ in range(1500):
                skills.draw(rng, False, name)
    finally:
        skills.Words = original
    return seen


def test_training_phrasings(supply):
    """Every list has many more of them, none says the same as a held-out one, and every text of phrasings.py is used."""
    lists = lists_in_use()
    assert set(phrasings.MORE) == set(lists)
    for first, (templates, drawn) in lists.items():
        train, held = phrasings.sides(templates)
        groups, _ = phrasings.training(templates)
        banned = {phrasings.plain(h) for h in held} if len(templates) > 1 else set()
        extra = [t for group in groups[len(train):] for t in group]
        assert len(extra) >= 15, first
        assert not [t for t in extra if phrasings.plain(t) in banned]
        assert len(groups) - len(train) == len(phrasings.MORE[first]), "a pattern of phrasings.py only repeats held-out texts"
        fields = set.union(*(set(re.findall(r"\{\w+\}", str(t))) for t in templates))
        assert not [t for t in extra if not set(re.findall(r"\{\w+\}", str(t))) <= fields | {"{m}", "{verb}", "{noun}"}], first
        assert len(drawn) >= len(train)


def test_surroundings_never_make_a_held_out_phrasing():
    rng = random.Random(8)
    for make in (phrasings.ask, phrasings.tell):
        for templates in (skills.ASK, skills.COPY, ["My name is {v}.", "I am {v}.", "You can call me {v}.", "By the way, my name is {v}."]):
            train, held = phrasings.sides(templates)
            same = {re.sub(r"[^\w{}]+", " ", h.lower()).strip() for h in held}
            for _ in range(3000):
                text = rng.choice(train)
                out = make(rng, templates, text, True) if make is phrasings.ask else make(rng, templates, text)
                assert re.sub(r"[^\w{}]+", " ", out.lower()).strip() not in same


def test_requests_are_diverse(supply):
    """Two thousand training requests of a skill hardly repeat a word or a wording."""
    rng = random.Random(9)
    items = [skills.draw(rng, False, "copy_edit").messages[-2]["content"] for _ in range(2000)]
    assert len({x for i in items for x in i.split()}) > 6000
    names = [skills.draw(rng, False, "recall").messages[-2]["content"] for _ in range(2000)]
    assert len(set(names)) > 500


def test_supply_from_a_corpus(tmp_path):
    before = dict(words.POOLS)
    try:
        assert words.load_supply(str(tmp_path)) == 0 and words.POOLS == before      # no corpus: base lists only
        train, held = words.LISTS["NOUNS"]
        text = " ".join([train[0], train[0].capitalize(), held[0], held[0], "once", "abcdefghijklmnop abcdefghijklmnop"])
        (tmp_path / "prose.txt").write_text(text)
        expected = [train[0]] if words.never_held(train[0]) else []
        assert words.load_supply(str(tmp_path)) == len(expected)
        assert words.load_supply(str(tmp_path)) == len(expected)      # read back from the file beside it
    finally:
        words.POOLS.update(before)


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
        assert all(n in s.messages[-2]["content"] for n in numbers)


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
