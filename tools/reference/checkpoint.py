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
