# expect: dropout-in-eval
# why: F.scaled_dot_product_attention gets the dropout rate also in eval mode, so with attn_drop > 0 inference is random; shows at line 49: `q, k, v, dropout_p=self.attn_drop_prob, attn_mask=mask, scale=self.scale)`
import torch
import torch.nn as nn
import torch.nn.functional as F


class MLP(nn.Module):
    def __init__(self, in_features, hidden_features, act_layer=nn.GELU, drop=0.0):
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features)
        self.act = act_layer()
        self.fc2 = nn.Linear(hidden_features, in_features)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Attention(nn.Module):
    def __init__(
        self,
        dim,
        num_heads=8,
        qkv_bias=False,
        qk_scale=None,
        attn_drop=0.0,
        proj_drop=0.0,
        use_sdpa=True,
    ):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = qk_scale or head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop_prob = attn_drop
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.use_sdpa = use_sdpa

    def forward(self, x, mask=None):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]  # [B, num_heads, N, D]

        if self.use_sdpa:
            x = F.scaled_dot_product_attention(
                q, k, v, dropout_p=self.attn_drop_prob, attn_mask=mask, scale=self.scale)
            attn = None
        else:
            attn = (q @ k.transpose(-2, -1)) * self.scale
            if mask is not None:
                attn = attn.masked_fill(~mask, float("-inf"))
            attn = attn.softmax(dim=-1)
            attn = self.attn_drop(attn)
            x = attn @ v

        x = x.transpose(1, 2).reshape(B, N, C)
        x = self.proj_drop(self.proj(x))
        return x, attn


class Block(nn.Module):
    def __init__(self, dim, num_heads, mlp_ratio=4.0, drop=0.0, attn_drop=0.0, use_sdpa=True):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, num_heads, qkv_bias=True, attn_drop=attn_drop, proj_drop=drop, use_sdpa=use_sdpa)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = MLP(dim, int(dim * mlp_ratio), drop=drop)

    def forward(self, x, mask=None, return_attention=False):
        y, attn = self.attn(self.norm1(x), mask=mask)
        if return_attention:
            return attn
        x = x + y
        return x + self.mlp(self.norm2(x))


class Predictor(nn.Module):
    """Predicts the embeddings of masked patches from context patches."""

    def __init__(self, num_patches, embed_dim=48, predictor_dim=32, depth=2, num_heads=4, attn_drop=0.1):
        super().__init__()
        self.embed = nn.Linear(embed_dim, predictor_dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, predictor_dim))
        self.pos = nn.Parameter(torch.randn(1, num_patches, predictor_dim) * 0.02)
        self.blocks = nn.ModuleList([Block(predictor_dim, num_heads, attn_drop=attn_drop) for _ in range(depth)])
        self.norm = nn.LayerNorm(predictor_dim)
        self.proj = nn.Linear(predictor_dim, embed_dim)

    def forward(self, ctx, ctx_idx, tgt_idx):
        B, N_ctx, _ = ctx.shape
        x = self.embed(ctx) + self.pos[0, ctx_idx]
        targets = self.mask_token.expand(B, tgt_idx.size(1), -1) + self.pos[0, tgt_idx]
        x = torch.cat([x, targets], dim=1)
        for blk in self.blocks:
            x = blk(x)
        return self.proj(self.norm(x[:, N_ctx:]))
