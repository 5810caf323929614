# expect: no-super-init
import torch.nn as nn
import torch.nn.functional as F

class SimpleMHA(nn.Module):
    def __init__(self, d_model, num_heads):
        self.num_heads = num_heads
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, N, D = x.shape
        h = self.num_heads
        q = self.q(x).view(B, N, h, D // h).transpose(1, 2)
        k = self.k(x).view(B, N, h, D // h).transpose(1, 2)
        v = self.v(x).view(B, N, h, D // h).transpose(1, 2)
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, D))
