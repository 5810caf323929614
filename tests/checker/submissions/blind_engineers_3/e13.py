# expect: kv-heads-in-other-order
# why: KV heads are tiled with repeat (line 59 and the next line for v): query head h reads kv head h % n_kv, while the docstring/HF checkpoints require h // n_rep (repeat_interleave), so loaded weights give wrong outputs.
"""Inference port of our Mistral checkpoints.  Weights come straight from the HF
safetensors (q_proj / k_proj / v_proj / o_proj), so the head layout has to be HF's:
query head h reads key/value head h // (n_heads // n_kv_heads).
"""
import json
import math

import torch
import torch.nn as nn

DEFAULT = json.loads("""{
    "hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2,
    "rope_theta": 1000000.0, "sliding_window": null
}""")


class RotaryCache:
    def __init__(self, dim, theta, max_pos=4096):
        inv = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        ang = torch.arange(max_pos, dtype=torch.float64)[:, None] * inv[None]
        ang = torch.cat([ang, ang], dim=-1)
        self.cos, self.sin = ang.cos().float(), ang.sin().float()

    def __call__(self, x, start):
        T, half = x.shape[2], x.shape[3] // 2
        cos, sin = self.cos[start:start + T].to(x), self.sin[start:start + T].to(x)
        rot = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return x * cos + rot * sin


class MistralAttention(nn.Module):
    def __init__(self, cfg=DEFAULT):
        super().__init__()
        d = cfg["hidden_size"]
        self.n_heads = cfg["num_attention_heads"]
        self.n_kv = cfg["num_key_value_heads"]
        self.head_dim = d // self.n_heads
        self.window = cfg.get("sliding_window")
        self.q_proj = nn.Linear(d, self.n_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(d, self.n_kv * self.head_dim, bias=False)
        self.v_proj = nn.Linear(d, self.n_kv * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.n_heads * self.head_dim, d, bias=False)
        self.rope = RotaryCache(self.head_dim, cfg["rope_theta"])

    def _split(self, t, n):
        return t.unflatten(-1, (n, self.head_dim)).transpose(1, 2)

    def forward(self, x, kv=None):
        start = kv[0].shape[2] if kv is not None else 0
        q = self.rope(self._split(self.q_proj(x), self.n_heads), start)
        k = self.rope(self._split(self.k_proj(x), self.n_kv), start)
        v = self._split(self.v_proj(x), self.n_kv)
        if kv is not None:
            k, v = torch.cat([kv[0], k], 2), torch.cat([kv[1], v], 2)
        new_kv = (k, v)

        # share each kv head between a group of query heads
        n_rep = self.n_heads // self.n_kv
        k = k.repeat(1, n_rep, 1, 1)
        v = v.repeat(1, n_rep, 1, 1)

        q_pos = torch.arange(start, start + q.shape[2], device=x.device)[:, None]
        k_pos = torch.arange(k.shape[2], device=x.device)[None, :]
        keep = k_pos <= q_pos
        if self.window is not None:
            keep &= q_pos - k_pos < self.window
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(self.head_dim)
        probs = scores.masked_fill(~keep, float("-inf")).float().softmax(-1).to(v.dtype)
        y = torch.einsum("bhqk,bhkd->bqhd", probs, v).flatten(2)
        return self.o_proj(y), new_kv


def load_layer(state_dict, layer, cfg=DEFAULT):
    attn = MistralAttention(cfg)
    prefix = f"model.layers.{layer}.self_attn."
    attn.load_state_dict({k[len(prefix):]: v for k, v in state_dict.items() if k.startswith(prefix)})
    return attn.eval()
