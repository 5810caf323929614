# expect: wrong
# why: after subtracting the maximum the 1 in the denominator should have become exp(-max), so it is not the documented softmax_1.
"""BERT encoder attention with "quiet" softmax, for INT8 friendly activations.

    softmax_1(x)_i = exp(x_i) / (1 + sum_j exp(x_j))

so that a head can output nothing at all.
"""
from functools import partial
from typing import Optional

import torch
import torch.nn as nn

SOFTMAX_MAPPING = {}


def register(name):
    def _wrap(fn):
        SOFTMAX_MAPPING[name] = fn
        return fn

    return _wrap


@register("vanilla")
def softmax_vanilla(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.softmax(x, dim=dim)


@register("softmax1")
def softmax_1(x: torch.Tensor, dim: int = -1, shift: bool = True) -> torch.Tensor:
    if shift:
        x = x - x.amax(dim=dim, keepdim=True).detach()
    e = torch.exp(x)
    return e / (1 + e.sum(dim=dim, keepdim=True))


class QuietSelfAttention(nn.Module):
    def __init__(self, config, softmax_fn: str = "softmax1"):
        super().__init__()
        if config.hidden_size % config.num_attention_heads != 0:
            raise ValueError("hidden_size is not a multiple of num_attention_heads")
        self.num_attention_heads = config.num_attention_heads
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.all_head_size = config.hidden_size
        self.query = nn.Linear(config.hidden_size, self.all_head_size)
        self.key = nn.Linear(config.hidden_size, self.all_head_size)
        self.value = nn.Linear(config.hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(getattr(config, "attention_probs_dropout_prob", 0.1))
        self.softmax_fn = partial(SOFTMAX_MAPPING[softmax_fn], dim=-1)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        new_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        return x.view(*new_shape).permute(0, 2, 1, 3)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None):
        """attention_mask: (batch, seq), 1 for tokens and 0 for padding."""
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))

        scores = torch.matmul(q, k.transpose(-1, -2)) / (self.attention_head_size ** 0.5)
        if attention_mask is not None:
            extended = (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
            scores = scores + extended
        probs = self.dropout(self.softmax_fn(scores))

        context = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        return context.view(*context.shape[:-2], self.all_head_size)


class BertSelfOutput(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(getattr(config, "hidden_dropout_prob", 0.1))

    def forward(self, hidden_states, input_tensor):
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + input_tensor)


class BertAttention(nn.Module):
    def __init__(self, config, softmax_fn="softmax1"):
        super().__init__()
        self.self = QuietSelfAttention(config, softmax_fn=softmax_fn)
        self.output = BertSelfOutput(config)

    def forward(self, hidden_states, attention_mask=None):
        return self.output(self.self(hidden_states, attention_mask), hidden_states)
