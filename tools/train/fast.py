"""Batched training forward of the reference model: bf16 activations, fused operations (ops.cc), packed rows.

Uses the parameters of tools/reference/model.py and is tested equal to it. A batch is [B, S] token ids; several documents
are packed into a row, each starting at an even index, and never see each other. Differences from the readable path:
activations are bf16, experts run as one product per expert over sorted rows, attention runs in tiles of queries over a
contiguous window and a contiguous range of entries (optionally thinned by a selection mask).
"""
import os
import sys
import threading

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "reference"))
import quant  # noqa: E402


def load_ops(build=None):
    from torch.utils.cpp_extension import load
    build = build or os.path.join(HERE, "..", "..", "build", "train", "ops")
    os.makedirs(build, exist_ok=True)
    return load("deepinfer_train_ops", [os.path.join(HERE, f) for f in ("ops.cc", "ops_blocks.cc", "ops_products.cc")], build_directory=build, verbose=False,
                extra_cflags=["-O3", "-march=native", "-ffast-math", "-fno-reciprocal-math", "-fopenmp", "-std=c++20"], extra_ldflags=["-lm", "-lmvec"])


ops = load_ops()


def choose_products(least=1.15):
    """Whether bf16 products are computed in fp32 from now on: measured, because processors differ by a factor of four."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gain = ops.gain_of_widening()
    torch.set_num_threads(threads)
    if gain > least:
        ops.widen_products()
    return gain > least


WIDE = choose_products()
BF = torch.bfloat16
TILE = 64      # queries of one attention tile
NONE, FP8_32, FP4_16, FP4_32 = 0, 1, 2, 3


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        y, rs = ops.norm_fwd(x.contiguous(), w.detach(), eps)
        ctx.save_for_backward(x, w, rs)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w, rs = ctx.saved_tensors
        dx, dw = ops.norm_bwd(x.contiguous(), w.detach(), rs, g.contiguous())
        return dx, dw, None


class RopeQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, sign, mode):
        ctx.saved, ctx.sign = (cos, sin), sign
        return ops.rope_quant(x.contiguous(), cos, sin, sign, mode)

    @staticmethod
    def backward(ctx, g):
        return ops.rope_quant(g.contiguous(), *ctx.saved, -ctx.sign, NONE), None, None, None, None


class SiteOp(torch.autograd.Function):
    """(X, pre of the previous site) -> normed sublayer input, pre, post, comb of this site."""

    @staticmethod
    def forward(ctx, X, c, norm_w, fn, scale, base, cfg):
        raw = X.view(len(X), -1) @ fn.t()
        pre, post, comb, rs = ops.coef_fwd(X, raw, scale, base, cfg.eps, cfg.hc_eps, cfg.hc_iters)
        u, urs = ops.collapse_fwd(X, c, norm_w, cfg.eps)
        ctx.save_for_backward(X, c, norm_w, fn, scale, base, raw, rs, urs)
        ctx.cfg = cfg
        return u, pre, post, comb

    @staticmethod
    def backward(ctx, du, dpre, dpost, dcomb):
        X, c, norm_w, fn, scale, base, raw, rs, urs = ctx.saved_tensors
        cfg = ctx.cfg
        draw, xc, ds, db = ops.coef_bwd(raw, scale, base, rs, dpre.contiguous(), dpost.contiguous(), dcomb.contiguous(),
                                        X.shape[1] * X.shape[2], cfg.hc_eps, cfg.hc_iters)
        dX, dc, dw = ops.collapse_bwd(X, c, norm_w, urs, du.contiguous(), xc, draw @ fn)
        return dX, dc, dw, draw.t() @ X.view(len(X), -1), ds, db, None


class Collapse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, c, w, eps):
        u, rs = ops.collapse_fwd(X, c, w, eps)
        ctx.save_for_backward(X, c, w, rs)
        return u

    @staticmethod
    def backward(ctx, du):
        X, c, w, rs = ctx.saved_tensors
        dX, dc, dw = ops.collapse_bwd(X, c, w, rs, du.contiguous(), None, None)
        return dX, dc, dw, None


class Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, X, post, comb):
        ctx.save_for_backward(y, X, post, comb)
        return ops.expand_fwd(y, X, post, comb)

    @staticmethod
    def backward(ctx, g):
        y, X, post, comb = ctx.saved_tensors
        dX, dy, dpost, dcomb = ops.expand_bwd(g.contiguous(), y, X, post, comb)
        return dy, dX, dpost, dcomb


class ExpertsOp(torch.autograd.Function):
    """Routed experts over rows sorted by expert; every expert's rows are padded to a multiple of PAD (shapes must repeat)."""

    PAD = 32

    @staticmethod
    def forward(ctx, x, ids, weights, w13, w2, shared, limit):
        n, k = ids.shape
        flat = ids.flatten()
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=len(w13))
        padded = (counts + ExpertsOp.PAD - 1) // ExpertsOp.PAD * ExpertsOp.PAD
        ends = padded.cumsum(0)
        shift = ends - padded - (counts.cumsum(0) - counts)      # from a sorted row to its padded place
        place = torch.arange(len(order)) + shift[flat[order]]
        ends = ends.tolist()
        ranges = [(a, b) for a, b in zip([0] + ends[:-1], ends)]
        token = torch.full((ends[-1],), -1, dtype=torch.int32)
        token[place] = (order // k).to(torch.int32)
        where = torch.empty_like(order)
        where[order] = place
        slot = where.to(torch.int32).view(n, k)
        ws = torch.zeros(ends[-1])
        ws[where] = weights.detach().flatten().float()
        xs = ops.gather_rows(x, token)
        h = torch.empty(len(token), w13.shape[1], dtype=BF)
        y = torch.empty(len(token), x.shape[1], dtype=BF)
        for e, (a, b) in enumerate(ranges):
            if b > a:
                torch.mm(xs[a:b], w13[e].t(), out=h[a:b])
        act = ops.swiglu_fwd(h, ws, limit)
        for e, (a, b) in enumerate(ranges):
            if b > a:
                torch.mm(act[a:b], w2[e].t(), out=y[a:b])
        ctx.save_for_backward(xs, h, act, ws, w13, w2, where, slot, token)
        ctx.ranges, ctx.limit = ranges, limit
        return ops.combine_rows(y, slot, shared)

    @staticmethod
    def backward(ctx, g):
        xs, h, act, ws, w13, w2, where, slot, token = ctx.saved_tensors
        g = g.contiguous()
        dy = ops.gather_rows(g, token)
        da, dw13, dw2 = torch.empty_like(act), torch.zeros_like(w13), torch.zeros_like(w2)
        for e, (a, b) in enumerate(ctx.ranges):
            if b > a:
                torch.mm(dy[a:b], w2[e], out=da[a:b])
                torch.mm(dy[a:b].t(), act[a:b], out=dw2[e])
        dh, dws = ops.swiglu_bwd(h, ws, da, ctx.limit)
        dxs = torch.empty_like(xs)
        for e, (a, b) in enumerate(ctx.ranges):
            if b > a:
                torch.mm(dh[a:b], w13[e], out=dxs[a:b])
                torch.mm(dh[a:b].t(), xs[a:b], out=dw13[e])
        return ops.combine_rows(dxs, slot, None), None, dws[where].view(slot.shape), dw13, dw2, g, None


class SwigluOp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h, limit):
        ctx.save_for_backward(h)
        ctx.limit = limit
        return ops.swiglu_fwd(h, None, limit)

    @staticmethod
    def backward(ctx, g):
        return ops.swiglu_bwd(ctx.saved_tensors[0], None, g.contiguous(), ctx.limit)[0], None


