# expect: merge-without-transpose
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attn(nn.Module):
    def __init__(self, n_embd, n_head, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.dropout = dropout
        self.wq, self.wk, self.wv, self.wo = [nn.Linear(n_embd, n_embd, bias=False) for _ in range(4)]

    def forward(self, x):
        B, T, C = x.shape
        split = lambda t: t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            split(self.wq(x)), split(self.wk(x)), split(self.wv(x)),
            dropout_p=self.dropout if self.training else 0, is_causal=True,
        )
        return self.wo(y.reshape(B, T, C))
