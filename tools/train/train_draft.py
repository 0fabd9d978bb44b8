"""Trains the draft stages on a frozen backbone and reports acceptance and calibration.

    python tools/train/train_draft.py --init WEIGHTS --out FILE [--start FILE_OR_MODEL_FOLDER] [--minutes M]

Loss per block position k (weight 0.8^k): KL from the backbone's distribution to the draft's, plus binary cross-entropy of the
confidence. Its label is the mean of 1 - 1/2 |p_d - p_t|_1 (model specification 6.3: what sampling accepts) and of whether both have
the same most likely token (what a greedy answer accepts, as this model's generation_config.json asks). The first alone promised too
little to greedy answers, by up to a fifth in the middle. The backbone does not move.
"""
import argparse
from concurrent.futures import ThreadPoolExecutor
import json
import os
import random
import sys
import time

os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import checkpoint  # noqa: E402
import data as data_lib  # noqa: E402
import optim  # noqa: E402
import tensors  # noqa: E402
import train as main_lib  # noqa: E402


ROWS = 384      # of 512 that the decoder runs on


def block_of(rows, b, j, n):
    """Rows j + 1 .. j + n of the anchors, [A, n, ...]; behind the end of the batch its last row."""
    return rows[b[:, None], (j[:, None] + 1 + torch.arange(n)).clamp(max=rows.shape[1] - 1)]


def draw(stream, rows, size, rng):
    """One packed batch and the rows of it that the decoder runs on: as when serving, the stages see a window's worth of the prompt,
    which is where answers copy from."""
    tokens, weights, start = stream.batch(rows)
    return tokens, weights, start, *data_lib.decoder_rows(rng, weights, start, size, before=(140,))


def gather(fast, drawn, generator, per_row):
    """Anchors in a batch with the frozen backbone's features and targets."""
    import draft
    cfg = fast.cfg
    tokens, weights, start, index, first = drawn
    rows = len(tokens)
    nxt, w = data_lib.targets(tokens, weights, start)
    batch = fast.batch(tokens, start, decoder=(index, first))
    with torch.no_grad():
        h, taps = fast.forward(batch, taps=True)
    w = w.gather(1, index)
    w[:, :-1] *= index[:, 1:] > index[:, :-1]
    w[:, -1] *= index[:, -1] > 0
    b, j, live = draft.anchors_of(w, first, cfg.block, per_row, generator)
    n = len(b) // 16 * 16 or len(b)      # few shapes
    b, j, live = b[:n], j[:n], live[:n]
    x = block_of(tokens.gather(1, index), b, j, cfg.block + 1)
    live = live & ((x[:, :-1] == data_lib.EOS_ID).cumsum(1) == 0)      # an answer that has ended is not gone on with
    with torch.no_grad():
        D = index.shape[1]
        target = fast.logits(block_of(h.view(rows, D, -1), b, j, cfg.block)).float()
    return taps.view(rows, D, -1), batch.dec_pos, first, b, j, live, x, target


def loss_of(fast, parts):
    import draft
    taps, position, first, b, j, live, x, target = parts
    h, normed = draft.hidden(fast, taps, position, first, b, j, x[:, 0])
    logits, confidence = draft.heads(fast, h, normed, x[:, :-1])
    logp, pt = F.log_softmax(logits, -1), F.softmax(target, -1)
    kl = (pt * (F.log_softmax(target, -1) - logp)).sum(-1)
    overlap = 1 - 0.5 * (logp.exp() - pt).abs().sum(-1).detach()
    label = 0.5 * (overlap + (logits.argmax(-1) == target.argmax(-1)))
    bce = F.binary_cross_entropy_with_logits(confidence, label, reduction="none")
    weight = live / live.sum().clamp(min=1)
    decay = 0.8 ** torch.arange(kl.shape[1])
    return (kl * decay * weight).sum() + 0.3 * (bce * weight).sum(), (kl.detach() * live).sum(0) / live.sum(0).clamp(min=1)