class EngramOp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X, kv, qk, eps):
        ctx.save_for_backward(X, kv, qk)
        ctx.eps = eps
        return ops.engram_fwd(X, kv, qk, eps)

    @staticmethod
    def backward(ctx, g):
        X, kv, qk = ctx.saved_tensors
        return (*ops.engram_bwd(X, kv, qk, g.contiguous(), ctx.eps), None)


class AttentionOp(torch.autograd.Function):
    """q [B, S, h, d] over window latents [B, K, d] and entries [B, E, d]; see ops.cc for the ranges."""

    @staticmethod
    def forward(ctx, q, kw, km, sink, wlo, elo, ehi, sel, chunk):
        o, lse = ops.attn_fwd(q, kw, km, sink, wlo, elo, ehi, sel, chunk)
        ctx.save_for_backward(q, kw, km, sink, o, lse)
        ctx.rest = (wlo, elo, ehi, sel, chunk)
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    def backward(ctx, g, _):
        q, kw, km, sink, o, lse = ctx.saved_tensors
        return (*ops.attn_bwd(q, kw, km, sink, *ctx.rest, o, lse, g.contiguous()), None, None, None, None, None)


class Weights:
    """Weights in the form the forward uses (shipped format as bf16, or fp32), made once per step and shared by workers."""

    def __init__(self, quantise):
        self.quantise, self.values, self.lock, self.locks = quantise, {}, threading.Lock(), {}

    def refresh(self):
        self.values = {}

    @torch.no_grad()
    def get(self, key, parameters, kind):
        with self.lock:
            own = self.locks.setdefault(key, threading.Lock())
        with own:
            if key not in self.values:
                w = parameters[0].detach() if len(parameters) == 1 else torch.cat([p.detach() for p in parameters], -2)
                if self.quantise and kind in FORMATS:
                    w = FORMATS[kind](w.contiguous())
                self.values[key] = w if kind in ("f32", "table") else w.to(BF)
            return self.values[key]


