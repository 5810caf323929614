# expect: attends-across-batch
# why: nn.MultiheadAttention lacks batch_first=True, so attention runs across the batch
import torch
import torch.nn as nn


class SelfAttentionBlock(nn.Module):
    """Pre-norm self-attention block for the ViT exercise.

    input / output: (batch, num_patches, embed_dim)
    """

    def __init__(self, embed_dim=64, num_heads=4, mlp_ratio=4, drop=0.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=drop)
        self.norm2 = nn.LayerNorm(embed_dim)
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim, embed_dim * mlp_ratio),
            nn.GELU(),
            nn.Dropout(drop),
            nn.Linear(embed_dim * mlp_ratio, embed_dim),
            nn.Dropout(drop),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        h, _ = self.attn(h, h, h, need_weights=False)
        x = x + h
        x = x + self.mlp(self.norm2(x))
        return x


if __name__ == "__main__":
    images = torch.randn(8, 49, 64)
    block = SelfAttentionBlock()
    assert block(images).shape == images.shape
    print("ok")
