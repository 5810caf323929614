# expect: heads-in-python-list
# why: the heads are in a plain Python list, so their parameters are not registered
import torch
import torch.nn as nn
from math import sqrt


class Head(nn.Module):
    def __init__(self, d_model, d_head, max_len, p):
        super().__init__()
        self.q = nn.Linear(d_model, d_head, bias=False)
        self.k = nn.Linear(d_model, d_head, bias=False)
        self.v = nn.Linear(d_model, d_head, bias=False)
        self.p = nn.Dropout(p)
        self.register_buffer("keep", torch.ones(max_len, max_len).tril().bool())

    def forward(self, x):
        n = x.size(1)
        s = self.q(x) @ self.k(x).mT / sqrt(self.q.out_features)
        s = s.masked_fill(~self.keep[:n, :n], float("-inf"))
        return self.p(s.softmax(-1)) @ self.v(x)


class MultiHeadCausal(nn.Module):
    def __init__(self, d_model, n_heads, max_len=64, p=0.0):
        super().__init__()
        assert d_model % n_heads == 0
        self.heads = [Head(d_model, d_model // n_heads, max_len, p) for _ in range(n_heads)]
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(torch.cat([h(x) for h in self.heads], dim=-1))


def train_step(model, x, y, opt):
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


if __name__ == "__main__":
    net = MultiHeadCausal(16, 4)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x, y = torch.randn(8, 12, 16), torch.randn(8, 12, 16)
    for step in range(50):
        l = train_step(net, x, y, opt)
        if step % 10 == 0:
            print(step, round(l, 4))
