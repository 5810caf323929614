# expect: scale-twice, dropout-in-eval
# why: q is scaled before scaled_dot_product_attention which scales again, and dropout_p is passed even in eval mode.
import torch
import torch.nn as nn
import torch.nn.functional as F


class SDPAttention(nn.Module):
    def __init__(self, width, nhead, dropout=0.1, *, causal=True):
        super().__init__()
        self.nhead = nhead
        self.dropout = dropout
        self.causal = causal
        self.scale = (width // nhead) ** -0.5
        self.in_q = nn.Linear(width, width)
        self.in_k = nn.Linear(width, width)
        self.in_v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        bsz, seq, width = x.shape
        shape = (bsz, seq, self.nhead, width // self.nhead)
        q = self.in_q(x).reshape(shape).transpose(1, 2)
        k = self.in_k(x).reshape(shape).transpose(1, 2)
        v = self.in_v(x).reshape(shape).transpose(1, 2)

        q = q * self.scale       # scaled dot product
        ctx = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.causal)
        ctx = ctx.transpose(1, 2).reshape(bsz, seq, width)
        return self.out(ctx)


def count_params(m):
    return sum(p.numel() for p in m.parameters() if p.requires_grad)


if __name__ == "__main__":
    att = SDPAttention(64, 8)
    print("params:", count_params(att))
    print(att(torch.rand(2, 20, 64)).mean())
