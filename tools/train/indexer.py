"""Loss of the indexers: KL from their score distribution to the head-summed attention of the layers they serve.

The indexer does not learn through the selection. For a sample of query rows the attention over compressed entries is
recomputed, summed over heads, normalised, and averaged over the layers that share one selection; the index scores'
softmax is pulled towards it. Inputs of the indexer are detached, so the backbone never feels this loss.
"""
import torch


class IndexerLoss:
    def __init__(self, cfg, rows=32):
        self.cfg, self.rows = cfg, rows
        self.groups = {}

    def layer(self, fast, l, qr, u, q, entries, lse, keys, rotation, elo, ehi):
        cfg = self.cfg
        B, S = qr.shape[:2]
        source = cfg.index_source(l)
        if source == l:
            pick = torch.randint(0, S, (self.rows,)).sort()[0]
            cos, sin = (t.view(B, S, -1)[:, pick].flatten(0, 1).contiguous() for t in rotation)
            scores = fast.index_scores(l, qr[:, pick], u[:, pick], keys, cos, sin)
            e = torch.arange(entries.shape[1])
            visible = (e >= elo[:, pick, None]) & (e < ehi[:, pick, None])
            self.groups[l] = [pick, scores.masked_fill(~visible, -1e30), visible, 0.0, 0]
        group = self.groups[source]
        pick, visible = group[0], group[2]
        with torch.no_grad():
            R = len(pick)
            z = q[:, pick].reshape(B, R * cfg.heads, -1) @ entries.transpose(1, 2)
            p = torch.exp(z.view(B, R, cfg.heads, -1).float() * cfg.head_dim ** -0.5 - lse[:, pick, :, None])
            group[3] = group[3] + p.sum(2) * visible
            group[4] += 1

    def loss(self):
        """Mean KL over sampled rows and index sources; keeps the groups for `recall`."""
        total = 0.0
        self.last = {}
        for l, (_, scores, visible, mass, _) in self.groups.items():
            target = mass / mass.sum(-1, keepdim=True).clamp(min=1e-9)
            live = (visible.sum(-1) > 1) & (mass.sum(-1) > 1e-3)
            kl = (target * (torch.log(target.clamp(min=1e-9)) - torch.log_softmax(scores, -1))).sum(-1)
            total = total + (kl * live).sum() / live.sum().clamp(min=1)
            self.last[l] = (scores.detach(), target, visible, live)
        self.groups = {}
        return total / max(1, len(self.last))

    def recall(self, k=None):
        """Share of true attention mass inside the best k scored entries (default: an eighth of the visible ones)."""
        found = count = 0.0
        for scores, target, visible, live in self.last.values():
            n = visible.sum(-1)
            limit = (n // 8).clamp(min=4) if k is None else torch.full_like(n, k)
            order = scores.argsort(-1, descending=True)
            rank = torch.empty_like(order).scatter_(-1, order, torch.arange(order.shape[-1]).expand_as(order))
            inside = (target * (rank < limit[..., None])).sum(-1)
            found += float((inside * live).sum())
            count += float(live.sum())
        return found / max(count, 1.0)
