# expect: padding-on-queries
import torch
import torch.nn as nn


class EncoderAttention(nn.Module):
    '''
    Encoder self attention (homework 4, part b)

    x    : batch x words x dim
    mask : batch x words, 1 for a real word and 0 for <pad>
    '''
    def __init__(self, dim, num_heads, p=0.1):
        super(EncoderAttention, self).__init__()
        self.nh = num_heads
        self.dk = dim // num_heads
        self.Wq = nn.Linear(dim, dim)
        self.Wk = nn.Linear(dim, dim)
        self.Wv = nn.Linear(dim, dim)
        self.Wo = nn.Linear(dim, dim)
        self.drop = nn.Dropout(p)

    def forward(self, x, mask=None):
        bs = x.size(0)
        n = x.size(1)

        # 1) project and split
        q = self.Wq(x).view(bs, n, self.nh, self.dk).transpose(1, 2)
        k = self.Wk(x).view(bs, n, self.nh, self.dk).transpose(1, 2)
        v = self.Wv(x).view(bs, n, self.nh, self.dk).transpose(1, 2)

        # 2) scores
        scores = torch.matmul(q, k.transpose(-2, -1)) / (self.dk ** 0.5)
        if mask is not None:
            m = mask[:, None, :, None]
            scores = scores.masked_fill(m == 0, -1e9)

        # 3) weights
        alpha = self.drop(torch.softmax(scores, dim=-1))

        # 4) put the heads together
        out = torch.matmul(alpha, v)
        out = out.transpose(1, 2).contiguous().view(bs, n, self.nh * self.dk)
        return self.Wo(out)
