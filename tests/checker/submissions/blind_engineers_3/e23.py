# expect: correct
"""gpt-oss style attention: GQA, alternating sliding window, one learned sink logit per head."""
from types import SimpleNamespace as NS

import torch
import torch.nn as nn
import torch.nn.functional as F


def sdpa_with_sinks(Q, K, V, S, sm_scale, sliding_window=0, offset=0):
    """
    Q: n_tokens, n_kv, q_mult, d      K, V: n_keys, n_kv, d      S: n_kv * q_mult
    The sink takes part in the normalisation only; it has no value.
    """
    n_tokens, n_kv, q_mult, d_head = Q.shape
    n_keys = K.shape[0]
    K = K[:, :, None, :].expand(-1, -1, q_mult, -1)
    V = V[:, :, None, :].expand(-1, -1, q_mult, -1)
    S = S.reshape(n_kv, q_mult, 1, 1).expand(-1, -1, n_tokens, -1)

    i = torch.arange(offset, offset + n_tokens, device=Q.device)[:, None]
    j = torch.arange(n_keys, device=Q.device)[None, :]
    banned = j > i
    if sliding_window > 0:
        banned = banned | (j <= i - sliding_window)

    QK = torch.einsum("qhmd,khmd->hmqk", Q, K) * sm_scale
    QK = QK.masked_fill(banned, float("-inf"))
    QK = torch.cat([QK, S.to(QK.dtype)], dim=-1)
    W = torch.softmax(QK.float(), dim=-1).to(V.dtype)
    W = W[..., :-1]
    attn = torch.einsum("hmqk,khmd->qhmd", W, V)
    return attn.reshape(n_tokens, -1)


class RotaryEmbedding(nn.Module):
    def __init__(self, head_dim, base):
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def forward(self, x, offset):
        n = x.shape[0]
        freq = self.base ** (torch.arange(0, self.head_dim, 2, dtype=torch.float, device=x.device) / self.head_dim)
        t = torch.arange(offset, offset + n, dtype=torch.float32, device=x.device)
        ang = torch.outer(t, 1.0 / freq).view(n, *([1] * (x.dim() - 2)), -1)
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        x1, x2 = torch.chunk(x, 2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class AttentionBlock(nn.Module):
    """Works on one sequence, (n_tokens, hidden); batching is done by the engine."""

    def __init__(self, config, layer_idx=0):
        super().__init__()
        self.head_dim = config.head_dim
        self.n_heads = config.num_attention_heads
        self.n_kv = config.num_key_value_heads
        # only apply the sliding window to every other layer
        self.sliding_window = config.sliding_window if layer_idx % 2 == 0 else 0
        self.sinks = nn.Parameter(torch.zeros(self.n_heads))
        self.norm = nn.RMSNorm(config.hidden_size, eps=1e-5)
        self.qkv = nn.Linear(config.hidden_size, self.head_dim * (self.n_heads + 2 * self.n_kv))
        self.out = nn.Linear(self.head_dim * self.n_heads, config.hidden_size)
        self.sm_scale = self.head_dim ** -0.5
        self.rope = RotaryEmbedding(self.head_dim, config.rope_theta)

    def forward(self, x, kv_cache=None):
        n = x.shape[0]
        nq, nk = self.n_heads * self.head_dim, self.n_kv * self.head_dim
        q, k, v = self.qkv(self.norm(x)).split([nq, nk, nk], dim=-1)
        q = q.view(n, self.n_kv, self.n_heads // self.n_kv, self.head_dim)
        k = k.view(n, self.n_kv, self.head_dim)
        v = v.view(n, self.n_kv, self.head_dim)

        offset = 0 if not kv_cache else kv_cache["k"].shape[0]
        q, k = self.rope(q, offset), self.rope(k, offset)
        if kv_cache is not None:
            if offset:
                k, v = torch.cat([kv_cache["k"], k]), torch.cat([kv_cache["v"], v])
            kv_cache.update(k=k, v=v)
        t = sdpa_with_sinks(q, k, v, self.sinks, self.sm_scale, self.sliding_window, offset)
        return x + self.out(t)


if __name__ == "__main__":
    cfg = NS(hidden_size=64, head_dim=16, num_attention_heads=8, num_key_value_heads=2,
             sliding_window=4, rope_theta=150000.0)
    block = AttentionBlock(cfg).eval()
    x, cache = torch.randn(10, 64), {}
    steps = torch.cat([block(x[:6], cache)] + [block(x[i:i + 1], cache) for i in range(6, 10)])
    assert torch.allclose(steps, block(x), atol=1e-5)
