# expect: correct
# what: flash-style online softmax over blocks with a custom autograd function
import math
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass(frozen=True)
class FlashConfig:
    embed_dim: int = 32
    num_heads: int = 4
    block_q: int = 4
    block_k: int = 4
    causal: bool = True
    bias: bool = True


def flash_attention_forward(q, k, v, block_q: int, block_k: int, causal: bool, sm_scale: float):
    """Tiled attention with a running softmax. q, k, v: (B, H, N, D)."""
    B, H, N, D = q.shape
    M = k.shape[2]
    shift = M - N
    out = torch.empty(B, H, N, v.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.empty(B, H, N, dtype=torch.float32, device=q.device)

    for i0 in range(0, N, block_q):
        i1 = min(i0 + block_q, N)
        q_i = q[:, :, i0:i1].float() * sm_scale
        m_i = torch.full((B, H, i1 - i0, 1), float("-inf"), device=q.device)
        l_i = torch.zeros(B, H, i1 - i0, 1, device=q.device)
        acc = torch.zeros(B, H, i1 - i0, v.shape[-1], device=q.device)

        hi = min(M, i1 + shift) if causal else M
        for j0 in range(0, hi, block_k):
            j1 = min(j0 + block_k, M)
            s_ij = q_i @ k[:, :, j0:j1].float().transpose(-2, -1)
            if causal and j1 - 1 > i0 + shift:
                rows = torch.arange(i0, i1, device=q.device)[:, None] + shift
                cols = torch.arange(j0, j1, device=q.device)[None, :]
                s_ij = s_ij.masked_fill(cols > rows, float("-inf"))
            m_new = torch.maximum(m_i, s_ij.amax(dim=-1, keepdim=True))
            alpha = torch.exp(m_i - m_new)
            p_ij = torch.exp(s_ij - m_new)
            l_i = l_i * alpha + p_ij.sum(dim=-1, keepdim=True)
            acc = acc * alpha + p_ij @ v[:, :, j0:j1].float()
            m_i = m_new

        out[:, :, i0:i1] = (acc / l_i).to(q.dtype)
        lse[:, :, i0:i1] = (m_i + torch.log(l_i)).squeeze(-1)
    return out, lse


class _FlashFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, block_q, block_k, causal, sm_scale):
        out, lse = flash_attention_forward(q, k, v, block_q, block_k, causal, sm_scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal, ctx.sm_scale, ctx.block_k = causal, sm_scale, block_k
        return out

    @staticmethod
    def backward(ctx, do):
        q, k, v, out, lse = ctx.saved_tensors
        N, M = q.shape[2], k.shape[2]
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (do * out).sum(dim=-1, keepdim=True)
        rows = torch.arange(N, device=q.device)[:, None] + (M - N)
        for j0 in range(0, M, ctx.block_k):
            j1 = min(j0 + ctx.block_k, M)
            s = (q @ k[:, :, j0:j1].transpose(-2, -1)) * ctx.sm_scale
            p = torch.exp(s - lse.unsqueeze(-1).to(s.dtype))
            if ctx.causal:
                cols = torch.arange(j0, j1, device=q.device)[None, :]
                p = p.masked_fill(cols > rows, 0.0)
            dv[:, :, j0:j1] = p.transpose(-2, -1) @ do
            ds = p * (do @ v[:, :, j0:j1].transpose(-2, -1) - delta) * ctx.sm_scale
            dq = dq + ds @ k[:, :, j0:j1]
            dk[:, :, j0:j1] = ds.transpose(-2, -1) @ q
        return dq, dk, dv, None, None, None, None


class FlashSelfAttention(nn.Module):
    def __init__(self, cfg: FlashConfig = FlashConfig()):
        super().__init__()
        assert cfg.embed_dim % cfg.num_heads == 0
        self.cfg = cfg
        self.head_dim = cfg.embed_dim // cfg.num_heads
        self.Wqkv = nn.Linear(cfg.embed_dim, 3 * cfg.embed_dim, bias=cfg.bias)
        self.out_proj = nn.Linear(cfg.embed_dim, cfg.embed_dim, bias=cfg.bias)

    def forward(self, x):
        B, N, _ = x.shape
        qkv = self.Wqkv(x).view(B, N, 3, self.cfg.num_heads, self.head_dim)
        q, k, v = (t.transpose(1, 2).contiguous() for t in qkv.unbind(dim=2))
        out = _FlashFunction.apply(
            q, k, v, self.cfg.block_q, self.cfg.block_k, self.cfg.causal, 1.0 / math.sqrt(self.head_dim)
        )
        return self.out_proj(out.transpose(1, 2).reshape(B, N, -1))
