"""The fast training path equals the readable reference: outputs, gradients, packing, bounded replay and selection."""
import os
import subprocess
import sys

import pytest
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import config  # noqa: E402
import synthetic  # noqa: E402
from fast import Batch, Fast, collect  # noqa: E402
from model import Model, State  # noqa: E402

# All experts are chosen: with synthetic weights bf16 noise would flip routes, which is not what these tests are about.
CFG = config.Config(candidate_blocks=4, experts=4, expert_topk=4)


@pytest.fixture(scope="module")
def pair():
    model = synthetic.fill(Model(CFG))
    slow = Model(CFG).double()
    slow.load_state_dict(model.state_dict())
    return slow, model.float()


def dense(on):
    """Everything visible is selected, as the fast path does without `select`."""
    CFG.index_topk, CFG.candidate_blocks = (64, 64) if on else (8, 4)


def relative(a, b):
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm())


def run(fast, tokens, start=None, **options):
    t = torch.tensor(tokens)
    select = options.pop("select", False)
    r0 = options.pop("decoder_from", 0)
    if r0:
        options["decoder"] = Batch.from_row(t, r0)
    b = fast.batch(t, torch.zeros_like(t) if start is None else start, **options)
    return fast.logits(fast.forward(b, select=select)).view(t.shape[0], -1, CFG.vocab)


def test_logits_and_gradients(pair):
    slow, model = pair
    tokens = synthetic.prompt(40)
    dense(True)
    want, _, _ = slow(tokens)
    want[-20:].logsumexp(-1).sum().backward()
    fast = Fast(model, quantise_weights=False, max_positions=256)
    fast.quantise = 0
    got = run(fast, [tokens])[0]
    got[-20:].float().logsumexp(-1).sum().backward()
    collect([fast])
    dense(False)
    assert relative(got, want) < 0.03
    theirs = dict(slow.named_parameters())
    cosines = {}
    for name, p in model.named_parameters():
        # Site scales are three sums over all rows that nearly cancel; bf16 noise dominates them.
        if p.grad is not None and theirs[name].grad is not None and theirs[name].grad.norm() > 1e-3 and not name.endswith("_scale"):
            cosines[name] = float(torch.nn.functional.cosine_similarity(p.grad.double().flatten(), theirs[name].grad.flatten(), 0))
    assert len(cosines) > 100
    assert min(cosines.values()) > 0.9, sorted(cosines.items(), key=lambda c: c[1])[:8]
    model.zero_grad()


@torch.no_grad()
def test_cache_quantisers(pair):
    slow, model = pair
    tokens = synthetic.prompt(40)
    dense(True)
    slow.quantise = True
    want, _, _ = slow(tokens)
    got = run(Fast(model, quantise_weights=False, max_positions=256), [tokens])[0]
    dense(False)
    slow.quantise = False
    # bf16 noise flips codes (section 12.8); far below what leaving a quantiser out would change.
    assert relative(got, want) < 0.15


@torch.no_grad()
def test_packed_documents_do_not_see_each_other(pair):
    _, model = pair
    fast = Fast(model, quantise_weights=False, max_positions=256)
    a, b = synthetic.prompt(38), [(5 * t + 3) % 250 for t in range(26)]
    start = torch.tensor([[0] * 38 + [38] * 26])
    packed = run(fast, [a + b], start)[0]
    assert relative(packed[:38], run(fast, [a])[0]) < 1e-2
    assert relative(packed[38:], run(fast, [b])[0]) < 1e-2


@torch.no_grad()
@pytest.mark.parametrize("keep", [None, 18])
def test_selection_and_bounded_replay(pair, keep):
    slow, model = pair
    tokens = synthetic.prompt(48)
    want, _, _ = slow(tokens, State(CFG), keep=keep)
    fast = Fast(model, quantise_weights=False, max_positions=256)
    fast.quantise = 0
    got = run(fast, [tokens], select=True, decoder_from=0 if keep is None else 48 - keep)[0]
    # A near-tie that bf16 decides differently changes single rows; most rows must agree closely.
    error = ((got.double() - want).norm(dim=-1) / want.norm(dim=-1)).sort()[0]
    assert error[len(error) // 2] < 0.05 and error[0] < 0.03


@torch.no_grad()
def test_window_floor(pair):
    slow, model = pair
    tokens = synthetic.prompt(40)
    dense(True)
    state = State(CFG)
    slow(tokens[:20], state)
    fast = Fast(model, quantise_weights=False, max_positions=256)
    fast.quantise = 0
    floor = torch.tensor([[0] * 20 + [20] * 20])
    got = run(fast, [tokens], floor=floor)[0]
    want, _, _ = slow(tokens, state, first=20, floor=20)
    dense(False)
    assert relative(got[20:], want) < 0.03


def test_weight_formats():
    from fast import FORMATS
    import quant
    w = torch.randn(96, 64, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 1, 96)[:, None]
    assert torch.equal(FORMATS["mxfp4"](w), quant.mxfp4_weight(w)[0])
    assert torch.equal(FORMATS["table"](w), quant.fp8_rows(w)[0])
    assert torch.equal(FORMATS["fp8"](w), quant.fp8_weight(w)[0])
    # The cache quantisers of the fused operation, on bf16 inputs without rotation.
    x = w.to(torch.bfloat16)[:, None]
    zero, one = torch.zeros(96, 8), torch.ones(96, 8)
    from fast import ops
    for mode, plain in ((1, quant.fp8_32), (2, quant.fp4_16), (3, quant.fp4_32)):
        # Division by a scale that is no power of two may round a tie the other way in the fused loop.
        different = (ops.rope_quant(x, one, zero, 1.0, mode) != plain(x.float()).to(torch.bfloat16)).float().mean()
        assert different <= (0.002 if mode == 2 else 0), mode


def test_muon_orthogonalises():
    import optim
    g = torch.Generator().manual_seed(3)
    p = [torch.nn.Parameter(torch.randn(4, 64, 96, generator=g)), torch.nn.Parameter(torch.randn(64, 32, generator=g))]
    before = [x.detach().clone() for x in p]
    for x in p:
        x.grad = torch.randn(x.shape, generator=g)
    optim.Muon(p).step(0.1, 0.0)
    for x, old in zip(p, before):
        update = (old - x.detach()).reshape(-1, *x.shape[-2:]) / (0.1 * 0.2 * max(x.shape[-2:]) ** 0.5)
        values = torch.linalg.svdvals(update)
        assert values.min() > 0.15 and values.max() < 1.95          # what three iterations promise


def test_widened_products():
    """In a process of its own, because widening is not taken back: every form of product the trainer uses, against fp32."""
    program = """
import torch, fast
fast.ops.widen_products()
a, b = torch.randn(70, 48).bfloat16(), torch.randn(33, 48).bfloat16()
def same(got, want):
    assert got.dtype == torch.bfloat16 and torch.equal(got, want.bfloat16()), float((got - want).abs().max())
want = a.float() @ b.float().t()
same(a @ b.t(), want)
wide = torch.randn(70, 96).bfloat16()
same(wide[:, :48] @ b.t(), wide[:, :48].float() @ b.float().t())
out = torch.zeros(100, 33, dtype=torch.bfloat16)
torch.mm(a, b.t(), out=out[10:80])
same(out[10:80], want)
assert not out[:10].any() and not out[80:].any()
c = torch.randn(3, 20, 48).bfloat16()
same(torch.bmm(c, c.transpose(1, 2)), torch.bmm(c.float(), c.float().transpose(1, 2)))
assert torch.equal(a.float() @ b.float().t(), want)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=HERE)
