# expect: wrong
import torch
import torch.nn as nn
import torch.nn.functional as F


def attend(q, k, v):
    w = F.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
    return w


class TwoStep(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.a = nn.Linear(d_model, d_model)
        self.b = nn.Linear(d_model, d_model)
        self.c = nn.Linear(d_model, d_model)
        self.z = nn.Linear(d_model, d_model)

    def forward(self, x):
        n, t, d = x.shape
        f = lambda y: y.view(n, t, self.heads, d // self.heads).transpose(1, 2)
        q, k, v = f(self.a(x)), f(self.b(x)), f(self.c(x))
        w = attend(q, k, v)
        y = F.softmax(w, dim=-1) @ v
        return self.z(y.transpose(1, 2).reshape(n, t, d))
