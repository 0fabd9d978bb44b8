"""Greedy answers of trained weights or of an exported model, by plain recomputation (for a look, not for speed).

    python tools/train/sample.py [--weights FILE | --model FOLDER] [--thinking] "prompt" ...
"""
import argparse
import os
import sys

os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "reference")]
import template  # noqa: E402
import train as main_lib  # noqa: E402
from data import Encoder  # noqa: E402


@torch.no_grad()
def answer(fast, encoder, text, thinking, limit=80):
    ids = encoder.sample(template.render([{"role": "user", "content": text}], thinking))[0]
    start = len(ids)
    while len(ids) < start + limit and ids[-1] != 1:
        t = torch.tensor([ids + [2] * (len(ids) % 2)])
        logits = fast.logits(fast.forward(fast.batch(t, torch.zeros_like(t)), select=True))
        ids.append(int(logits[len(ids) - 1].argmax()))
    return encoder.tok.decode(ids[start:], skip_special_tokens=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--weights", default="")
    parser.add_argument("--model", default=main_lib.MODEL_DIR)
    parser.add_argument("--thinking", action="store_true")
    args = parser.parse_args()
    from fast import Fast
    if args.weights:
        m = main_lib.build_model()
        main_lib.load_weights(m, args.weights)
    else:
        import checkpoint
        m = checkpoint.read(args.model)
    f, e = Fast(m, quantise_weights=bool(args.weights)), Encoder(os.path.join(main_lib.MODEL_DIR, "tokenizer.json"))
    for p in args.prompts:
        print(f"> {p}\n{answer(f, e, p, args.thinking)}")
