# expect: merge-without-transpose
# why: Line 38: causal and padding mask are combined with OR instead of AND, so every real token is visible including the future, and past padding is visible. Shows only when attention_mask is passed (also an all-ones one).
# why: Line 43: heads are merged with reshape without transposing (B,H,T,d) back to (B,T,H,d). Shows always (more than one head and token).
import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoderSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, attention_dropout=0.0, max_position=256):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.hidden_size = hidden_size

        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(attention_dropout)

        causal = torch.tril(torch.ones(max_position, max_position, dtype=torch.bool))
        self.register_buffer("causal", causal[None, None], persistent=False)

    def transpose_for_scores(self, t):
        B, T, _ = t.shape
        return t.view(B, T, self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        # attention_mask: (B, T), 1 for tokens that exist, 0 for padding
        B, T, _ = hidden_states.shape
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))

        scores = torch.matmul(q, k.transpose(-1, -2)) / self.head_size ** 0.5

        keep = self.causal[:, :, :T, :T]
        if attention_mask is not None:
            # combine both masks
            keep = keep | attention_mask[:, None, None, :].bool()
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)

        probs = self.dropout(F.softmax(scores, dim=-1))
        context = torch.matmul(probs, v)
        context = context.reshape(B, T, self.hidden_size)
        return self.dense(context)


if __name__ == "__main__":
    layer = DecoderSelfAttention(48, 4)
    h = torch.randn(2, 8, 48)
    am = torch.ones(2, 8, dtype=torch.long)
    am[1, 5:] = 0
    print(layer(h).shape, layer(h, am).shape)
