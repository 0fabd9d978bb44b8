"""Trains the byte-level BPE tokenizer of the small model and its Engram token map.

Pre-tokeniser as in the released model (request edge specification 2.1) except that every digit is its own piece. Ids:
0..2 bos, eos, pad; then the 256 byte characters; then merges; then the other special tokens. The Engram map folds
tokens that differ only in case, accents or surrounding space (model specification 5.1).

A word is cut the same way wherever it stands. Merges are learned on words without the space (or mark) before them; the
merges that put a space before a piece come after all of those. So " torch" is " tor", "ch" and "torch" is "tor", "ch",
and what copies a word need not know how it is spelled. Merges learned with the space make " torch" one piece and
"torch" two others: a word is then two unrelated ones, at the start of an answer or behind a quotation mark.
"""
import collections
import json
import os
import random
import re
import struct
import sys
import unicodedata

import template
from template import BOS, EOS, PAD, SPECIALS

VOCAB = 4096
PREFIXED = 1400       # merges of a space or mark with the piece behind it; 1,000 to 1,700 differ by 1 % in length of text
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
LEAD = "[^\\p{L}\\p{M}](?=[\\p{L}\\p{M}])"      # what stands before a word
WORDS = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
         " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")


def plain_runs(seed, count):
    """Text runs of generated samples, without control tokens; the constant tool section is thinned out."""
    import skills
    rng = random.Random(seed)
    controls = re.compile("|".join(re.escape(t) for t, _ in SPECIALS + [(BOS, 0), (EOS, 0), (PAD, 0)]))
    for i in range(count):
        sample = skills.draw(rng)
        if sample.skill == "tool_call" and i % 8:
            sample.tools = []
        for text, _ in sample.segments():
            for run in controls.split(text):
                if run:
                    yield run


def documents(path, characters, seed):
    docs = open(path, encoding="utf-8").read().split("\0")
    random.Random(seed).shuffle(docs)
    used = 0
    for doc in docs:
        yield doc
        used += len(doc)
        if used > characters:
            return


def pre_tokenizer(*more):
    from tokenizers import Regex, pre_tokenizers
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in (r"\p{N}", CJK, WORDS) + more]
                                   + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def prefix_merges(bare, splitter, texts, count):
    """The most frequent pairs of a space or mark and the first piece of the word behind it."""
    runs = collections.Counter(run for text in texts for run, _ in splitter.pre_tokenize_str(text))
    pairs = collections.Counter()
    for run, times in runs.items():
        first, *rest = (t.value for t in bare.tokenize(run))
        letter = rest and (rest[0][0].isascii() and rest[0][0].isalpha() or "\xc3" <= rest[0][0] <= "\xf4")
        if letter and (first == "\u0120" or len(first) == 1 and first.isascii() and not first.isalnum()):
            pairs[first, rest[0]] += times
    return [pair for pair, _ in pairs.most_common(count)]


def train(corpus, out, vocab=VOCAB, prefixed=PREFIXED):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    texts = [*plain_runs(7, 60000), *documents(os.path.join(corpus, "prose.txt"), 9_000_000, 3),
             *documents(os.path.join(corpus, "code.txt"), 5_000_000, 4)]
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizer(LEAD)
    bare.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIALS) - prefixed, special_tokens=[BOS, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    pieces = json.loads(bare.to_str())["model"]
    ids, merges = pieces["vocab"], [tuple(m) for m in pieces["merges"]]
    for pair in prefix_merges(bare.model, pre_tokenizer(), texts[::8], prefixed):
        merges.append(pair)
        ids["".join(pair)] = len(ids)
    tok = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tok.pre_tokenizer, tok.decoder = pre_tokenizer(), decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in (BOS, EOS, PAD)])
    for text, special in SPECIALS:
        (tok.add_special_tokens if special else tok.add_tokens)([AddedToken(text, normalized=False, special=special)])
    assert tok.get_vocab_size() == vocab
    tok.save(out)
    return tok


def byte_decoder():
    visible = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    table = {chr(b): b for b in visible}
    for n, b in enumerate(b for b in range(256) if b not in visible):
        table[chr(256 + n)] = b
    return table


def fold(text):
    """Normal form of model specification 5.1."""
    t = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    t = "".join(c for c in t if not unicodedata.combining(c)).lower()
    t = re.sub(r"[ \t\r\n]+", " ", t)
    t = "\ue000" if t == " " else t
    return t.strip().replace("\ue000", " ") or text


def keys(path):
    """What the Engram map takes a token for, by token id."""
    data = json.load(open(path, encoding="utf-8"))
    raw = {i: t for t, i in data["model"]["vocab"].items()}
    added = {a["id"]: a["content"] for a in data["added_tokens"]}
    table, out = byte_decoder(), []
    for i in range(len({**raw, **added})):
        if i in added:
            out.append(fold(added[i]))
        else:
            text = bytes(table[c] for c in raw[i]).decode("utf-8", "replace")
            out.append(raw[i] if "\ufffd" in text else fold(text))
    return out


def token_map(path):
    """List of compressed ids by token id."""
    ids = {}
    return [ids.setdefault(key, len(ids)) for key in keys(path)]


def write_map(path, values):
    with open(path, "wb") as f:
        f.write(struct.pack(f"<{len(values)}i", *values))


if __name__ == "__main__":
    corpus, folder = sys.argv[1], sys.argv[2]
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, "tokenizer.json")
    t = train(corpus, target)
    m = token_map(target)
    write_map(os.path.join(folder, "engram_token_map.i32"), m)
    print("vocabulary", t.get_vocab_size(), "compressed", max(m) + 1)
    assert template.EOS == EOS
