"""Number formats of the model (model specification 8): cache quantisers and weight formats.

Cache quantisers return the dequantised value; `straight_through` lets gradients pass unchanged. Works in any floating
type; block scales are computed in fp32 as the specification says, grids are exact powers of two.
"""
import torch


def _steps(a, low, bits):
    """Spacing of a binary floating grid with `bits` mantissa bits at |a|, exponents not below `low`."""
    _, e = torch.frexp(torch.clamp(a, min=2.0 ** low))
    return torch.ldexp(torch.ones_like(a), e - 1 - bits)


def to_grid(x, low, bits):
    """Rounds to nearest even on a grid: e4m3 is (-6, 3), e2m1 is (0, 1)."""
    step = _steps(x.abs(), low, bits)
    return torch.round(x / step) * step


def power_of_two_ceil(v):
    m, e = torch.frexp(v)
    return torch.ldexp(torch.ones_like(v), torch.where(m > 0.5, e, e - 1))


def _blocks(x, block, scale_of, top, low, bits):
    z = x.float().reshape(x.shape[:-1] + (-1, block))
    scale = scale_of(z.abs().amax(-1, keepdim=True))
    y = torch.clamp(z / scale, -top, top)
    return (to_grid(y, low, bits) * scale).reshape(x.shape).to(x.dtype)


def fp8_32(x):
    return _blocks(x, 32, lambda a: power_of_two_ceil(a.clamp(min=1e-4) * torch.tensor(1 / 448, dtype=torch.float32)), 448.0, -6, 3)


def fp4_32(x):
    return _blocks(x, 32, lambda a: power_of_two_ceil(a.clamp(min=6 * 2.0 ** -126) * torch.tensor(1 / 6, dtype=torch.float32)), 6.0, 0, 1)


def fp4_16(x):
    return _blocks(x, 16, lambda a: to_grid(a.clamp(min=6 * 2.0 ** -9) / 6, -6, 3).clamp(max=448.0), 6.0, 0, 1)


def straight_through(quantiser, x):
    return x + (quantiser(x.detach()) - x.detach())


# ---- weights ----------------------------------------------------------------------------------------------------

def fp8_tile_scale(w):
    """Power-of-two scale per 32x32 tile of a [o, i] matrix, as [ceil(o/32), ceil(i/32)]."""
    o, i = w.shape
    padded = torch.nn.functional.pad(w, (0, -i % 32, 0, -o % 32)).reshape(-(-o // 32), 32, -(-i // 32), 32)
    return power_of_two_ceil(padded.abs().amax((1, 3)).float().clamp(min=2.0 ** -100) / 448)


def fp8_weight(w):
    """Nearest FP8 weight in 32x32 tiles; returns (values, scales)."""
    scale = fp8_tile_scale(w)
    full = scale.repeat_interleave(32, 0)[:w.shape[0]].repeat_interleave(32, 1)[:, :w.shape[1]]
    return to_grid(torch.clamp(w / full, -448, 448), -6, 3) * full, scale


def mxfp4_weight(w):
    """Nearest MXFP4 weight, one scale per 32 columns of a row; any leading dimensions. Returns (values, scales)."""
    z = w.reshape(w.shape[:-1] + (-1, 32))
    scale = power_of_two_ceil(z.abs().amax(-1, keepdim=True).float().clamp(min=2.0 ** -100) / 6)
    q = to_grid(torch.clamp(z / scale, -6, 6), 0, 1) * scale
    return q.reshape(w.shape), scale.squeeze(-1)


def fp8_rows(w):
    """Engram table format: E4M3 with one scale per 32 columns of a row."""
    z = w.reshape(w.shape[:-1] + (-1, 32))
    scale = power_of_two_ceil(z.abs().amax(-1, keepdim=True).float().clamp(min=2.0 ** -100) / 448)
    return (to_grid(torch.clamp(z / scale, -448, 448), -6, 3) * scale).reshape(w.shape), scale.squeeze(-1)


def e8m0_bytes(scale):
    _, e = torch.frexp(scale)
    return (e - 1 + 127).to(torch.uint8)


def e4m3_bytes(x):
    """Codes of values that lie on the E4M3 grid."""
    a = x.abs().double()
    _, e = torch.frexp(a.clamp(min=2.0 ** -6))
    e = e - 1
    normal = a >= 2.0 ** -6
    mantissa = torch.where(normal, a / torch.ldexp(torch.ones_like(a), e) * 8 - 8, a * 512).round().to(torch.int64)
    exponent = torch.where(normal, e + 7, torch.zeros_like(e)).to(torch.int64)
    return (exponent * 8 + mantissa + 128 * (torch.signbit(x)).to(torch.int64)).to(torch.uint8)


def e2m1_codes(x):
    """Four-bit codes of values that lie on the E2M1 grid."""
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float32)
    return (torch.bucketize(x.abs().float(), grid - 0.1) - 1 + 8 * torch.signbit(x).to(torch.int64)).to(torch.uint8)


def pack_nibbles(codes):
    return codes[..., 0::2] | (codes[..., 1::2] << 4)
