# expect: correct
# why: right though unusual: uses F.scaled_dot_product_attention with is_causal, dropout only while training
import torch
import torch.nn as nn
import torch.nn.functional as F


class FastMHA(nn.Module):
    def __init__(self, emb_dim, n_heads, drop_rate=0.1, qkv_bias=False):
        super().__init__()
        assert emb_dim % n_heads == 0
        self.n_heads = n_heads
        self.head_dim = emb_dim // n_heads
        self.qkv = nn.Linear(emb_dim, 3 * emb_dim, bias=qkv_bias)
        self.out = nn.Linear(emb_dim, emb_dim)
        self.drop_rate = drop_rate

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).view(b, n, 3, self.n_heads, self.head_dim)
        qkv = qkv.permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        p = self.drop_rate if self.training else 0.0
        ctx = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)
        ctx = ctx.transpose(1, 2).reshape(b, n, d)
        return self.out(ctx)


class TransformerBlock(nn.Module):
    def __init__(self, emb_dim, n_heads):
        super().__init__()
        self.att = FastMHA(emb_dim, n_heads)
        self.ff = nn.Sequential(nn.Linear(emb_dim, 4 * emb_dim), nn.GELU(), nn.Linear(4 * emb_dim, emb_dim))
        self.norm1, self.norm2 = nn.LayerNorm(emb_dim), nn.LayerNorm(emb_dim)
        self.drop_shortcut = nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.drop_shortcut(self.att(self.norm1(x)))
        x = x + self.drop_shortcut(self.ff(self.norm2(x)))
        return x


if __name__ == "__main__":
    torch.manual_seed(123)
    block = TransformerBlock(96, 6)
    x = torch.rand(2, 4, 96)
    print("Input shape:", x.shape)
    print("Output shape:", block(x).shape)
