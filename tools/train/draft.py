"""Fast draft module of the trainer: the DSpark stages over many anchors of a packed batch at once.

An anchor is a row j of the decoder rows: the backbone has processed position p (row j), x_0 is the token at p + 1. The block
sees the ring latents of rows up to j (window W, same document) and its own five latents. Tokens inside the block are the true
ones for the Markov head (as in training by the DSpark paper), the targets are the backbone's own distributions.
"""
import torch
import torch.nn.functional as F

from fast import BF, FP8_32, NONE, Collapse, Expand, Norm, RopeQuant


def anchors_of(weights, first, block, count, generator):
    """Up to `count` rows j per batch whose first draft (the token at j + 2) is an answer token of the same document.

    weights [B, D]: weight of the token each row predicts. Returns (b, j, live): index vectors and which of the block's drafts
    are tokens of the document, [A, block]: the end of an answer, and all of a short one, is drafted with fewer.
    """
    D = weights.shape[1]
    wanted = torch.zeros_like(first, dtype=torch.bool)
    wanted[:, :D - 2] = (first[:, 2:] == first[:, :D - 2]) & (weights[:, 1:D - 1] >= 0.15)
    score = torch.rand(weights.shape, generator=generator) + wanted * 1.0
    chosen = torch.zeros_like(wanted)
    chosen.scatter_(1, score.topk(min(count, D), dim=1)[1], True)
    chosen &= wanted
    b, j = chosen.nonzero(as_tuple=True)
    ahead = j[:, None] + 2 + torch.arange(block)
    live = (ahead < D) & (first[b[:, None], ahead.clamp(max=D - 1)] == first[b, j][:, None])
    return b, j, live


def hidden(fast, taps, position, first, b, j, x0):
    """Hidden rows h [A, 5, H] of the blocks that start after rows (b, j). taps [B, D, 3H]; position, first [B, D]."""
    cfg, model = fast.cfg, fast.model
    B, D = position.shape
    A, n = len(b), cfg.block
    cos, sin = fast.tables[False]
    flat = position.flatten()
    rc, rs = cos[flat].contiguous(), sin[flat].contiguous()
    stage0 = model.mtp[0]
    x = Norm.apply(fast.lin(taps.flatten(0, 1), stage0.main_proj), fast.f(stage0.main_norm.weight), cfg.eps)
    block_pos = (position[b, j][:, None] + 1 + torch.arange(n)).flatten()
    bc, bs = cos[block_pos].contiguous(), sin[block_pos].contiguous()
    ids = torch.full((A, n), cfg.noise)
    ids[:, 0] = x0
    X = F.embedding(ids.flatten(), fast.w(model.embed.weight))[:, None].expand(-1, cfg.hc, -1).contiguous()
    c = torch.zeros(A * n, cfg.hc)
    c[:, 0] = 1
    look = j[:, None] - torch.arange(cfg.window - 1, -1, -1)                # ring rows of every anchor
    seen = look >= first[b, j][:, None]
    rows = (b[:, None] * D + look.clamp(min=0))
    mask = torch.cat((seen, torch.ones(A, n, dtype=torch.bool)), 1)
    for stage in model.mtp:
        attn = stage.attn

        def latent(u, c_, s_):
            kv = Norm.apply(fast.lin(u, attn.wkv), fast.f(attn.kv_norm.weight), cfg.eps)
            return RopeQuant.apply(kv[:, None], c_, s_, 1.0, FP8_32 * fast.quantise).view(len(u), -1)

        ring = latent(x, rc, rs)
        u, pre, post, comb = fast.site(stage, "attn", X, c)
        qr = Norm.apply(fast.lin(u, attn.wq_a), fast.f(attn.q_norm.weight), cfg.eps)
        q = RopeQuant.apply(fast.lin(qr, attn.wq_b).view(-1, cfg.heads, cfg.head_dim), bc, bs, 1.0, NONE)
        keys = torch.cat((F.embedding(rows, ring), latent(u, bc, bs).view(A, n, -1)), 1)         # [A, W + 5, d]
        z = (q.reshape(A, n * cfg.heads, -1) @ keys.transpose(1, 2)).view(A, n, cfg.heads, -1).float() * cfg.head_dim ** -0.5
        z = z.masked_fill(~mask[:, None, None, :], -torch.inf)
        sink = fast.f(attn.attn_sink)[None, None, :, None].expand(A, n, -1, 1)
        p = torch.softmax(torch.cat((z, sink), -1), -1)[..., :-1].to(BF)
        o = (p.view(A, n * cfg.heads, -1) @ keys).view(A * n, cfg.heads, cfg.head_dim)
        o = RopeQuant.apply(o, bc, bs, -1.0, NONE).view(A * n, cfg.o_groups, -1)
        wa = fast.w(attn.wo_a.weight, "fp8").view(cfg.o_groups, cfg.o_lora, -1)
        y = fast.lin(torch.cat([o[:, g] @ wa[g].t() for g in range(cfg.o_groups)], 1), attn.wo_b)
        X = Expand.apply(y, X, post, comb)
        u, c, post, comb = fast.site(stage, "ffn", X, pre)
        X = Expand.apply(fast.moe(stage.ffn, u, ("mtp", id(stage))), X, post, comb)
    last = model.mtp[-1]
    # The readable path keeps h before the norm for the confidence head: collapse without norm, in fp32.
    h = (X.float() * c[..., None]).sum(1)
    normed = Collapse.apply(X, c, fast.f(last.norm.weight), cfg.eps)
    return h.view(A, n, -1), normed.view(A, n, -1)


def heads(fast, h, normed, previous):
    """Corrected logits [A, 5, V] and confidence logits [A, 5] for previous tokens [A, 5]."""
    last = fast.model.mtp[-1]
    m = F.embedding(previous, fast.w(last.markov_head.embed.weight))
    logits = (normed @ fast.w(fast.model.head.weight).t()).float() + (m @ fast.w(last.markov_head.head.weight).t()).float()
    proj = fast.w(last.confidence_head.proj.weight).float()
    confidence = (torch.cat((h, m.float()), -1) * proj[0]).sum(-1)
    return logits, confidence


@torch.no_grad()
def greedy(fast, h, normed, x0):
    """Draft tokens [A, 5] drawn greedily, their confidence logits, and the corrected logits."""
    n = h.shape[1]
    token, out, conf = x0, [], []
    for k in range(n):
        logits, c = heads(fast, h[:, k:k + 1], normed[:, k:k + 1], token[:, None])
        token = logits[:, 0].argmax(-1)
        out.append(token)
        conf.append(c[:, 0])
    return torch.stack(out, 1), torch.stack(conf, 1)
