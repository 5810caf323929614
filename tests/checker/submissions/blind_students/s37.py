# expect: correct
import torch
import torch.nn as nn
from torch import Tensor


class GroupedAttention(nn.Module):
    """GQA: n_q query heads share n_kv key/value heads. n_kv = n_q is normal multi-head."""

    def __init__(self, dim: int, n_q: int, n_kv: int, ctx: int):
        super().__init__()
        assert n_q % n_kv == 0
        self.n_q, self.n_kv = n_q, n_kv
        self.hd = dim // n_q
        self.wq = nn.Linear(dim, n_q * self.hd, bias=False)
        self.wk = nn.Linear(dim, n_kv * self.hd, bias=False)
        self.wv = nn.Linear(dim, n_kv * self.hd, bias=False)
        self.wo = nn.Linear(n_q * self.hd, dim, bias=False)
        self.register_buffer("mask", torch.full((ctx, ctx), float("-inf")).triu_(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        # half of the scale on each side, safer in fp16
        s = self.hd ** -0.25
        q = self.wq(x).view(b, t, self.n_q, self.hd) * s
        k = self.wk(x).view(b, t, self.n_kv, self.hd) * s
        v = self.wv(x).view(b, t, self.n_kv, self.hd)
        rep = self.n_q // self.n_kv
        k = k.repeat_interleave(rep, dim=2)
        v = v.repeat_interleave(rep, dim=2)

        qk = q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1)
        qk = qk.float() + self.mask[:t, :t]
        w = torch.softmax(qk, dim=-1, dtype=torch.float32).to(v.dtype)
        out = w @ v.permute(0, 2, 1, 3)
        return self.wo(out.permute(0, 2, 1, 3).flatten(2))


if __name__ == "__main__":
    g = GroupedAttention(dim=48, n_q=6, n_kv=2, ctx=32)
    print([tuple(p.shape) for p in g.parameters()])
    print(g(torch.randn(2, 20, 48)).shape)
