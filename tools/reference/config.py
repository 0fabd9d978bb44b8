"""Configuration of a DeepSeek-V4.1 style model and everything derived from it (model specification 1, 3.2, 5.2, 11)."""
from dataclasses import dataclass, field
import json
import math


@dataclass
class Config:
    vocab: int = 256
    hidden: int = 128
    layers: int = 8
    mtp: int = 3
    heads: int = 4
    head_dim: int = 64
    rope_dim: int = 16
    q_lora: int = 64
    o_groups: int = 2
    o_lora: int = 32
    window: int = 16
    ratios: list = field(default_factory=lambda: [0, 0, 2, 2, 1, 1, 1, 1, 0, 0, 0])
    kv_sources: list = field(default_factory=lambda: [2, 4])
    index_sources: list = field(default_factory=lambda: [2, 4, 6])
    candidate_source: int = 4
    candidate_blocks: int = 3
    candidate_block: int = 4
    index_heads: int = 8
    index_dim: int = 32
    index_topk: int = 8
    experts: int = 8
    expert_topk: int = 2
    inter: int = 64
    draft_experts: int = 4
    draft_topk: int = 2
    route_scale: float = 1.5
    swiglu_limit: float = 10.0
    hc: int = 4
    hc_iters: int = 20
    hc_eps: float = 1e-6
    eps: float = 1e-20
    engram_layers: list = field(default_factory=lambda: [1, 3])
    ngram: int = 4
    engram_heads: int = 2
    engram_dim: int = 32
    engram_start: int = 61
    engram_vocab: int = 200
    engram_pad: int = 2
    theta: float = 10000.0
    compress_theta: float = 160000.0
    yarn_factor: float = 16.0
    yarn_original: int = 64
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    noise: int = 251
    taps: list = field(default_factory=lambda: [5, 6, 7])
    markov_rank: int = 32
    block: int = 5
    image_token: int = 0
    max_positions: int = 16384

    # ---- derived ----
    @property
    def half(self):
        return self.layers // 2

    def kv_source(self, layer):
        return max(s for s in self.kv_sources if s <= layer)

    def index_source(self, layer):
        return max(s for s in self.index_sources if s <= layer)

    @property
    def engram_width(self):
        return (self.ngram - 1) * self.engram_heads * self.engram_dim

    def primes(self):
        """[Engram layer][n-gram size][head]: consecutive unused primes from engram_start on."""
        used, out = set(), []
        for _ in self.engram_layers:
            sizes = []
            for _ in range(self.ngram - 1):
                p, heads = self.engram_start - 1, []
                while len(heads) < self.engram_heads:
                    p += 1
                    if p not in used and p > 1 and all(p % d for d in range(2, int(p ** 0.5) + 1)):
                        used.add(p)
                        heads.append(p)
                sizes.append(heads)
            out.append(sizes)
        return out

    def engram_rows(self):
        return [sum(map(sum, layer)) for layer in self.primes()]

    def multipliers(self):
        import numpy
        bound = max(1, ((2 ** 63 - 1) // self.engram_vocab) // 2)
        return [[2 * int(v) + 1 for v in numpy.random.default_rng(10007 * l).integers(0, bound, size=self.ngram, dtype="int64")]
                for l in self.engram_layers]

    def frequencies(self, compress):
        """Rotary frequencies, one per adjacent pair."""
        d = self.rope_dim
        if not compress:
            return [self.theta ** (-2 * i / d) for i in range(d // 2)]
        base = [self.compress_theta ** (-2 * i / d) for i in range(d // 2)]
        if not self.yarn_original:
            return base

        def c(rotations):
            return d * math.log(self.yarn_original / (2 * math.pi * rotations)) / (2 * math.log(self.compress_theta))
        low, high = max(math.floor(c(self.beta_fast)), 0), min(math.ceil(c(self.beta_slow)), d - 1)
        ramp = [min(max((i - low) / max(high - low, 0.001), 0.0), 1.0) for i in range(d // 2)]
        return [f * ((1 - t) + t / self.yarn_factor) for f, t in zip(base, ramp)]

    def check(self):
        """The constraints of model specification 11.1."""
        assert self.layers <= len(self.ratios) <= self.layers + self.mtp
        assert all(r == 0 for r in self.ratios[self.layers:])
        assert set(self.kv_sources) <= set(self.index_sources) and self.kv_sources[-1] == self.half
        assert all(r in (0, 2) for r in self.ratios[:self.half]) and all(r == 1 for r in self.ratios[self.half:self.layers])
        for l in range(self.layers):
            if self.ratios[l]:
                assert self.ratios[self.kv_source(l)] == self.ratios[l] and self.index_source(l) >= self.kv_source(l)
        assert self.candidate_source in self.kv_sources
        assert (self.candidate_blocks - 1) * self.candidate_block + 1 >= self.index_topk
        for n in (self.head_dim, self.index_dim, self.hidden, self.q_lora, self.inter, self.o_groups * self.o_lora,
                  self.engram_width, self.engram_dim, self.heads * self.head_dim // self.o_groups):
            assert n % 32 == 0
        assert self.rope_dim <= min(self.head_dim, self.index_dim) and self.rope_dim % 2 == 0
        assert all(l < self.half for l in self.engram_layers) and all(self.half <= l < self.layers for l in self.taps)
        return self

    # ---- the nested JSON form of the released config.json ----
    def to_json(self):
        text = {"model_type": "deepseek_v41_text"}
        for name, (key, _) in FIELDS.items():
            text[key] = getattr(self, name)
        text.update({
            "num_key_value_heads": 1, "attention_bias": False, "attention_dropout": 0.0, "n_shared_experts": 1,
            "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True, "hidden_act": "silu",
            "engram_num_embeddings": self.engram_rows(), "tie_word_embeddings": False, "use_cache": True,
            "initializer_range": 0.02,
            "rope_scaling": {"rope_type": "yarn", "factor": self.yarn_factor, "beta_fast": self.beta_fast,
                             "beta_slow": self.beta_slow, "original_max_position_embeddings": self.yarn_original}})
        return {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
                "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": self.image_token,
                "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                                        "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
                "text_config": text}

    @staticmethod
    def from_json(data):
        text = data["text_config"]
        values = {name: text.get(key, default) for name, (key, default) in FIELDS.items()}
        scaling = text.get("rope_scaling") or {}
        return Config(**values, yarn_factor=scaling.get("factor", 1.0), yarn_original=scaling.get("original_max_position_embeddings", 0),
                      beta_fast=scaling.get("beta_fast", 32.0), beta_slow=scaling.get("beta_slow", 1.0),
                      image_token=data.get("image_token_id", 0))

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as f:
            return Config.from_json(json.load(f))


FIELDS = {name: (key, None) for name, key in {
    "vocab": "vocab_size", "hidden": "hidden_size", "layers": "num_hidden_layers", "mtp": "num_nextn_predict_layers",
    "heads": "num_attention_heads", "head_dim": "head_dim", "rope_dim": "qk_rope_head_dim", "q_lora": "q_lora_rank",
    "o_groups": "o_groups", "o_lora": "o_lora_rank", "window": "sliding_window", "ratios": "compress_ratios",
    "kv_sources": "kv_source_layer_ids", "index_sources": "index_source_layer_ids",
    "candidate_source": "candidate_source_layer_id", "candidate_blocks": "candidate_topk_blocks",
    "candidate_block": "candidate_block_size", "index_heads": "index_n_heads", "index_dim": "index_head_dim",
    "index_topk": "index_topk", "experts": "n_routed_experts", "expert_topk": "num_experts_per_tok",
    "inter": "moe_intermediate_size", "draft_experts": "dspark_n_routed_experts", "draft_topk": "dspark_num_experts_per_tok",
    "route_scale": "routed_scaling_factor", "swiglu_limit": "swiglu_limit", "hc": "hc_mult", "hc_iters": "hc_sinkhorn_iters",
    "hc_eps": "hc_eps", "eps": "rms_norm_eps", "engram_layers": "engram_layer_ids", "ngram": "engram_max_ngram_size",
    "engram_heads": "engram_n_heads", "engram_dim": "engram_head_dim", "engram_start": "engram_vocab_size",
    "engram_vocab": "engram_compressed_vocab_size", "engram_pad": "engram_pad_token_id", "theta": "rope_theta",
    "compress_theta": "compress_rope_theta", "noise": "dspark_noise_token_id", "taps": "dspark_target_layer_ids",
    "markov_rank": "dspark_markov_rank", "block": "dspark_block_size", "max_positions": "max_position_embeddings"}.items()}

# The recommended family of model specification 11.2, and the shipped small model.
T0 = Config()
T1 = Config(vocab=512, hidden=256, heads=8, rope_dim=32, q_lora=128, o_lora=64, window=32, candidate_blocks=4, candidate_block=8,
            index_topk=16, experts=16, expert_topk=4, inter=128, draft_experts=8, draft_topk=3, engram_heads=4, engram_dim=64,
            engram_start=251, engram_vocab=400, noise=500, yarn_original=128)
T2 = Config(vocab=1024, hidden=512, layers=12, heads=16, head_dim=512, rope_dim=64, q_lora=256, o_lora=128, window=128,
            ratios=[0, 0, 2, 2, 2, 2] + [1] * 6 + [0] * 3, kv_sources=[2, 4, 6], index_sources=[2, 4, 6, 8, 10],
            candidate_source=6, candidate_blocks=16, candidate_block=8, index_heads=32, index_dim=128, index_topk=64,
            experts=16, expert_topk=6, inter=256, draft_experts=8, draft_topk=3, engram_layers=[1, 4], engram_heads=8,
            engram_dim=256, engram_start=1009, engram_vocab=800, noise=1000, taps=[9, 10, 11], markov_rank=64, yarn_original=256)
TINY = Config(vocab=4096, hidden=192, layers=10, heads=4, head_dim=128, rope_dim=32, q_lora=96, o_groups=2, o_lora=64, window=128,
              ratios=[0, 0, 2, 2, 2] + [1] * 5 + [0] * 3, kv_sources=[2, 5], index_sources=[2, 5, 8], candidate_source=5,
              candidate_blocks=128, candidate_block=8, index_heads=4, index_dim=64, index_topk=256, experts=16, expert_topk=4,
              inter=64, draft_experts=8, draft_topk=3, engram_layers=[1, 3], engram_heads=2, engram_dim=32, engram_start=8009,
              engram_vocab=2344, noise=4079, taps=[7, 8, 9], markov_rank=32, yarn_original=1024, image_token=4095)
FAMILY = {"t0": T0, "t1": T1, "t2": T2, "tiny": TINY}
