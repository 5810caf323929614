# expect: cache-differs
# why: The absorbed decode path scales the scores by kv_lora_rank ** -0.5 instead of qk_head_dim ** -0.5 as the expanded prefill path does.
import math

import torch
from torch import nn, einsum


def rotary(x, offset=0, base=1e4):
    # x: b n h d  (or h == 1 for the shared key)
    n, d = x.shape[1], x.shape[-1]
    t = torch.arange(offset, offset + n, dtype=torch.float32, device=x.device)
    f = base ** (-torch.arange(d // 2, dtype=torch.float32, device=x.device) / (d // 2))
    a = (t[:, None] * f[None, :])[None, :, None, :]
    x1, x2 = x[..., : d // 2], x[..., d // 2:]
    return torch.cat([x1 * a.cos() - x2 * a.sin(), x2 * a.cos() + x1 * a.sin()], -1).to(x.dtype)


class MLA(nn.Module):
    """
    Latent attention with two execution modes.

    * prefill / training: keys and values are expanded from the latent, ordinary causal attention
    * decode: W_uk is absorbed into the query and W_uv into the output, attention runs directly
      on the latent cache (MQA over kv_lora_rank + rope channels).

    Both modes compute the same function.
    """

    def __init__(self, dim=64, n_heads=4, kv_lora_rank=40, qk_nope_dim=16, qk_rope_dim=8, v_head_dim=16):
        super().__init__()
        self.n_heads = n_heads
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_dim = qk_nope_dim
        self.qk_rope_dim = qk_rope_dim
        self.qk_head_dim = qk_nope_dim + qk_rope_dim
        self.v_head_dim = v_head_dim
        self.wq = nn.Linear(dim, n_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope_dim, bias=False)
        self.kv_norm = nn.RMSNorm(kv_lora_rank, eps=1e-6)
        self.w_uk = nn.Parameter(torch.randn(n_heads, qk_nope_dim, kv_lora_rank) / math.sqrt(kv_lora_rank))
        self.w_uv = nn.Parameter(torch.randn(n_heads, v_head_dim, kv_lora_rank) / math.sqrt(kv_lora_rank))
        self.wo = nn.Linear(n_heads * v_head_dim, dim, bias=False)

    def _project(self, x, offset):
        b, n, _ = x.shape
        q = self.wq(x).view(b, n, self.n_heads, self.qk_head_dim)
        q_nope, q_pe = q.split([self.qk_nope_dim, self.qk_rope_dim], dim=-1)
        c, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.qk_rope_dim], dim=-1)
        q_pe = rotary(q_pe, offset)
        k_pe = rotary(k_pe.unsqueeze(2), offset).squeeze(2)
        return q_nope, q_pe, self.kv_norm(c), k_pe

    def forward(self, x):
        """Full-sequence causal attention. Returns the output and the cache to continue from."""
        b, n, _ = x.shape
        q_nope, q_pe, c, k_pe = self._project(x, 0)
        k_nope = einsum("bsr,hdr->bshd", c, self.w_uk)
        v = einsum("bsr,hdr->bshd", c, self.w_uv)
        sim = einsum("bihd,bjhd->bhij", q_nope, k_nope) + einsum("bihd,bjd->bhij", q_pe, k_pe)
        sim = sim * self.qk_head_dim ** -0.5
        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        attn = sim.masked_fill(causal, -torch.inf).softmax(dim=-1)
        out = einsum("bhij,bjhd->bihd", attn, v)
        return self.wo(out.flatten(2)), (c, k_pe)

    def decode(self, x, cache):
        """One new token, x: (b, 1, dim)."""
        past_c, past_pe = cache
        q_nope, q_pe, c, k_pe = self._project(x, past_c.shape[1])
        c = torch.cat([past_c, c], dim=1)
        k_pe = torch.cat([past_pe, k_pe], dim=1)
        q_lat = einsum("bihd,hdr->bihr", q_nope, self.w_uk)
        sim = einsum("bihr,bjr->bhij", q_lat, c) + einsum("bihd,bjd->bhij", q_pe, k_pe)
        attn = (sim * self.kv_lora_rank ** -0.5).softmax(dim=-1)
        o_lat = einsum("bhij,bjr->bihr", attn, c)
        out = einsum("bihr,hdr->bihd", o_lat, self.w_uv)
        return self.wo(out.flatten(2)), (c, k_pe)
