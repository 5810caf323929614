# expect: correct
# why: right though the ALiBi bias depends on the key position only: softmax is invariant to a shift of the row
"""BLOOM-like attention: fused per-head qkv, ALiBi as a bias over key positions."""
import math
from typing import Optional, Tuple

import torch
from torch import nn
from torch.nn import functional as F


def build_alibi_tensor(attention_mask: torch.Tensor, num_heads: int) -> torch.Tensor:
    """
    The bias depends on the key position only. softmax is invariant to a shift of a whole row, so
    slope * key_pos gives the same weights as slope * (key_pos - query_pos).
    Returns (batch, num_heads, 1, seq).
    """
    closest = 2 ** math.floor(math.log2(num_heads))
    base = 2 ** (-(2 ** -(math.log2(closest) - 3)))
    slopes = torch.pow(torch.tensor(base), torch.arange(1, 1 + closest))
    if closest != num_heads:
        extra_base = 2 ** (-(2 ** -(math.log2(2 * closest) - 3)))
        n_extra = min(closest, num_heads - closest)
        slopes = torch.cat([slopes, torch.pow(torch.tensor(extra_base), torch.arange(1, 1 + 2 * n_extra, 2))])
    position = (attention_mask.cumsum(dim=-1) - 1) * attention_mask
    return slopes.to(attention_mask.device)[None, :, None, None] * position[:, None, None, :]


class BloomAttention(nn.Module):
    def __init__(self, hidden_size: int, n_head: int, attention_dropout: float = 0.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_heads = n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_dropout = nn.Dropout(attention_dropout)

    def _split_heads(self, fused_qkv: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, s, _ = fused_qkv.shape
        fused_qkv = fused_qkv.view(b, s, self.num_heads, 3, self.head_dim)
        return tuple(fused_qkv[..., i, :].transpose(1, 2) for i in range(3))

    def forward(self, hidden_states: torch.Tensor, alibi: torch.Tensor, causal_mask: torch.Tensor,
                layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        b, s, _ = hidden_states.shape
        query, key, value = self._split_heads(self.query_key_value(hidden_states))
        if layer_past is not None:
            key = torch.cat((layer_past[0], key), dim=2)
            value = torch.cat((layer_past[1], value), dim=2)
        kv = key.shape[2]

        scores = torch.baddbmm(
            alibi.expand(b, self.num_heads, 1, kv).reshape(b * self.num_heads, 1, kv),
            query.reshape(b * self.num_heads, s, self.head_dim),
            key.reshape(b * self.num_heads, kv, self.head_dim).transpose(1, 2),
            beta=1.0, alpha=self.inv_norm_factor,
        ).view(b, self.num_heads, s, kv)
        scores = scores.masked_fill(causal_mask, torch.finfo(scores.dtype).min)
        probs = self.attention_dropout(F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype))
        context = torch.matmul(probs, value)
        return self.dense(context.transpose(1, 2).reshape(b, s, self.hidden_size)), (key, value)


class BloomModel(nn.Module):
    def __init__(self, vocab: int = 80, hidden: int = 48, heads: int = 6, layers: int = 2):
        super().__init__()
        self.heads = heads
        self.emb = nn.Embedding(vocab, hidden)
        self.emb_ln = nn.LayerNorm(hidden)
        self.ln = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(layers)])
        self.attn = nn.ModuleList([BloomAttention(hidden, heads) for _ in range(layers)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.GELU(),
                                                nn.Linear(4 * hidden, hidden)) for _ in range(layers)])

    def forward(self, input_ids, attention_mask=None, past=None):
        """attention_mask covers past and new tokens: (batch, past + new)."""
        past_len = 0 if past is None else past[0][0].shape[2]
        b, s = input_ids.shape
        if attention_mask is None:
            attention_mask = torch.ones(b, past_len + s, dtype=torch.long, device=input_ids.device)
        alibi = build_alibi_tensor(attention_mask, self.heads)
        q_pos = torch.arange(past_len, past_len + s, device=input_ids.device)[:, None]
        k_pos = torch.arange(past_len + s, device=input_ids.device)[None, :]
        mask = (k_pos > q_pos)[None, None] | (attention_mask == 0)[:, None, None, :]
        x, presents = self.emb_ln(self.emb(input_ids)), []
        for i, (ln, attn, mlp) in enumerate(zip(self.ln, self.attn, self.mlp)):
            y, kv = attn(ln(x), alibi, mask, None if past is None else past[i])
            presents.append(kv)
            x = x + y
            x = x + mlp(x)
        return x, presents
