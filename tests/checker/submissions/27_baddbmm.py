# expect: correct
import math
import torch
import torch.nn as nn


class BloomishAttention(nn.Module):
    def __init__(self, hidden_size, n_head, seq_length=128):
        super().__init__()
        self.hidden_size, self.num_heads = hidden_size, n_head
        self.head_dim = hidden_size // n_head
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        # rows of this matrix go head by head: q of head 0, k of head 0, v of head 0, q of head 1 ...
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size, bias=True)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.register_buffer("causal", torch.ones(seq_length, seq_length).triu(1).bool(), persistent=False)

    def forward(self, hidden_states):
        bs, length, _ = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(bs, length, self.num_heads, 3, self.head_dim)
        q, k, v = fused[..., 0, :], fused[..., 1, :], fused[..., 2, :]
        q = q.transpose(1, 2).reshape(bs * self.num_heads, length, self.head_dim)
        k = k.permute(0, 2, 3, 1).reshape(bs * self.num_heads, self.head_dim, length)
        v = v.transpose(1, 2).reshape(bs * self.num_heads, length, self.head_dim)
        start = torch.zeros(bs * self.num_heads, length, length, dtype=q.dtype, device=q.device)
        scores = torch.baddbmm(start, q, k, beta=0.0, alpha=self.inv_norm_factor)
        scores = scores.masked_fill(self.causal[:length, :length], torch.finfo(scores.dtype).min)
        probs = torch.softmax(scores, dim=-1)
        ctx = torch.bmm(probs, v).view(bs, self.num_heads, length, self.head_dim)
        return self.dense(ctx.transpose(1, 2).reshape(bs, length, self.hidden_size))
