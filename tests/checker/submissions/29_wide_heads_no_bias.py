# expect: correct
from math import sqrt
from torch import nn


class WideHeadAttention(nn.Module):
    # the heads may be wider than d_model / n_head
    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head = n_head
        self.root = sqrt(d_k)
        make = lambda a, b: nn.Linear(a, b, bias=False)
        self.w_qs, self.w_ks, self.w_vs = make(d_model, n_head * d_k), make(d_model, n_head * d_k), make(d_model, n_head * d_v)
        self.fc = make(n_head * d_v, d_model)
        self.drop = nn.Dropout(dropout)

    def cut(self, t):
        return t.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def forward(self, q, k, v, mask=None):
        q, k, v = self.cut(self.w_qs(q)), self.cut(self.w_ks(k)), self.cut(self.w_vs(v))
        score = (q / self.root) @ k.transpose(2, 3)
        if mask is not None:
            score = score.masked_fill(mask == 0, -1e9)
        weight = self.drop(nn.functional.softmax(score, dim=-1))
        return self.fc((weight @ v).transpose(1, 2).flatten(2)), weight
