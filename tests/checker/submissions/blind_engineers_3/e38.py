# expect: correct
"""Qwen3-style attention: per-head QK RMSNorm, GQA, rope, growing KV cache, SDPA."""
from dataclasses import dataclass
from typing import Dict, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Qwen3Args:
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 96
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    vocab_size: int = 120


class DynamicCache:
    def __init__(self):
        self.layers: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}

    def seq_len(self, idx=0):
        return self.layers[idx][0].shape[2] if idx in self.layers else 0

    def update(self, idx, k, v):
        if idx in self.layers:
            pk, pv = self.layers[idx]
            k, v = torch.cat((pk, k), dim=2), torch.cat((pv, v), dim=2)
        self.layers[idx] = (k, v)
        return k, v


def rope_tables(args: Qwen3Args, position_ids):
    inv = 1.0 / args.rope_theta ** (torch.arange(0, args.head_dim, 2, device=position_ids.device).float() / args.head_dim)
    freqs = position_ids[..., None].float() * inv
    emb = torch.cat((freqs, freqs), dim=-1)[:, None]
    return emb.cos(), emb.sin()


def apply_rope(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-b, a), dim=-1) * sin.to(x.dtype)


class Qwen3Attention(nn.Module):
    def __init__(self, args: Qwen3Args, layer_idx: int):
        super().__init__()
        self.layer_idx = layer_idx
        self.head_dim = args.head_dim
        self.q_proj = nn.Linear(args.hidden_size, args.num_attention_heads * args.head_dim, bias=False)
        self.k_proj = nn.Linear(args.hidden_size, args.num_key_value_heads * args.head_dim, bias=False)
        self.v_proj = nn.Linear(args.hidden_size, args.num_key_value_heads * args.head_dim, bias=False)
        self.o_proj = nn.Linear(args.num_attention_heads * args.head_dim, args.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(args.head_dim, eps=args.rms_norm_eps)     # unlike olmo, only on the head dim
        self.k_norm = nn.RMSNorm(args.head_dim, eps=args.rms_norm_eps)

    def forward(self, x, cos, sin, attn_mask=None, cache=None):
        B, T, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(B, T, -1, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(B, T, -1, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(B, T, -1, self.head_dim).transpose(1, 2)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        if cache is not None:
            k, v = cache.update(self.layer_idx, k, v)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask,
            is_causal=attn_mask is None and T > 1,
            enable_gqa=True,
        )
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class Qwen3Layer(nn.Module):
    def __init__(self, args, idx):
        super().__init__()
        self.self_attn = Qwen3Attention(args, idx)
        self.gate_up = nn.Linear(args.hidden_size, 2 * args.intermediate_size, bias=False)
        self.down = nn.Linear(args.intermediate_size, args.hidden_size, bias=False)
        self.ln1 = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.ln2 = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def forward(self, x, *a, **kw):
        x = x + self.self_attn(self.ln1(x), *a, **kw)
        gate, up = self.gate_up(self.ln2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Qwen3(nn.Module):
    def __init__(self, args: Qwen3Args):
        super().__init__()
        self.args = args
        self.embed = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = nn.ModuleList(Qwen3Layer(args, i) for i in range(args.num_hidden_layers))
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def forward(self, ids, cache=None):
        B, T = ids.shape
        past = cache.seq_len() if cache is not None else 0
        pos = torch.arange(past, past + T, device=ids.device)
        cos, sin = rope_tables(self.args, pos[None])
        attn_mask = None
        if past > 0 and T > 1:      # chunked prefill: is_causal would align to the wrong corner
            attn_mask = torch.arange(past + T, device=ids.device)[None, :] <= pos[:, None]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, attn_mask=attn_mask, cache=cache)
        return self.norm(x) @ self.embed.weight.t()


if __name__ == "__main__":
    torch.manual_seed(0)
    model, ids = Qwen3(Qwen3Args()).eval(), torch.randint(0, 120, (2, 12))
    cache = DynamicCache()
    parts = [model(ids[:, :5], cache), model(ids[:, 5:9], cache)] + [model(ids[:, i:i + 1], cache) for i in range(9, 12)]
    print((torch.cat(parts, 1) - model(ids)).abs().max())
