# expect: correct
import torch


def streaming_attention(Q, K, V, causal=False, tile_q=4, tile_k=4):
    """
    Tiled attention with running softmax statistics, flash style but in plain pytorch.

    Q [b, n, h, d], K/V [b, m, h, d]. With causal=True the last query is aligned with the last key (n <= m).
    """
    b, n, h, d = Q.shape
    m = K.shape[1]
    off = m - n
    out = torch.empty(b, n, h, V.shape[-1], dtype=Q.dtype, device=Q.device)
    for q0 in range(0, n, tile_q):
        q1 = min(q0 + tile_q, n)
        q = Q[:, q0:q1].transpose(1, 2) / d ** 0.5
        mx = torch.full((b, h, q1 - q0), -1e30, dtype=Q.dtype, device=Q.device)
        den = torch.zeros_like(mx)
        num = torch.zeros(b, h, q1 - q0, V.shape[-1], dtype=Q.dtype, device=Q.device)
        for k0 in range(0, m, tile_k):
            if causal and k0 > q1 - 1 + off:
                break
            k1 = min(k0 + tile_k, m)
            s = q @ K[:, k0:k1].permute(0, 2, 3, 1)
            if causal:
                rows = torch.arange(q0, q1, device=Q.device)[:, None] + off
                cols = torch.arange(k0, k1, device=Q.device)[None, :]
                s = s.masked_fill(cols > rows, float("-inf"))
            mx_new = torch.maximum(mx, s.max(dim=-1).values)
            e = torch.exp(s - mx_new[..., None])
            shrink = torch.exp(mx - mx_new)
            den = den * shrink + e.sum(-1)
            num = num * shrink[..., None] + e @ V[:, k0:k1].transpose(1, 2)
            mx = mx_new
        out[:, q0:q1] = (num / den[..., None]).transpose(1, 2)
    return out
