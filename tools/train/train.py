"""Trains the backbone of the small model in stages that each start from committed weights.

    python tools/train/train.py --stage 1            (see README.md; run.sh sets the environment)

A stage starts from `weights/latest.safetensors` (bf16, the running average of the weights; --init scratch: a seeded random
model), trains for at most `minutes` and writes `build/train/stage<n>/`: log.jsonl, last.pt (everything, for an interrupted
stage), weights.safetensors and its history weights.safetensors.json (both are committed as `weights/latest.safetensors*`).
A stage may be run several times.
"""
import argparse
from concurrent.futures import ThreadPoolExecutor
import json
import math
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
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
sys.path[:0] = [HERE, os.path.join(ROOT, "tools", "reference")]
import config  # noqa: E402
import data as data_lib  # noqa: E402
import optim  # noqa: E402
import tensors  # noqa: E402
from model import Model  # noqa: E402
from tokenizer import token_map  # noqa: E402

STRENGTH, SAY = 3.0, 1.0      # of planted matching heads: how sharply they look, how loudly they speak
MODEL_DIR = os.path.join(ROOT, "models", "deepinfer-tiny")
MIX = {"arithmetic": 0.24, "copy_edit": 0.26, "counting": 0.04, "sorting": 0.04, "json_extraction": 0.2, "tool_call": 0.05, "recall": 0.07, "story": 0.01,
       "world": 0.02, "chat": 0.01, "needle": 0.05}
STAGES = {
    # length: tokens of a row; decoder: rows of it the decoder runs on; rows: per step; share_text: rows of corpus text; lr of the matrices; indexer: learn it in this stage;
    # repeat: share of rows with exercises in the vocabulary; mix: shares of the skills' items;
    # long: [length, rows, decoder, share of steps] of steps whose rows hold one long document each;
    # select: attend only what the indexers pick; decay: share of the stage in which the rate falls to `final`.
    1: dict(minutes=115, length=512, rows=8, share_text=0.2, repeat=0.1, lr=2.5e-3, warmup=60, decay=0.0, final=1.0, decoder=256, mix=MIX),
    2: dict(minutes=115, length=512, rows=8, share_text=0.2, repeat=0.1, lr=2.5e-3, warmup=60, decay=1.0, final=0.03, decoder=256, mix=MIX,
            long=[[2048, 2, 512, 0.08], [8704, 2, 512, 0.04]]),
}


def build_model(cfg=None):
    return Model(cfg or config.TINY, token_map(os.path.join(MODEL_DIR, "tokenizer.json")))


@torch.no_grad()
def initialise(model, seed):
    """Seeded start: unit-variance projections, small residual branches, streams that are already different."""
    g = torch.Generator().manual_seed(seed)
    cfg = model.cfg
    residual = (2 * cfg.layers) ** -0.5
    for name, p in model.named_parameters():
        last = name.split(".")[-2] if name.endswith(".weight") else name.split(".")[-1]
        normal = torch.randn(p.shape, generator=g)
        if name.endswith("_scale") or (p.dim() == 1 and name.endswith("norm.weight")) or last in ("q_weight", "k_weight"):
            p.fill_(1)
        elif last == "attn_sink":
            p.zero_()
        elif name.endswith("_base"):
            m = cfg.hc
            p.copy_(normal * 0.5)
            p[2 * m:] = torch.eye(m).flatten() * 3 + normal[2 * m:] * 0.2
        elif "hc_" in name:
            p.copy_(normal * 0.02)
        elif last == "embed":
            p.copy_(normal * 0.5)
        elif name == "head.weight" or last == "gate":
            p.copy_(normal * 0.5 * p.shape[-1] ** -0.5)
        elif last in ("wo_b", "w2"):
            p.copy_(normal * residual * p.shape[-1] ** -0.5)
        elif "engram.wkv" in name:
            p.copy_(normal * 0.5 * p.shape[-1] ** -0.5)
        elif p.dim() == 1:
            p.fill_(1)
        else:
            p.copy_(normal * p.shape[-1] ** -0.5)
    return model


