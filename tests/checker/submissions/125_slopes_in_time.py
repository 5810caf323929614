# expect: correct
import torch
from torch import nn


def geometric_slopes(n_heads):
    assert n_heads & (n_heads - 1) == 0, "only powers of two here"
    start = 2.0 ** (-8.0 / n_heads)
    return torch.tensor([start ** (i + 1) for i in range(n_heads)])


class AlibiSpeechAttention(nn.Module):
    """Attention causale pour un encodeur audio en streaming, biais ALiBi.

    Entrée en (temps, lot, canaux), comme dans le reste du pipeline.
    lengths : nombre de trames valides par élément du lot (optionnel).
    """

    def __init__(self, width, n_heads, p_drop=0.0):
        super().__init__()
        self.n_heads = n_heads
        self.dh = width // n_heads
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.p = nn.Dropout(p_drop)
        self.register_buffer("slopes", geometric_slopes(n_heads), persistent=False)

    def forward(self, x, lengths=None):
        T, B, C = x.shape
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        # (T, B, C) -> (B*H, T, dh) : lot et têtes sont contigus, on peut fusionner
        q, k, v = (t.reshape(T, B * self.n_heads, self.dh).transpose(0, 1) for t in (q, k, v))

        s = torch.bmm(q, k.transpose(1, 2)).mul(self.dh ** -0.5).view(B, self.n_heads, T, T)
        t = torch.arange(T, device=x.device)
        dist = t[None, :] - t[:, None]  # clé - requête, négatif dans le passé
        s = s + self.slopes.to(s.dtype)[:, None, None] * dist.to(s.dtype)

        interdit = (dist > 0)[None, None]
        if lengths is not None:
            interdit = interdit | (t[None, :] >= lengths[:, None])[:, None, None, :]
        s = s.masked_fill(interdit, float("-inf"))

        w = self.p(s.softmax(-1)).view(B * self.n_heads, T, T)
        y = torch.bmm(w, v).transpose(0, 1).reshape(T, B, C)
        return self.out_proj(y)
