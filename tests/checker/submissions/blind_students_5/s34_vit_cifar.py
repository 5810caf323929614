# expect: merge-without-transpose
# why: the heads are merged by reshape without transpose(1, 2) first, so the output of a token is put together from other tokens (line 36: `weighted_avg = weighted_avg.reshape(n_samples, n_tokens, dim)`)
import torch
import torch.nn as nn

class PatchEmbed(nn.Module):
    def __init__(self, img_size=32, patch_size=4, in_chans=3, embed_dim=96):
        super().__init__()
        self.n_patches = (img_size // patch_size) ** 2
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)

class Attention(nn.Module):
    def __init__(self, dim, n_heads=6, qkv_bias=True, attn_p=0., proj_p=0.):
        super().__init__()
        self.n_heads = n_heads
        self.dim = dim
        self.head_dim = dim // n_heads
        self.scale = self.head_dim ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(attn_p)
        self.proj_drop = nn.Dropout(proj_p)

    def forward(self, x):
        n_samples, n_tokens, dim = x.shape
        qkv = self.qkv(x)                                                           # (n, t, 3*dim)
        qkv = qkv.reshape(n_samples, n_tokens, 3, self.n_heads, self.head_dim)
        qkv = qkv.permute(2, 0, 3, 1, 4)                                            # (3, n, heads, t, hd)
        q, k, v = qkv[0], qkv[1], qkv[2]
        dp = (q @ k.transpose(-2, -1)) * self.scale
        attn = self.attn_drop(dp.softmax(dim=-1))
        weighted_avg = attn @ v                                                     # (n, heads, t, hd)
        weighted_avg = weighted_avg.reshape(n_samples, n_tokens, dim)               # concat heads
        return self.proj_drop(self.proj(weighted_avg))

class Block(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, n_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.GELU(), nn.Linear(dim * 4, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))

class ViT(nn.Module):
    def __init__(self, depth=2, dim=96, n_heads=6, n_classes=10):
        super().__init__()
        self.patch_embed = PatchEmbed(embed_dim=dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + self.patch_embed.n_patches, dim))
        self.blocks = nn.Sequential(*[Block(dim, n_heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])

if __name__ == "__main__":
    model = ViT()
    print(model(torch.randn(2, 3, 32, 32)).shape)   # torch.Size([2, 10])
