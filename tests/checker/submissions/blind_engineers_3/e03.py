# expect: wrong
# why: The gathered relative position bias has shape (N*N, heads) but is reshaped with view(num_heads, N, N) (line 53) instead of view(N, N, heads).permute(2, 0, 1), which scrambles heads and positions.
import torch
import torch.nn as nn


def window_partition(x, ws):
    B, H, W, C = x.shape
    x = x.view(B, H // ws, ws, W // ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, ws * ws, C)


def window_reverse(windows, ws, H, W):
    B = int(windows.shape[0] / (H * W / ws / ws))
    x = windows.view(B, H // ws, W // ws, ws, ws, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class WindowAttention(nn.Module):
    """W-MSA with a learned bias per (relative offset, head).

    The table has (2*ws-1)*(2*ws-1) rows and one column per head; entry
    (i, j) of head h is table[offset(i, j), h].
    """

    def __init__(self, dim, window_size, num_heads, qkv_bias=True, attn_drop=0., proj_drop=0.):
        super().__init__()
        self.dim = dim
        self.ws = window_size
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.rel_pos_table = nn.Parameter(torch.zeros((2 * window_size - 1) ** 2, num_heads))
        nn.init.trunc_normal_(self.rel_pos_table, std=.02)

        coords = torch.stack(torch.meshgrid(torch.arange(window_size), torch.arange(window_size), indexing="ij"))
        coords = coords.flatten(1)                              # 2, N
        rel = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        rel[..., 0] += window_size - 1
        rel[..., 1] += window_size - 1
        rel[..., 0] *= 2 * window_size - 1
        self.register_buffer("rel_pos_index", rel.sum(-1))      # N, N

        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)

        bias = self.rel_pos_table[self.rel_pos_index.view(-1)]
        bias = bias.view(self.num_heads, N, N)
        attn = attn + bias.unsqueeze(0)

        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj_drop(self.proj(x))


class WindowBlock(nn.Module):
    def __init__(self, dim, heads, ws=4, mlp_ratio=4):
        super().__init__()
        self.ws = ws
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, ws, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * mlp_ratio), nn.GELU(), nn.Linear(dim * mlp_ratio, dim))

    def forward(self, x):
        B, H, W, C = x.shape
        win = window_partition(self.norm1(x), self.ws)
        x = x + window_reverse(self.attn(win), self.ws, H, W)
        return x + self.mlp(self.norm2(x))


if __name__ == "__main__":
    blk = WindowBlock(32, 4)
    print(blk(torch.rand(2, 8, 12, 32)).shape)
