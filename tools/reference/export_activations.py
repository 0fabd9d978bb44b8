"""Writes a random checkpoint in the released formats and the reference's activations on it, layer by layer.

    python3 tools/reference/export_activations.py t0 OUT [--length N] [--keep K] [--plain]

OUT gets the checkpoint (config.json, model.safetensors.index.json, shards, engram_token_map.i32) and activations.safetensors:
tokens I32 [T]; per layer l: layers.l.streams [T, hc, H], .pre [T, hc], .attention, .moe [T, H], .queries [T, heads, d],
.latents [T, d], and where the layer has them .main [E, d], .index_keys [E, i], .index_scores [T, E], .selection and .pool U8
[T, E], .route I64 [T, k], .engram_rows I64, .engram_gate [T, hc]; logits [T', V], taps [T', 3H]; after that one draft pass on
the argmax of the last row: draft.tokens I32 [5], draft.confidence [5], draft.logits [5, V]. Values are fp64 arithmetic on the
dequantised weights stored as F32, cache quantisers on unless --plain, no activation quantisation. With --keep K the decoder
layers hold the last K rows only (bounded prefill).
"""
import argparse
import os
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import checkpoint  # noqa: E402
import config  # noqa: E402
import synthetic  # noqa: E402
import tensors  # noqa: E402
from model import Model, State  # noqa: E402


def activations(model, tokens, keep=None):
    state, trace = State(model.cfg), []
    logits, taps, positions = model(tokens, state, keep=keep, trace=trace)
    out = {"tokens": torch.tensor(tokens, dtype=torch.int32), "logits": logits, "taps": taps}
    for l, record in enumerate(trace):
        for name, value in record.items():
            out[f"layers.{l}.{name}"] = value.to(torch.uint8) if value.dtype == torch.bool else value
    model.feed(state, taps, positions)
    drafts, confidence, corrected = model.draft(state, int(logits[-1].argmax()), len(tokens))
    out.update({"draft.tokens": torch.tensor(drafts, dtype=torch.int32), "draft.confidence": torch.tensor(confidence), "draft.logits": corrected})
    return {k: v.float() if v.is_floating_point() else v for k, v in out.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config", choices=list(config.FAMILY))
    parser.add_argument("out")
    parser.add_argument("--length", type=int, default=0)
    parser.add_argument("--keep", type=int, default=None)
    parser.add_argument("--plain", action="store_true", help="no cache quantisers")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    cfg = config.FAMILY[args.config]
    checkpoint.write(args.out, synthetic.fill(Model(cfg)))
    model = checkpoint.read(args.out).double()
    model.quantise = not args.plain
    length = args.length or {"t0": 40, "t1": 120, "t2": 260, "tiny": 300}[args.config]
    result = activations(model, synthetic.prompt(length), args.keep)
    size = tensors.save(os.path.join(args.out, "activations.safetensors"), result)
    print(f"{args.out}: {len(result)} tensors, {size} bytes")


if __name__ == "__main__":
    main()
