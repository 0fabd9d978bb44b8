"""A readable PyTorch model of the DeepSeek-V4.1 architecture: one sequence, plain tensors, any floating type.

Written from the model specification (sections 2 to 6 and 10); it knows nothing of weight formats (checkpoint.py) or of
fast training (tools/train/fast.py, which uses the same parameters and is tested equal to this file).
Shapes: T rows, hc streams, H hidden, E experts. `quantise` switches the cache quantisers (section 8.2), always
straight-through, so this code can also be differentiated.
"""
import torch
from torch import nn
import torch.nn.functional as F

import quant


class Weight(nn.Module):
    """A matrix (or vector, or table) called `<name>.weight` in the checkpoint."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))

    def forward(self, x):
        return x @ self.weight.t()


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x, positions, frequencies, inverse=False):
    """Rotates adjacent pairs of the last dims of x [T, ..., d] at positions [T]."""
    n = len(frequencies)
    angle = positions.to(frequencies.dtype)[:, None] * frequencies * (-1 if inverse else 1)
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (n,)
    cos, sin = angle.cos().reshape(shape), angle.sin().reshape(shape)
    even, odd = x[..., -2 * n::2], x[..., -2 * n + 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    return torch.cat((x[..., :-2 * n], turned), -1)


def top_indices(scores, k):
    """Indices of the k largest entries, ties to the lower index, ascending."""
    return torch.sort(torch.sort(scores, descending=True, stable=True)[1][:k])[0]


class Site(nn.Module):
    """mHC coefficients of one sublayer (section 2.2). Named parameters live in the block (hc_attn_fn, ...)."""

    @staticmethod
    def coefficients(cfg, X, fn, base, scale):
        m, n = cfg.hc, X.shape[0]
        flat = X.reshape(n, -1)
        mix = (flat @ fn.t()) * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + cfg.eps)
        pre = torch.sigmoid(mix[:, :m] * scale[0] + base[:m]) + cfg.hc_eps
        post = 2 * torch.sigmoid(mix[:, m:2 * m] * scale[1] + base[m:2 * m])
        comb = (mix[:, 2 * m:] * scale[2] + base[2 * m:]).reshape(n, m, m)
        comb = torch.softmax(comb, -1) + cfg.hc_eps
        comb = comb / (comb.sum(-2, keepdim=True) + cfg.hc_eps)
        for _ in range(cfg.hc_iters - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + cfg.hc_eps)
            comb = comb / (comb.sum(-2, keepdim=True) + cfg.hc_eps)
        return pre, post, comb


def collapse(X, pre):
    return (pre[..., None] * X).sum(1)


def expand(y, X, post, comb):
    return post[..., None] * y[:, None, :] + torch.einsum("njk,njd->nkd", comb, X)


class Experts(nn.Module):
    """Routed experts, stacked: w1 (gate), w3 (up) [E, I, H], w2 (down) [E, H, I]."""

    def __init__(self, count, inter, hidden):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(count, inter, hidden))
        self.w3 = nn.Parameter(torch.empty(count, inter, hidden))
        self.w2 = nn.Parameter(torch.empty(count, hidden, inter))


class Shared(nn.Module):
    def __init__(self, inter, hidden):
        super().__init__()
        self.w1, self.w3, self.w2 = Weight(inter, hidden), Weight(inter, hidden), Weight(hidden, inter)


class Gate(nn.Module):
    def __init__(self, count, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, hidden))
        self.register_buffer("bias", torch.zeros(count))
        self.register_buffer("bias_vl", torch.zeros(count))


def swiglu(gate, up, limit):
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.silu(gate) * up


class MoE(nn.Module):
    def __init__(self, cfg, count, topk):
        super().__init__()
        self.cfg, self.topk = cfg, topk
        self.gate = Gate(count, cfg.hidden)
        self.experts = Experts(count, cfg.inter, cfg.hidden)
        self.shared_experts = Shared(cfg.inter, cfg.hidden)

    def route(self, u):
        """Expert ids [T, k] and weights [T, k] (section 4)."""
        s = torch.sqrt(F.softplus(u @ self.gate.weight.t()))
        key = s.detach() + self.gate.bias
        ids = torch.sort(key, dim=-1, descending=True, stable=True)[1][:, :self.topk]
        w = s.gather(1, ids)
        if self.topk > 1:
            w = w / (w.sum(-1, keepdim=True) + 1e-20)
        return ids, w * self.cfg.route_scale

    def forward(self, u, trace=None):
        ids, w = self.route(u)
        if trace is not None:
            trace["route"] = torch.sort(ids, -1)[0]
        e, lim = self.experts, self.cfg.swiglu_limit
        shared = self.shared_experts
        out = shared.w2(swiglu(shared.w1(u), shared.w3(u), lim))
        for i in range(e.w1.shape[0]):
            row, slot = (ids == i).nonzero(as_tuple=True)
            if len(row):
                x = u[row]
                a = swiglu(x @ e.w1[i].t(), x @ e.w3[i].t(), lim) * w[row, slot, None]
                out = out.index_add(0, row, a @ e.w2[i].t())
        return out


class Compressor(nn.Module):
    def __init__(self, cfg, ratio):
        super().__init__()
        self.wkv = Weight(cfg.head_dim, cfg.hidden)
        if ratio > 1:
            self.wgate = Weight(cfg.head_dim, cfg.hidden)
        self.norm = Weight(cfg.head_dim)


class Indexer(nn.Module):
    def __init__(self, cfg, owns_keys):
        super().__init__()
        if owns_keys:
            self.wk, self.k_norm = Weight(cfg.index_dim, cfg.head_dim), Weight(cfg.index_dim)
        self.wq_b = Weight(cfg.index_heads * cfg.index_dim, cfg.q_lora)
        self.weights_proj = Weight(cfg.index_heads, cfg.hidden)


class Attention(nn.Module):
    """CSA2 (section 3); `layer` is None for a draft stage."""

    def __init__(self, cfg, layer):
        super().__init__()
        self.cfg, self.layer = cfg, layer
        self.ratio = cfg.ratios[layer] if layer is not None else 0
        hd = cfg.heads * cfg.head_dim
        self.wq_a, self.q_norm, self.wq_b = Weight(cfg.q_lora, cfg.hidden), Weight(cfg.q_lora), Weight(hd, cfg.q_lora)
        self.wkv, self.kv_norm = Weight(cfg.head_dim, cfg.hidden), Weight(cfg.head_dim)
        self.wo_a = Weight(cfg.o_groups * cfg.o_lora, hd // cfg.o_groups)
        self.wo_b = Weight(cfg.hidden, cfg.o_groups * cfg.o_lora)
        self.attn_sink = nn.Parameter(torch.zeros(cfg.heads))
        if self.ratio and layer in cfg.kv_sources:
            self.compressor = Compressor(cfg, self.ratio)
        if self.ratio and layer in cfg.index_sources:
            self.indexer = Indexer(cfg, layer in cfg.kv_sources)

    def latent(self, u, positions, freqs, quantise):
        kv = rope(rms(self.wkv(u), self.kv_norm.weight, self.cfg.eps), positions, freqs)
        return quant.straight_through(quant.fp8_32, kv) if quantise else kv

    def queries(self, u, positions, freqs):
        qr = rms(self.wq_a(u), self.q_norm.weight, self.cfg.eps)
        return qr, rope(self.wq_b(qr).reshape(len(u), self.cfg.heads, self.cfg.head_dim), positions, freqs)

    def attend(self, q, rows, mask):
        """One softmax over rows [R, d] where mask [T, R] allows, with the sinks (section 3.5)."""
        z = torch.einsum("thd,rd->thr", q, rows) * self.cfg.head_dim ** -0.5
        z = z.masked_fill(~mask[:, None, :], -torch.inf)
        sink = self.attn_sink.to(z.dtype)[None, :, None].expand(z.shape[0], -1, 1)
        p = torch.softmax(torch.cat((z, sink), -1), -1)[..., :-1]
        return p, torch.einsum("thr,rd->thd", p, rows)

    def output(self, o, positions, freqs):
        o = rope(o, positions, freqs, inverse=True).reshape(len(o), self.cfg.o_groups, -1)
        wa = self.wo_a.weight.reshape(self.cfg.o_groups, self.cfg.o_lora, -1)
        return self.wo_b(torch.einsum("tgd,grd->tgr", o, wa).flatten(1))


class Engram(nn.Module):
    def __init__(self, cfg, index):
        super().__init__()
        self.cfg = cfg
        self.embed = Weight(cfg.engram_rows()[index], cfg.engram_dim)
        self.wkv = Weight((cfg.hc + 1) * cfg.hidden, cfg.engram_width)
        self.q_weight = nn.Parameter(torch.ones(cfg.hc, cfg.hidden))
        self.k_weight = nn.Parameter(torch.ones(cfg.hc, cfg.hidden))
        self.primes, self.multipliers = cfg.primes()[index], cfg.multipliers()[index]

    def hash_ids(self, ids, pad, positions, dead=()):
        """Table rows [T, columns] for the compressed ids of the whole sequence (section 5.3)."""
        out = []
        for p in positions:
            y, blocked = [], False
            for s in range(self.cfg.ngram):
                blocked = blocked or p - s < 0 or p - s in dead
                y.append(pad if blocked else ids[p - s])
            r, offset, row = y[0] * self.multipliers[0], 0, []
            for i in range(1, self.cfg.ngram):
                r ^= y[i] * self.multipliers[i]
                for prime in self.primes[i - 1]:
                    row.append(r % prime + offset)
                    offset += prime
            out.append(row)
        return torch.tensor(out)

    def forward(self, X, rows, trace=None):
        cfg = self.cfg
        kv = self.wkv(self.embed.weight[rows].flatten(1))
        key, value = kv[:, :cfg.hc * cfg.hidden].reshape(-1, cfg.hc, cfg.hidden), kv[:, cfg.hc * cfg.hidden:]
        scale = torch.rsqrt(X.pow(2).mean(-1) + cfg.eps) * torch.rsqrt(key.pow(2).mean(-1) + cfg.eps) * cfg.hidden ** -0.5
        dot = (X * self.q_weight * self.k_weight * key).sum(-1) * scale
        gate = torch.sigmoid(torch.copysign(torch.sqrt(dot.abs().clamp(min=1e-6)), dot))
        if trace is not None:
            trace["engram_rows"], trace["engram_gate"] = rows, gate
        return X + gate[..., None] * value[:, None, :]


class Block(nn.Module):
    """A backbone layer or a draft stage."""

    def __init__(self, cfg, layer=None, experts=None, topk=None):
        super().__init__()
        mix, width = (2 + cfg.hc) * cfg.hc, cfg.hc * cfg.hidden
        self.attn_norm, self.ffn_norm = Weight(cfg.hidden), Weight(cfg.hidden)
        for site in ("attn", "ffn"):
            setattr(self, f"hc_{site}_fn", nn.Parameter(torch.empty(mix, width)))
            setattr(self, f"hc_{site}_base", nn.Parameter(torch.zeros(mix)))
            setattr(self, f"hc_{site}_scale", nn.Parameter(torch.ones(3)))
        self.attn = Attention(cfg, layer)
        self.ffn = MoE(cfg, experts or cfg.experts, topk or cfg.expert_topk)
        if layer is not None and layer in cfg.engram_layers:
            self.engram = Engram(cfg, cfg.engram_layers.index(layer))

    def site(self, cfg, X, name):
        return Site.coefficients(cfg, X, getattr(self, f"hc_{name}_fn"), getattr(self, f"hc_{name}_base"), getattr(self, f"hc_{name}_scale"))


class MarkovHead(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed, self.head = Weight(cfg.vocab, cfg.markov_rank), Weight(cfg.vocab, cfg.markov_rank)


class ConfidenceHead(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.proj = Weight(1, cfg.hidden + cfg.markov_rank)


class Stage(Block):
    """Draft stage i (section 6.1); the first and the last carry extra tensors."""

    def __init__(self, cfg, index):
        super().__init__(cfg, None, cfg.draft_experts, cfg.draft_topk)
        if index == 0:
            self.main_proj, self.main_norm = Weight(cfg.hidden, cfg.hidden * len(cfg.taps)), Weight(cfg.hidden)
        if index == cfg.mtp - 1:
            self.norm = Weight(cfg.hidden)
            self.markov_head, self.confidence_head = MarkovHead(cfg), ConfidenceHead(cfg)


class State:
    """Everything one sequence keeps between forwards (section 3.7). Rows grow with the sequence; nothing is evicted."""

    def __init__(self, cfg):
        self.window = {l: (0, None) for l in range(cfg.layers)}     # layer -> (position of row 0, latents)
        self.ring = {i: (0, None) for i in range(cfg.mtp)}
        self.main, self.keys, self.tail = {}, {}, {}


def append(store, key, first, rows):
    start, old = store[key]
    if old is None:
        store[key] = (first, rows)
    else:
        assert start + len(old) >= first
        store[key] = (start, torch.cat((old[:first - start], rows)))
    return store[key]


class Model(nn.Module):
    def __init__(self, cfg, token_map=None):
        super().__init__()
        self.cfg = cfg.check()
        self.token_map = token_map or [t if t < 4 else 4 + (t - 4) % (cfg.engram_vocab - 4) for t in range(cfg.vocab)]
        self.embed, self.head, self.norm = Weight(cfg.vocab, cfg.hidden), Weight(cfg.vocab, cfg.hidden), Weight(cfg.hidden)
        self.layers = nn.ModuleList(Block(cfg, l) for l in range(cfg.layers))
        self.mtp = nn.ModuleList(Stage(cfg, i) for i in range(cfg.mtp))
        self.quantise = False

    def freqs(self, compress):
        return torch.tensor(self.cfg.frequencies(compress), dtype=self.embed.weight.dtype)

    # ---- attention -------------------------------------------------------------------------------------------

    def publish(self, state, layer, u, positions, trace=None):
        """Main entries and index keys of a kv source for consecutive rows (section 3.3)."""
        cfg, attn, r = self.cfg, self.layers[layer].attn, self.cfg.ratios[layer]
        comp, freqs = attn.compressor, self.freqs(True)
        a = comp.wkv(u)
        if r == 1:
            pooled, starts = a, positions
        else:
            g = comp.wgate(u)
            first = int(positions[0])
            old = state.tail.get(layer)
            if old is not None and first % r:
                a, g = torch.cat((old[0][-(first % r):], a)), torch.cat((old[1][-(first % r):], g))
            first -= first % r
            n = len(a) // r
            state.tail[layer] = (a, g)
            if n == 0:
                state.main.setdefault(layer, u.new_zeros(0, cfg.head_dim))
                state.keys.setdefault(layer, u.new_zeros(0, cfg.index_dim))
                return
            shape = (n, r, cfg.head_dim)
            pooled = (torch.softmax(g[:n * r].reshape(shape), 1) * a[:n * r].reshape(shape)).sum(1)
            starts = first + r * torch.arange(n)
        lat = rms(pooled, comp.norm.weight, cfg.eps)
        keys = rope(rms(attn.indexer.wk(lat), attn.indexer.k_norm.weight, cfg.eps), starts, freqs)
        entries = rope(lat, starts, freqs)
        if self.quantise:
            keys, entries = quant.straight_through(quant.fp4_32, keys), quant.straight_through(quant.fp4_16, entries)
        at = first // r if r > 1 else int(starts[0])
        for store, rows in ((state.main, entries), (state.keys, keys)):
            store[layer] = torch.cat((store[layer][:at], rows)) if layer in store else rows
        if trace is not None:
            trace["main"], trace["index_keys"] = entries, keys

    def index_scores(self, layer, state, qr, u, positions):
        cfg, ix = self.cfg, self.layers[layer].attn.indexer
        q = rope(ix.wq_b(qr).reshape(len(u), cfg.index_heads, cfg.index_dim), positions, self.freqs(True))
        if self.quantise:
            q = quant.straight_through(quant.fp4_32, q)
        w = ix.weights_proj(u) * (cfg.index_dim ** -0.5 * cfg.index_heads ** -0.5)
        keys = state.keys[cfg.kv_source(layer)]
        return (torch.relu(torch.einsum("thd,jd->thj", q, keys)) * w[..., None]).sum(1)

    def select(self, layer, state, shared, qr, u, positions):
        """Selection mask [T, entries] of an index source (section 3.4)."""
        cfg, r = self.cfg, self.cfg.ratios[layer]
        scores = self.index_scores(layer, state, qr, u, positions)
        mask = torch.zeros(scores.shape, dtype=torch.bool)
        pool = torch.zeros(scores.shape, dtype=torch.bool)
        for i, p in enumerate(positions.tolist()):
            visible = (p + 1) // r
            s = scores[i, :visible]
            if visible == 0:
                continue
            if layer == cfg.candidate_source:
                size = cfg.candidate_block
                best = F.pad(s, (0, -visible % size), value=-torch.inf).reshape(-1, size).amax(1)
                best[(visible - 1) // size] = torch.inf
                for b in top_indices(best, cfg.candidate_blocks).tolist():
                    pool[i, b * size:min(visible, (b + 1) * size)] = True
            elif 0 <= cfg.candidate_source < layer:
                s = s.masked_fill(~shared["pool"][i, :visible], -torch.inf)
            chosen = top_indices(s, cfg.index_topk)
            mask[i, chosen[s[chosen] > -torch.inf]] = True
        if layer == cfg.candidate_source:
            shared["pool"] = pool
        shared["selection"] = mask
        return scores

    def attention(self, layer, state, shared, u, positions, floor, publish, trace):
        cfg, attn, r = self.cfg, self.layers[layer].attn, self.cfg.ratios[layer]
        freqs = self.freqs(r > 0)
        qr, q = attn.queries(u, positions, freqs)
        latents = attn.latent(u, positions, freqs, self.quantise)
        start, rows = append(state.window, layer, int(positions[0]), latents)
        at = start + torch.arange(len(rows))
        p = positions[:, None]
        mask = (at <= p) & (at > p - cfg.window) & (at >= floor)
        if layer in cfg.kv_sources and publish:
            self.publish(state, layer, u, positions, trace)
        if r:
            if layer in cfg.index_sources:
                scores = self.select(layer, state, shared, qr, u, positions)
                if trace is not None:
                    trace["index_scores"], trace["selection"] = scores, shared["selection"]
                    if layer == cfg.candidate_source:
                        trace["pool"] = shared["pool"]
            rows = torch.cat((rows, state.main[cfg.kv_source(layer)]))
            mask = torch.cat((mask, shared["selection"]), 1)
        _, o = attn.attend(q, rows, mask)
        out = attn.output(o, positions, freqs)
        if trace is not None:
            trace["queries"], trace["latents"], trace["attention"] = q, latents, out
        return out

    # ---- backbone --------------------------------------------------------------------------------------------

    def run_layer(self, layer, state, shared, X, pre, positions, tokens, floor, publish, trace):
        cfg, block = self.cfg, self.layers[layer]
        if hasattr(block, "engram"):
            ids = [self.token_map[t] for t in tokens]
            X = block.engram(X, block.engram.hash_ids(ids, self.token_map[cfg.engram_pad], positions.tolist()), trace)
        if layer in cfg.taps:
            shared.setdefault("taps", []).append(X.mean(1))
        pre_a, post, comb = block.site(cfg, X, "attn")
        u = rms(collapse(X, pre), block.attn_norm.weight, cfg.eps)
        X = expand(self.attention(layer, state, shared, u, positions, floor, publish, trace), X, post, comb)
        pre_f, post, comb = block.site(cfg, X, "ffn")
        u = rms(collapse(X, pre_a), block.ffn_norm.weight, cfg.eps)
        y = block.ffn(u, trace)
        X = expand(y, X, post, comb)
        if trace is not None:
            trace["moe"], trace["streams"], trace["pre"] = y, X, pre_f
        return X, pre_f

    def start(self, ids):
        X = self.embed.weight[ids][:, None, :].repeat(1, self.cfg.hc, 1)
        pre = torch.zeros(len(ids), self.cfg.hc, dtype=X.dtype)
        pre[:, 0] = 1
        return X, pre

    def forward(self, tokens, state=None, first=0, keep=None, floor=0, trace=None):
        """Rows first .. len(tokens)-1 of a sequence whose earlier rows are in `state`.

        keep: bounded prefill, the decoder runs only on the last `keep` rows (section 10.2). floor: window reads of the
        encoder do not go below it (section 10.1). trace: list filled with one dictionary of tensors per layer.
        Returns logits and taps of the rows the decoder ran on, and their positions.
        """
        cfg, state = self.cfg, state if state is not None else State(self.cfg)
        positions = torch.arange(first, len(tokens))
        X, pre = self.start(torch.tensor(tokens[first:]))
        shared = {}
        published = False
        for layer in range(cfg.layers):
            if layer == cfg.half and keep is not None and keep < len(positions):
                u = rms(collapse(X, pre), self.layers[layer].attn_norm.weight, cfg.eps)
                self.publish(state, layer, u, positions)
                X, pre, positions = X[-keep:], pre[-keep:], positions[-keep:]
                floor, published = int(positions[0]), True
            record = {} if trace is not None else None
            X, pre = self.run_layer(layer, state, shared, X, pre, positions, tokens, floor, not (published and layer == cfg.half), record)
            if trace is not None:
                trace.append(record)
        logits = self.head(rms(collapse(X, pre), self.norm.weight, cfg.eps))
        return logits, torch.cat(shared["taps"], -1), positions

    # ---- draft (section 6) -----------------------------------------------------------------------------------

    def feed(self, state, taps, positions):
        """Writes the draft rings for accepted rows."""
        x = rms(self.mtp[0].main_proj(taps), self.mtp[0].main_norm.weight, self.cfg.eps)
        for i, stage in enumerate(self.mtp):
            append(state.ring, i, int(positions[0]), stage.attn.latent(x, positions, self.freqs(False), self.quantise))

    def draft_hidden(self, state, ids, positions):
        """Hidden rows h [n, H] of one block (before the last norm)."""
        cfg, freqs = self.cfg, self.freqs(False)
        X, pre = self.start(ids)
        for i, stage in enumerate(self.mtp):
            pre_a, post, comb = stage.site(cfg, X, "attn")
            u = rms(collapse(X, pre), stage.attn_norm.weight, cfg.eps)
            _, q = stage.attn.queries(u, positions, freqs)
            start, ring = state.ring[i]
            p = int(positions[0]) - 1
            rows = torch.cat((ring[max(0, p - cfg.window + 1) - start:p + 1 - start], stage.attn.latent(u, positions, freqs, self.quantise)))
            _, o = stage.attn.attend(q, rows, torch.ones(len(u), len(rows), dtype=torch.bool))
            X = expand(stage.attn.output(o, positions, freqs), X, post, comb)
            pre, post, comb = stage.site(cfg, X, "ffn")
            X = expand(stage.ffn(rms(collapse(X, pre_a), stage.ffn_norm.weight, cfg.eps)), X, post, comb)
        return collapse(X, pre)

    def draft(self, state, token, position):
        """Greedy drafts after `token` at `position`: (ids, confidence logits, corrected logits)."""
        cfg, last = self.cfg, self.mtp[-1]
        ids = torch.tensor([token] + [cfg.noise] * (cfg.block - 1))
        h = self.draft_hidden(state, ids, position + torch.arange(cfg.block))
        base = self.head(rms(h, last.norm.weight, cfg.eps))
        out, confidence, logits = [], [], []
        for k in range(cfg.block):
            m = last.markov_head.embed.weight[token]
            u = base[k] + last.markov_head.head(m)
            confidence.append(float(last.confidence_head.proj(torch.cat((h[k], m)))))
            logits.append(u)
            token = int(u.argmax())
            out.append(token)
        return out, confidence, torch.stack(logits)