@torch.no_grad()
def evaluate(fast, encoder, corpus, seed, share_text, batches=8, size=ROWS):
    """Teacher-forced acceptance against the true continuation, and calibration of greedy drafts against the backbone's argmax."""
    import draft
    stream = data_lib.Stream(encoder, corpus, seed, 512, share_text, held=True)
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    match, prob, lives = [], [], []
    for _ in range(batches):
        taps, position, first, b, j, live, x, target = gather(fast, draw(stream, 4, size, rng), generator, 48)
        if len(b) == 0:
            continue
        h, normed = draft.hidden(fast, taps, position, first, b, j, x[:, 0])
        out, conf = draft.greedy(fast, h, normed, x[:, 0])
        match.append((out == x[:, 1:]) & live)
        lives.append(live)
        prob.append(torch.sigmoid(conf))
        fast.leaves = {}
    match, prob, live = torch.cat(match), torch.cat(prob), torch.cat(lives)
    alive = torch.cat((torch.ones(len(match), 1, dtype=torch.bool), match.cumprod(1)[:, :-1].bool()), 1) & live
    table, error, total = [], 0.0, 0
    for lo in torch.arange(0, 1, 0.1).tolist():
        inside = alive & (prob >= lo) & (prob < lo + 0.1)
        n = int(inside.sum())
        if n:
            predicted, actual = float(prob[inside].mean()), float(match[inside].float().mean())
            table.append([round(lo, 1), n, round(predicted, 3), round(actual, 3)])
            error += n * abs(predicted - actual)
            total += n
    return {"anchors": len(match), "possible": round(float(live.sum(1).float().mean()), 3), "mean_accepted": round(float(match.cumprod(1).sum(1).float().mean()), 3),
            "per_position": [round(float(match[:, k][alive[:, k]].float().mean()), 3) for k in range(match.shape[1]) if alive[:, k].any()],
            "calibration_error": round(error / max(total, 1), 4), "calibration": table}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--init", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--start", default="", help="weights, or a model folder, whose draft stages are gone on from")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--anchors", type=int, default=48)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share-text", type=float, default=0.3)
    parser.add_argument("--eval-batches", type=int, default=8)
    args = parser.parse_args()
    from fast import Fast, Weights, collect
    torch.set_num_threads(1)      # workers are threads with one kernel thread each, as in train.py
    torch.manual_seed(args.seed)
    model = main_lib.initialise(main_lib.build_model(), args.seed)
    main_lib.load_weights(model, args.init)
    if args.start:
        with torch.no_grad():
            own = model.state_dict()
            for name, value in (checkpoint.read(args.start).state_dict() if os.path.isdir(args.start) else tensors.load(args.start)).items():
                if name.startswith("mtp."):
                    own[name].copy_(value.float())
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("mtp."))
    shared = Weights(True)
    workers = [Fast(model, shared=shared) for _ in range(args.threads)]
    pool = ThreadPoolExecutor(args.threads, initializer=torch.set_num_threads, initargs=(1,))
    fast = workers[0]
    encoder = data_lib.Encoder(os.path.join(main_lib.MODEL_DIR, "tokenizer.json"))
    corpus = os.path.join(main_lib.ROOT, "build", "train", "corpus")
    stream = data_lib.Stream(encoder, corpus, args.seed + 555, 512, args.share_text)
    named = optim.split(model)[3]
    matrix = [(n, p) for n, p in named if p.dim() >= 2 and ".hc_" not in n and "gate." not in n and "markov" not in n and "confidence" not in n]
    muon = optim.Muon(p for _, p in matrix)
    rest = [p for n, p in named if not any(p is q for _, q in matrix)]
    adam = torch.optim.AdamW(rest, lr=args.lr * 0.4, betas=(0.9, 0.95), weight_decay=0.0)
    rng = random.Random(args.seed)
    generators = [torch.Generator().manual_seed(args.seed + k) for k in range(args.threads)]

    def work(k, drawn):
        part = slice(k * args.rows // args.threads, (k + 1) * args.rows // args.threads)
        parts = gather(workers[k], [t[part] for t in drawn], generators[k], args.anchors)
        if len(parts[3]) < 1:
            return None
        loss, kl = loss_of(workers[k], parts)
        (loss / args.threads).backward()
        return [float(loss.detach())] + kl.tolist()

    t0, step, log, sums = time.time(), 0, time.time(), []
    while (time.time() - t0 < args.minutes * 60) and not (args.steps and step >= args.steps):
        progress = max((time.time() - t0) / (args.minutes * 60), step / args.steps if args.steps else 0)
        r = min(1.0, (step + 1) / 30) * min(1.0, 2.5 * (1 - progress) + 0.05)
        drawn = draw(stream, args.rows, ROWS, rng)
        results = [r for r in pool.map(lambda k: work(k, drawn), range(args.threads)) if r]
        if not results:
            continue
        collect(workers, pool.map)
        for group in adam.param_groups:
            group["lr"] = args.lr * 0.4 * r
        muon.step(args.lr * r, 0.02, pool.map)
        adam.step()
        with torch.no_grad():
            for stage in model.mtp:
                count = sum(w.counts.pop(("mtp", id(stage)), 0) for w in workers)
                stage.ffn.gate.bias.add_(torch.sign(count.mean() - count), alpha=2e-3 * r)
        for w in workers:
            w.counts.clear()
        model.zero_grad(set_to_none=True)
        fast.refresh()
        step += 1
        sums += results
        if time.time() - log > 30 or (args.steps and step >= args.steps):
            print(json.dumps({"step": step, "minutes": round((time.time() - t0) / 60, 1), "loss_and_kl": [round(sum(c) / len(c), 4) for c in zip(*sums)]}), flush=True)
            log, sums = time.time(), []
    for name, share in (("skills", 0.0), ("text", 1.0)):
        if share > 0 and args.share_text == 0:
            continue
        print(json.dumps({"event": "acceptance", "on": name, **evaluate(fast, encoder, corpus, 77, share, args.eval_batches)}), flush=True)
    main_lib.save_weights(args.out, model.state_dict())


if __name__ == "__main__":
    main()
