# expect: missing-scale, mask-off-by-one
import torch
import torch.nn as nn


class LanguageModelAttention(nn.Module):
    def __init__(self, emb_size, num_heads, max_len=100):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = emb_size // num_heads
        self.Wqkv = nn.Linear(emb_size, 3 * emb_size, bias=False)
        self.Wo = nn.Linear(emb_size, emb_size, bias=False)
        self.register_buffer("peek", torch.triu(torch.ones(max_len, max_len), diagonal=2).bool())

    def forward(self, x):
        bsz, L, E = x.size()
        q, k, v = torch.chunk(self.Wqkv(x), 3, dim=-1)
        q = q.reshape(bsz, L, self.num_heads, self.head_size).permute(0, 2, 1, 3)
        k = k.reshape(bsz, L, self.num_heads, self.head_size).permute(0, 2, 3, 1)
        v = v.reshape(bsz, L, self.num_heads, self.head_size).permute(0, 2, 1, 3)
        logits = torch.matmul(q, k).masked_fill(self.peek[:L, :L], float("-inf"))
        ctx = torch.matmul(logits.softmax(dim=-1), v)
        return self.Wo(ctx.permute(0, 2, 1, 3).reshape(bsz, L, E))
