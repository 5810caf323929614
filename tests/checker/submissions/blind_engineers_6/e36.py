# expect: breaks-with-length
# why: the accumulator is not rescaled when the running maximum changes: wrong from 2 blocks on
"""Reference for our fused attention kernel, written block by block like the kernel itself.

Used in the kernel's unit tests and as the CPU fallback of the model below.
"""
import math

import torch
import torch.nn as nn


def flash_attention_forward(q, k, v, *, causal=False, sm_scale=None, block_m=32, block_n=32):
    """Tiled attention with an online softmax.

    q (B, H, M, D), k (B, H, N, D), v (B, H, N, D). ``causal`` requires M == N.
    Returns ``out`` (B, H, M, D) in q's dtype and the log-sum-exp of the scaled logits
    ``lse`` (B, H, M) in float32 (float64 for float64 inputs).
    """
    B, H, M, D = q.shape
    N = k.shape[2]
    if causal and M != N:
        raise ValueError("causal attention needs as many queries as keys")
    sm_scale = 1.0 / math.sqrt(D) if sm_scale is None else sm_scale
    acc_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32

    out = torch.empty(B, H, M, D, dtype=q.dtype, device=q.device)
    lse = torch.empty(B, H, M, dtype=acc_dtype, device=q.device)

    for start_m in range(0, M, block_m):
        end_m = min(start_m + block_m, M)
        q_blk = q[:, :, start_m:end_m].to(acc_dtype)
        rows = torch.arange(start_m, end_m, device=q.device)

        m_i = torch.full((B, H, end_m - start_m), -float("inf"), dtype=acc_dtype, device=q.device)
        l_i = torch.zeros_like(m_i)
        acc = torch.zeros(B, H, end_m - start_m, D, dtype=acc_dtype, device=q.device)

        # blocks right of the diagonal contribute nothing
        hi = end_m if causal else N
        for start_n in range(0, hi, block_n):
            end_n = min(start_n + block_n, hi)
            k_blk = k[:, :, start_n:end_n].to(acc_dtype)
            v_blk = v[:, :, start_n:end_n].to(acc_dtype)

            qk = torch.einsum("bhmd,bhnd->bhmn", q_blk, k_blk) * sm_scale
            if causal:
                cols = torch.arange(start_n, end_n, device=q.device)
                qk = qk.masked_fill(cols[None, :] > rows[:, None], -float("inf"))

            # -- update the running maximum and normaliser --
            m_new = torch.maximum(m_i, qk.amax(dim=-1))
            alpha = torch.exp(m_i - m_new)
            p = torch.exp(qk - m_new[..., None])
            l_i = l_i * alpha + p.sum(dim=-1)

            # -- accumulate --
            acc = acc + torch.einsum("bhmn,bhnd->bhmd", p, v_blk)
            m_i = m_new

        out[:, :, start_m:end_m] = (acc / l_i[..., None]).to(q.dtype)
        lse[:, :, start_m:end_m] = m_i + torch.log(l_i)
    return out, lse


class TiledSelfAttention(nn.Module):
    """Inference-only causal self-attention; ``block`` is the tile size of the kernel."""

    def __init__(self, dim: int, n_heads: int, block: int = 32):
        super().__init__()
        self.n_heads, self.block = n_heads, block
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.wqkv(x).view(b, t, 3, self.n_heads, c // self.n_heads).permute(2, 0, 3, 1, 4)
        o, _ = flash_attention_forward(q, k, v, causal=True, block_m=self.block, block_n=self.block)
        return self.wo(o.transpose(1, 2).reshape(b, t, c))
