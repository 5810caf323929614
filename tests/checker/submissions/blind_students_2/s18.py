# expect: cached-mask-misaligned
# why: Line 28: the causal mask is cut at the top left [:nd, :ns] instead of [ns-nd:ns, :ns], so with a cache the new token sees only the first position(s). Shows only with layer_past.
import torch
import torch.nn as nn
import torch.nn.functional as F


class GPT2Attention(nn.Module):
    def __init__(self, nx, n_ctx, n_head, pdrop=0.0):
        super().__init__()
        assert nx % n_head == 0
        self.register_buffer("bias", torch.tril(torch.ones(n_ctx, n_ctx, dtype=torch.bool)).view(1, 1, n_ctx, n_ctx))
        self.n_head = n_head
        self.c_attn = nn.Linear(nx, 3 * nx)
        self.c_proj = nn.Linear(nx, nx)
        self.attn_dropout = nn.Dropout(pdrop)
        self.resid_dropout = nn.Dropout(pdrop)

    def split_heads(self, x):
        return x.view(*x.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)

    def merge_heads(self, x):
        x = x.permute(0, 2, 1, 3).contiguous()
        return x.view(*x.shape[:2], -1)

    def _attn(self, q, k, v):
        w = torch.matmul(q, k.transpose(-1, -2))
        w = w / (v.size(-1) ** 0.5)
        nd, ns = w.size(-2), w.size(-1)
        mask = self.bias[:, :, :nd, :ns]
        w = torch.where(mask, w, torch.tensor(-1e4, dtype=w.dtype, device=w.device))
        w = F.softmax(w, dim=-1)
        w = self.attn_dropout(w)
        return torch.matmul(w, v)

    def forward(self, x, layer_past=None):
        q, k, v = self.c_attn(x).chunk(3, dim=2)
        q, k, v = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        if layer_past is not None:
            past_k, past_v = layer_past
            k = torch.cat((past_k, k), dim=-2)
            v = torch.cat((past_v, v), dim=-2)
        present = (k, v)
        a = self.merge_heads(self._attn(q, k, v))
        a = self.resid_dropout(self.c_proj(a))
        return a, present


if __name__ == "__main__":
    attn = GPT2Attention(32, 64, 4)
    x = torch.randn(1, 5, 32)
    y, past = attn(x)
    nxt = torch.randn(1, 1, 32)
    y2, past = attn(nxt, past)
    print(y.shape, y2.shape, past[0].shape)
