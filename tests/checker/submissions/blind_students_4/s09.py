# expect: dropout-in-eval
# why: F.dropout on the attention weights is called without training=self.training, so weights are still dropped in eval mode, on line 40
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    n_embd: int = 48
    n_head: int = 4
    max_len: int = 64
    p_drop: float = 0.2


class CausalSelfAttention(nn.Module):

    def __init__(self, cfg: Config):
        super().__init__()
        assert cfg.n_embd % cfg.n_head == 0
        self.cfg = cfg
        self.qkv = nn.Linear(cfg.n_embd, 3 * cfg.n_embd)
        self.proj = nn.Linear(cfg.n_embd, cfg.n_embd)
        bias = torch.tril(torch.ones(cfg.max_len, cfg.max_len))
        self.register_buffer("bias", bias.view(1, 1, cfg.max_len, cfg.max_len))

    def forward(self, x):
        B, T, C = x.shape
        nh = self.cfg.n_head
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, nh, C // nh).transpose(1, 2)
        k = k.view(B, T, nh, C // nh).transpose(1, 2)
        v = v.view(B, T, nh, C // nh).transpose(1, 2)

        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = F.dropout(att, p=self.cfg.p_drop)

        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.proj(y)


if __name__ == "__main__":
    torch.manual_seed(42)
    cfg = Config()
    attn = CausalSelfAttention(cfg)
    x = torch.randn(2, 20, cfg.n_embd)
    print(attn(x).mean(), attn(x).std())
