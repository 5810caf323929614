# expect: correct
import functools
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class TrunkConfig:
    d_model: int = 48
    n_heads: int = 3
    dropout: float = 0.0


def time_major(fn):
    """Rollouts come as (T, N, ...); run fn on (N, T, ...) and swap the result back."""

    @functools.wraps(fn)
    def wrapper(self, x, done=None):
        if done is not None:
            done = done.transpose(0, 1)
        return fn(self, x.transpose(0, 1), done).transpose(0, 1)

    return wrapper


class HeadsMixin:
    def split_heads(self, x):
        n, t, _ = x.shape
        return x.view(n, t, self.cfg.n_heads, -1).transpose(1, 2)

    def merge_heads(self, x):
        return x.transpose(1, 2).flatten(2)


class EpisodicAttention(HeadsMixin, nn.Module):
    """Causal attention over a rollout that may contain several episodes.

    done[t] is set when step t was the LAST step of its episode; a step never looks
    across that border.
    """

    NEG = -1e4  # fits into half precision

    def __init__(self, cfg: TrunkConfig):
        super().__init__()
        self.cfg = cfg
        self.norm = nn.LayerNorm(cfg.d_model)
        self.vqk = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.d_model)
        self.drop = nn.Dropout(cfg.dropout)

    def additive_mask(self, done, t, ref):
        keep = torch.ones(t, t, dtype=torch.bool, device=ref.device).tril()
        if done is not None:
            d = done.long()
            episode = d.cumsum(1) - d      # the step with done=1 still belongs to the old episode
            keep = keep & (episode[:, :, None] == episode[:, None, :])
            keep = keep[:, None]
        return torch.zeros_like(keep, dtype=ref.dtype).masked_fill(~keep, self.NEG)

    @time_major
    def forward(self, x, done=None):
        v, q, k = (self.split_heads(z) for z in self.vqk(self.norm(x)).chunk(3, dim=-1))
        logits = torch.einsum("nhqd,nhkd->nhqk", q, k).div(q.size(-1) ** 0.5)
        logits = logits + self.additive_mask(done, x.size(1), logits)
        p = self.drop(torch.softmax(logits, dim=-1))
        return x + self.out(self.merge_heads(p @ v))
