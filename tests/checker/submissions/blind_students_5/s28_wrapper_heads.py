# expect: correct
# why: right though there is no output projection: the book chapter's wrapper only concatenates the heads, and the docstring says so
import torch
import torch.nn as nn
from math import sqrt


class OneHead(nn.Module):
    def __init__(self, dim_in, dim_out, max_len, drop=0.0):
        super().__init__()
        self.q = nn.Linear(dim_in, dim_out, bias=False)
        self.k = nn.Linear(dim_in, dim_out, bias=False)
        self.v = nn.Linear(dim_in, dim_out, bias=False)
        self.drop = nn.Dropout(drop)
        # 1 = can look, 0 = cannot
        self.register_buffer("allowed", torch.tril(torch.ones(max_len, max_len)))

    def forward(self, x):
        L = x.size(1)
        s = torch.bmm(self.q(x), self.k(x).permute(0, 2, 1)) / sqrt(self.k.out_features)
        s = s.masked_fill(self.allowed[:L, :L] == 0, float("-inf"))
        a = self.drop(s.softmax(dim=2))
        return torch.bmm(a, self.v(x))


class MultiHeadWrapper(nn.Module):
    """just runs the heads one after the other and glues the results together
    (like in the book, no out projection here yet)"""

    def __init__(self, dim_in, dim_out, max_len, n_heads, drop=0.0):
        super().__init__()
        self.heads = nn.ModuleList(
            [OneHead(dim_in, dim_out, max_len, drop) for _ in range(n_heads)]
        )

    def forward(self, x):
        return torch.cat([h(x) for h in self.heads], dim=-1)


if __name__ == "__main__":
    # Exercise 3.2: want 2 dim output with 2 heads -> dim_out=1
    torch.manual_seed(123)
    x = torch.rand(2, 6, 3)
    m = MultiHeadWrapper(3, 1, max_len=6, n_heads=2)
    y = m(x)
    print(y)
    print("shape", y.shape)
