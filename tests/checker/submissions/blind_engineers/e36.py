# expect: scale-by-d-out, padding-inverted, merge-without-transpose
# why: the scale uses the full width, the padding mask hides the real tokens, and the heads are merged in the wrong axis order.
"""Code model attention: many query heads, one shared key/value head."""
import math
from typing import Any, Dict, Optional, Tuple

import torch
from torch import nn


DEFAULTS: Dict[str, Any] = {
    "n_embd": 64,
    "n_head": 8,
    "n_positions": 128,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}


def make_config(**kw) -> Dict[str, Any]:
    unknown = set(kw) - set(DEFAULTS)
    if unknown:
        raise TypeError(f"unknown options: {sorted(unknown)}")
    return {**DEFAULTS, **kw}


class MultiQueryAttention(nn.Module):
    def __init__(self, cfg: Dict[str, Any], layer_idx: Optional[int] = None):
        super().__init__()
        self.layer_idx = layer_idx
        self.embed_dim = cfg["n_embd"]
        self.num_heads = cfg["n_head"]
        self.head_dim = self.embed_dim // self.num_heads
        self.kv_dim = self.head_dim
        self.scale = 1.0 / math.sqrt(self.embed_dim)
        self.c_attn = nn.Linear(self.embed_dim, self.embed_dim + 2 * self.kv_dim)
        self.c_proj = nn.Linear(self.embed_dim, self.embed_dim)
        self.attn_dropout = nn.Dropout(cfg["attn_pdrop"])
        self.resid_dropout = nn.Dropout(cfg["resid_pdrop"])
        causal = torch.tril(torch.ones(cfg["n_positions"], cfg["n_positions"], dtype=torch.bool))
        self.register_buffer("causal", causal, persistent=False)

    def _attn(self, query, key, value, attention_mask=None):
        # query: (batch, query_length, num_heads * head_dim); key: (batch, kv_length, head_dim)
        batch_size, query_length, _ = query.shape
        key_length = key.size(1)
        query = query.reshape(batch_size, query_length * self.num_heads, self.head_dim)

        scores = torch.baddbmm(
            query.new_empty(batch_size, query_length * self.num_heads, key_length),
            query, key.transpose(1, 2), beta=0, alpha=self.scale,
        ).view(batch_size, query_length, self.num_heads, key_length)

        causal = self.causal[key_length - query_length : key_length, :key_length]
        scores = scores.masked_fill(~causal[None, :, None, :], torch.finfo(scores.dtype).min)
        if attention_mask is not None:
            padding = attention_mask[:, None, None, :].to(torch.bool)
            scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)

        probs = self.attn_dropout(torch.softmax(scores, dim=-1))
        out = torch.bmm(probs.view(batch_size, query_length * self.num_heads, key_length), value)
        out = out.view(batch_size, query_length, self.num_heads, self.head_dim).transpose(1, 2)
        return out.reshape(batch_size, query_length, self.embed_dim), probs

    def forward(
        self,
        hidden_states: torch.Tensor,
        layer_past: Optional[torch.Tensor] = None,
        attention_mask: Optional[torch.Tensor] = None,
        use_cache: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """attention_mask: (batch, kv_length), 1 for tokens, 0 for padding."""
        query, key_value = self.c_attn(hidden_states).split((self.embed_dim, 2 * self.kv_dim), dim=2)
        if layer_past is not None:
            key_value = torch.cat((layer_past, key_value), dim=-2)
        present = key_value if use_cache else None
        key, value = key_value.split((self.head_dim, self.head_dim), dim=-1)
        attn_output, _ = self._attn(query, key, value, attention_mask)
        return self.resid_dropout(self.c_proj(attn_output)), present


class Block(nn.Module):
    def __init__(self, cfg: Dict[str, Any], layer_idx: Optional[int] = None):
        super().__init__()
        self.ln_1 = nn.LayerNorm(cfg["n_embd"])
        self.attn = MultiQueryAttention(cfg, layer_idx)
        self.ln_2 = nn.LayerNorm(cfg["n_embd"])
        self.mlp = nn.Sequential(
            nn.Linear(cfg["n_embd"], 4 * cfg["n_embd"]), nn.GELU(approximate="tanh"),
            nn.Linear(4 * cfg["n_embd"], cfg["n_embd"]), nn.Dropout(cfg["resid_pdrop"]),
        )

    def forward(self, x, layer_past=None, attention_mask=None, use_cache=False):
        a, present = self.attn(self.ln_1(x), layer_past, attention_mask, use_cache)
        x = x + a
        return x + self.mlp(self.ln_2(x)), present
