# expect: wrong
# why: the second einsum takes the values at the query position (bqhd), so the weights just sum to one and the output is the token's own value.
import torch
from torch import nn, einsum


class EinsumAttention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=16, dropout=0.):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.dim_head = dim_head
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.to_q(x).view(b, n, self.heads, self.dim_head)
        k = self.to_k(x).view(b, n, self.heads, self.dim_head)
        v = self.to_v(x).view(b, n, self.heads, self.dim_head)

        energy = einsum('bqhd,bkhd->bhqk', q, k) * self.dim_head ** -0.5
        attn = energy.softmax(dim=-1)
        attn = self.dropout(attn)

        out = einsum('bhqk,bqhd->bqhd', attn, v)
        out = out.reshape(b, n, self.heads * self.dim_head)
        return self.to_out(out)


if __name__ == '__main__':
    model = EinsumAttention(dim=48, heads=3)
    img_tokens = torch.randn(2, 17, 48)
    print(model(img_tokens).shape)
