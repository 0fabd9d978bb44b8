"""Synthetic weights of model specification 12.7: every value is a hash of tensor name and index."""
import math

import numpy as np
import torch


def fnv(name):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def uniform(name, count):
    """`count` values in [-1, 1)."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv(name)) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / (1 << 24) * 2 - 1


def value(name, shape):
    u = torch.from_numpy(uniform(name, int(np.prod(shape)))).reshape(shape)
    last = name.split(".")[-1]
    if name.endswith("engram.embed.weight"):
        return u * math.sqrt(3)
    if name in ("embed.weight",) or name.endswith("markov_head.embed.weight"):
        return u
    if last == "attn_sink":
        return u
    if last == "bias":
        return 0.1 * u
    if last == "bias_vl":
        return torch.zeros(shape, dtype=torch.float64)
    if last.startswith("hc_") and last.endswith("_base"):
        return 0.5 * u
    if last in ("q_weight", "k_weight") or last.endswith("_scale") or len(shape) == 1:
        return 1 + 0.25 * u
    return u * math.sqrt(3 / shape[-1])


def fill(model):
    """Loads the synthetic weights in double precision."""
    import checkpoint
    model.double()
    shapes = {name: tuple(view.shape) for name, _, view in checkpoint.views(model)}
    return checkpoint.load(model, lambda name: value(name, shapes[name]))


def prompt(length):
    return [(7 + 37 * t + t * t) % 250 for t in range(length)]
