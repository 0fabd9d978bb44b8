"""Moves trained weights to another tokenizer: revocab.py OLD_FOLDER NEW_FOLDER WEIGHTS CORPUS OUT.

The folders hold a tokenizer.json of the same size each. Tokens of the same text keep their id (NEW_FOLDER is rewritten).
A new token takes the rows of its twin that differs only in the space before it (and both are set apart), else what its old
pieces say: the mean of their embeddings, the output row of the first. Every Engram row becomes the mean of the old rows of the n-grams that hash
to it, as often as they occur in the corpus. Training then goes on; the function is not kept.
"""
import dataclasses
import json
import os
import shutil
import sys

os.environ.pop("OPENBLAS_CORETYPE", None)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import config  # noqa: E402
import tensors  # noqa: E402
import tokenizer as tokenizer_lib  # noqa: E402

SPACE = "\u0120"
TABLES = ("embed.weight", "mtp.2.markov_head.embed.weight", "head.weight", "mtp.2.markov_head.head.weight")


def keep_ids(old, new):
    """Gives the tokens of `new` (parsed tokenizer.json) the ids they have in `old`; the others fill what is free."""
    a, b = old["model"]["vocab"], new["model"]["vocab"]
    free = iter(sorted(set(a.values()) - {a[t] for t in b if t in a}))
    new["model"]["vocab"] = dict(sorted(((t, a[t] if t in a else next(free)) for t in b), key=lambda x: x[1]))


def sources(old, new):
    """Per new id the old ids that stand for it."""
    a = old["model"]["vocab"]
    pieces = Tokenizer.from_str(json.dumps(old))
    out = {t["id"]: [t["id"]] for t in new["added_tokens"]}
    for text, i in new["model"]["vocab"].items():
        twin = text[1:] if text[:1] == SPACE and len(text) > 1 else SPACE + text
        known = [t for t in (text, twin) if t in a]
        out[i] = [a[known[0]]] if known else [t.id for t in pieces.model.tokenize(text)]
    return [out[i] for i in range(len(out))]


def set_apart(table, old, new):
    """Twins of which one took the other's row: moves them apart along the mean difference of the old twins, half a row's length.

    Rows that start out the same stay so: a row's gradient says nothing of its twin, and words that no item uses are hardly trained.
    Along one direction for all of them, what is learned from any pair holds for every one.
    """
    a, b = old["model"]["vocab"], new["model"]["vocab"]
    twins = [(t, SPACE + t) for t in b if SPACE + t in b]
    known = torch.tensor([(b[x], b[y]) for x, y in twins if x in a and y in a])
    apart = torch.tensor([(b[x], b[y]) for x, y in twins if (x in a) != (y in a)])
    step = (table[known[:, 1]] - table[known[:, 0]]).mean(0)
    step *= 0.25 * table.norm(dim=1).mean() / step.norm()
    table[apart[:, 1]] += step
    table[apart[:, 0]] -= step


def make_distinct(embed, head, old, new):
    """Tokens made of old pieces get a random part, and the output rows what the linear map from one table to the other makes of it.

    Without it the output row of "usu" is that of "us", from which its gradient only slowly takes it away.
    """
    a, b = old["model"]["vocab"], new["model"]["vocab"]
    made = [t for t in b if not {t, t[1:] if t[:1] == SPACE else SPACE + t} & set(a)]
    kept, ids = torch.tensor([b[t] for t in b if t in a]), torch.tensor([b[t] for t in made])
    random = torch.Generator().manual_seed(5)
    parts = {}
    for t in made:      # twins share it
        parts.setdefault(t.lstrip(SPACE), torch.randn(embed.shape[1], generator=random))
    noise = torch.stack([parts[t.lstrip(SPACE)] for t in made]) * embed.shape[1] ** -0.5
    noise *= (embed[kept].norm(dim=1).mean() ** 2 - embed[ids].norm(dim=1).mean() ** 2).clamp(min=0).sqrt()
    x = embed[kept]
    embed[ids] += noise
    head[ids] += noise @ torch.linalg.solve(x.t() @ x + len(kept) / 28 * torch.eye(x.shape[1]), x.t() @ head[kept])


