# expect: correct
# I wrote the attention with plain loops so that I can follow each step.
# Slow, but it is exactly what the formula in the lecture says.
import torch
import torch.nn as nn


class LoopAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        assert dim % heads == 0
        self.dim = dim
        self.heads = heads
        self.size = dim // heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)
        self.mix = nn.Linear(dim, dim, bias=False)

    def one_head(self, q, k, v):
        """q, k, v: (T, size) of one head and one sentence"""
        T = q.shape[0]
        rows = []
        for i in range(T):
            # position i looks at positions 0..i
            s = []
            for j in range(i + 1):
                s.append(torch.dot(q[i], k[j]))
            s = torch.stack(s) / self.size ** 0.5
            p = torch.softmax(s, dim=0)
            row = torch.zeros_like(v[0])
            for j in range(i + 1):
                row = row + p[j] * v[j]
            rows.append(row)
        return torch.stack(rows)

    def forward(self, x):
        sentences = []
        for sent in x:
            q, k, v = self.to_q(sent), self.to_k(sent), self.to_v(sent)
            parts = []
            for h in range(self.heads):
                a, b = h * self.size, (h + 1) * self.size
                parts.append(self.one_head(q[:, a:b], k[:, a:b], v[:, a:b]))
            sentences.append(torch.cat(parts, dim=1))
        return self.mix(torch.stack(sentences))


if __name__ == "__main__":
    att = LoopAttention(8, 2)
    print(att(torch.randn(2, 5, 8)))
