# expect: split-without-transpose
import torch
import torch.nn as nn
import torch.nn.functional as F


class mha(nn.Module):
    def __init__(self, C, H):
        super().__init__()
        self.H = H
        self.D = C // H
        self.Q = nn.Linear(C, C)
        self.K = nn.Linear(C, C)
        self.V = nn.Linear(C, C)
        self.O = nn.Linear(C, C)

    def forward(self, x, causal=True):
        B, T, C = x.shape
        q = self.Q(x).view(B, self.H, T, self.D)
        k = self.K(x).view(B, self.H, T, self.D)
        v = self.V(x).view(B, self.H, T, self.D)
        a = (q @ k.transpose(-2, -1)) / self.D ** 0.5
        if causal:
            m = torch.tril(torch.ones(T, T, device=x.device))
            a = a.masked_fill(m == 0, float('-inf'))
        a = F.softmax(a, dim=-1)
        y = a @ v
        y = y.contiguous().view(B, T, C)
        return self.O(y)
