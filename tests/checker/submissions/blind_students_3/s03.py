# expect: split-without-transpose
# why: Lines 37-39: Q, K, V of shape (batch, seq, embed) are split by view(batch, heads, seq, head_dim) instead of view(batch, seq, heads, head_dim).transpose(1,2), so each 'head' mixes tokens and channels; with causal=True the future leaks.
import torch
import torch.nn as nn


class MultiHeadAttention(nn.Module):
    """
    Multi-Head Attention from the paper "Attention Is All You Need".

    Args:
        embed_dim (int): total dimension of the model
        num_heads (int): number of parallel attention heads
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if embed_dim % num_heads != 0:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads

        self.W_q = nn.Linear(embed_dim, embed_dim, bias=False)
        self.W_k = nn.Linear(embed_dim, embed_dim, bias=False)
        self.W_v = nn.Linear(embed_dim, embed_dim, bias=False)
        self.W_o = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, causal: bool = False) -> torch.Tensor:
        batch_size, seq_len, _ = x.shape

        # 1. Linear projections
        Q = self.W_q(x)
        K = self.W_k(x)
        V = self.W_v(x)

        # 2. Split into heads: (batch, heads, seq, head_dim)
        Q = Q.view(batch_size, self.num_heads, seq_len, self.head_dim)
        K = K.view(batch_size, self.num_heads, seq_len, self.head_dim)
        V = V.view(batch_size, self.num_heads, seq_len, self.head_dim)

        # 3. Scaled dot product
        scores = Q @ K.transpose(-2, -1) / (self.head_dim ** 0.5)
        if causal:
            mask = torch.triu(torch.ones(seq_len, seq_len, device=x.device), diagonal=1).bool()
            scores = scores.masked_fill(mask, float("-inf"))

        # 4. Attention weights
        weights = torch.softmax(scores, dim=-1)
        weights = self.dropout(weights)

        # 5. Combine the heads
        context = weights @ V
        context = context.transpose(1, 2).contiguous().view(batch_size, seq_len, self.embed_dim)
        return self.W_o(context)


def main():
    torch.manual_seed(0)
    mha = MultiHeadAttention(embed_dim=32, num_heads=4)
    x = torch.randn(2, 10, 32)
    y = mha(x)
    print("Input :", x.shape)
    print("Output:", y.shape)
    assert y.shape == x.shape


if __name__ == "__main__":
    main()
