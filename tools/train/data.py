"""Packed training batches: generated skills and corpus text, tokenised, with document starts and loss weights."""
import os
import random

import numpy as np
import torch
from tokenizers import Tokenizer

import skills
import skills_text
import words
from template import BOS, EOS, render

BOS_ID, EOS_ID, PAD_ID = 0, 1, 2
TEXT_WEIGHT = 0.3      # of a corpus token, against 1 of an answer token


class Encoder:
    def __init__(self, path):
        self.tok = Tokenizer.from_file(path)
        self.cache = {}

    def ids(self, text):
        """Token ids of text that may contain control spellings of the template."""
        if len(text) > 1200:      # tool sections: few distinct ones repeat
            if text not in self.cache:
                if len(self.cache) > 4000:
                    self.cache.clear()
                self.cache[text] = self.tok.encode(text, add_special_tokens=False).ids
            return self.cache[text]
        return self.tok.encode(text, add_special_tokens=False).ids

    def sample(self, segments):
        """(ids, weights): the weight of a token is that of the segment it belongs to."""
        ids, weights = [], []
        for text, weight in segments:
            part = self.ids(text)
            ids += part
            weights += [weight] * len(part)
        return ids, weights


def corpus_tokens(encoder, folder, name):
    """Token array of a corpus file, documents separated by EOS; cached beside it."""
    path = os.path.join(folder, name)
    if not os.path.exists(path + ".npy"):
        docs = open(path + ".txt", encoding="utf-8").read().split("\0")
        out = []
        for i in range(0, len(docs), 256):
            for e in encoder.tok.encode_batch(docs[i:i + 256], add_special_tokens=False):
                out.append(np.array(e.ids + [EOS_ID], dtype=np.uint16))
        np.save(path + ".npy", np.concatenate(out))
    return np.load(path + ".npy")


class Drills:
    """Words said again, behind marks or in a line: what copying is made of, over the whole vocabulary."""

    def __init__(self, encoder):
        self.encoder = encoder
        pieces = [encoder.tok.id_to_token(i) or "" for i in range(encoder.tok.get_vocab_size())]
        self.words = [i for i, p in enumerate(pieces) if p[:1] == "\u0120" and p[1:].isascii() and p[1:].isalpha()]
        self.marks = [encoder.ids(m) for m in ('"', '"', '"', ' "', ' "', ' "', ' "', '": "', ">", ">", "\n", "(", "'", "-", "_", "=")]
        self.forward = [encoder.ids(m) for m in ("=", "</think>", "\n>", " again:\n")]
        self.backward = [encoder.ids(m) for m in ("~", "<</think>", "\n<", " backwards:\n")]

    def any_word(self, rng, w):
        """(ids behind a space, ids without one): a piece of the vocabulary that begins with a space, or a word of the training side."""
        if rng.random() < 0.65:
            word = rng.choice(self.words)
            return [word], self.encoder.ids(self.encoder.tok.decode([word])[1:])
        text = rng.choice((w.pseudo, w.word, w.name, lambda: w.name().lower() + "." + w.pick(w.surnames).lower()))()
        return self.encoder.ids(" " + text), self.encoder.ids(text)

    def exercise(self, rng, room, most):
        """(ids, weights) of words said again: half are `behind_marks`, of at most `most` words, half a `line` of up to twice as many."""
        w, mark = words.Words(rng, False), rng.choice(self.marks)
        make, most = (self.line, rng.randint(1, 2 * most)) if rng.random() < 0.5 else (self.behind_marks, most)
        pairs, size = [], 4
        for _ in range(most):
            word, said = self.any_word(rng, w)
            size += 2 * max(len(word), len(said)) + len(mark)
            if size > room:
                break
            pairs.append((word, said))
        ids, weights = make(rng, pairs, mark)
        ids, weights = [BOS_ID] + ids, [0.0] + weights
        return (ids + [PAD_ID], weights + [0.0]) if len(ids) % 2 else (ids, weights)

    def behind_marks(self, rng, pairs, mark):
        """Words and the same behind marks, where they are spelled without a space; one time in three the other way round."""
        plain = [i for word, _ in pairs for i in word]
        marked = [i for _, said in pairs for i in mark + said]
        if rng.random() < 0.67:
            spelled = [x for _, said in pairs for x in [0.1] * len(mark) + [1.0] * len(said)]      # which mark comes is chance
            return plain + marked, [0.0] * len(plain) + spelled
        return marked + plain, [0.0] * len(marked) + [1.0] * len(plain)

    def line(self, rng, pairs, mark):
        """A line said again as answers do, only its first word without a space; one time in three, behind marks of their own, from last
        to first."""
        def row(order):
            return [i for n, (word, said) in enumerate(order) for i in (word if n else said)]
        told = mark[-1:] + row(pairs) if rng.random() < 0.3 else [i for word, _ in pairs for i in word]
        back = rng.random() < 0.33
        told += rng.choice(self.backward if back else self.forward)
        again = row(pairs[::-1] if back else pairs)
        return told + again, [0.0] * len(told) + [1.0] * len(again)


