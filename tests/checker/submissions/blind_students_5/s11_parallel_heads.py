# expect: dropout-in-eval, heads-summed
# why: two mistakes: F.dropout is called without training=self.training so it also drops weights in eval mode, and the heads are averaged instead of concatenated before W0 (line 21: `w = F.dropout(F.softmax(s, dim=-1), self.p)`; line 37: `z = torch.stack(outs, dim=0).mean(dim=0)`)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Head(nn.Module):
    def __init__(self, embed_dim, head_dim, p=0.1):
        super().__init__()
        self.to_q = nn.Linear(embed_dim, head_dim)
        self.to_k = nn.Linear(embed_dim, head_dim)
        self.to_v = nn.Linear(embed_dim, head_dim)
        self.p = p

    def forward(self, x, mask=None):
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        s = torch.einsum("bqd,bkd->bqk", q, k) / q.shape[-1] ** 0.5
        if mask is not None:
            s = s.masked_fill(mask[:, None, :] == 0, float("-inf"))
        w = F.dropout(F.softmax(s, dim=-1), self.p)
        return torch.einsum("bqk,bkd->bqd", w, v)


class ParallelHeads(nn.Module):
    """Multi-head attention: every head runs on its own, then the results are
    put together and projected back to embed_dim."""

    def __init__(self, embed_dim, num_heads, p=0.1):
        super().__init__()
        self.head_dim = embed_dim // num_heads
        self.heads = nn.ModuleList([Head(embed_dim, self.head_dim, p) for _ in range(num_heads)])
        self.W0 = nn.Linear(self.head_dim, embed_dim)

    def forward(self, x, mask=None):
        outs = [h(x, mask) for h in self.heads]
        z = torch.stack(outs, dim=0).mean(dim=0)
        return self.W0(z)


if __name__ == "__main__":
    attn = ParallelHeads(24, 4)
    x = torch.randn(2, 6, 24)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    attn.eval()
    with torch.no_grad():
        print(attn(x, mask).shape)
        print(attn(x, mask)[0, 0, :4])