def rows(cfg, index, ids):
    """Engram rows [T, columns] of a running text of compressed ids."""
    primes, multipliers = cfg.primes()[index], [int(m) for m in cfg.multipliers()[index]]
    mixed, offset, out = ids.astype(np.uint64) * np.uint64(multipliers[0]), 0, []
    for s in range(1, cfg.ngram):
        mixed = mixed ^ np.roll(ids, s).astype(np.uint64) * np.uint64(multipliers[s])
        for prime in primes[s - 1]:
            out.append((mixed % np.uint64(prime)).astype(np.int64) + offset)
            offset += prime
    return np.stack(out, 1)


def move_tables(state, old_cfg, new_cfg, old_keys, new_keys, text):
    """Engram tables; `text` are token ids of the new tokenizer. N-grams with a key that the old one lacks do not vote."""
    old_ids, new_ids = {}, {}
    for table, names in ((old_ids, old_keys), (new_ids, new_keys)):
        for name in names:
            table.setdefault(name, len(table))
    after = np.array([new_ids[k] for k in new_keys])[text]
    before = np.array([old_ids.get(k, -1) for k in new_keys])[text]
    usable = np.logical_and.reduce([np.roll(before, s) >= 0 for s in range(new_cfg.ngram)])
    for index, layer in enumerate(new_cfg.engram_layers):
        name = f"layers.{layer}.engram.embed.weight"
        table = state[name].float()
        sums, count = torch.zeros_like(table), torch.zeros(len(table))
        for a, b in zip(rows(old_cfg, index, np.maximum(before, 0)).T, rows(new_cfg, index, after).T):
            a, b = torch.from_numpy(a[usable]), torch.from_numpy(b[usable])
            sums.index_add_(0, b, table[a])
            count.index_add_(0, b, torch.ones(len(b)))
        state[name] = sums / count.clamp(min=1)[:, None]
        print(name, "rows without a vote:", int((count == 0).sum()), "of", len(table))


def move(old_folder, new_folder, weights, corpus, out):
    paths = [os.path.join(f, "tokenizer.json") for f in (old_folder, new_folder)]
    old, new = (json.load(open(p, encoding="utf-8")) for p in paths)
    keep_ids(old, new)
    with open(paths[1], "w", encoding="utf-8") as f:
        json.dump(new, f, ensure_ascii=False, indent=2)
    old_keys, new_keys = (tokenizer_lib.keys(p) for p in paths)
    tokenizer_lib.write_map(os.path.join(new_folder, "engram_token_map.i32"), tokenizer_lib.token_map(paths[1]))
    state, stand_in = tensors.load(weights), sources(old, new)
    for name in TABLES[:2]:
        table = state[name].float()
        state[name] = torch.stack([table[s].mean(0) for s in stand_in])
    for name in TABLES[2:]:
        state[name] = state[name].float()[[s[0] for s in stand_in]]
    for name in TABLES:
        set_apart(state[name], old, new)
    for embed, head in zip(TABLES[:2], TABLES[2:]):
        make_distinct(state[embed], state[head], old, new)
    encoder = Tokenizer.from_file(paths[1])
    runs = [*tokenizer_lib.plain_runs(11, 60000), *tokenizer_lib.documents(os.path.join(corpus, "prose.txt"), 12_000_000, 5),
            *tokenizer_lib.documents(os.path.join(corpus, "code.txt"), 6_000_000, 6)]
    text = np.concatenate([np.array(e.ids) for e in encoder.encode_batch(runs, add_special_tokens=False)])
    sizes = [len(set(k)) for k in (old_keys, new_keys)]
    move_tables(state, *(dataclasses.replace(config.TINY, engram_vocab=n) for n in sizes), old_keys, new_keys, text)
    tensors.save(out, {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in state.items()})
    shutil.copyfile(weights + ".json", out + ".json")
    print("compressed", sizes, "tokens kept", sum(s == [i] for i, s in enumerate(stand_in)), "tokens of corpus", len(text))


if __name__ == "__main__":
    move(*sys.argv[1:])
