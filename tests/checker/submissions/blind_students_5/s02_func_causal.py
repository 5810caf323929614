# expect: mask-inverted
# why: the mask is 1 where attention is allowed (tril) but masked_fill fills the places where mask == 1, so every token sees only the future (line 19: `scores = scores.masked_fill(mask == 1, -1e9)`)
import math
import torch


def causal_mask(T, device=None):
    """lower triangular matrix of ones, shape (T, T)"""
    return torch.tril(torch.ones(T, T, device=device))


def attention(q, k, v, mask=None):
    """
    q, k, v: (..., T, d)
    """
    d_k = k.size(-1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 1, -1e9)
    p = torch.softmax(scores, dim=-1)
    return p @ v, p


def multi_head(x, Wq, Wk, Wv, Wo, n_heads):
    B, T, C = x.shape
    to_heads = lambda t: t.reshape(B, T, n_heads, C // n_heads).transpose(1, 2)
    q, k, v = to_heads(x @ Wq), to_heads(x @ Wk), to_heads(x @ Wv)
    out, p = attention(q, k, v, causal_mask(T, x.device))
    out = out.transpose(1, 2).reshape(B, T, C)
    return out @ Wo, p


if __name__ == "__main__":
    torch.manual_seed(0)
    B, T, C, H = 2, 5, 12, 3
    x = torch.randn(B, T, C)
    Ws = [torch.randn(C, C) * C ** -0.5 for _ in range(4)]
    y, p = multi_head(x, *Ws, H)
    print(y.shape, p.shape)
    print(p.sum(-1)[0, 0])  # all ones, good
