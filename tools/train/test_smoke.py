"""The whole way in a minute: a few training steps, a few draft steps, export, load, forward. Needs no corpus."""
import json
import os
import re
import subprocess
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]


def run(script, *args):
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS")}
    done = subprocess.run([sys.executable, os.path.join(HERE, script), *args], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_train_export_load(tmp_path):
    settings = json.dumps({"rows": 4, "share_text": 0.0, "decoder": 192, "warmup": 2})
    log = run("train.py", "--stage", "1", "--steps", "3", "--fresh", "--init", "scratch", "--out", str(tmp_path / "stage"), "--override", settings,
              "--eval-items", "2", "--log-seconds", "0")
    losses = [r["loss"] for r in log if "loss" in r]
    assert len(losses) == 3 and all(6 < x < 9 for x in losses) and losses[-1] < losses[0]
    assert any(r.get("event") == "evaluation" and "arithmetic" in r for r in log)
    weights = str(tmp_path / "stage" / "weights.safetensors")
    drafted = str(tmp_path / "draft.safetensors")
    log = run("train_draft.py", "--init", weights, "--out", drafted, "--steps", "2", "--rows", "2", "--anchors", "8", "--share-text", "0",
              "--eval-batches", "1")
    assert any(r.get("event") == "acceptance" and 0 <= r["mean_accepted"] <= 5 for r in log)
    folder = str(tmp_path / "model")
    run("export.py", "--weights", drafted, "--out", folder)
    import checkpoint
    model = checkpoint.read(folder)
    model.quantise = True
    with torch.no_grad():
        logits, taps, positions = model([0, 4083, 50, 60, 70, 4084, 4086])
    assert logits.shape == (7, 4096) and torch.isfinite(logits).all() and len(positions) == 7 and taps.shape[1] == 3 * 192


def test_draft_equals_reference():
    """Block hidden states and corrected logits of the fast draft path against the readable one."""
    import config
    import draft
    import synthetic
    from fast import Fast
    from model import Model, State
    cfg = config.Config(experts=4, expert_topk=4, draft_experts=4, draft_topk=4, index_topk=64, candidate_blocks=64)
    slow = synthetic.fill(Model(cfg))
    tokens = synthetic.prompt(40)
    with torch.no_grad():
        state = State(cfg)
        _, taps, positions = slow(tokens[:31], state)
        slow.feed(state, taps, positions)
        h = slow.draft_hidden(state, torch.tensor([tokens[31]] + [cfg.noise] * 4), 31 + torch.arange(5))
        last = slow.mtp[-1]
        base = slow.head(h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True)) * last.norm.weight)
        previous = torch.tensor(tokens[31:36])
        want = base + last.markov_head.head(last.markov_head.embed.weight[previous])
        want_conf = last.confidence_head.proj(torch.cat((h, last.markov_head.embed.weight[previous]), -1))[:, 0]
        model = slow.float()
        fast = Fast(model, quantise_weights=False, max_positions=256)
        fast.quantise = 0
        t = torch.tensor([tokens])
        _, taps = fast.forward(fast.batch(t, torch.zeros_like(t)), taps=True)
        b, j = torch.tensor([0]), torch.tensor([30])
        h2, normed = draft.hidden(fast, taps.view(1, 40, -1), torch.arange(40)[None], torch.zeros(1, 40, dtype=torch.long), b, j, torch.tensor(tokens[31:32]))
        got, conf = draft.heads(fast, h2, normed, previous[None])
    assert float((got[0].double() - want).norm() / want.norm()) < 0.05
    assert float((conf[0].double() - want_conf).abs().max()) < 0.3


