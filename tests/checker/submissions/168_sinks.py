# expect: correct
import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Causal GQA with one learned sink logit per query head.

    The sink takes part in the softmax denominator but carries no value, so a head
    can put its mass "nowhere".  ``sliding_window=None`` means full causal attention,
    otherwise a query sees itself and the ``sliding_window - 1`` tokens before it.
    """

    def __init__(self, n_embd, n_q, n_kv, d_head, sliding_window=None, device=None, dtype=None):
        super().__init__()
        kw = dict(device=device, dtype=dtype)
        self.n_q, self.n_kv, self.d_head = n_q, n_kv, d_head
        self.sliding_window = sliding_window
        self.qkv = nn.Linear(n_embd, (n_q + 2 * n_kv) * d_head, **kw)
        self.proj = nn.Linear(n_q * d_head, n_embd, **kw)
        self.sinks = nn.Parameter(torch.empty(n_q, **kw).normal_())

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.qkv(x).split(
            [self.n_q * self.d_head, self.n_kv * self.d_head, self.n_kv * self.d_head], dim=-1
        )
        q = q.reshape(B, T, self.n_q, self.d_head).transpose(1, 2)
        k = k.reshape(B, T, self.n_kv, self.d_head).transpose(1, 2)
        v = v.reshape(B, T, self.n_kv, self.d_head).transpose(1, 2)
        k = k.repeat_interleave(self.n_q // self.n_kv, dim=1)
        v = v.repeat_interleave(self.n_q // self.n_kv, dim=1)

        s = (q @ k.mT).float() / self.d_head ** 0.5
        i = torch.arange(T, device=x.device)
        delta = i[:, None] - i[None, :]
        ok = delta >= 0
        if self.sliding_window is not None:
            ok &= delta < self.sliding_window
        s = s.masked_fill(~ok, float("-inf"))

        # softmax over [s, sink] == softmax(s) * Z / (Z + e^sink) == softmax(s) * sigmoid(lse - sink)
        lse = torch.logsumexp(s, dim=-1, keepdim=True)
        keep = torch.sigmoid(lse - self.sinks.float().view(1, -1, 1, 1))
        p = torch.exp(s - lse) * keep
        y = p.to(v.dtype) @ v
        return self.proj(y.transpose(1, 2).flatten(2))
