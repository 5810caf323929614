# expect: softmax-over-queries
import torch
import torch.nn as nn


class AttnBlock1d(nn.Module):
    """音声拡散モデル用の自己注意ブロック。入力は (B, C, L)、因果マスクなし。"""

    def __init__(self, ch, n_heads=4, n_groups=8):
        super().__init__()
        assert ch % n_heads == 0
        self.n_heads = n_heads
        self.norm = nn.GroupNorm(n_groups, ch)
        self.to_qkv = nn.Conv1d(ch, ch * 3, kernel_size=1, bias=False)
        self.to_out = nn.Conv1d(ch, ch, kernel_size=1)

    def forward(self, x):
        b, c, l = x.shape
        qkv = self.to_qkv(self.norm(x))
        # チャンネルをヘッドに分ける
        q, k, v = qkv.view(b, 3, self.n_heads, c // self.n_heads, l).unbind(1)
        q = q * (c // self.n_heads) ** -0.5

        sim = torch.einsum("bhdi,bhdj->bhij", q, k)
        attn = sim.softmax(dim=2)

        out = torch.einsum("bhij,bhdj->bhdi", attn, v)
        return x + self.to_out(out.reshape(b, c, l))
