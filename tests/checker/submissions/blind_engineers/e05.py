# expect: correct
import math
from types import SimpleNamespace

import torch
from torch import nn


def default_config(**overrides):
    cfg = dict(
        d_model=64,
        d_kv=8,
        num_heads=6,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=128,
        dropout_rate=0.1,
        is_decoder=False,
    )
    cfg.update(overrides)
    return SimpleNamespace(**cfg)


class T5StyleAttention(nn.Module):
    """Text-to-text attention: no 1/sqrt(d) factor (folded into the initialisation), learned bucketed bias.

    The position bias is computed by the first layer of a stack and handed on to the others.
    """

    def __init__(self, config, has_relative_attention_bias=False):
        super().__init__()
        self.is_decoder = config.is_decoder
        self.has_relative_attention_bias = has_relative_attention_bias
        self.num_buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        self.d_model = config.d_model
        self.d_kv = config.d_kv
        self.n_heads = config.num_heads
        self.dropout = config.dropout_rate
        self.inner_dim = self.n_heads * self.d_kv

        self.q = nn.Linear(self.d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(self.d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(self.d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, self.d_model, bias=False)
        if self.has_relative_attention_bias:
            self.relative_attention_bias = nn.Embedding(self.num_buckets, self.n_heads)
        self._init_weights()

    def _init_weights(self):
        nn.init.normal_(self.q.weight, std=(self.d_model * self.d_kv) ** -0.5)
        nn.init.normal_(self.k.weight, std=self.d_model ** -0.5)
        nn.init.normal_(self.v.weight, std=self.d_model ** -0.5)
        nn.init.normal_(self.o.weight, std=self.inner_dim ** -0.5)

    @staticmethod
    def _relative_position_bucket(relative_position, bidirectional=True, num_buckets=32, max_distance=128):
        """relative_position = memory_position - query_position."""
        buckets = torch.zeros_like(relative_position)
        if bidirectional:
            num_buckets //= 2
            buckets = buckets + (relative_position > 0).to(torch.long) * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))

        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        if_large = max_exact + (
            torch.log(relative_position.float().clamp(min=1) / max_exact)
            / math.log(max_distance / max_exact)
            * (num_buckets - max_exact)
        ).to(torch.long)
        if_large = torch.min(if_large, torch.full_like(if_large, num_buckets - 1))
        return buckets + torch.where(is_small, relative_position, if_large)

    def compute_bias(self, query_length, key_length, device=None):
        context = torch.arange(query_length, dtype=torch.long, device=device)[:, None]
        memory = torch.arange(key_length, dtype=torch.long, device=device)[None, :]
        bucket = self._relative_position_bucket(
            memory - context,
            bidirectional=not self.is_decoder,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        values = self.relative_attention_bias(bucket)
        return values.permute(2, 0, 1).unsqueeze(0)

    def forward(self, hidden_states, mask=None, key_value_states=None, position_bias=None):
        """mask: bool (batch, key_length), True for real tokens. Decoder self-attention adds the causal part."""
        batch_size, seq_length = hidden_states.shape[:2]
        source = hidden_states if key_value_states is None else key_value_states
        key_length = source.shape[1]

        def shape(states):
            return states.view(batch_size, -1, self.n_heads, self.d_kv).transpose(1, 2)

        q = shape(self.q(hidden_states))
        k = shape(self.k(source))
        v = shape(self.v(source))

        scores = torch.matmul(q, k.transpose(3, 2))

        if position_bias is None:
            if self.has_relative_attention_bias:
                position_bias = self.compute_bias(seq_length, key_length, device=scores.device)
            else:
                position_bias = torch.zeros(
                    (1, self.n_heads, seq_length, key_length), device=scores.device, dtype=scores.dtype
                )
            neg = torch.finfo(scores.dtype).min
            if self.is_decoder and key_value_states is None:
                future = torch.ones(seq_length, key_length, dtype=torch.bool, device=scores.device).triu(1)
                position_bias = position_bias.masked_fill(future, neg)
            if mask is not None:
                position_bias = position_bias.masked_fill(~mask[:, None, None, :], neg)

        scores = scores + position_bias
        attn_weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        attn_weights = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)
        attn_output = torch.matmul(attn_weights, v)
        attn_output = attn_output.transpose(1, 2).contiguous().view(batch_size, -1, self.inner_dim)
        return self.o(attn_output), position_bias
