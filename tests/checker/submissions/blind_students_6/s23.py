# expect: heads-share-weights
# why: [AttentionHead(...)] * num_heads repeats one module, so all heads share their weights
import torch
import torch.nn as nn
import torch.nn.functional as F


class AttentionHead(nn.Module):
    def __init__(self, embed_dim, head_dim):
        super().__init__()
        self.q = nn.Linear(embed_dim, head_dim)
        self.k = nn.Linear(embed_dim, head_dim)
        self.v = nn.Linear(embed_dim, head_dim)

    def forward(self, hidden_state, mask=None):
        q, k, v = self.q(hidden_state), self.k(hidden_state), self.v(hidden_state)
        scores = torch.bmm(q, k.transpose(1, 2)) / (q.size(-1) ** 0.5)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return torch.bmm(F.softmax(scores, dim=-1), v)


class MultiHeadAttention(nn.Module):
    """num_heads independent heads, outputs concatenated, then a linear layer.

    mask (optional): (seq, seq) or (batch, seq, seq), 0 where attention is not allowed
    """

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        head_dim = embed_dim // num_heads
        self.heads = nn.ModuleList([AttentionHead(embed_dim, head_dim)] * num_heads)
        self.output_linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden_state, mask=None):
        x = torch.cat([h(hidden_state, mask) for h in self.heads], dim=-1)
        x = self.output_linear(x)
        return x


if __name__ == "__main__":
    mha = MultiHeadAttention(768, 12)
    print(mha)
    print(mha(torch.randn(1, 5, 768)).size())
