# expect: softmax-no-keepdim
import torch


def mh_attention(x, Wq, Wk, Wv, Wo, n_heads):
    """Multi-head self attention for ONE sequence (translated from my numpy notebook).

    x  : (T, D)
    W* : (D, D)
    returns (T, D)
    """
    T, D = x.shape
    d = D // n_heads
    Q = x.matmul(Wq)
    K = x.matmul(Wk)
    V = x.matmul(Wv)
    heads = []
    for h in range(n_heads):
        cols = slice(h * d, (h + 1) * d)
        s = Q[:, cols] @ K[:, cols].T
        s = s / d ** 0.5
        # stable softmax
        s = s - s.max(-1, keepdim=True).values
        e = torch.exp(s)
        A = e / e.sum(-1)
        heads.append(A @ V[:, cols])
    return torch.cat(heads, 1) @ Wo
