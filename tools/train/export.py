"""Writes trained weights as models/deepinfer-tiny in the released formats, and checks that they read back as trained.

    python tools/train/export.py --weights FILE [--out FOLDER]
"""
import argparse
import json
import os
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import torch  # noqa: E402

import checkpoint  # noqa: E402
import train as main_lib  # noqa: E402

GENERATION = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "do_sample": False, "max_new_tokens": 256}


def export(weights, out):
    """Returns payload bytes."""
    model = main_lib.build_model()
    missing = main_lib.load_weights(model, weights)
    assert not missing, f"weights lack {missing[:3]}"
    compressed = max(model.token_map) + 1
    assert compressed == model.cfg.engram_vocab, f"tokenizer gives {compressed} compressed ids, the configuration says {model.cfg.engram_vocab}"
    size = checkpoint.write(out, model)
    with open(os.path.join(out, "generation_config.json"), "w", encoding="utf-8") as f:
        json.dump(GENERATION, f, indent=2)
        f.write("\n")
    source = os.path.join(main_lib.MODEL_DIR, "tokenizer.json")
    if os.path.abspath(out) != os.path.abspath(main_lib.MODEL_DIR):
        shutil.copy(source, out)
    # The stored weights are those the trainer computed with (its fake quantisation is the shipped format).
    back = checkpoint.read(out)
    with torch.no_grad():
        for (name, kind, want), (_, _, got) in zip(checkpoint.views(model), checkpoint.views(back)):
            error = float((want - got).norm() / want.norm().clamp(min=1e-9))
            assert error < {"bf16": 0.004, "f32": 1e-6, "fp8": 0.04, "table": 0.04, "mxfp4": 0.2}[kind], (name, error)
    return size


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", default=main_lib.MODEL_DIR)
    a = parser.parse_args()
    print(f"{a.out}: {export(a.weights, a.out)} bytes of tensors")