@torch.no_grad()
def plant_heads(model, seed):
    """Starts some heads where training would only slowly find them: looking back by 1, 2, 3 tokens, and continuing a repetition.

    Engram already gives the model its n-grams, so there is little pressure to form previous-token heads, on which copying is
    built. Every embedding gets a constant in its first dimension; queries and latents turn it into a fixed rotary pattern whose
    peak lies `back` tokens behind (layers 0 and 1, heads 0 to 2). Head 3 of some layers asks for positions whose previous token
    is the current one: its queries are the current token sent through the same maps by which layer 0 stores the previous token.
    """
    cfg = model.cfg
    g = torch.Generator().manual_seed(seed)
    constant, d, rope = 3.5, cfg.head_dim, cfg.rope_dim
    plain = d - rope
    model.embed.weight[:, 0] = constant
    level = constant / (0.25 * (cfg.hidden - 1) / cfg.hidden + constant ** 2 / cfg.hidden) ** 0.5       # of the normed input
    for l, layer in enumerate(model.layers):
        attn = layer.attn
        f = torch.tensor(cfg.frequencies(cfg.ratios[l] > 0))
        layer.ffn.gate.weight[:, 0] = 0      # the constant must not choose experts
        pairs = [i for i in range(rope // 2) if f[i] > 0.08]
        if l < 2:
            attn.wkv.weight[plain:] = 0
            attn.wkv.weight[plain::2, 0] = 1.5 / level
            attn.wkv.weight[:plain, 0] = 0
            attn.wq_a.weight[0] = 0
            attn.wq_a.weight[0, 0] = 5.0 / level
            qr0 = 5.0 / ((25 + cfg.q_lora - 1) / cfg.q_lora) ** 0.5
            for head in range(3):
                back = head + 1
                attn.wq_b.weight[head * d:(head + 1) * d] *= 0.1
                for i in pairs:
                    size = 4.0 * d ** 0.5 / 1.5 / qr0
                    at = head * d + plain + 2 * i
                    attn.wq_b.weight[at, 0] = size * torch.cos(f[i] * back)
                    attn.wq_b.weight[at + 1, 0] = -size * torch.sin(f[i] * back)
    first = model.layers[0].attn
    first.wo_b.weight.copy_(1.6 * torch.randn(first.wo_b.weight.shape, generator=g) * (cfg.o_groups * cfg.o_lora) ** -0.5)
    first.wo_a.weight[:cfg.o_lora, d:] *= 0.3          # the group of heads 0 and 1
    first.wo_a.weight[cfg.o_lora:] *= 0.3
    # What layer 0 adds to the streams for the token one back: head 0 through its group's output maps.
    store = first.wo_b.weight[:, :cfg.o_lora] @ first.wo_a.weight[:cfg.o_lora, :plain] @ first.wkv.weight[:plain]
    source = model.layers[cfg.half].attn
    for l in (1, cfg.half, cfg.half + 1, cfg.half + 2):
        attn = model.layers[l].attn
        attn.wkv.weight[:plain, 0] = 0
        if l >= cfg.half:      # window and entries ask the same question
            attn.wkv.weight.copy_(source.wkv.weight)
            source.compressor.wkv.weight.copy_(source.wkv.weight)
        u, s, v = torch.linalg.svd(attn.wkv.weight[:plain] @ store, full_matrices=False)
        rank = min(cfg.o_lora, cfg.q_lora - 1)
        attn.wq_a.weight[1:, 0] = 0
        attn.wq_a.weight[1:1 + rank] = v[:rank]
        head = cfg.heads - 1
        attn.wq_b.weight[head * d:(head + 1) * d] *= 0.1
        attn.wq_b.weight[head * d:head * d + plain, 1:1 + rank] = STRENGTH * u[:, :rank]
    # Two decoder layers say what the matching head finds: its latent back to an embedding, turned into the head's own basis
    # (so that the current token, which is in the streams anyway, is not said again).
    turn = torch.linalg.qr(torch.randn(cfg.hidden, cfg.hidden, generator=g))[0]
    plain_embed = model.embed.weight.clone()
    plain_embed[:, 0] = 0
    model.head.weight.copy_(plain_embed @ turn.t() * 1.5 * cfg.hidden ** -0.5)
    for l in (cfg.half + 1, cfg.half + 2):
        attn = model.layers[l].attn
        u, s, v = torch.linalg.svd(torch.linalg.pinv(attn.wkv.weight[:plain]), full_matrices=False)
        attn.wo_a.weight[-cfg.o_lora:] *= 0.3
        attn.wo_a.weight[-cfg.o_lora:, -d:] = 0
        attn.wo_a.weight[-cfg.o_lora:, -d:-rope] = v[:cfg.o_lora]
        attn.wo_b.weight[:, -cfg.o_lora:] = SAY * turn @ (u[:, :cfg.o_lora] * (s[:cfg.o_lora] / s[:cfg.o_lora].mean()))
    return model


def save_weights(path, state):
    tensors.save(path, {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in state.items()})


def load_weights(model, path):
    loaded = tensors.load(path)
    own = model.state_dict()
    for name, value in loaded.items():
        if name in own and own[name].shape == value.shape:
            own[name].copy_(value.float())
    return [n for n in own if n not in loaded]


class Average:
    """Running average of all weights; this is what is evaluated, committed and exported."""

    def __init__(self, model, decay=0.96, every=16):
        self.state = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.decay, self.every, self.count = decay, every, 0

    @torch.no_grad()
    def update(self, model):
        self.count += 1
        if self.count % self.every:
            return
        d = min(self.decay, self.count / (self.count + 4 * self.every))
        for k, v in model.state_dict().items():
            self.state[k].lerp_(v, 1 - d)


class Evaluation:
    """Held-out items: loss per skill, teacher-forced exact match (equal to greedy decoding), loss of held-out text."""

    def __init__(self, encoder, corpus, items, length, text=True, seed=99):
        import skills
        self.sets = {}
        self.length = length
        for name in skills.GENERATORS:
            rng, rows = random.Random(f"{seed}{name}"), []
            while len(rows) < items:
                ids, weights = encoder.sample(skills.draw(rng, True, name).segments())
                if len(ids) <= length:
                    rows.append((ids, [w if w > 0.15 else 0.0 for w in weights], [0] * len(ids)))
            self.sets[name] = rows
        if not text:
            return
        stream = data_lib.Stream(encoder, corpus, seed, length, 1.0, held=True)
        for kind in ("prose", "code"):
            rows = []
            for _ in range(max(2, items // 16)):
                ids, weights = stream.text_row(length, kind)
                rows.append((ids, weights, [0] * len(ids)))
            self.sets[kind] = rows

    @torch.no_grad()
    def run(self, fast, select=False):
        out = {}
        for name, rows in self.sets.items():
            rows = sorted(rows, key=lambda r: len(r[0]))
            loss = count = exact = 0
            for i in range(0, len(rows), 16):
                part = rows[i:i + 16]
                size = max(len(r[0]) for r in part)
                size += size % 2
                pad = lambda r, k, v: r[k] + [v] * (size - len(r[k]))  # noqa: E731
                tokens = torch.tensor([pad(r, 0, 2) for r in part])
                weights = torch.tensor([pad(r, 1, 0.0) for r in part])
                start = torch.zeros_like(tokens)
                nxt, w = data_lib.targets(tokens, weights, start)
                logits = fast.logits(fast.forward(fast.batch(tokens, start), select=select)).float()
                mask = w.flatten() > 0
                ce = F.cross_entropy(logits[mask], nxt.flatten()[mask], reduction="none")
                loss += float(ce.sum())
                count += len(ce)
                right = torch.ones(len(mask), dtype=torch.bool)
                right[mask] = logits[mask].argmax(-1) == nxt.flatten()[mask]
                exact += int(right.view(len(part), -1).all(1).sum())
            out[name] = {"loss": round(loss / count, 4)}
            if name not in ("prose", "code"):
                out[name]["exact"] = round(exact / len(rows), 3)
        return out


def draw_batch(stage, stream, rng):
    """(rows, length, rows of the decoder, tokens, weights, start) of one step."""
    x = rng.random()
    for length, rows, decoder, share in stage.get("long", ()):
        if x < share:
            return rows, length, decoder, *stream.batch(rows, length)
        x -= share
    return stage["rows"], stage["length"], stage["decoder"], *stream.batch(stage["rows"])


def rate(stage, progress, step):
    r = min(1.0, (step + 1) / stage["warmup"])
    if stage["decay"] and progress > 1 - stage["decay"]:
        x = (progress - 1 + stage["decay"]) / stage["decay"]
        r *= 1 - (1 - stage["final"]) * x
    return r


def train(args):
    from fast import WIDE, Fast, Weights, collect
    from indexer import IndexerLoss
    # Workers are threads with one kernel thread each: no barriers, so other programs on the machine cost only their share.
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    stage = dict(STAGES[args.stage])
    stage.update(json.loads(args.override))
    minutes = args.minutes or stage["minutes"]
    out = os.path.join(ROOT, args.out or f"build/train/stage{args.stage}")
    os.makedirs(out, exist_ok=True)
    log = open(os.path.join(out, "log.jsonl"), "a", encoding="utf-8")

    def say(**record):
        print(json.dumps(record), flush=True)
        log.write(json.dumps(record) + "\n")
        log.flush()

    model = build_model()
    for p in model.mtp.parameters():
        p.requires_grad_(False)
    initialise(model, args.seed)
    if not args.no_planted:
        plant_heads(model, args.seed)
    last = os.path.join(out, "last.pt")
    start_weights = args.init or os.path.join(HERE, "weights", "latest.safetensors")
    history = []
    if start_weights != "scratch" and os.path.exists(start_weights + ".json"):
        with open(start_weights + ".json", encoding="utf-8") as f:
            history = json.load(f)
    resume = torch.load(last, weights_only=False) if os.path.exists(last) and not args.fresh else None
    if resume is None and start_weights != "scratch" and os.path.exists(start_weights):
        say(event="warm start", weights=os.path.basename(start_weights), missing=len(load_weights(model, start_weights)))

    muon_p, adam_p, index_p, _ = optim.split(model)
    muon = optim.Muon(p for _, p in muon_p)
    norms = [p for n, p in adam_p if p.dim() == 1 or ".hc_" in n]
    tables = [p for n, p in adam_p if "engram.embed" in n]
    others = [p for n, p in adam_p if not any(p is q for q in norms + tables)]
    adam = torch.optim.AdamW([{"params": others, "scale": 0.5}, {"params": norms, "scale": 0.5}, {"params": tables, "scale": 1.5},
                              {"params": [p for _, p in index_p], "scale": 0.5}],
                             lr=1e-3, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=True)
    average = Average(model)
    elapsed0, step, seen = 0.0, 0, 0
    if resume:
        model.load_state_dict(resume["model"])
        muon.load(resume["muon"])
        adam.load_state_dict(resume["adam"])
        average.state, average.count = resume["average"], resume["count"]
        elapsed0, step, seen = resume["elapsed"], resume["step"], resume["seen"]
        # What was committed in the middle of this run is part of it.
        history = resume.get("history", [h for h in history if h["stage"] != args.stage or h["tokens"] > seen])
        say(event="resume", step=step)
    shared = Weights(not args.no_qat)
    workers = [Fast(model, shared=shared) for _ in range(args.threads)]
    pool = ThreadPoolExecutor(args.threads, initializer=torch.set_num_threads, initargs=(1,))
    fast = workers[0]
    encoder = data_lib.Encoder(os.path.join(MODEL_DIR, "tokenizer.json"))
    corpus = os.path.join(ROOT, "build", "train", "corpus")
    if stage["share_text"] and not os.path.exists(os.path.join(corpus, "prose.txt")):
        import corpus as corpus_lib
        say(event="corpus", **corpus_lib.build(corpus))
    stream = data_lib.Stream(encoder, corpus, args.seed * 1000 + args.stage * 100 + step, stage["length"], stage["share_text"], stage.get("mix"),
                             share_repeat=stage.get("repeat", 0.0))
    evaluation = Evaluation(encoder, corpus, args.eval_items, min(stage["length"], 1024), stage["share_text"] > 0)
    probes = [IndexerLoss(model.cfg) for _ in workers] if stage.get("indexer", True) else None
    rng = random.Random(args.seed + step)
    total = sum(p.numel() for p in model.parameters())
    say(event="start", stage=args.stage, parameters=total, supply=stream.supply, products="fp32" if WIDE else "bf16", **stage)
    if not stream.supply:
        say(event="no corpus", note="training words come from the base lists and invented words only")

    t0 = last_log = last_save = last_eval = time.time()
    sums, tokens_since = {}, 0
    while True:
        elapsed = elapsed0 + time.time() - t0
        if elapsed > minutes * 60 or (args.steps and step >= args.steps):
            break
        r = rate(stage, elapsed / (minutes * 60), step)
        rows, length, size, tokens, weights, start = draw_batch(stage, stream, rng)
        nxt, w = data_lib.targets(tokens, weights, start)
        decoder = data_lib.decoder_rows(rng, weights, start, size)
        floor = None
        if rng.random() < 0.2:      # an encoder segment whose earlier window is missing
            floor = torch.randint(0, length, (rows, 1))
            floor = torch.where(torch.arange(length) >= floor, floor, 0)
        nxt, w = nxt.gather(1, decoder[0]), w.gather(1, decoder[0])
        w[:, :-1] *= decoder[0][:, 1:] > decoder[0][:, :-1]       # spare places repeat row 0
        w[:, -1] *= decoder[0][:, -1] > 0
        # Prompt tokens are many and carry little weight: a part of them stands for all.
        drop = (w > 0) & (w < 0.2)
        w = torch.where(drop, w / 0.3, w) * ~(drop & (torch.rand(w.shape) > 0.3))
        total_weight = w.sum()
        probe_now = probes is not None and step % 4 == 0

        def work(k):
            part = slice(k * rows // args.threads, (k + 1) * rows // args.threads)
            worker, probe = workers[k], probes[k] if probe_now else None
            batch = worker.batch(tokens[part], start[part], floor=None if floor is None else floor[part],
                                 decoder=(decoder[0][part], decoder[1][part]))
            h = worker.forward(batch, select=stage.get("select", False), probe=probe)
            wk, nk = w[part].flatten(), nxt[part].flatten()
            wanted = wk.nonzero().flatten()
            wanted = F.pad(wanted, (0, -len(wanted) % 256))      # repeated first row with weight 0: shapes must repeat
            scale = wk[wanted]
            scale[len(wanted) - (-int((wk > 0).sum()) % 256):] = 0
            ce = F.cross_entropy(worker.logits(h[wanted]).float(), nk[wanted], reduction="none")
            loss = (ce * scale).sum() / total_weight
            total = loss
            if probe:
                kl = probe.loss() / args.threads
                total = loss + kl
            total.backward()
            answer = ce.detach()[scale >= 0.9]
            return float(loss.detach()), float(kl.detach()) if probe else 0.0, float(answer.sum()), len(answer)

        results = list(pool.map(work, range(args.threads)))
        collect(workers, pool.map)
        loss, kl, answer, answers = (sum(r[i] for r in results) for i in range(4))
        if probe_now:
            sums.setdefault("index_kl", []).append(kl)
            sums.setdefault("index_recall", []).append(sum(p.recall() for p in probes) / len(probes))
        norm = torch.nn.utils.get_total_norm([p.grad for _, p in adam_p if p.grad is not None])
        if not math.isfinite(float(norm)) or not math.isfinite(loss):
            say(event="skipped step", step=step, norm=float(norm))
        else:
            for _, p in adam_p:
                if p.grad is not None and float(norm) > 1.0:
                    p.grad.mul_(1.0 / float(norm))
            for group in adam.param_groups:
                group["lr"] = stage["lr"] * group["scale"] * r
            muon.step(stage["lr"] * r, 0.02, pool.map)
            adam.step()
            with torch.no_grad():
                for l, layer in enumerate(model.layers):
                    counts = [c.counts.pop(l) for c in workers if l in c.counts]
                    if counts:
                        count = sum(counts)
                        layer.ffn.gate.bias.add_(torch.sign(count.mean() - count), alpha=5e-3 * r)
                        sums.setdefault("imbalance", []).append(float(count.max() / count.mean()))
        model.zero_grad(set_to_none=True)
        fast.refresh()
        average.update(model)
        step += 1
        tokens_since += tokens.numel()
        seen += tokens.numel()
        sums.setdefault("loss", []).append(loss)
        sums.setdefault("norm", []).append(float(norm))
        if answers:
            sums.setdefault("answer_loss", []).append(answer / answers)
        now = time.time()
        if now - last_log > args.log_seconds:
            say(step=step, minutes=round(elapsed / 60, 1), tokens=seen, tok_s=round(tokens_since / (now - last_log)), rate=round(r, 3),
                **{k: round(sum(v) / len(v), 4) for k, v in sums.items()})
            sums, tokens_since, last_log = {}, 0, now
        ended = elapsed + 5 > minutes * 60 or (args.steps and step >= args.steps)
        if now - last_eval > args.eval_seconds or ended:
            current = {k: v.clone() for k, v in model.state_dict().items()}
            model.load_state_dict(average.state)
            fast.refresh()
            say(event="evaluation", step=step, select=bool(stage.get("select")), **evaluation.run(fast, stage.get("select", False)))
            model.load_state_dict(current)
            fast.refresh()
            for c in workers:
                c.counts.clear()
            last_eval = time.time()
            last_log += last_eval - now
        if now - last_save > args.save_seconds or ended:
            torch.save({"model": model.state_dict(), "muon": muon.state(), "adam": adam.state_dict(), "average": average.state,
                        "count": average.count, "elapsed": elapsed, "step": step, "seen": seen, "history": history}, last + ".tmp")
            os.replace(last + ".tmp", last)
            save_weights(os.path.join(out, "weights.safetensors"), average.state)
            with open(os.path.join(out, "weights.safetensors.json"), "w", encoding="utf-8") as f:
                json.dump(history + [{"stage": args.stage, "steps": step, "tokens": seen, "minutes": round(elapsed / 60, 1), "settings": stage}], f, indent=1)
                f.write("\n")
            last_save = time.time()
    say(event="end", step=step, tokens=seen)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", default="")
    parser.add_argument("--init", default="")
    parser.add_argument("--fresh", action="store_true", help="ignore an interrupted run of this stage")
    parser.add_argument("--no-qat", action="store_true", help="train with unquantised weights")
    parser.add_argument("--no-planted", action="store_true", help="do not start with planted attention heads")
    parser.add_argument("--override", default="{}", help="JSON with stage settings")
    parser.add_argument("--eval-items", type=int, default=64)
    parser.add_argument("--log-seconds", type=float, default=30)
    parser.add_argument("--eval-seconds", type=float, default=600)
    parser.add_argument("--save-seconds", type=float, default=300)
    train(parser.parse_args())
