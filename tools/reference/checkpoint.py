"""Names and formats of the released checkpoint (model specification 9) for a Model, in both directions.

`views` yields (checkpoint name, kind, tensor view) for every tensor; loading copies into the view, exporting encodes it.
Kinds: bf16, f32, fp8 (32x32 tiles), mxfp4 (per 32 columns), table (E4M3 rows, scale per 32 columns).
"""
import torch

FP8 = ("wq_a", "wq_b", "wkv", "wo_a", "wo_b", "main_proj")


def kind_of(name):
    parts = name.split(".")
    if "compressor" in parts or name.startswith(("embed.", "head.", "norm.")):
        return "bf16"
    if parts[-1] in ("attn_sink", "bias", "bias_vl") or parts[-1].startswith("hc_"):
        return "f32"
    if name.endswith("engram.embed.weight"):
        return "table"
    if "shared_experts" in parts or parts[-2] in FP8:
        return "fp8"
    return "bf16"


def views(model):
    for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
        if ".experts.w" in name and "shared" not in name:
            base, part = name.rsplit(".", 1)
            for e in range(tensor.shape[0]):
                yield f"{base}.{e}.{part}.weight", "mxfp4", tensor[e]
        else:
            yield name, kind_of(name), tensor


def load(model, tensors):
    """Copies `tensors` (name -> tensor of dequantised values, or a callable) into the model."""
    get = tensors if callable(tensors) else tensors.__getitem__
    with torch.no_grad():
        for name, _, view in views(model):
            view.copy_(get(name).reshape(view.shape))
    return model


def encode(kind, view):
    """(weight tensor, dtype tag, scale tensor or None) of one tensor in its released format."""
    import quant
    w = view.detach().float()
    if kind == "fp8":
        values, scale = quant.fp8_weight(w)
        full = scale.repeat_interleave(32, 0)[:w.shape[0]].repeat_interleave(32, 1)[:, :w.shape[1]]
        return quant.e4m3_bytes(values / full), "F8_E4M3", quant.e8m0_bytes(scale)
    if kind == "table":
        values, scale = quant.fp8_rows(w)
        return quant.e4m3_bytes(values / scale.repeat_interleave(32, 1)), "F8_E4M3", quant.e8m0_bytes(scale)
    if kind == "mxfp4":
        values, scale = quant.mxfp4_weight(w)
        return quant.pack_nibbles(quant.e2m1_codes(values / scale.repeat_interleave(32, 1))), "I8", quant.e8m0_bytes(scale)
    return (w, "F32", None) if kind == "f32" else (w.to(torch.bfloat16), "BF16", None)


def decode(kind, weight, scale):
    """The fp32 values that a stored tensor means."""
    if kind in ("bf16", "f32"):
        return weight.float()
    factor = torch.ldexp(torch.ones(scale.shape), scale.to(torch.int32) - 127)
    if kind == "mxfp4":
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
        nibbles = torch.stack((weight & 15, weight >> 4), -1).flatten(-2).long()
        return grid[nibbles] * factor.repeat_interleave(32, 1)
    b = weight.to(torch.int32)
    exponent, mantissa = (b >> 3) & 15, (b & 7).float()
    value = torch.where(exponent > 0, torch.ldexp(1 + mantissa / 8, exponent - 7), mantissa / 512) * torch.where(b > 127, -1.0, 1.0)
    if kind == "fp8":
        return value * factor.repeat_interleave(32, 0)[:b.shape[0]].repeat_interleave(32, 1)[:, :b.shape[1]]
    return value * factor.repeat_interleave(32, 1)


def write(folder, model, shards=2):
    """Writes safetensors shards, their index, config.json and engram_token_map.i32 (section 9). Returns payload bytes."""
    import json
    import os
    import struct

    import tensors
    os.makedirs(folder, exist_ok=True)
    parts, where, sizes = [({}, {}) for _ in range(shards)], {}, 0
    for name, kind, view in views(model):
        weight, tag, scale = encode(kind, view)
        # The Engram tables have a shard of their own, as in the release.
        shard = shards - 1 if kind == "table" else 0
        files, tags = parts[shard]
        files[name], tags[name] = weight, tag
        if scale is not None:
            other = name[:-len("weight")] + "scale"
            files[other], tags[other] = scale, "F8_E8M0"
            where[other] = shard
        where[name] = shard
    for i, (files, tags) in enumerate(parts):
        sizes += tensors.save(os.path.join(folder, f"model-{i + 1:05d}-of-{shards:05d}.safetensors"), files, tags)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": sizes}, "weight_map": {n: f"model-{s + 1:05d}-of-{shards:05d}.safetensors" for n, s in sorted(where.items())}},
                  f, indent=1)
        f.write("\n")
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(model.cfg.to_json(), f, indent=2)
        f.write("\n")
    with open(os.path.join(folder, "engram_token_map.i32"), "wb") as f:
        f.write(struct.pack(f"<{len(model.token_map)}i", *model.token_map))
    return sizes


def read(folder):
    """A Model with the dequantised weights of a checkpoint folder."""
    import json
    import os
    import struct

    import tensors
    from config import Config
    from model import Model
    with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as f:
        names = sorted(set(json.load(f)["weight_map"].values()))
    stored = {}
    for n in names:
        stored.update(tensors.load(os.path.join(folder, n)))
    with open(os.path.join(folder, "engram_token_map.i32"), "rb") as f:
        data = f.read()
    model = Model(Config.load(os.path.join(folder, "config.json")), list(struct.unpack(f"<{len(data) // 4}i", data)))
    kinds = {name: kind for name, kind, _ in views(model)}
    return load(model, lambda name: decode(kinds[name], stored[name], stored.get(name[:-len("weight")] + "scale")))
