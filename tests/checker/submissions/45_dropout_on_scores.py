# expect: dropout-before-softmax
import math, torch
import torch.nn as nn


class GPTHeadBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg["emb_dim"]
        self.n = cfg["n_heads"]
        self.dim = d // self.n
        self.Wq = nn.Linear(d, d, bias=cfg["qkv_bias"])
        self.Wk = nn.Linear(d, d, bias=cfg["qkv_bias"])
        self.Wv = nn.Linear(d, d, bias=cfg["qkv_bias"])
        self.Wo = nn.Linear(d, d)
        self.drop = nn.Dropout(cfg["drop_rate"])
        self.register_buffer("hide", torch.ones(cfg["context_length"], cfg["context_length"]).triu(1).bool())

    def forward(self, x):
        b, t, d = x.shape
        q = self.Wq(x).reshape(b, t, self.n, self.dim).swapaxes(1, 2)
        k = self.Wk(x).reshape(b, t, self.n, self.dim).swapaxes(1, 2)
        v = self.Wv(x).reshape(b, t, self.n, self.dim).swapaxes(1, 2)
        att = q @ k.swapaxes(-1, -2) / math.sqrt(self.dim)
        att = self.drop(att)
        att = att.masked_fill(self.hide[:t, :t], -math.inf).softmax(dim=-1)
        return self.Wo((att @ v).swapaxes(1, 2).reshape(b, t, d))
