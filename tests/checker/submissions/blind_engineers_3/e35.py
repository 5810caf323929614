# expect: correct
"""T5 attention stack (v1.0 layout): first layer owns the relative bias, the others reuse it."""
import math

import torch
import torch.nn as nn


class T5Config:
    d_model = 64
    d_kv = 16
    num_heads = 4
    d_ff = 128
    num_layers = 3
    relative_attention_num_buckets = 32
    relative_attention_max_distance = 128
    dropout_rate = 0.1
    is_decoder = False

    def __init__(self, **overrides):
        for key, value in overrides.items():
            assert hasattr(self, key), key
            setattr(self, key, value)


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon)).to(self.weight.dtype)


class T5Attention(nn.Module):
    def __init__(self, config, has_relative_attention_bias=False):
        super().__init__()
        self.is_decoder = config.is_decoder
        self.num_buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        self.n_heads, self.d_kv = config.num_heads, config.d_kv
        inner_dim = self.n_heads * self.d_kv
        self.q = nn.Linear(config.d_model, inner_dim, bias=False)
        self.k = nn.Linear(config.d_model, inner_dim, bias=False)
        self.v = nn.Linear(config.d_model, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, config.d_model, bias=False)
        self.dropout = config.dropout_rate
        # no 1/sqrt(d_kv) at run time: it is part of the init of q
        nn.init.normal_(self.q.weight, mean=0.0, std=(config.d_model * config.d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, mean=0.0, std=config.d_model ** -0.5)
        nn.init.normal_(self.v.weight, mean=0.0, std=config.d_model ** -0.5)
        nn.init.normal_(self.o.weight, mean=0.0, std=inner_dim ** -0.5)
        if has_relative_attention_bias:
            self.relative_attention_bias = nn.Embedding(self.num_buckets, self.n_heads)

    def _bucket(self, relative_position):
        """relative_position = key position - query position"""
        n = self.num_buckets
        ret = 0
        if not self.is_decoder:
            n //= 2
            ret = (relative_position > 0).long() * n
            distance = relative_position.abs()
        else:
            distance = (-relative_position).clamp(min=0)
        # half of the buckets are exact, the other half grow logarithmically up to max_distance
        exact = n // 2
        log_ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (log_ratio * (n - exact)).long()).clamp(max=n - 1)
        return ret + torch.where(distance < exact, distance, far)

    def compute_bias(self, length, device):
        pos = torch.arange(length, device=device)
        return self.relative_attention_bias(self._bucket(pos[None, :] - pos[:, None])).permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None, position_bias=None):
        B, T, _ = hidden_states.shape
        q = self.q(hidden_states).view(B, T, self.n_heads, self.d_kv).transpose(1, 2)
        k = self.k(hidden_states).view(B, T, self.n_heads, self.d_kv).transpose(1, 2)
        v = self.v(hidden_states).view(B, T, self.n_heads, self.d_kv).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            position_bias = self.compute_bias(T, hidden_states.device)
            if mask is not None:
                position_bias = position_bias + mask
        scores = scores + position_bias
        attn_weights = torch.softmax(scores.float(), dim=-1).type_as(scores)
        attn_weights = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)
        out = torch.matmul(attn_weights, v).transpose(1, 2).contiguous().view(B, T, -1)
        return self.o(out), position_bias


class T5Stack(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.attn = nn.ModuleList(T5Attention(config, has_relative_attention_bias=(i == 0)) for i in range(config.num_layers))
        self.ln = nn.ModuleList(T5LayerNorm(config.d_model) for _ in range(config.num_layers))
        self.ff = nn.ModuleList(
            nn.Sequential(T5LayerNorm(config.d_model), nn.Linear(config.d_model, config.d_ff, bias=False), nn.ReLU(),
                          nn.Linear(config.d_ff, config.d_model, bias=False)) for _ in range(config.num_layers))

    def forward(self, x, attention_mask):
        # attention_mask: (B, T), 1 = token
        T = x.size(1)
        keep = attention_mask.bool()[:, None, None, :]
        if self.config.is_decoder:
            keep = keep & torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        mask = torch.zeros(keep.shape, dtype=x.dtype, device=x.device).masked_fill(~keep, torch.finfo(x.dtype).min)
        position_bias = None
        for attn, ln, ff in zip(self.attn, self.ln, self.ff):
            y, position_bias = attn(ln(x), mask, position_bias)   # the bias already contains the mask from layer 2 on
            x = x + y
            x = x + ff(x)
        return x
