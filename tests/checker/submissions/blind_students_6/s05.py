# expect: correct
# why: right though unusual: blockwise online softmax (the idea of FlashAttention)
"""Blockwise attention with running max / running sum (FlashAttention idea),
only plain PyTorch, no kernels. Slow but never builds the T x T matrix."""
import torch
import torch.nn as nn


def tiled_attention(q, k, v, scale, causal, blk=16):
    # q, k, v: (..., T, d)
    T = q.size(-2)
    chunks = []
    for i0 in range(0, T, blk):
        i1 = min(i0 + blk, T)
        qi = q[..., i0:i1, :] * scale
        m = qi.new_full(qi.shape[:-1] + (1,), float("-inf"))   # running max
        l = qi.new_zeros(qi.shape[:-1] + (1,))                 # running denominator
        acc = qi.new_zeros(qi.shape[:-1] + (v.size(-1),))
        stop = i1 if causal else T
        for j0 in range(0, stop, blk):
            j1 = min(j0 + blk, stop)
            s = qi @ k[..., j0:j1, :].transpose(-1, -2)
            if causal and j1 > i0 + 1:
                rows = torch.arange(i0, i1, device=q.device).unsqueeze(1)
                cols = torch.arange(j0, j1, device=q.device).unsqueeze(0)
                s = s.masked_fill(cols > rows, float("-inf"))
            m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
            p = torch.exp(s - m_new)
            corr = torch.exp(m - m_new)
            l = l * corr + p.sum(dim=-1, keepdim=True)
            acc = acc * corr + p @ v[..., j0:j1, :]
            m = m_new
        chunks.append(acc / l)
    return torch.cat(chunks, dim=-2)


class TiledMHA(nn.Module):
    def __init__(self, d_model, n_head, causal=True, blk=16):
        super().__init__()
        assert d_model % n_head == 0
        self.n_head, self.causal, self.blk = n_head, causal, blk
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        hd = c // self.n_head
        # (b, t, 3, h, hd) -> (3, b, h, t, hd)
        q, k, v = self.qkv(x).reshape(b, t, 3, self.n_head, hd).permute(2, 0, 3, 1, 4)
        y = tiled_attention(q, k, v, hd ** -0.5, self.causal, self.blk)
        return self.out(y.permute(0, 2, 1, 3).reshape(b, t, c))


if __name__ == "__main__":
    torch.manual_seed(0)
    m = TiledMHA(32, 4, blk=4)
    x = torch.randn(2, 11, 32)
    print(m(x).shape)
