# expect: correct
# exercise: wrapper class that stacks several single heads, with different argument order than the book
import torch
import torch.nn as nn


class OneHead(nn.Module):
    def __init__(self, ctx_len, d_out, d_in, p=0.0, use_bias=False):
        super().__init__()
        self.Wq = nn.Linear(d_in, d_out, use_bias)
        self.Wk = nn.Linear(d_in, d_out, use_bias)
        self.Wv = nn.Linear(d_in, d_out, use_bias)
        self.p = nn.Dropout(p)
        self.register_buffer('allowed', torch.ones(ctx_len, ctx_len).tril().bool())

    def forward(self, x):
        L = x.size(1)
        attn = self.Wq(x).bmm(self.Wk(x).permute(0, 2, 1))
        attn = attn.masked_fill(~self.allowed[:L, :L], float('-inf'))
        attn = (attn / self.Wk.out_features ** .5).softmax(2)
        return self.p(attn).bmm(self.Wv(x))


class MultiHeadWrapper(nn.Module):
    def __init__(self, n_heads, ctx_len, d_out, d_in, p=0.0, use_bias=False):
        super().__init__()
        # every head makes d_out/n_heads columns
        self.heads = nn.ModuleList()
        for _ in range(n_heads):
            self.heads.append(OneHead(ctx_len, d_out // n_heads, d_in, p, use_bias))
        self.out_proj = nn.Linear(d_out, d_out)

    def forward(self, x):
        context = [head(x) for head in self.heads]
        return self.out_proj(torch.cat(context, -1))


if __name__ == "__main__":
    torch.manual_seed(123)
    mh = MultiHeadWrapper(n_heads=2, ctx_len=6, d_out=4, d_in=3)
    print(mh(torch.rand(2, 6, 3)))
