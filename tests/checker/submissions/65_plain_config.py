# expect: correct
import torch
import torch.nn as nn
from torch.nn import functional as F


class FusedCausalAttention(nn.Module):

    def __init__(self, cfg):
        """cfg: any object with .width, .heads, .p_attn, .p_resid"""
        super().__init__()
        assert cfg.width % cfg.heads == 0
        self.h = cfg.heads
        self.p_attn = cfg.p_attn
        self.in_proj = nn.Linear(cfg.width, 3 * cfg.width)
        self.out_proj = nn.Linear(cfg.width, cfg.width)
        self.resid = nn.Dropout(cfg.p_resid)

    def forward(self, x):
        B, N, W = x.shape
        # (B, N, 3, h, d) -> (3, B, h, N, d)
        q, k, v = self.in_proj(x).reshape(B, N, 3, self.h, W // self.h).permute(2, 0, 3, 1, 4)
        p = self.p_attn if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.resid(self.out_proj(y.transpose(1, 2).flatten(2)))


class Cfg:
    width = 48
    heads = 4
    p_attn = 0.1
    p_resid = 0.1
