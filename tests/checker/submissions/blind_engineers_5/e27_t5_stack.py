# expect: correct
# why: right though there is no division by sqrt(d): T5 folds it into the initialisation of q; the mask travels inside the shared position bias
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class T5Config:
    d_model: int = 32
    d_kv: int = 8
    d_ff: int = 64
    num_heads: int = 4
    num_layers: int = 2
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    vocab_size: int = 100
    is_decoder: bool = False


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class T5Attention(nn.Module):
    def __init__(self, config: T5Config, has_relative_attention_bias=False):
        super().__init__()
        self.config = config
        self.n_heads, self.d_kv = config.num_heads, config.d_kv
        inner = self.n_heads * self.d_kv
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)
        # the 1/sqrt(d_kv) of the logits lives in the initialisation of q
        self.q.weight.data.normal_(mean=0.0, std=(config.d_model * config.d_kv) ** -0.5)
        if has_relative_attention_bias:
            self.relative_attention_bias = nn.Embedding(config.relative_attention_num_buckets, self.n_heads)

    @staticmethod
    def _relative_position_bucket(relative_position, bidirectional, num_buckets, max_distance):
        buckets = torch.zeros_like(relative_position)
        if bidirectional:
            num_buckets //= 2
            buckets += (relative_position > 0).long() * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        large = max_exact + (
            torch.log(relative_position.float().clamp(min=1) / max_exact)
            / math.log(max_distance / max_exact) * (num_buckets - max_exact)
        ).long()
        large = torch.clamp(large, max=num_buckets - 1)
        return buckets + torch.where(is_small, relative_position, large)

    def compute_bias(self, q_len, k_len, device):
        context = torch.arange(q_len, device=device)[:, None]
        memory = torch.arange(k_len, device=device)[None, :]
        bucket = self._relative_position_bucket(
            memory - context, not self.config.is_decoder,
            self.config.relative_attention_num_buckets, self.config.relative_attention_max_distance)
        return self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x, mask=None, position_bias=None):
        b, n, _ = x.shape
        q, k, v = (p(x).view(b, n, self.n_heads, self.d_kv).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            position_bias = self.compute_bias(n, n, x.device)
            if mask is not None:
                position_bias = position_bias + mask
        scores = scores + position_bias
        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, n, -1)
        return self.o(out), position_bias


class T5Stack(nn.Module):
    """Only the first layer owns the position table, the others reuse its bias (with the mask already inside)."""

    def __init__(self, config: T5Config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.attn = nn.ModuleList([T5Attention(config, i == 0) for i in range(config.num_layers)])
        self.norm1 = nn.ModuleList([T5LayerNorm(config.d_model) for _ in range(config.num_layers)])
        self.norm2 = nn.ModuleList([T5LayerNorm(config.d_model) for _ in range(config.num_layers)])
        self.wi = nn.ModuleList([nn.Linear(config.d_model, config.d_ff, bias=False) for _ in range(config.num_layers)])
        self.wo = nn.ModuleList([nn.Linear(config.d_ff, config.d_model, bias=False) for _ in range(config.num_layers)])

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        n = input_ids.shape[1]
        allowed = attention_mask[:, None, None, :].bool()
        if self.config.is_decoder:
            allowed = allowed & torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        mask = torch.zeros(allowed.shape, device=x.device).masked_fill(~allowed, torch.finfo(x.dtype).min)
        bias = None
        for attn, n1, n2, wi, wo in zip(self.attn, self.norm1, self.norm2, self.wi, self.wo):
            y, bias = attn(n1(x), mask, bias)
            x = x + y
            x = x + wo(torch.relu(wi(n2(x))))
        return x