class Stream:
    """Endless packed rows. `share_text` is the share of rows that hold corpus text."""

    def __init__(self, encoder, corpus, seed, length, share_text=0.3, mix=None, held=False, share_repeat=0.0):
        self.encoder, self.rng, self.length, self.share_text, self.held = encoder, random.Random(seed), length, share_text, held
        self.mix, self.share_repeat = mix or skills.MIX, share_repeat
        suffix = "_heldout" if held else ""
        self.text = {n: corpus_tokens(encoder, corpus, n + suffix) for n in ("prose", "code")} if share_text else {}
        self.waiting, self.drills = [], Drills(encoder)
        self.supply = 0 if held else words.load_supply(corpus)      # corpus words of the training side, 0 without a corpus

    def item(self):
        name = self.rng.choices(list(self.mix), list(self.mix.values()))[0]
        while True:
            s = skills.draw(self.rng, self.held, name)
            ids, weights = self.encoder.sample(s.segments())
            if len(ids) + len(ids) % 2 <= self.length:
                if len(ids) % 2:
                    ids, weights = ids + [PAD_ID], weights + [0.0]
                return ids, weights

    def text_row(self, length, kind=None):
        data = self.text[kind or ("prose" if self.rng.random() < 0.6 else "code")]
        at = self.rng.randrange(len(data) - length)
        ids = data[at:at + length - 1].tolist()
        return [BOS_ID] + ids, [0.0] + [TEXT_WEIGHT] * (length - 1)

    def repeat_item(self, room):
        """Random tokens, said again: the plainest exercise in copying, over the whole vocabulary."""
        n = self.rng.randint(3, min(40, (room - 1) // 2))
        times = self.rng.randint(1, max(1, min(3, (room - 1) // n - 1)))
        few = self.rng.sample(range(3, 4079), self.rng.randint(2, 400)) if self.rng.random() < 0.5 else range(3, 4079)
        part = [self.rng.choice(few) for _ in range(n)]
        ids, weights = [BOS_ID] + part * (times + 1), [0.0] * (n + 1) + [1.0] * (n * times)
        return (ids + [PAD_ID], weights + [0.0]) if len(ids) % 2 else (ids, weights)

    def repeat_row(self):
        ids, weights, start = [], [], []
        while self.length - len(ids) >= 10:
            room = self.length - len(ids) - 1
            item = self.drills.exercise(self.rng, room, self.rng.choice((1, 1, 1, 2, 2, 3, 4, 6))) if self.rng.random() < 0.9 else self.repeat_item(room)
            start += [len(ids)] * len(item[0])
            ids, weights = ids + item[0], weights + item[1]
        gap = self.length - len(ids)
        start += [len(ids)] * gap
        return ids + [PAD_ID] * gap, weights + [0.0] * gap, start

    def row(self):
        if self.share_repeat and self.rng.random() < self.share_repeat:
            return self.repeat_row()
        if self.rng.random() < self.share_text:
            ids, weights = self.text_row(self.length)
            return ids, weights, [0] * self.length
        ids, weights, start = [], [], []
        misses = 0
        while misses < 3:
            # Items that did not fit are kept for the next rows, so long items are not starved.
            fit = next((i for i, it in enumerate(self.waiting) if len(it[0]) <= self.length - len(ids)), None)
            if fit is not None:
                item = self.waiting.pop(fit)
            else:
                item = self.item()
                if len(item[0]) > self.length - len(ids):
                    self.waiting.append(item)
                    misses += 1
                    continue
            start += [len(ids)] * len(item[0])
            ids, weights = ids + item[0], weights + item[1]
        gap = self.length - len(ids)
        start += [len(ids)] * gap
        return ids + [PAD_ID] * gap, weights + [0.0] * gap, start

    def long_text(self, size, facts):
        """About `size` tokens of filler sentences or of corpus text, with the facts (sentences) anywhere in it."""
        w, cuts = words.Words(self.rng, False), sorted(self.rng.random() for _ in facts)
        marks, text, count = [int(c * size) for c in cuts], [], 0
        source = self.text[self.rng.choice(("prose", "code"))] if self.text and self.rng.random() < 0.3 else None
        while count < size or marks:
            if marks and count >= min(marks[0], size - 1):
                part = facts[len(facts) - len(marks)]
                marks.pop(0)
            elif source is not None:
                at = self.rng.randrange(len(source) - 400)
                part = self.encoder.tok.decode(source[at:at + self.rng.randint(40, 300)].tolist()).strip()
            else:
                part = skills_text.filler(w)
                part = part[0].upper() + part[1:]
            text.append(part)
            count += len(self.encoder.ids(" " + part))
        return " ".join(text)

    def long_item(self, length):
        """A conversation with a long text in it: questions about facts of the text, and what an item of a skill asks after it."""
        w, rng = words.Words(self.rng, False), self.rng
        while True:
            facts = {}
            while len(facts) < rng.randint(3, 10):
                fact = skills_text.needle_fact(w)
                facts.setdefault(fact[2], fact)
            facts = list(facts.values())
            told = [f[0].format(x=f[2], v=f[3]).replace("the the", "the") for f in facts]
            size = int(length * rng.uniform(0.75, 0.97)) - 90 * len(facts)
            text = self.long_text(size, [t[0].upper() + t[1:] for t in told])
            asked = rng.sample(facts, min(len(facts), rng.randint(2, 6)))
            turns = []
            for n, f in enumerate(asked):
                question = f[1].format(x=f[2])
                if n == 0:
                    question = w.ask(["{t}\n\n{q}", "Read this text and answer the question.\n{t}\n\n{q}", "Text: {t}\nQuestion: {q}", "Text: {t}\n\n{q}"]).format(t=text, q=question)
                turns += [{"role": "user", "content": question}, {"role": "assistant", "content": f[4].format(x=f[2], v=f[3])}]
            sample = None
            if rng.random() < 0.5:      # the text comes between an item's first words and its last question
                sample = skills.draw(rng, False, rng.choice(("recall", "recall", "tool_call", "copy_edit")))
                users = [i for i, m in enumerate(sample.messages) if m["role"] == "user"]
                at = users[-1] if sample.skill == "recall" else users[0]
                turns = sample.messages[:at] + turns + sample.messages[at:]
            segments = render(turns, False, sample.tools if sample else [])
            ids, weights = self.encoder.sample(segments)
            if len(ids) + len(ids) % 2 <= length:
                n = len(ids) + len(ids) % 2      # padding is a document of its own, so that the decoder's rows end with the answers
                return ids + [PAD_ID] * (length - len(ids)), weights + [0.0] * (length - len(ids)), [0] * n + [n] * (length - n)

    def long_row(self, length):
        if self.text and self.rng.random() < 0.25:
            ids, weights = self.text_row(length)
            return ids, weights, [0] * length
        return self.long_item(length)

    def batch(self, rows, long=0):
        """`rows` packed rows, or, with `long`, rows of one long document of that length each."""
        data = [self.long_row(long) if long else self.row() for _ in range(rows)]
        tokens, weights, start = (torch.tensor([d[i] for d in data]) for i in range(3))
        return tokens, weights.float(), start


def targets(tokens, weights, start):
    """Next token and its weight for every row position; nothing is predicted across a document boundary."""
    nxt = torch.roll(tokens, -1, 1)
    w = torch.roll(weights, -1, 1)
    w[:, -1] = 0
    w[:, :-1] *= (start[:, 1:] == start[:, :-1]).float()
    return nxt, w


assert BOS and EOS


def decoder_rows(rng, weights, start, size, light=0.15, before=(0, 8, 32, 140)):
    """Which rows of a packed batch the decoder runs on: for every document a suffix that holds its weighted answers, preceded
    by a random number of prompt rows, one of `before` (the truncated window of a bounded prefill). Returns (index, first), both [B, size]; rows
    that do not fit are dropped, spare places repeat row 0 as a document of its own."""
    index, first = [], []
    for w, s in zip(weights.tolist(), start.tolist()):
        docs = []
        at = 0
        while at < len(s):
            end = at
            while end < len(s) and s[end] == at:
                end += 1
            heavy = [i for i in range(at, end) if w[i] >= light]
            if heavy:
                docs.append([max(at, heavy[0] - 1), end, at])
            at = end
        rng.shuffle(docs)
        kept, room = [], size
        for d in docs:
            if d[1] - d[0] <= room:
                kept.append(d)
                room -= d[1] - d[0]
            elif room >= 32:       # a long document: its last part
                kept.append([d[1] - room, d[1], d[2]])
                room = 0
        for d in kept:
            more = min(room, d[0] - d[2], rng.choice(before))
            d[0] -= more
            room -= more
        row, begin = [], []
        for a, b, _ in sorted(kept):
            begin += [len(row)] * (b - a)
            row += range(a, b)
        begin += range(len(row), size)
        row += [0] * (size - len(row))
        index.append(row)
        first.append(begin)
    return torch.tensor(index), torch.tensor(first)
