# expect: wrong
# why: the fused qkv is split as (3, heads, size) although its layout is (heads, 3, size)
"""Attention of the GPT-NeoX family with fused qkv and partial rotary embeddings."""
from dataclasses import dataclass
from typing import Optional, Tuple

import torch
from torch import nn


@dataclass
class NeoXArgs:
    hidden_size: int = 128
    num_attention_heads: int = 4
    rotary_pct: float = 0.25
    rotary_emb_base: int = 10000
    max_position_embeddings: int = 256


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


class NeoXAttention(nn.Module):
    """Causal multi-head attention.

    The rows of ``query_key_value`` are stored head by head as in the Megatron checkpoints:
    ``[q_0; k_0; v_0; q_1; k_1; v_1; ...]``, each block ``head_size`` rows. Use
    :meth:`load_split_weights` to fill it from separate q/k/v matrices.

    forward:
        hidden_states: (B, T, hidden)
        attention_mask: (B, S) with 1 for tokens and 0 for padding, S = cached + T
        layer_past: (k, v) of the cached tokens, each (B, H, P, head_size)
        use_cache: also return the new (k, v)
    """

    def __init__(self, args: NeoXArgs):
        super().__init__()
        self.hidden_size = args.hidden_size
        self.num_heads = args.num_attention_heads
        self.head_size = self.hidden_size // self.num_heads
        self.rotary_ndims = int(self.head_size * args.rotary_pct)
        self.norm_factor = self.head_size ** -0.5
        self.query_key_value = nn.Linear(args.hidden_size, 3 * args.hidden_size)
        self.dense = nn.Linear(args.hidden_size, args.hidden_size)

        inv = 1.0 / (args.rotary_emb_base ** (torch.arange(0, self.rotary_ndims, 2).float() / self.rotary_ndims))
        ang = torch.outer(torch.arange(args.max_position_embeddings).float(), inv)
        emb = torch.cat((ang, ang), dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)

    @torch.no_grad()
    def load_split_weights(self, wq, wk, wv, bq, bk, bv):
        """wq, wk, wv: (hidden, hidden) as of three nn.Linear, heads contiguous; b*: (hidden,)."""
        w = torch.stack([t.view(self.num_heads, self.head_size, -1) for t in (wq, wk, wv)], dim=1)
        b = torch.stack([t.view(self.num_heads, self.head_size) for t in (bq, bk, bv)], dim=1)
        self.query_key_value.weight.copy_(w.reshape(3 * self.hidden_size, -1))
        self.query_key_value.bias.copy_(b.reshape(-1))

    def _rope(self, x, start):
        n = self.rotary_ndims
        cos = self.cos_cached[start:start + x.shape[2]].to(x.dtype)
        sin = self.sin_cached[start:start + x.shape[2]].to(x.dtype)
        rot, rest = x[..., :n], x[..., n:]
        return torch.cat((rot * cos + rotate_half(rot) * sin, rest), dim=-1)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None,
                layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None, use_cache: bool = False):
        B, T, _ = hidden_states.shape
        past = 0 if layer_past is None else layer_past[0].shape[2]

        qkv = self.query_key_value(hidden_states)
        qkv = qkv.view(B, T, 3, self.num_heads, self.head_size)
        query, key, value = (t.transpose(1, 2) for t in qkv.unbind(2))

        query, key = self._rope(query, past), self._rope(key, past)
        if layer_past is not None:
            key = torch.cat((layer_past[0], key), dim=2)
            value = torch.cat((layer_past[1], value), dim=2)

        S = key.shape[2]
        scores = torch.matmul(query, key.transpose(-1, -2)) * self.norm_factor
        visible = torch.ones(T, S, dtype=torch.bool, device=scores.device).tril(S - T)[None, None]
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None, :].bool()
        scores = scores.float().masked_fill(~visible, torch.finfo(torch.float32).min)
        probs = torch.softmax(scores, dim=-1).to(value.dtype)

        out = torch.matmul(probs, value).transpose(1, 2).reshape(B, T, self.hidden_size)
        return self.dense(out), ((key, value) if use_cache else None)
