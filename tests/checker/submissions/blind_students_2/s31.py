# expect: correct
# what: ALiBi + causal mask in one buffer, official slopes also for non powers of two
import math
import torch
from torch import nn


def alibi_slopes(n_heads):
    """Slopes from the official ALiBi repo, also works if n_heads is not a power of two."""
    def pow2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n_heads).is_integer():
        return pow2(n_heads)
    closest = 2 ** math.floor(math.log2(n_heads))
    return pow2(closest) + alibi_slopes(2 * closest)[0::2][: n_heads - closest]


class ALiBiSelfAttention(nn.Module):
    def __init__(self, d_model, n_heads, max_len=64, dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        self.attn_dropout = nn.Dropout(dropout)

        slopes = torch.tensor(alibi_slopes(n_heads))
        j_minus_i = torch.arange(max_len)[None, :] - torch.arange(max_len)[:, None]
        bias = slopes[:, None, None] * j_minus_i[None].float()
        bias = bias.masked_fill(j_minus_i[None] > 0, float("-inf"))   # causal
        self.register_buffer("alibi", bias)     # (heads, max_len, max_len)

    def forward(self, x):
        batch, length, d_model = x.shape
        d_head = d_model // self.n_heads

        def heads(t):
            return t.reshape(batch, length, self.n_heads, d_head).swapaxes(1, 2)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        logits = torch.matmul(q, k.swapaxes(2, 3)) / math.sqrt(d_head)
        logits = logits + self.alibi[:, :length, :length]
        weights = torch.softmax(logits, dim=-1)
        mixed = torch.matmul(self.attn_dropout(weights), v)
        return self.output(mixed.swapaxes(1, 2).reshape(batch, length, d_model))


if __name__ == "__main__":
    print(alibi_slopes(8))
    print(alibi_slopes(6))
    print(ALiBiSelfAttention(36, 6)(torch.randn(2, 10, 36)).shape)
