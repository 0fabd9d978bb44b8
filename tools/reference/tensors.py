"""Safetensors files, written and read without other packages (any PyTorch)."""
import json
import struct

import torch

NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8",
         torch.bool: "BOOL"}
TYPES = {name: dtype for dtype, name in NAMES.items()}
TYPES.update({"F8_E4M3": torch.uint8, "F8_E8M0": torch.uint8, "I8": torch.uint8})


def raw(tensor):
    t = tensor.detach().contiguous()
    if t.dtype == torch.bfloat16:
        t = t.view(torch.int16)
    return t.numpy().tobytes()


def save(path, tensors, tags=None, metadata=None):
    """tensors: name -> tensor; tags: name -> dtype tag for tensors that are bytes in another guise (F8_E4M3, F8_E8M0, I8)."""
    tags = tags or {}
    header, blobs, at = {"__metadata__": metadata or {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        blob = raw(tensors[name])
        header[name] = {"dtype": tags.get(name, NAMES[tensors[name].dtype]), "shape": list(tensors[name].shape),
                        "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for blob in blobs:
            f.write(blob)
    return at


def load(path, with_tags=False):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = bytearray(f.read())
    header.pop("__metadata__", None)
    out, tags = {}, {}
    for name, item in header.items():
        a, b = item["data_offsets"]
        dtype = TYPES[item["dtype"]]
        size = b - a
        flat = torch.frombuffer(data, dtype=torch.uint8, count=size, offset=a) if size else torch.empty(0, dtype=torch.uint8)
        flat = flat.clone().view(dtype) if dtype != torch.uint8 else flat.clone()
        out[name], tags[name] = flat.reshape(item["shape"]), item["dtype"]
    return (out, tags) if with_tags else out
