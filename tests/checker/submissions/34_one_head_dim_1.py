# expect: softmax-over-queries
import torch
import torch.nn as nn

class OneHead(nn.Module):
    """ a single causal head, (B,T,C) in, (B,T,hs) out """
    def __init__(self, C, hs, T_max=32):
        super().__init__()
        self.k = nn.Linear(C, hs, bias=False)
        self.q = nn.Linear(C, hs, bias=False)
        self.v = nn.Linear(C, hs, bias=False)
        self.hs = hs
        self.register_buffer('ok', torch.tril(torch.ones(T_max, T_max)))

    def forward(self, idx):
        T = idx.shape[1]
        w = self.q(idx) @ self.k(idx).transpose(1, 2) / self.hs ** .5
        w = w.masked_fill(self.ok[:T, :T] == 0, float('-inf'))
        w = torch.softmax(w, 1)
        return w @ self.v(idx)
