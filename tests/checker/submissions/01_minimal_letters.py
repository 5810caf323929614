# expect: correct
import torch, torch.nn as nn

class MHA(nn.Module):
    def __init__(self, d_model, h):
        super().__init__()
        assert d_model % h == 0
        self.h = h
        self.d = d_model // h
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q = self.W_q(x).view(B, T, self.h, self.d).transpose(1, 2)
        k = self.W_k(x).view(B, T, self.h, self.d).transpose(1, 2)
        v = self.W_v(x).view(B, T, self.h, self.d).transpose(1, 2)
        a = (q @ k.transpose(-2, -1) / self.d ** 0.5).softmax(-1)
        return self.proj((a @ v).transpose(1, 2).reshape(B, T, C))
