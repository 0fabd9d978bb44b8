"""Released formats: what is written is what is read; the specification's byte examples; the activation exporter."""
import os
import subprocess
import sys

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import checkpoint  # noqa: E402
import config  # noqa: E402
import quant  # noqa: E402
import synthetic  # noqa: E402
import tensors  # noqa: E402
from model import Model  # noqa: E402


def test_bytes_of_the_released_checkpoint():
    """Model specification 12.4."""
    w = torch.tensor([list(bytes.fromhex("d871f2797069f0e5"))], dtype=torch.uint8)
    got = checkpoint.decode("fp8", torch.nn.functional.pad(w, (0, 24)), torch.tensor([[0x73]], dtype=torch.uint8))[0, :8]
    assert got.tolist() == [-0.00390625, 0.03515625, -0.0390625, 0.0703125, 0.03125, 0.017578125, -0.03125, -0.0126953125]
    w = torch.tensor([list(bytes.fromhex("a0a8ec4aadaf42aa"))], dtype=torch.uint8)
    got = checkpoint.decode("mxfp4", torch.nn.functional.pad(w, (0, 8)), torch.tensor([[0x78]], dtype=torch.uint8))[0, :16]
    assert got.tolist() == [0, -0.0078125, 0, -0.0078125, -0.015625, -0.03125, -0.0078125, 0.015625, -0.0234375, -0.0078125, -0.046875,
                            -0.0078125, 0.0078125, 0.015625, -0.0078125, -0.0078125]


def test_quantiser_codes():
    """Model specification 12.4: codes of x_i = (i - 15.5) 0.37."""
    x = (torch.arange(32, dtype=torch.float32) - 15.5) * torch.tensor(0.37)
    assert quant.e4m3_bytes(quant.fp8_32(x) / 2.0 ** (0x79 - 127)).numpy().tobytes().hex() == \
        "fbfbfaf9f9f8f6f5f3f2f0edeae7e1d45461676a6d70727375767879797a7b7b"
    assert quant.pack_nibbles(quant.e2m1_codes(quant.fp4_32(x))).numpy().tobytes().hex() == "ffeeeedecdbcab891032435465666677"
    assert quant.pack_nibbles(quant.e2m1_codes(quant.fp4_16(x) / 0.9375)).numpy().tobytes().hex() == "ffefeededdccab891032445565667677"


def test_round_trip(tmp_path):
    model = synthetic.fill(Model(config.T0))
    checkpoint.write(str(tmp_path), model)
    back = checkpoint.read(str(tmp_path))
    assert back.cfg == model.cfg and back.token_map == model.token_map
    for (name, kind, want), (_, _, got) in zip(checkpoint.views(model), checkpoint.views(back)):
        w = want.detach().float()
        exact = {"fp8": lambda: quant.fp8_weight(w)[0], "mxfp4": lambda: quant.mxfp4_weight(w)[0], "table": lambda: quant.fp8_rows(w)[0],
                 "bf16": lambda: w.to(torch.bfloat16).float(), "f32": lambda: w}[kind]()
        assert torch.equal(got.detach(), exact), name


def test_every_quantised_weight_has_a_scale(tmp_path):
    checkpoint.write(str(tmp_path), synthetic.fill(Model(config.T0)))
    names, tags = {}, {}
    for part in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        loaded, tag = tensors.load(str(tmp_path / part), with_tags=True)
        names.update(loaded)
        tags.update(tag)
    for name, tag in tags.items():
        if tag in ("F8_E4M3", "I8"):
            assert tags[name[:-len("weight")] + "scale"] == "F8_E8M0"
        if tag == "F8_E8M0":
            assert tags[name[:-len("scale")] + "weight"] in ("F8_E4M3", "I8")
    # Four tensors per stored name family, counted for T0: nothing is forgotten.
    assert len([n for n in names if ".experts." in n]) == (8 * 8 + 3 * 4) * 3 * 2 and "mtp.2.confidence_head.proj.weight" in names


def test_activations(tmp_path):
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "export_activations.py")
    subprocess.run([sys.executable, script, "t0", str(tmp_path), "--keep", "16"], check=True)
    got = tensors.load(str(tmp_path / "activations.safetensors"))
    assert got["layers.3.streams"].shape == (40, 4, 128) and got["layers.7.streams"].shape == (16, 4, 128)
    assert got["layers.6.selection"].sum(1).max() == 8 and got["draft.logits"].shape == (5, 256)
