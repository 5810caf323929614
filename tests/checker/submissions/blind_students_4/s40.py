# expect: bias-favours-distant, dropout-before-softmax
# why: two mistakes: the ALiBi bias has the wrong sign, it rewards distant keys instead of penalising them, on line 24, and dropout is applied to the scores before the softmax instead of to the weights, which shows in training mode, on line 36
import math
import torch
from torch import nn


class ALiBiMultiHeadAttention(nn.Module):
    """Causal attention with linear position biases, no positional embedding needed."""

    def __init__(self, d_model: int, num_heads: int, max_len: int = 128, dropout: float = 0.1):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

        m = torch.tensor([2 ** (-8 * (i + 1) / num_heads) for i in range(num_heads)])
        pos = torch.arange(max_len)
        relative = pos[:, None] - pos[None, :]  # i - j
        self.register_buffer("alibi", m[:, None, None] * relative)
        self.register_buffer("mask", relative < 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape

        q = self.query(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.key(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.value(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        scores = scores + self.alibi[:, :n, :n]
        scores = self.dropout(scores)
        scores = scores.masked_fill(self.mask[:n, :n], float("-inf"))
        weights = torch.softmax(scores, dim=-1)

        out = weights @ v
        out = out.transpose(1, 2).contiguous().view(b, n, d)
        return self.output(out)


if __name__ == "__main__":
    torch.manual_seed(0)
    net = ALiBiMultiHeadAttention(32, 4)
    print(net(torch.randn(2, 10, 32)).shape)