def test_planted_heads_continue_a_repetition():
    """At initialisation the matching head of layer 1 already looks at the token after the previous occurrence."""
    import fast as fast_lib
    import train as main_lib
    model = main_lib.plant_heads(main_lib.initialise(main_lib.build_model(), 1), 1)
    worker, seen = fast_lib.Fast(model, max_positions=128), []
    original = fast_lib.AttentionOp.apply

    def spy(q, kw, km, sink, *rest):
        o, lse = original(q, kw, km, sink, *rest)
        z = torch.einsum("bshd,bkd->bhsk", q.float(), kw.float()) * q.shape[-1] ** -0.5
        seen.append(torch.exp(z - lse.transpose(1, 2)[..., None]))
        return o, lse

    part = torch.randint(3, 4079, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    tokens = torch.tensor([[0] + part * 2 + [2]])
    fast_lib.AttentionOp.apply = staticmethod(spy)
    try:
        with torch.no_grad():
            worker.forward(worker.batch(tokens, torch.zeros_like(tokens)))
    finally:
        fast_lib.AttentionOp.apply = original
    i = torch.arange(35, 60)
    assert seen[0][0, 0, i, i - 1].mean() > 0.5           # layer 0, head 0: one back
    assert seen[1][0, 3, i, i - 29].mean() > 0.2          # layer 1, head 3: behind the earlier occurrence


def test_long_steps_score_the_answers_behind_the_text(tmp_path):
    """Rows of one long document: the decoder's rows hold the answers, and a step of them trains."""
    import data
    tokenizers = os.path.join(HERE, "..", "..", "models", "deepinfer-tiny", "tokenizer.json")
    import random
    stream = data.Stream(data.Encoder(tokenizers), str(tmp_path), 3, 512, 0.0)
    for _ in range(6):
        tokens, weights, start = stream.batch(2, 1200)
        index, first = data.decoder_rows(random.Random(1), weights, start, 512)
        nxt, w = data.targets(tokens, weights, start)
        w = w.gather(1, index) * (index > 0)
        assert (w >= 0.9).sum(1).min() > 5 and tokens.shape == (2, 1200)
    settings = json.dumps({"rows": 2, "share_text": 0.0, "decoder": 192, "warmup": 2, "long": [[1200, 2, 384, 1.0]]})
    log = run("train.py", "--stage", "1", "--steps", "2", "--fresh", "--init", "scratch", "--out", str(tmp_path / "stage"), "--override", settings,
              "--eval-items", "1", "--log-seconds", "0")
    assert len([r for r in log if r.get("loss", 0) > 5]) == 2 and not [r for r in log if r.get("event") == "skipped step"]


def test_words_are_cut_alike_wherever_they_stand():
    """A copied word has the same pieces at the start of an answer, behind a space, a mark and a bracket."""
    import data
    import random
    import words
    encoder = data.Encoder(os.path.join(HERE, "..", "..", "models", "deepinfer-tiny", "tokenizer.json"))
    for held in (False, True):
        w = words.Words(random.Random(5), held)
        for _ in range(300):
            word = w.rng.choice((w.word, w.name, w.pseudo))()
            plain = encoder.tok.encode(word, add_special_tokens=False).tokens
            for before, lead in ((" ", "\u0120"), ('"', '"'), ("(", "("), ("_", "_"), (".", ".")):
                pieces = encoder.tok.encode(before + word, add_special_tokens=False).tokens
                assert pieces in ([lead] + plain, [lead + plain[0]] + plain[1:]), (before, word, pieces)


def test_drills_say_the_same_again():
    import data
    import random
    encoder = data.Encoder(os.path.join(HERE, "..", "..", "models", "deepinfer-tiny", "tokenizer.json"))
    rng, drills = random.Random(3), data.Drills(encoder)
    forward = 0
    for n in range(80):
        room = (11, 40, 160, 400)[n % 4]
        ids, weights = drills.exercise(rng, room, 40)
        assert len(ids) == len(weights) <= room + 1 and len(ids) % 2 == 0
        said = [[t for t, w in zip(ids, weights) if (w > 0) == second and t > 2] for second in (False, True)]
        told, again = (re.sub("again|backwards|think|[^A-Za-z]", "", encoder.tok.decode(part)) for part in said)
        assert sorted(told) == sorted(again)
        forward += told == again
    assert 50 < forward < 80      # the others are said from last to first


def test_a_new_vocabulary_keeps_what_it_can():
    """Tokens of the same text keep id and rows; Engram rows are found as the model finds them."""
    import config
    import numpy
    import revocab
    import torch
    from model import Engram
    old = {"model": {"vocab": {"a": 3, "b": 4, "\u0120a": 5, "ab": 6}}}
    new = {"model": {"vocab": {"a": 3, "ab": 4, "b": 5, "\u0120ab": 6}}, "added_tokens": []}
    revocab.keep_ids(old, new)
    assert new["model"]["vocab"] == {"a": 3, "b": 4, "\u0120ab": 5, "ab": 6}
    cfg = config.T0
    ids = numpy.random.default_rng(1).integers(0, cfg.engram_vocab, 40)
    for index in range(len(cfg.engram_layers)):
        want = Engram(cfg, index).hash_ids(ids.tolist(), 0, range(cfg.ngram, 40))
        assert torch.equal(torch.from_numpy(revocab.rows(cfg, index, ids))[cfg.ngram:], want)


def test_recall_by_context():
    """Everything is selected up to top-k entries; beyond, the best by score hold what the attention puts there."""
    import recall

    class Probe:
        pass
    n, k = 600, 256
    visible = torch.arange(n)[None, None] < torch.tensor([100, 256, 500, 600])[None, :, None]
    target = visible / visible.sum(-1, keepdim=True)
    probe = Probe()
    probe.last = {2: (torch.arange(n).float().expand(1, 4, n).masked_fill(~visible, -1e30), target, visible, torch.ones(1, 4, dtype=torch.bool))}
    got = recall.by_context(probe, {2: 2}, k)
    assert got[2, 256] == [1.0, 1] and got[2, 512][1] == 1 and abs(got[2, 512][0] - 1) < 1e-6
    assert abs(got[2, 1024][0] - k / 500) < 1e-6 and abs(got[2, 2048][0] - k / 600) < 1e-6
