"""How much of the true attention the indexers' selection holds, by context: the share of the head-summed attention mass over
compressed entries that lies in the best `index_topk` entries by index score, on held-out text.

    python tools/train/recall.py --weights FILE [--out FILE]

Rows attend everything visible, so the mass is the true one; a bucket counts rows by how many tokens stand before them. Up to
index_topk entries everything is selected and the share is 1.
"""
import argparse
import json
import os
import random
import sys

os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import data as data_lib  # noqa: E402
import train as main_lib  # noqa: E402

EDGES = (256, 512, 1024, 2048, 4096, 8192, 16384)


def by_context(probe, ratios, k):
    """{(layer, bucket): [mass, rows]} of one forward pass whose probe has its loss taken."""
    sums = {}
    for layer, (scores, target, visible, live) in probe.last.items():
        context = visible.sum(-1) * ratios[layer]
        chosen = torch.zeros_like(visible).scatter_(-1, scores.topk(min(k, scores.shape[-1]), dim=-1)[1], True) & visible
        share = (target * chosen).sum(-1)
        for b, edge in enumerate(EDGES):
            inside = live & (context <= edge) & (context > (EDGES[b - 1] if b else 0))
            if inside.any():
                cell = sums.setdefault((layer, edge), [0.0, 0])
                cell[0] += float(share[inside].sum())
                cell[1] += int(inside.sum())
    return sums


@torch.no_grad()
def run(model, encoder, corpus, length, rows, sample):
    from fast import Fast
    from indexer import IndexerLoss
    fast = Fast(model)
    stream = data_lib.Stream(encoder, corpus, 12, length, 1.0, held=True)
    total = {}
    for kind in ("prose", "code"):
        for _ in range(rows):
            tokens = torch.tensor([stream.text_row(length, kind)[0]])
            probe = IndexerLoss(model.cfg, sample)
            fast.forward(fast.batch(tokens, torch.zeros_like(tokens)), probe=probe)
            probe.loss()
            for key, (mass, n) in by_context(probe, model.cfg.ratios, model.cfg.index_topk).items():
                cell = total.setdefault(key, [0.0, 0])
                cell[0] += mass
                cell[1] += n
    return {f"layer {layer}": {str(edge): [round(total[layer, edge][0] / total[layer, edge][1], 4), total[layer, edge][1]]
                               for edge in EDGES if (layer, edge) in total} for layer in sorted({k[0] for k in total})}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", default="")
    parser.add_argument("--corpus", default="", help="folder that corpus.py wrote")
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--rows", type=int, default=2, help="of prose and of code")
    parser.add_argument("--sample", type=int, default=1024, help="query rows per row")
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(1)
    random.seed(1)
    model = main_lib.build_model()
    main_lib.load_weights(model, args.weights)
    encoder = data_lib.Encoder(os.path.join(main_lib.MODEL_DIR, "tokenizer.json"))
    result = run(model, encoder, args.corpus or os.path.join(main_lib.ROOT, "build", "train", "corpus"), args.length, args.rows, args.sample)
    print(json.dumps(result))
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
