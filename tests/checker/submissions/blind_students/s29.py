# expect: correct
import math
import torch
import torch.nn as nn


class KVCacheAttention(nn.Module):
    """ past = (k, v) from the calls before, or None """

    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)   # whisper has no bias here
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x, past=None):
        B, T, C = x.shape
        hs = C // self.n_head
        q = self.query(x).view(B, T, self.n_head, hs).permute(0, 2, 1, 3)
        k = self.key(x).view(B, T, self.n_head, hs).permute(0, 2, 1, 3)
        v = self.value(x).view(B, T, self.n_head, hs).permute(0, 2, 1, 3)

        n_past = 0
        if past is not None:
            n_past = past[0].shape[2]
            k = torch.cat((past[0], k), dim=2)
            v = torch.cat((past[1], v), dim=2)
        present = (k, v)

        w = (q @ k.transpose(-1, -2)) / math.sqrt(hs)
        # query i is really at position n_past + i
        hide = torch.ones(T, n_past + T, dtype=torch.bool, device=x.device).triu(n_past + 1)
        w = w.masked_fill(hide, -math.inf)
        w = w.softmax(dim=-1)
        y = (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2)
        return self.out(y), present


if __name__ == "__main__":
    torch.manual_seed(0)
    att = KVCacheAttention(16, 4)
    x = torch.randn(1, 6, 16)
    whole, _ = att(x)
    past, parts = None, []
    for t in range(6):
        y, past = att(x[:, t:t + 1], past)
        parts.append(y)
    print("same?", torch.allclose(whole, torch.cat(parts, 1), atol=1e-5))
