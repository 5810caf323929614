# expect: correct
# Multi-head causal attention where every head has its own weight matrix,
# all heads are done together by einsum.
#   b = batch, t/s = target/source position, h = head, m = model, k = head size
import math
import torch
import torch.nn as nn


class EinsumMHA(nn.Module):
    def __init__(self, d_model, n_heads, d_head, causal=True):
        super().__init__()
        self.causal = causal
        self.d_head = d_head
        shape = (n_heads, d_model, d_head)
        self.Wq = nn.Parameter(torch.empty(shape))
        self.Wk = nn.Parameter(torch.empty(shape))
        self.Wv = nn.Parameter(torch.empty(shape))
        self.Wo = nn.Parameter(torch.empty(n_heads, d_head, d_model))
        self.bo = nn.Parameter(torch.zeros(d_model))
        self.reset()

    def reset(self):
        for w in (self.Wq, self.Wk, self.Wv, self.Wo):
            nn.init.normal_(w, std=0.2)

    def forward(self, x):
        q = torch.einsum("btm,hmk->bhtk", x, self.Wq)
        k = torch.einsum("bsm,hmk->bhsk", x, self.Wk)
        v = torch.einsum("bsm,hmk->bhsk", x, self.Wv)

        scores = torch.einsum("bhtk,bhsk->bhts", q, k)
        scores = scores / math.sqrt(self.d_head)

        if self.causal:
            t = x.size(1)
            keep = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            scores = torch.where(keep, scores, torch.full_like(scores, -torch.inf))

        probs = scores.softmax(-1)
        z = torch.einsum("bhts,bhsk->bhtk", probs, v)
        # summing over heads here equals concat + big output matrix
        return torch.einsum("bhtk,hkm->btm", z, self.Wo) + self.bo


if __name__ == "__main__":
    layer = EinsumMHA(24, 3, 10)
    y = layer(torch.randn(4, 9, 24))
    print(y.shape)
