# expect: correct
# what: terse; heads interleaved in the feature axis (view d,h), q and k each scaled by d**-0.25, True=blocked
import torch
from torch import nn


class Attn(nn.Module):
    # no comments because the code is self explaining ;)

    def __init__(self, c, h, p=0.):
        super().__init__()
        self.c, self.h, self.d = c, h, c // h
        self.q, self.k, self.v, self.o = (nn.Linear(c, c, bias=False) for _ in range(4))
        self.p = nn.Dropout(p)

    def split(self, t):
        b, n, _ = t.shape
        return t.view(b, n, self.d, self.h).permute(0, 3, 1, 2)

    def merge(self, t):
        b, h, n, d = t.shape
        return t.permute(0, 2, 3, 1).reshape(b, n, d * h)

    def forward(self, x, y=None, blocked=None):
        y = x if y is None else y
        s = self.d ** -0.25
        q, k, v = self.split(self.q(x)), self.split(self.k(y)), self.split(self.v(y))
        a = (q * s) @ (k * s).mT
        if blocked is not None:
            a = a.masked_fill(blocked, -torch.inf)
        a = self.p(a.softmax(3))
        return self.o(self.merge(a @ v))


if __name__ == "__main__":
    m = Attn(20, 5)
    x = torch.randn(2, 6, 20)
    future = torch.ones(6, 6).triu(1) > 0
    print(m(x, blocked=future).shape)
    print(m(x, torch.randn(2, 3, 20)).shape)
