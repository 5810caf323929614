# expect: dropout-in-eval
# why: F.dropout is called without training=self.training, so attention weights are dropped in eval too.
"""Patch-based decoder for univariate forecasting (channel independent)."""
import argparse
from math import sqrt

import torch
import torch.nn as nn
import torch.nn.functional as F


class TriangularCausalMask:
    def __init__(self, B, L, device="cpu"):
        mask_shape = [B, 1, L, L]
        with torch.no_grad():
            self._mask = torch.triu(torch.ones(mask_shape, dtype=torch.bool), diagonal=1).to(device)

    @property
    def mask(self):
        return self._mask


class FullAttention(nn.Module):
    def __init__(self, mask_flag=True, scale=None, attention_dropout=0.1, output_attention=False):
        super(FullAttention, self).__init__()
        self.scale = scale
        self.mask_flag = mask_flag
        self.output_attention = output_attention
        self.attention_dropout = attention_dropout

    def forward(self, queries, keys, values, attn_mask=None):
        B, L, H, E = queries.shape
        _, S, _, D = values.shape
        scale = self.scale or 1. / sqrt(E)

        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        if self.mask_flag:
            if attn_mask is None:
                attn_mask = TriangularCausalMask(B, L, device=queries.device)
            scores.masked_fill_(attn_mask.mask, float("-inf"))

        A = F.dropout(torch.softmax(scale * scores, dim=-1), self.attention_dropout)
        V = torch.einsum("bhls,bshd->blhd", A, values)
        return (V.contiguous(), A) if self.output_attention else (V.contiguous(), None)


class AttentionLayer(nn.Module):
    def __init__(self, attention, d_model, n_heads, d_keys=None, d_values=None):
        super(AttentionLayer, self).__init__()
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
        queries = self.query_projection(queries).view(B, L, H, -1)
        keys = self.key_projection(keys).view(B, S, H, -1)
        values = self.value_projection(values).view(B, S, H, -1)
        out, attn = self.inner_attention(queries, keys, values, attn_mask)
        return self.out_projection(out.view(B, L, -1)), attn


class Model(nn.Module):
    def __init__(self, configs):
        super(Model, self).__init__()
        self.patch_len = configs.patch_len
        self.embed = nn.Linear(configs.patch_len, configs.d_model)
        self.pos = nn.Parameter(torch.zeros(1, configs.max_patches, configs.d_model))
        nn.init.normal_(self.pos, std=0.02)
        self.layers = nn.ModuleList([
            AttentionLayer(FullAttention(True, attention_dropout=configs.dropout), configs.d_model, configs.n_heads)
            for _ in range(configs.e_layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(configs.d_model) for _ in range(configs.e_layers)])
        self.head = nn.Linear(configs.d_model, configs.patch_len)

    def forward(self, x):
        """x: (B, T), T a multiple of patch_len; predicts the next patch at every patch."""
        mean = x.mean(1, keepdim=True).detach()
        std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        z = self.embed(((x - mean) / std).unfold(1, self.patch_len, self.patch_len))
        z = z + self.pos[:, :z.shape[1]]
        for layer, norm in zip(self.layers, self.norms):
            h = norm(z)
            z = z + layer(h, h, h)[0]
        return self.head(z).flatten(1) * std + mean


def get_parser():
    p = argparse.ArgumentParser()
    p.add_argument("--patch_len", type=int, default=8)
    p.add_argument("--d_model", type=int, default=32)
    p.add_argument("--n_heads", type=int, default=4)
    p.add_argument("--e_layers", type=int, default=2)
    p.add_argument("--max_patches", type=int, default=64)
    p.add_argument("--dropout", type=float, default=0.1)
    return p
