# expect: correct
import torch, math
import torch.nn as nn


def get_slopes(n):
    """Geometric slopes from the ALiBi paper (Press et al.), also for n not a power of 2"""
    def pow2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]
    if math.log2(n).is_integer():
        return pow2(n)
    closest = 2 ** math.floor(math.log2(n))
    return pow2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiSelfAttention(nn.Module):
    def __init__(self, hid, nheads, pdrop=0.1):
        super().__init__()
        self.nheads = nheads
        self.hd = hid // nheads
        self.fused = nn.Linear(hid, 3 * hid)
        self.dense = nn.Linear(hid, hid)
        self.drop = nn.Dropout(pdrop)
        self.register_buffer("slopes", torch.tensor(get_slopes(nheads)).view(nheads, 1, 1))

    def bias(self, T, device):
        pos = torch.arange(T, device=device)
        rel = pos[None, :] - pos[:, None]         # j - i, <= 0 for the past
        b = self.slopes * rel.float()             # (heads, T, T)
        b = b.masked_fill(rel[None] > 0, torch.finfo(b.dtype).min)
        return b

    def forward(self, h, pad=None):
        """h (B,T,hid);  pad (B,T) True where the token is padding (right padding)"""
        B, T, E = h.shape
        x = self.fused(h).view(B, T, 3, self.nheads, self.hd)
        q, k, v = x.unbind(dim=2)
        s = torch.einsum("bthd,bshd->bhts", q, k) / self.hd ** 0.5
        s = s + self.bias(T, h.device)[None]
        if pad is not None:
            s = s.masked_fill(pad[:, None, None, :], torch.finfo(s.dtype).min)
        p = self.drop(s.softmax(-1))
        o = torch.einsum("bhts,bshd->bthd", p, v)
        return self.dense(o.reshape(B, T, E))


if __name__ == "__main__":
    a = AlibiSelfAttention(48, 6).eval()
    print(a.slopes.flatten())
    x = torch.randn(2, 11, 48)
    y = a(x)
    x2 = x.clone(); x2[:, 8:] += 1
    print((a(x2)[:, :8] - y[:, :8]).abs().max())  # should be 0
