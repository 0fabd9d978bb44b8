"""Muon for matrices (momentum, orthogonalised by Newton-Schulz iterations), AdamW for everything else."""
import torch

# One triple per iteration, each the best polynomial for what the one before leaves (Polar Express, arXiv 2505.16932): three
# of them lift singular values above a hundredth of the norm to about one, for three fifths of the usual five's work.
COEFFICIENTS = ((8.28721201814563, -23.595886519098837, 17.300387312530933), (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
                (3.9486908534822946, -2.908902115962949, 0.5518191394370137))


def orthogonalise(g):
    """Nearest semi-orthogonal matrices of a stack [n, r, c], approximately, in bf16."""
    tall = g.shape[1] > g.shape[2]
    x = g.to(torch.bfloat16)
    x = x.transpose(1, 2).contiguous() if tall else x
    x = x / (1.02 * x.float().flatten(1).norm(dim=1)[:, None, None] + 1e-7).to(torch.bfloat16)
    for a, b, c in COEFFICIENTS:
        m = torch.bmm(x, x.transpose(1, 2))
        m = b * m + c * torch.bmm(m, m)
        x = a * x + torch.bmm(m, x)
    return x.transpose(1, 2) if tall else x


class Muon:
    """One unit of work per stacked parameter and per shape of plain matrices, so a thread pool can share the step."""

    def __init__(self, params, momentum=0.95):
        self.params, self.momentum = list(params), momentum
        self.buffers = [torch.zeros_like(p) for p in self.params]
        shapes = {}
        for i, p in enumerate(self.params):
            shapes.setdefault(i if p.dim() == 3 else tuple(p.shape), []).append(i)
        self.groups = sorted(shapes.values(), key=lambda g: -sum(self.params[i].numel() for i in g))

    def step(self, lr, decay, run=map):
        from fast import ops

        @torch.no_grad()
        def one(members):
            live = [i for i in members if self.params[i].grad is not None]
            if not live:
                return
            shape = self.params[live[0]].shape[-2:]
            parts = [ops.muon_prepare(self.params[i].grad.contiguous(), self.buffers[i], self.momentum).view(-1, *shape) for i in live]
            update = orthogonalise(parts[0] if len(parts) == 1 else torch.cat(parts))
            scale = 0.2 * max(shape) ** 0.5       # update of root mean square 0.2, as AdamW's
            for i, u in zip(live, update.split([len(x) for x in parts])):
                ops.muon_apply(self.params[i].detach(), u.contiguous(), 1 - lr * decay, lr * scale)

        list(run(one, self.groups))

    def state(self):
        return self.buffers

    def load(self, buffers):
        for b, o in zip(self.buffers, buffers):
            b.copy_(o)


def split(model):
    """(matrices for Muon, other parameters, indexer parameters, draft parameters) by name."""
    muon, adam, index, draft = [], [], [], []
    for name, p in model.named_parameters():
        if name.startswith("mtp."):
            draft.append((name, p))
        elif ".indexer." in name:
            index.append((name, p))
        elif p.dim() >= 2 and ".hc_" not in name and "embed" not in name and not name.startswith("head.") and "gate.weight" not in name \
                and "q_weight" not in name and "k_weight" not in name:
            muon.append((name, p))
        else:
            adam.append((name, p))
    return muon, adam, index, draft