FORMATS = {"mxfp4": lambda w: ops.weight_quant(w, True), "fp8": lambda w: ops.tile_quant(w),
           "table": lambda w: ops.weight_quant(w, False)}


def collect(workers, run=map):
    """Adds the workers' gradients (straight through the formats) to the parameters' .grad and drops the leaves.

    run: how to go over the weights (a thread pool's map to do it in parallel).
    """
    keys = {}
    for w in workers:
        for key, (leaf, parameters) in w.leaves.items():
            if leaf.grad is not None:
                keys.setdefault(key, (parameters, []))[1].append(leaf.grad)

    def one(item):
        parameters, grads = item
        g = grads[0].float()
        for other in grads[1:]:
            g = g.add_(other) if g is not grads[0] else g + other
        parts = [g] if len(parameters) == 1 else g.split([p.shape[-2] for p in parameters], -2)
        for p, part in zip(parameters, parts):
            part = part.reshape(p.shape).contiguous()
            p.grad = part if p.grad is None else p.grad + part

    list(run(one, keys.values()))
    for w in workers:
        w.leaves = {}


class Batch:
    """Token ids [B, S] with document starts, and everything about positions that all layers share."""

    def __init__(self, cfg, tables, tokens, start, floor=None, decoder=None):
        """floor [B, S]: window reads do not go below it. decoder: (index [B, D], first [B, D]): the decoder runs on these rows
        only (index ascending in each document); first is the place in D where the row's document begins there."""
        self.tokens, self.start, self.decoder = tokens, start, decoder
        B, S = tokens.shape
        index = torch.arange(S).expand(B, S)
        self.pos = index - start
        floor = start if floor is None else torch.maximum(start, floor)
        self.wlo = torch.maximum(index - cfg.window + 1, floor).to(torch.int32).contiguous()
        self.lo = {r: (start // r).to(torch.int32).contiguous() for r in (1, 2)}
        self.hi = {r: ((index + 1) // r).to(torch.int32).contiguous() for r in (1, 2)}
        self.tables = tables
        self.rows_cache = {}
        if decoder:
            rows, first = decoder
            D = torch.arange(rows.shape[1]).expand(rows.shape)
            self.dec_pos = self.pos.gather(1, rows)
            self.dec_wlo = torch.maximum(D - cfg.window + 1, first).to(torch.int32).contiguous()
            self.dec_lo, self.dec_hi = self.lo[1].gather(1, rows).contiguous(), self.hi[1].gather(1, rows).contiguous()

    def rotation(self, compress, decoder=False, step=1):
        key = (compress, decoder, step)
        if key not in self.rows_cache:
            p = (self.dec_pos if decoder else self.pos[:, ::step]).flatten()
            cos, sin = self.tables[compress]
            self.rows_cache[key] = (cos[p].contiguous(), sin[p].contiguous())
        return self.rows_cache[key]

    @staticmethod
    def from_row(tokens, r0):
        """Decoder rows r0.. of every row of a batch that holds one document per row."""
        B, S = tokens.shape
        return torch.arange(r0, S).expand(B, -1).contiguous(), torch.zeros(B, S - r0, dtype=torch.long)


class Fast:
    """One worker: forward over its own leaves of the shared weights, so workers may run in threads."""

    def __init__(self, model, quantise_weights=True, max_positions=None, shared=None):
        self.model, self.cfg = model, model.cfg
        self.shared = shared or Weights(quantise_weights)
        n = max_positions or 16384
        self.tables = {}
        for compress in (False, True):
            f = torch.tensor(self.cfg.frequencies(compress), dtype=torch.float32)
            angle = torch.arange(n, dtype=torch.float32)[:, None] * f
            self.tables[compress] = (angle.cos(), angle.sin())
        self.map = torch.tensor(model.token_map)
        self.leaves, self.counts = {}, {}
        self.quantise = 1          # cache quantisers on

    # ---- weights ---------------------------------------------------------------------------------------------

    def leaf(self, parameters, kind):
        key = tuple(id(p) for p in parameters)
        if key not in self.leaves:
            value = self.shared.get(key, parameters, kind).detach()
            if torch.is_grad_enabled():
                value = value.requires_grad_(any(p.requires_grad for p in parameters))
            self.leaves[key] = (value, parameters)
        return self.leaves[key][0]

    def w(self, parameter, kind="bf16"):
        return self.leaf((parameter,), kind)

    def f(self, parameter):
        return self.leaf((parameter,), "f32")

    def refresh(self):
        """Forget cast weights; call after the parameters changed."""
        self.leaves = {}
        self.shared.refresh()

    def lin(self, x, weight, kind="fp8"):
        return x @ self.w(weight.weight, kind).t()

    # ---- parts -----------------------------------------------------------------------------------------------

    def batch(self, tokens, start, **options):
        return Batch(self.cfg, self.tables, tokens, start, **options)

    def moe(self, moe, u, key):
        cfg = self.cfg
        logits = (u @ self.w(moe.gate.weight).t()).float()
        s = torch.sqrt(F.softplus(logits))
        ids = torch.topk(s.detach() + moe.gate.bias, moe.topk, dim=-1)[1]
        w = s.gather(1, ids)
        if moe.topk > 1:
            w = w / (w.sum(-1, keepdim=True) + 1e-20)
        w = w * cfg.route_scale
        self.counts[key] = self.counts.get(key, 0) + torch.bincount(ids.flatten(), minlength=len(moe.gate.bias)).float()
        sh = moe.shared_experts
        h = u @ self.leaf((sh.w1.weight, sh.w3.weight), "fp8").t()
        shared = SwigluOp.apply(h, cfg.swiglu_limit) @ self.w(sh.w2.weight, "fp8").t()
        e = moe.experts
        w13, w2 = self.leaf((e.w1, e.w3), "mxfp4"), self.w(e.w2, "mxfp4")
        return ExpertsOp.apply(u, ids, w, w13, w2, shared, cfg.swiglu_limit)

    def site(self, block, name, X, c):
        g = lambda part: getattr(block, f"hc_{name}_{part}")  # noqa: E731
        norm = block.attn_norm if name == "attn" else block.ffn_norm
        return SiteOp.apply(X, c, self.f(norm.weight), self.w(g("fn")), self.f(g("scale")), self.f(g("base")), self.cfg)

    def engram_rows(self, engram, batch):
        cfg = self.cfg
        ids, pos = self.map[batch.tokens], batch.pos
        pad = int(self.map[cfg.engram_pad])
        out, r, offset = [], None, 0
        for s in range(cfg.ngram):
            y = ids if s == 0 else torch.where(pos >= s, F.pad(ids, (s, 0))[:, :ids.shape[1]], pad)
            term = y * engram.multipliers[s]
            r = term if s == 0 else r ^ term
            if s:
                for prime in engram.primes[s - 1]:
                    out.append(r % prime + offset)
                    offset += prime
        return torch.stack(out, -1).flatten(0, 1)

    def engram(self, engram, X, batch):
        rows = self.engram_rows(engram, batch)
        e = F.embedding(rows, self.w(engram.embed.weight, "table"))
        kv = self.lin(e.flatten(1).to(BF), engram.wkv)
        return EngramOp.apply(X, kv, self.f(engram.q_weight) * self.f(engram.k_weight), self.cfg.eps)

    def publish(self, layer, u, batch):
        """Latents (unrotated) and main entries of a kv source: [B, E, d]."""
        cfg, attn, r = self.cfg, self.model.layers[layer].attn, self.cfg.ratios[layer]
        comp, B = attn.compressor, batch.tokens.shape[0]
        a = u @ self.w(comp.wkv.weight).t()
        if r == 2:
            g = (u @ self.w(comp.wgate.weight).t()).float().view(-1, 2, cfg.head_dim)
            a = (torch.softmax(g, 1) * a.float().view(-1, 2, cfg.head_dim)).sum(1).to(BF)
        lat = Norm.apply(a, self.f(comp.norm.weight), cfg.eps)
        cos, sin = batch.rotation(True, step=r)
        entries = RopeQuant.apply(lat[:, None], cos, sin, 1.0, FP4_16 * self.quantise)
        return lat, entries.view(B, -1, cfg.head_dim)

    def index_keys(self, layer, lat, batch):
        cfg, ix = self.cfg, self.model.layers[layer].attn.indexer
        k = Norm.apply(lat.detach() @ self.w(ix.wk.weight).t(), self.f(ix.k_norm.weight), cfg.eps)
        k = RopeQuant.apply(k[:, None], *batch.rotation(True, step=cfg.ratios[layer]), 1.0, FP4_32 * self.quantise)
        return k.view(batch.tokens.shape[0], -1, cfg.index_dim)

    def index_scores(self, layer, qr, u, keys, cos, sin):
        """qr [B, R, q_lora], u [B, R, H], rotation [B*R, n] -> fp32 scores [B, R, E]."""
        cfg, ix = self.cfg, self.model.layers[layer].attn.indexer
        B, R = qr.shape[:2]
        q = (qr.detach() @ self.w(ix.wq_b.weight, "fp8").t()).view(B * R, cfg.index_heads, cfg.index_dim)
        q = RopeQuant.apply(q, cos, sin, 1.0, FP4_32 * self.quantise).view(B, R * cfg.index_heads, cfg.index_dim)
        w = (u.detach() @ self.w(ix.weights_proj.weight).t()).float() * (cfg.index_dim ** -0.5 * cfg.index_heads ** -0.5)
        dots = torch.relu(q @ keys.transpose(1, 2)).view(B, R, cfg.index_heads, -1)
        return (dots.float() * w[..., None]).sum(2)

    # ---- forward ---------------------------------------------------------------------------------------------

    def forward(self, batch, select=False, probe=None, taps=False):
        """Hidden rows after the last norm [B D, H] (and taps); D = S unless the batch names decoder rows.

        select: attend only what the indexers pick. probe: object that gets layer data for the indexer loss.
        """
        cfg, model = self.cfg, self.model
        B, S = batch.tokens.shape
        X = F.embedding(batch.tokens.flatten(), self.w(model.embed.weight))[:, None].expand(-1, cfg.hc, -1).contiguous()
        c = torch.zeros(len(X), cfg.hc)
        c[:, 0] = 1
        late, tap, shared = False, [], {}
        for l in range(cfg.layers):
            block = model.layers[l]
            if l == cfg.half and batch.decoder:
                # The decoder sees some rows only; its entries come from all rows (bounded replay, section 10.2).
                late = True
                u = Collapse.apply(X, c, self.f(block.attn_norm.weight), cfg.eps)
                shared["lat"], shared["entries"] = self.publish(l, u, batch)
                rows = (batch.decoder[0] + torch.arange(B)[:, None] * S).flatten()
                X, c = X[rows], c[rows]
            if hasattr(block, "engram"):
                X = self.engram(block.engram, X, batch)
            if taps and l in cfg.taps:
                tap.append(X.float().mean(1).to(BF))
            u, pre, post, comb = self.site(block, "attn", X, c)
            X = Expand.apply(self.attention(l, u, batch, late, shared, select, probe), X, post, comb)
            u, c, post, comb = self.site(block, "ffn", X, pre)
            X = Expand.apply(self.moe(block.ffn, u, l), X, post, comb)
        h = Collapse.apply(X, c, self.f(model.norm.weight), cfg.eps)
        return (h, torch.cat(tap, -1)) if taps else h

    def attention(self, l, u, batch, late, shared, select, probe):
        cfg, attn, r = self.cfg, self.model.layers[l].attn, self.cfg.ratios[l]
        B = batch.tokens.shape[0]
        S = len(u) // B
        cos, sin = batch.rotation(r > 0, late)
        qr = Norm.apply(self.lin(u, attn.wq_a), self.f(attn.q_norm.weight), cfg.eps)
        q = RopeQuant.apply(self.lin(qr, attn.wq_b).view(-1, cfg.heads, cfg.head_dim), cos, sin, 1.0, NONE)
        q = q.view(B, S, cfg.heads, cfg.head_dim)
        kv = RopeQuant.apply(Norm.apply(self.lin(u, attn.wkv), self.f(attn.kv_norm.weight), cfg.eps)[:, None], cos, sin, 1.0, FP8_32 * self.quantise)
        kv = kv.view(B, S, cfg.head_dim)
        wlo = batch.dec_wlo if late else batch.wlo
        sel = None
        if r:
            elo, ehi = (batch.dec_lo, batch.dec_hi) if late else (batch.lo[r], batch.hi[r])
            if l in cfg.kv_sources and not (late and l == cfg.half):
                shared["lat"], shared["entries"] = self.publish(l, u, batch)
            entries = shared["entries"]
            if l in cfg.index_sources and (select or probe):
                if l in cfg.kv_sources:
                    shared["keys"] = self.index_keys(l, shared["lat"], batch)
                if select:
                    shared["sel"] = self.select(l, qr.view(B, S, -1), u.view(B, S, -1), shared, cos, sin, elo, ehi)
            sel = shared.get("sel") if select else None
        else:
            entries, elo, ehi = q.new_zeros(B, 0, cfg.head_dim), wlo, wlo
        o, lse = AttentionOp.apply(q, kv, entries, self.f(attn.attn_sink), wlo, elo, ehi, sel, TILE)
        if probe is not None and r:
            probe.layer(self, l, qr.view(B, S, -1), u.view(B, S, -1), q, entries, lse, shared["keys"], (cos, sin), elo, ehi)
        o = RopeQuant.apply(o.view(-1, cfg.heads, cfg.head_dim), cos, sin, -1.0, NONE).view(len(u), cfg.o_groups, -1)
        wa = self.w(attn.wo_a.weight, "fp8").view(cfg.o_groups, cfg.o_lora, -1)
        y = torch.cat([o[:, g] @ wa[g].t() for g in range(cfg.o_groups)], 1)
        return self.lin(y, attn.wo_b)

    @torch.no_grad()
    def select(self, l, qr, u, shared, cos, sin, elo, ehi, rows=512):
        """Selection mask [B, S, E] (uint8) by the rules of section 3.4; the pool is kept in `shared`."""
        cfg = self.cfg
        B, S = qr.shape[:2]
        keys = shared["keys"]
        E = keys.shape[1]
        out = torch.zeros(B, S, E, dtype=torch.uint8)
        if l == cfg.candidate_source:
            shared["pool"] = torch.zeros(B, S, E, dtype=torch.bool)
        entry = torch.arange(E)
        c4, s4 = cos.view(B, S, -1), sin.view(B, S, -1)
        for a in range(0, S, rows):
            b = min(S, a + rows)
            s = self.index_scores(l, qr[:, a:b], u[:, a:b], keys, c4[:, a:b].flatten(0, 1).contiguous(), s4[:, a:b].flatten(0, 1).contiguous())
            lo, hi = elo[:, a:b, None], ehi[:, a:b, None]
            visible = (entry >= lo) & (entry < hi)
            s = s.masked_fill(~visible, -torch.inf)
            if l == cfg.candidate_source and E > cfg.candidate_blocks * cfg.candidate_block:
                # Blocks count from the document's first entry; packed long rows hold one document, so lo is 0 there.
                size = cfg.candidate_block
                best = F.pad(s, (0, -E % size), value=-torch.inf).view(B, b - a, -1, size).amax(-1)
                newest = ((hi - 1).clamp(min=0) // size).long()
                best.scatter_(2, newest, torch.inf)
                k = min(cfg.candidate_blocks, best.shape[2])
                keep = torch.zeros_like(best, dtype=torch.bool).scatter_(2, best.topk(k, dim=2)[1], True) & (best > -torch.inf)
                shared["pool"][:, a:b] = keep.repeat_interleave(size, 2)[:, :, :E]
            elif l == cfg.candidate_source:
                shared["pool"][:, a:b] = True
            elif 0 <= cfg.candidate_source < l:
                s = s.masked_fill(~shared["pool"][:, a:b], -torch.inf)
            if E > cfg.index_topk:
                top, where = s.topk(cfg.index_topk, dim=2)
                out[:, a:b].scatter_(2, where, (top > -torch.inf).to(torch.uint8))
            else:
                out[:, a:b] = (s > -torch.inf).to(torch.uint8)
        return out

    def logits(self, h):
        return h @ self.w(self.model.head.weight).t()
