# expect: correct
# what: online softmax over key chunks, optional context and keep mask
import torch
import torch.nn as nn


def chunked_attention(q, k, v, key_keep=None, chunk=16):
    """Online softmax over chunks of the keys.

    q (B,H,Tq,D), k and v (B,H,Tk,D), key_keep (B,Tk) bool or None.
    """
    B, H, Tq, D = q.shape
    q = q * (D ** -0.5)
    m = q.new_full((B, H, Tq), -1e30)        # running max
    z = q.new_zeros(B, H, Tq)                # running normaliser
    o = q.new_zeros(B, H, Tq, v.shape[-1])   # running (unnormalised) output

    for k_c, v_c, i in zip(k.split(chunk, 2), v.split(chunk, 2), range(0, k.shape[2], chunk)):
        s = torch.einsum("bhqd,bhkd->bhqk", q, k_c)
        if key_keep is not None:
            keep = key_keep[:, None, None, i:i + chunk]
            s = s.masked_fill(~keep, float("-inf"))
        m_new = torch.maximum(m, s.amax(-1))
        alpha = torch.exp(m - m_new)
        e = torch.exp(s - m_new[..., None])
        z = z * alpha + e.sum(-1)
        o = o * alpha[..., None] + torch.einsum("bhqk,bhkd->bhqd", e, v_c)
        m = m_new
    return o / z[..., None]


class ChunkedMHA(nn.Module):
    def __init__(self, d_model, n_head, chunk=16):
        super().__init__()
        self.n_head, self.chunk = n_head, chunk
        self.q = nn.Linear(d_model, d_model)
        self.kv = nn.Linear(d_model, 2 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x, ctx=None, ctx_keep=None):
        ctx = x if ctx is None else ctx
        B, T, C = x.shape
        S = ctx.shape[1]
        q = self.q(x).view(B, T, self.n_head, -1).transpose(1, 2)
        k, v = self.kv(ctx).view(B, S, 2, self.n_head, -1).permute(2, 0, 3, 1, 4)
        y = chunked_attention(q, k, v, ctx_keep, self.chunk)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


if __name__ == "__main__":
    net = ChunkedMHA(32, 4, chunk=4)
    x, ctx = torch.randn(2, 5, 32), torch.randn(2, 11, 32)
    keep = torch.arange(11)[None] < torch.tensor([11, 6])[:, None]
    a = net(x, ctx, keep)
    net.chunk = 100
    b = net(x, ctx, keep)
    print("should be ~0:", (a - b).abs().max().item())
