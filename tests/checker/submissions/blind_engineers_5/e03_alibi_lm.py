# expect: bias-favours-distant
# why: the sign of the ALiBi bias is wrong, far keys are rewarded instead of penalised; shows at line 37: `bias = self.slopes * (q_idx - kv_idx)`
"""Causal LM without position embeddings; recency comes from linear biases (Press et al. 2021)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def get_slopes(n):
    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start ** i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class AlibiAttention(nn.Module):
    """Keys are penalised in proportion to how far they lie behind the query."""

    def __init__(self, d_model, n_heads, dropout=0.0):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.dropout = dropout
        self.Wqkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.register_buffer("slopes", torch.tensor(get_slopes(n_heads)).view(n_heads, 1, 1), persistent=False)

    def build_bias(self, length, device):
        idx = torch.arange(length, device=device)
        q_idx, kv_idx = idx[:, None], idx[None, :]
        bias = self.slopes * (q_idx - kv_idx)
        return bias.masked_fill(kv_idx > q_idx, float("-inf"))

    def forward(self, x):
        b, s, _ = x.shape
        qkv = self.Wqkv(x).view(b, s, 3, self.n_heads, self.d_head).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        bias = self.build_bias(s, x.device).to(query.dtype)
        ctx = F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias.unsqueeze(0),
            dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(ctx.transpose(1, 2).reshape(b, s, -1))


class MPTBlock(nn.Module):
    def __init__(self, d_model, n_heads, expansion=4):
        super().__init__()
        self.norm_1 = nn.LayerNorm(d_model)
        self.attn = AlibiAttention(d_model, n_heads)
        self.norm_2 = nn.LayerNorm(d_model)
        self.ffn_up = nn.Linear(d_model, expansion * d_model)
        self.ffn_down = nn.Linear(expansion * d_model, d_model)

    def forward(self, x):
        x = x + self.attn(self.norm_1(x))
        return x + self.ffn_down(F.gelu(self.ffn_up(self.norm_2(x))))


class MPT(nn.Module):
    def __init__(self, vocab_size=128, d_model=48, n_heads=6, n_layers=2):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList([MPTBlock(d_model, n_heads) for _ in range(n_layers)])
        self.norm_f = nn.LayerNorm(d_model)

    def forward(self, input_ids, targets=None):
        x = self.wte(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm_f(x), self.wte.weight)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss
