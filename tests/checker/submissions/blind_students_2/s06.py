# expect: scale-twice, dropout-in-eval
# why: Line 24: q is scaled by 1/sqrt(d) and scaled_dot_product_attention scales again, so scores are divided by d. Shows always.
# why: Line 28: dropout_p is passed without looking at self.training, so attention dropout stays on in eval. Shows only in eval with attn_dropout > 0 (default 0.1).
import torch
import torch.nn as nn
import torch.nn.functional as F

# Uses the fast pytorch 2.0 kernel instead of writing out the softmax myself


class FlashMHA(nn.Module):
    def __init__(self, embed_dim, num_heads, attn_dropout=0.1, causal=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scale = self.head_dim ** -0.5
        self.attn_dropout = attn_dropout
        self.causal = causal

        self.qkv = nn.Linear(embed_dim, embed_dim * 3)
        self.proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q = q * self.scale

        x = F.scaled_dot_product_attention(
            q, k, v,
            dropout_p=self.attn_dropout,
            is_causal=self.causal,
        )
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


if __name__ == "__main__":
    m = FlashMHA(64, 8)
    print(m(torch.randn(2, 12, 64)).shape)
    print(sum(p.numel() for p in m.parameters()), "params")
