# expect: correct
from dataclasses import dataclass
import torch
import torch.nn as nn


@dataclass
class Config:
    emb_dim: int = 30
    n_heads: int = 5
    context_length: int = 16
    drop_rate: float = 0.0
    qkv_bias: bool = False


class MultiHeadAttentionFused(nn.Module):
    """
    One big linear for q, k and v. Layout of the last axis: (heads, 3, head_dim)
    Heads go into the batch axis because torch.baddbmm only takes 3-D tensors.
    """

    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.hd = cfg.emb_dim // cfg.n_heads
        self.qkv = nn.Linear(cfg.emb_dim, 3 * cfg.emb_dim, bias=cfg.qkv_bias)
        self.proj = nn.Linear(cfg.emb_dim, cfg.emb_dim)
        self.drop = nn.Dropout(cfg.drop_rate)
        bias = torch.zeros(cfg.context_length, cfg.context_length)
        bias[torch.triu(torch.ones_like(bias), 1).bool()] = float("-inf")
        self.register_buffer("causal_bias", bias)

    def forward(self, x):
        B, N, E = x.shape
        H, D = self.cfg.n_heads, self.hd
        qkv = self.qkv(x).view(B, N, H, 3, D)
        q, k, v = qkv.unbind(dim=3)                             # each (B, N, H, D)
        fold = lambda t: t.permute(0, 2, 1, 3).reshape(B * H, N, D)
        q, k, v = fold(q), fold(k), fold(v)

        bias = self.causal_bias[:N, :N].to(q.dtype).expand(B * H, N, N)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1, alpha=D ** -0.5)
        w = self.drop(torch.softmax(scores, dim=-1))

        out = torch.bmm(w, v).view(B, H, N, D)
        out = out.permute(0, 2, 1, 3).reshape(B, N, E)
        return self.proj(out)


if __name__ == "__main__":
    c = Config()
    att = MultiHeadAttentionFused(c)
    print(att)
    print(att(torch.randn(2, 9, c.emb_dim)).shape)
