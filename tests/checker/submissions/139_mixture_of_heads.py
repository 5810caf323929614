# expect: correct
import torch
import torch.nn as nn


class _Expert(nn.Module):
    """A single small attention head acting as an expert."""

    def __init__(self, dim, d_head):
        super().__init__()
        self.q = nn.Linear(dim, d_head, bias=False)
        self.k = nn.Linear(dim, d_head, bias=False)
        self.v = nn.Linear(dim, d_head, bias=False)
        self.o = nn.Linear(d_head, dim, bias=False)

    def forward(self, x, bias):
        q, k, v = self.q(x), self.k(x), self.v(x)
        logits = torch.baddbmm(bias, q, k.mT, alpha=q.shape[-1] ** -0.5)
        return self.o(logits.softmax(-1) @ v)


class MixtureOfHeads(nn.Module):
    """Each token takes its `top_k` heads of `n_heads`; the router probabilities of the
    chosen ones are renormalised to one and weight the head outputs. The sum replaces the
    usual concat + projection.

    attn_bias: additive, broadcastable to (B, T, T), 0 where allowed and -inf elsewhere.
    """

    def __init__(self, dim, n_heads, d_head, top_k=2):
        super().__init__()
        self.experts = nn.ModuleList([_Expert(dim, d_head) for _ in range(n_heads)])
        self.router = nn.Linear(dim, n_heads, bias=False)
        self.top_k = top_k

    def forward(self, x, attn_bias=None):
        B, T, _ = x.shape
        if attn_bias is None:
            attn_bias = x.new_zeros(1, 1, 1)
        attn_bias = attn_bias.expand(B, T, T)

        r = self.router(x)
        best = r.topk(self.top_k, dim=-1)
        # softmax over the survivors == softmax over all, then renormalise
        gate = torch.zeros_like(r).scatter(-1, best.indices, best.values.softmax(-1))
        out = 0
        for i, head in enumerate(self.experts):
            out = out + gate[..., i:i + 1] * head(x, attn_bias)
        return out
