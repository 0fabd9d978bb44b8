"""Writes the model card models/deepinfer-tiny/README.md from measured results only.

    python tools/train/card.py --history weights/latest.safetensors.json --log build/train/stage1/log.jsonl [--draft FILE] [--scores FILE] [--recall FILE]
        [--note TEXT]
"""
import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import config  # noqa: E402
import corpus  # noqa: E402

MODEL = os.path.join(HERE, "..", "..", "models", "deepinfer-tiny")


def lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.startswith("{")]


def parameters(cfg):
    """Counts in millions by class, in words."""
    from model import Model
    groups = {"routed experts": 0, "Engram tables": 0, "embedding and head": 0, "draft stages": 0, "the rest": 0}
    for name, p in Model(cfg).named_parameters():
        kind = "draft stages" if name.startswith("mtp.") else "Engram tables" if "engram.embed" in name else \
            "embedding and head" if name in ("embed.weight", "head.weight") else \
            "routed experts" if ".experts." in name and "shared" not in name else "the rest"
        groups[kind] += p.numel()
    return f"{sum(groups.values()) / 1e6:.1f} million: " + ", ".join(f"{k} {v / 1e6:.1f}" for k, v in groups.items())


def card(args):
    cfg = config.Config.load(os.path.join(MODEL, "config.json"))
    log = lines(args.log)
    ends = [r for r in log if r.get("event") == "evaluation"]
    with open(args.history, encoding="utf-8") as f:
        history = json.load(f)
    tokens, minutes = sum(h["tokens"] for h in history), sum(h["minutes"] for h in history)
    length = max(max([h["settings"]["length"]] + [x[0] for x in h["settings"].get("long", ())]) for h in history)
    count = parameters(cfg)
    out = [f"""# deepinfer-tiny

A small language model of exactly the DeepSeek-V4.1 architecture, trained from scratch for this project so that the program can be
tried and measured without the released weights. It knows very little; do not use it for anything that matters.

**State: {tokens / 1e6:.1f} million tokens of training. What it gets wrong is in the tables below.**

| | |
|---|---|
| parameters | {count} |
| layers | {cfg.layers}, hidden {cfg.hidden}, {cfg.hc} residual streams, {cfg.heads} heads of {cfg.head_dim}, window {cfg.window} |
| compressed attention | ratios {cfg.ratios[:cfg.layers]}, KV sources {cfg.kv_sources}, index sources {cfg.index_sources} (top {cfg.index_topk}), candidate pool {cfg.candidate_blocks} blocks of {cfg.candidate_block} |
| experts | {cfg.experts} of width {cfg.inter}, {cfg.expert_topk} per token, one shared |
| Engram | layers {cfg.engram_layers}, {cfg.ngram - 1} n-gram sizes, {cfg.engram_heads} heads of {cfg.engram_dim}, rows {cfg.engram_rows()} |
| context | {cfg.max_positions} positions, YaRN from {cfg.yarn_original}; trained on rows of at most {length} tokens |
| formats | FP8 E4M3 in 32x32 tiles, MXFP4 experts, E8M0 scales, FP8 Engram rows; trained in these formats, caches quantised too |
| vocabulary | {cfg.vocab}, byte-level BPE, every digit one token, special tokens of V4.1 |
| training | {tokens:,} tokens, {minutes:.0f} minutes on two shared CPU cores |

Trained on items that `tools/train/skills.py` generates (arithmetic, copying and editing, JSON extraction, tool calls, recall, counting,
sorting, stories, an invented world, needles) in the V4.1 chat template, on lists of all pieces of the vocabulary in their two
spellings (words held out from the items are among the pieces, in no other connection), and on prose and code from Debian packages: {', '.join(corpus.PACKAGES)}.
No text of these packages is in the weights files; the suite `suites/prose.jsonl` holds token ids of parts of the Python documentation
(Copyright Python Software Foundation, PSF licence), which were not trained on. Retraining: `tools/train/README.md`.
"""]
    if args.scores:
        with open(args.scores, encoding="utf-8") as f:
            scores = json.load(f)
        out.append("## Skills\n\nExact match on held-out items (phrasings, names, values and lengths never trained on), greedy, PyTorch reference.\n")
        out.append("| suite | items | exact | lower 95 % bound | right tokens |\n|---|---|---|---|---|")
        for name, s in scores.items():
            out.append(f"| {name} | {s['items']} | {s['score']:.3f} | {s['lower_95']:.3f} | {s['token_accuracy']:.3f} |")
        out.append("")
        if args.note:
            out.append(args.note + "\n")
    if ends:
        last = ends[-1]
        out.append(f"Held-out loss (nats per token) at step {last['step']}: " + ", ".join(
            f"{k} {v['loss']:.2f}" for k, v in last.items() if isinstance(v, dict)) + ".\n")
    if args.draft:
        out.append("## Drafts\n\nTeacher-forced against the true continuation, greedy drafts of five.\n")
        for r in lines(args.draft):
            if r.get("event") == "acceptance":
                out.append(f"On {r['on']}: {r['mean_accepted']:.2f} accepted on average over {r['anchors']} blocks; per position (given that all earlier "
                           f"ones were accepted) {r['per_position']}; calibration error {r['calibration_error']:.3f}.\n")
                out.append("| confidence from | drafts | predicted | accepted |\n|---|---|---|---|")
                out += [f"| {a} | {n} | {p} | {q} |" for a, n, p, q in r["calibration"]]
                out.append("")
    if args.recall:
        with open(args.recall, encoding="utf-8") as f:
            recall = json.load(f)
        edges = list(dict.fromkeys(e for buckets in recall.values() for e in buckets))
        out.append(f"## Indexers\n\nShare of the true attention to compressed entries that the best {cfg.index_topk} entries by index score hold, on "
                   "held-out text, by how many tokens stand before (PyTorch; up to that many entries all are taken).\n")
        out.append("| index source | " + " | ".join(f"to {e}" for e in edges) + " |\n|---" + "|---" * len(edges) + "|")
        for name, buckets in recall.items():
            out.append(f"| {name} | " + " | ".join(f"{buckets[e][0]:.2f}" if e in buckets else "" for e in edges) + " |")
        out.append("")
    out.append("""## Limits

English only, short answers, small numbers. Everything outside the trained skills is noise that looks like language. Facts about the real
world are a handful of capitals. There is no vision part: images are refused. There is no safety training.
""")
    with open(os.path.join(MODEL, "README.md"), "w", encoding="utf-8") as f:
        f.write("\n".join(out))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--draft", default="")
    parser.add_argument("--scores", default="")
    parser.add_argument("--recall", default="", help="what recall.py wrote")
    parser.add_argument("--history", required=True)
    parser.add_argument("--note", default="", help="a sentence below the scores: what a reader of them has to know of this run")
    card(parser.parse_args())
