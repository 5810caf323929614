# expect: correct
# what: T5, relative bias buckets, no scale in the forward
import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class T5Config:
    d_model: int = 64
    d_kv: int = 16
    num_heads: int = 6
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    is_decoder: bool = False
    initializer_factor: float = 1.0


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states


class T5Attention(nn.Module):
    """T5 attention. The 1/sqrt(d_kv) factor lives in the initialisation of `q`, not in the forward."""

    def __init__(self, config: T5Config, has_relative_attention_bias=False):
        super().__init__()
        self.is_decoder = config.is_decoder
        self.has_relative_attention_bias = has_relative_attention_bias
        self.num_buckets = config.relative_attention_num_buckets
        self.max_distance = config.relative_attention_max_distance
        self.d_model = config.d_model
        self.key_value_proj_dim = config.d_kv
        self.n_heads = config.num_heads
        self.dropout = config.dropout_rate
        self.inner_dim = self.n_heads * self.key_value_proj_dim

        self.q = nn.Linear(self.d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(self.d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(self.d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, self.d_model, bias=False)
        if has_relative_attention_bias:
            self.relative_attention_bias = nn.Embedding(self.num_buckets, self.n_heads)
        self._init_weights(config.initializer_factor)

    def _init_weights(self, factor):
        nn.init.normal_(self.q.weight, std=factor * (self.d_model * self.key_value_proj_dim) ** -0.5)
        nn.init.normal_(self.k.weight, std=factor * self.d_model**-0.5)
        nn.init.normal_(self.v.weight, std=factor * self.d_model**-0.5)
        nn.init.normal_(self.o.weight, std=factor * self.inner_dim**-0.5)
        if self.has_relative_attention_bias:
            nn.init.normal_(self.relative_attention_bias.weight, std=factor * self.d_model**-0.5)

    @staticmethod
    def _bucket(relative_position, bidirectional=True, num_buckets=32, max_distance=128):
        ret = torch.zeros_like(relative_position)
        if bidirectional:
            num_buckets //= 2
            ret = ret + (relative_position > 0).long() * num_buckets
            n = relative_position.abs()
        else:
            n = (-relative_position).clamp(min=0)
        max_exact = num_buckets // 2
        is_small = n < max_exact
        log_ratio = torch.log(n.float().clamp(min=1) / max_exact) / math.log(max_distance / max_exact)
        large = max_exact + (log_ratio * (num_buckets - max_exact)).long()
        large = large.clamp(max=num_buckets - 1)
        return ret + torch.where(is_small, n, large)

    def compute_bias(self, query_length, key_length, device=None):
        offset = key_length - query_length if self.is_decoder else 0
        context_position = torch.arange(query_length, device=device)[:, None] + offset
        memory_position = torch.arange(key_length, device=device)[None, :]
        buckets = self._bucket(
            memory_position - context_position,
            bidirectional=not self.is_decoder,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        return self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)

    def forward(
        self,
        hidden_states,
        mask=None,
        key_value_states=None,
        position_bias=None,
        past_key_value=None,
        use_cache=False,
        output_attentions=False,
    ):
        """`mask` is 1 for visible and 0 for hidden, (b, key) or (b, query, key)."""
        b, n, _ = hidden_states.shape

        def shape(t):
            return t.view(b, -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)

        source = hidden_states if key_value_states is None else key_value_states
        q, k, v = shape(self.q(hidden_states)), shape(self.k(source)), shape(self.v(source))
        if past_key_value is not None and key_value_states is None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        key_length = k.shape[2]

        scores = torch.matmul(q, k.transpose(3, 2))
        if position_bias is None:
            if self.has_relative_attention_bias and key_value_states is None:
                position_bias = self.compute_bias(n, key_length, device=scores.device)
            else:
                position_bias = scores.new_zeros(1, self.n_heads, n, key_length)
            neg = torch.finfo(scores.dtype).min
            hidden = torch.zeros(1, 1, n, key_length, dtype=torch.bool, device=scores.device)
            if self.is_decoder and key_value_states is None:
                rows = torch.arange(n, device=scores.device)[:, None] + key_length - n
                hidden = hidden | (torch.arange(key_length, device=scores.device)[None, :] > rows)
            if mask is not None:
                m = mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]
                hidden = hidden | (m == 0)
            position_bias = position_bias.expand(hidden.shape[0], -1, -1, -1).masked_fill(hidden, neg)

        scores = scores + position_bias
        weights = nn.functional.softmax(scores.float(), dim=-1).type_as(scores)
        weights = nn.functional.dropout(weights, p=self.dropout, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, n, self.inner_dim)
        out = self.o(out)
        outputs = (out, (k, v) if use_cache else None, position_bias)
        if output_attentions:
            outputs = outputs + (weights,)
        return outputs


class T5LayerSelfAttention(nn.Module):
    def __init__(self, config, has_relative_attention_bias=False):
        super().__init__()
        self.SelfAttention = T5Attention(config, has_relative_attention_bias)
        self.layer_norm = T5LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout_rate)

    def forward(self, hidden_states, mask=None, position_bias=None, **kw):
        outs = self.SelfAttention(self.layer_norm(hidden_states), mask=mask, position_bias=position_bias, **kw)
        return (hidden_states + self.dropout(outs[0]),) + outs[1:]
