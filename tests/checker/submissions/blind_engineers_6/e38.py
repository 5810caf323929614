# expect: dropout-in-eval, scale-twice
# why: two: SDPA gets dropout_p in eval as well; q is scaled by hand and again by SDPA
""" Vision Transformer with class token. """
import torch
import torch.nn as nn
import torch.nn.functional as F


class PatchEmbed(nn.Module):
    """ 2D Image to Patch Embedding """

    def __init__(self, img_size=32, patch_size=8, in_chans=3, embed_dim=96):
        super().__init__()
        self.num_patches = (img_size // patch_size) ** 2
        self.proj = nn.Conv2d(in_chans, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """ Multi-head self-attention.

    `fused_attn=True` uses the fused PyTorch kernel, `False` the explicit implementation (needed for
    exporting and for attention maps); both give the same result.

    Args:
        dim: embedding width, num_heads: heads
        qkv_bias: bias of the qkv projection
        qk_norm: LayerNorm over the head dimension of q and k
        attn_drop: dropout of the attention weights (training only)
        proj_drop: dropout of the output (training only)
    """

    def __init__(self, dim, num_heads=8, qkv_bias=False, qk_norm=False, attn_drop=0., proj_drop=0.,
                 norm_layer=nn.LayerNorm, fused_attn=True):
        super().__init__()
        assert dim % num_heads == 0, 'dim should be divisible by num_heads'
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim ** -0.5
        self.fused_attn = fused_attn

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.q_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        q = q * self.scale

        if self.fused_attn:
            x = F.scaled_dot_product_attention(
                q, k, v,
                dropout_p=self.attn_drop.p,
            )
        else:
            attn = q @ k.transpose(-2, -1)
            attn = attn.softmax(dim=-1)
            attn = self.attn_drop(attn)
            x = attn @ v

        x = x.transpose(1, 2).reshape(B, N, C)
        x = self.proj(x)
        return self.proj_drop(x)


class LayerNorm6(nn.LayerNorm):
    """ LayerNorm with the eps of the JAX weights """

    def __init__(self, dim):
        super().__init__(dim, eps=1e-6)


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=4., attn_drop=0., proj_drop=0., fused_attn=True,
                 norm_layer=LayerNorm6):
        super().__init__()
        self.norm1 = norm_layer(dim)
        self.attn = Attention(dim, num_heads, qkv_bias=True, attn_drop=attn_drop, proj_drop=proj_drop,
                              fused_attn=fused_attn)
        self.norm2 = norm_layer(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(proj_drop),
                                 nn.Linear(hidden, dim), nn.Dropout(proj_drop))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class VisionTransformer(nn.Module):
    def __init__(self, img_size=32, patch_size=8, num_classes=10, embed_dim=96, depth=3, num_heads=4,
                 attn_drop=0.1, proj_drop=0.1, fused_attn=True):
        super().__init__()
        self.patch_embed = PatchEmbed(img_size, patch_size, 3, embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos_embed = nn.Parameter(torch.randn(1, self.patch_embed.num_patches + 1, embed_dim) * .02)
        self.blocks = nn.Sequential(*[
            Block(embed_dim, num_heads, attn_drop=attn_drop, proj_drop=proj_drop, fused_attn=fused_attn)
            for _ in range(depth)])
        self.norm = LayerNorm6(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)
        nn.init.normal_(self.cls_token, std=1e-6)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.blocks(x + self.pos_embed)
        return self.head(self.norm(x)[:, 0])
