# expect: correct
# why: right though unusual: fused qkv split by einops with the layout (three h d), pre-norm inside the attention module
import torch
from torch import nn
from einops import rearrange, repeat
from einops.layers.torch import Rearrange

# ViT homework, part 2

class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, dropout=0.):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        x = self.norm(x)
        q, k, v = rearrange(self.to_qkv(x), 'b n (three h d) -> three b h n d', three=3, h=self.heads)
        dots = torch.einsum('bhid,bhjd->bhij', q, k) * self.scale
        attn = self.dropout(self.attend(dots))
        out = torch.einsum('bhij,bhjd->bhid', attn, v)
        out = rearrange(out, 'b h n d -> b n (h d)')
        return self.to_out(out)

class TinyViT(nn.Module):
    def __init__(self, image=32, patch=8, classes=10, dim=64, depth=2, heads=4):
        super().__init__()
        n = (image // patch) ** 2
        self.patchify = nn.Sequential(
            Rearrange('b c (h p1) (w p2) -> b (h w) (p1 p2 c)', p1=patch, p2=patch),
            nn.Linear(3 * patch * patch, dim))
        self.cls = nn.Parameter(torch.randn(1, 1, dim))
        self.pos = nn.Parameter(torch.randn(1, n + 1, dim))
        self.layers = nn.ModuleList([Attention(dim, heads, 16) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, img):
        x = self.patchify(img)
        cls = repeat(self.cls, '1 1 d -> b 1 d', b=x.shape[0])
        x = torch.cat((cls, x), dim=1) + self.pos
        for attn in self.layers:
            x = x + attn(x)     # no MLP yet!!
        return self.head(x[:, 0])

if __name__ == '__main__':
    v = TinyViT()
    print(v(torch.randn(2, 3, 32, 32)).shape)
