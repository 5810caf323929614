# expect: mask-result-dropped
# why: masked_fill is not in-place and its result is thrown away, so padding is never masked (line 36: `scores.masked_fill(mask, -float("inf"))`)
import math
import torch
import torch.nn as nn

# Sentiment classifier with one attention layer, token id 0 is <pad>


class MaskedSelfAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.q_lin = nn.Linear(dim, dim)
        self.k_lin = nn.Linear(dim, dim)
        self.v_lin = nn.Linear(dim, dim)
        self.out_lin = nn.Linear(dim, dim)

    def forward(self, x, mask):
        """x: (bs, seq, dim)   mask: (bs, seq), 1 = token, 0 = padding"""
        bs, seq, dim = x.size()

        def shape(t):
            return t.view(bs, seq, self.n_heads, self.head_dim).transpose(1, 2)

        def unshape(t):
            return t.transpose(1, 2).contiguous().view(bs, seq, dim)

        q = shape(self.q_lin(x)) / math.sqrt(self.head_dim)
        k = shape(self.k_lin(x))
        v = shape(self.v_lin(x))

        scores = torch.matmul(q, k.transpose(2, 3))                # (bs, n_heads, seq, seq)
        mask = (mask == 0).view(bs, 1, 1, seq).expand_as(scores)
        scores.masked_fill(mask, -float("inf"))
        weights = torch.softmax(scores, dim=-1)
        return self.out_lin(unshape(torch.matmul(weights, v)))


class Classifier(nn.Module):
    def __init__(self, vocab=1000, dim=32, n_heads=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.attn = MaskedSelfAttention(dim, n_heads)
        self.fc = nn.Linear(dim, 2)

    def forward(self, ids):
        mask = (ids != 0).long()
        h = self.attn(self.emb(ids), mask)
        # mean over the real tokens
        h = (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return self.fc(h)


if __name__ == "__main__":
    ids = torch.tensor([[12, 55, 7, 0, 0, 0], [4, 99, 321, 5, 77, 8]])
    print(Classifier()(ids))
