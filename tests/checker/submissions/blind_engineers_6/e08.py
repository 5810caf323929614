# expect: wrong
# why: q k is computed in the input dtype and cast to float32 after: float16 overflows to NaN
import numpy as np
import torch
import torch.nn as nn


class TriangularCausalMask:
    def __init__(self, B, L, S, device="cpu"):
        with torch.no_grad():
            self._mask = torch.triu(torch.ones((B, 1, L, S), dtype=torch.bool, device=device), diagonal=1)

    @property
    def mask(self):
        return self._mask


class ProbablePadMask:
    """Hides time steps that were not observed. observed: (B, S) bool, True = has a value."""

    def __init__(self, observed):
        self._mask = ~observed[:, None, None, :]

    @property
    def mask(self):
        return self._mask


class FullAttention(nn.Module):
    """
    queries: (B, L, H, E), keys: (B, S, H, E), values: (B, S, H, D).

    mask_flag: apply attn_mask; if none is given, a triangular causal mask is used.
    scale: default 1 / sqrt(E).
    output_attention: also return the (B, H, L, S) weights.

    Works under half precision: raw sensor channels are badly scaled, so the logits are computed in
    float32 and stay finite for every finite float16 input; the result has the dtype of the values.
    """

    def __init__(self, mask_flag=True, scale=None, attention_dropout=0.1, output_attention=False):
        super().__init__()
        self.scale = scale
        self.mask_flag = mask_flag
        self.output_attention = output_attention
        self.dropout = nn.Dropout(attention_dropout)

    def forward(self, queries, keys, values, attn_mask=None):
        B, L, H, E = queries.shape
        S = keys.shape[1]
        scale = self.scale or 1.0 / np.sqrt(E)

        scores = torch.einsum("blhe,bshe->bhls", queries, keys).float() * scale

        if self.mask_flag:
            if attn_mask is None:
                attn_mask = TriangularCausalMask(B, L, S, device=queries.device)
            scores = scores.masked_fill(attn_mask.mask, -np.inf)

        A = self.dropout(torch.softmax(scores, dim=-1)).to(values.dtype)
        V = torch.einsum("bhls,bshd->blhd", A, values)

        if self.output_attention:
            return V.contiguous(), A
        return V.contiguous(), None


class AttentionLayer(nn.Module):
    def __init__(self, attention, d_model, n_heads, d_keys=None, d_values=None):
        super().__init__()
        d_keys = d_keys or (d_model // n_heads)
        d_values = d_values or (d_model // n_heads)
        self.inner_attention = attention
        self.query_projection = nn.Linear(d_model, d_keys * n_heads)
        self.key_projection = nn.Linear(d_model, d_keys * n_heads)
        self.value_projection = nn.Linear(d_model, d_values * n_heads)
        self.out_projection = nn.Linear(d_values * n_heads, d_model)
        self.n_heads = n_heads

    def forward(self, queries, keys, values, attn_mask=None):
        B, L, _ = queries.shape
        _, S, _ = keys.shape
        H = self.n_heads
        out, attn = self.inner_attention(
            self.query_projection(queries).view(B, L, H, -1),
            self.key_projection(keys).view(B, S, H, -1),
            self.value_projection(values).view(B, S, H, -1),
            attn_mask)
        return self.out_projection(out.view(B, L, -1)), attn


class Forecaster(nn.Module):
    """Encoder-only forecaster: (B, L, n_vars) -> (B, pred_len, n_vars)."""

    def __init__(self, n_vars, seq_len, pred_len, d_model=64, n_heads=4, layers=2, dropout=0.1):
        super().__init__()
        self.embed = nn.Linear(n_vars, d_model)
        self.pos = nn.Parameter(torch.randn(seq_len, d_model) * 0.02)
        self.attn = nn.ModuleList([
            AttentionLayer(FullAttention(False, attention_dropout=dropout), d_model, n_heads) for _ in range(layers)])
        self.norm = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(layers)])
        self.head = nn.Linear(seq_len, pred_len)
        self.out = nn.Linear(d_model, n_vars)

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        h = self.embed((x - mean) / std) + self.pos
        for attn, norm in zip(self.attn, self.norm):
            h = norm(h + attn(h, h, h)[0])
        y = self.out(self.head(h.transpose(1, 2)).transpose(1, 2))
        return y * std + mean
