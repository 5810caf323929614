# expect: bias-favours-distant, mask-off-by-one, dropout-in-eval
# why: three: ALiBi sign wrong; mask keeps diagonal=1; F.dropout without training=self.training
import torch
import torch.nn as nn
import torch.nn.functional as F


class ALiBiCausalAttention(nn.Module):
    """Decoder self-attention with linear biases instead of position embeddings.

    n_heads has to be a power of two.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.1):
        super().__init__()
        assert d_model % n_heads == 0
        self.d_model = d_model
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.dropout = dropout
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)
        m = torch.tensor([2 ** (-8 * (i + 1) / n_heads) for i in range(n_heads)])
        self.register_buffer("m", m.view(1, n_heads, 1, 1))

    def get_bias(self, seq_len, device):
        pos = torch.arange(seq_len, device=device)
        distance = (pos[:, None] - pos[None, :]).float()   # i - j
        return self.m * distance

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, seq_len, _ = x.size()
        q = self.q(x).view(bsz, seq_len, self.n_heads, self.d_k).transpose(1, 2)
        k = self.k(x).view(bsz, seq_len, self.n_heads, self.d_k).transpose(1, 2)
        v = self.v(x).view(bsz, seq_len, self.n_heads, self.d_k).transpose(1, 2)

        scores = torch.matmul(q, k.transpose(2, 3)) / self.d_k ** 0.5
        scores = scores + self.get_bias(seq_len, x.device)

        # causal mask: lower triangle stays
        mask = torch.tril(torch.ones(seq_len, seq_len, device=x.device), diagonal=1)
        scores = scores.masked_fill(mask == 0, float("-inf"))

        weights = F.softmax(scores, dim=-1)
        weights = F.dropout(weights, self.dropout)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous()
        return self.o(out.view(bsz, seq_len, self.d_model))
