# expect: padding-inverted
# why: pad_mask is True at padding, but SDPA's boolean attn_mask means True = may attend, so it is passed inverted, on line 34
import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderAttention(nn.Module):
    """Self-attention for a BERT-like encoder.

    pad_mask: (batch, seq) bool, True at padding tokens (like key_padding_mask).
    """

    def __init__(self, hidden_size: int, num_heads: int, dropout: float = 0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.p = dropout

    def transpose_for_scores(self, x):
        new_shape = x.shape[:-1] + (self.num_heads, self.head_size)
        return x.view(new_shape).permute(0, 2, 1, 3)

    def forward(self, hidden_states, pad_mask=None):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))

        attn_mask = None
        if pad_mask is not None:
            attn_mask = pad_mask[:, None, None, :]

        context = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=attn_mask,
            dropout_p=self.p if self.training else 0.0,
        )
        context = context.permute(0, 2, 1, 3).flatten(2)
        return self.dense(context)


if __name__ == "__main__":
    ids = torch.tensor([[5, 8, 2, 9, 1], [4, 3, 6, 0, 0]])
    emb = nn.Embedding(10, 24, padding_idx=0)
    attn = EncoderAttention(24, 3).eval()
    out = attn(emb(ids), pad_mask=(ids == 0))
    print(out.shape)
