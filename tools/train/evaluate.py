"""Scores weights on the shipped suites in PyTorch: the reference scores that the engine is held to.

    python tools/train/evaluate.py --model models/deepinfer-tiny [--suites FOLDER] [--limit N] [--out FILE]

Exact match is teacher-forced, which equals greedy decoding: the output is right if and only if every expected token is the
argmax after the expected tokens before it. Prompts run as the engine serves them: indexers select, the decoder runs on the last
KEEP prompt rows (bounded replay) and on the answer. `margin` is the smallest lead of an expected token over the runner-up.
"""
import argparse
import json
import math
import os
import sys

os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import checkpoint  # noqa: E402

KEEP = 140


def expand(prompt, hay):
    out = []
    for p in prompt:
        out += hay[p[0]:p[0] + p[1]] if isinstance(p, list) else [p]
    return out


def lower_bound(hits, n):
    """Wilson score interval, lower 95 % bound."""
    if n == 0:
        return 0.0
    z, p = 1.96, hits / n
    return (p + z * z / (2 * n) - z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))) / (1 + z * z / n)


@torch.no_grad()
def score(fast, items, keep=KEEP):
    """List of (right, number of right tokens, expected tokens) for (prompt, expect) pairs."""
    out = []
    items = sorted(enumerate(items), key=lambda i: len(i[1][0]) + len(i[1][1]))
    at = 0
    while at < len(items):
        size = len(items[at][1][0])
        group = items[at:at + (1 if size > 1024 else 8)]
        at += len(group)
        total = max(len(p) + len(e) for _, (p, e) in group)
        total += total % 2
        tokens = torch.tensor([p + e + [2] * (total - len(p) - len(e)) for _, (p, e) in group])
        longest = max(len(e) for _, (_, e) in group)
        shortest = min(len(p) for _, (p, _) in group)
        # Decoder rows of every item: its last `keep` prompt rows and its answer; items are padded to one size at the front row.
        width = min(total, keep + longest + (max(len(p) for _, (p, _) in group) - shortest))
        begin = [max(0, min(len(p) - keep, total - width)) for _, (p, _) in group]
        index = torch.tensor([[b + k for k in range(width)] for b in begin])
        first = torch.zeros_like(index)
        batch = fast.batch(tokens, torch.zeros_like(tokens), decoder=(index, first))
        logits = fast.logits(fast.forward(batch, select=True)).float().view(len(group), width, -1)
        for k, (i, (p, e)) in enumerate(group):
            rows = logits[k, len(p) - 1 - begin[k]:len(p) - 1 - begin[k] + len(e)]
            right = rows.argmax(-1) == torch.tensor(e)
            top = rows.topk(2, dim=-1)[0]
            out.append((i, bool(right.all()), int(right.sum()), len(e), float((top[:, 0] - top[:, 1]).min())))
    return [o[1:] for o in sorted(out)]


def run(model, folder, limit=0, names=None, long_limit=0):
    from fast import Fast
    fast = Fast(model, quantise_weights=False)
    with open(os.path.join(folder, "hay.json")) as f:
        hay = json.load(f)
    with open(os.path.join(folder, "index.json")) as f:
        index = json.load(f)["suites"]
    result = {}
    for name in index:
        if names and name not in names:
            continue
        with open(os.path.join(folder, name + ".jsonl")) as f:
            rows = [json.loads(line) for line in f][:(long_limit if long_limit and index[name]["longest_prompt"] > 1024 else limit) or None]
        got = score(fast, [(expand(r["prompt"], hay), r["expect"]) for r in rows])
        hits = sum(g[0] for g in got)
        result[name] = {"score": round(hits / len(got), 4), "lower_95": round(lower_bound(hits, len(got)), 4), "items": len(got), "wrong": [i for i, g in enumerate(got) if not g[0]],
                        "token_accuracy": round(sum(g[1] for g in got) / sum(g[2] for g in got), 4)}
        print(name, json.dumps(result[name]), flush=True)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=os.path.join(HERE, "..", "..", "models", "deepinfer-tiny"))
    parser.add_argument("--suites", default="")
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--long-limit", type=int, default=0, help="items of suites with prompts of more than 1,024 tokens")
    parser.add_argument("--names", default="")
    parser.add_argument("--out", default="")
    a = parser.parse_args()
    torch.set_num_threads(2)
    scores = run(checkpoint.read(a.model), a.suites or os.path.join(a.model, "suites"), a.limit, a.names.split(",") if a.names else None, a.long_limit)
    if a.out:
        with open(a.out, "w") as f:
            f.write("{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in scores.items()) + "\n}\n")
