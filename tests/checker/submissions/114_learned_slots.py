# expect: correct
import torch
import torch.nn as nn


class LatentPool(nn.Module):
    """Pools a variable number of frames into a few learned query slots (speaker embedding).

    frames (B, C, T), lengths (B,) number of valid frames (>= 1)  ->  (B, slots, C)
    """

    def __init__(self, C, slots=3, heads=2):
        super().__init__()
        self.slots, self.heads, self.dh = slots, heads, C // heads
        self.latents = nn.Parameter(torch.randn(heads, slots, self.dh))
        self.Wk = nn.Parameter(torch.randn(heads, self.dh, C) / C ** 0.5)
        self.Wv = nn.Parameter(torch.randn(heads, self.dh, C) / C ** 0.5)
        self.Wo = nn.Parameter(torch.randn(C, heads * self.dh) / C ** 0.5)

    def forward(self, frames, lengths=None):
        B, C, T = frames.shape
        k = torch.einsum("hdc,bct->bhdt", self.Wk, frames)
        v = torch.einsum("hdc,bct->bhdt", self.Wv, frames)
        a = self.latents @ k * self.dh ** -0.5            # B, heads, slots, T
        if lengths is not None:
            invalid = torch.arange(T, device=frames.device) >= lengths[:, None]
            a = a.masked_fill(invalid[:, None, None, :], float("-inf"))
        a = a.softmax(-1)
        y = torch.einsum("bhst,bhdt->bshd", a, v)
        return y.flatten(2) @ self.Wo.T
