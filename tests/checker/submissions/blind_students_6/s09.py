# expect: cached-mask-misaligned, scores-detached
# why: two: causal mask ignores the offset of the cache; weights are detached and then used
import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    """Causal multi-head attention with a KV cache for generation.

    training:   y = attn(x)
    generation: attn.reset(); y = attn(x_prompt, use_cache=True);
                y = attn(x_next, use_cache=True) ...
    """

    def __init__(self, emb_dim, num_heads, max_len=512, dropout=0.0):
        super().__init__()
        assert emb_dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = emb_dim // num_heads
        self.max_len = max_len
        self.W_q = nn.Linear(emb_dim, emb_dim, bias=False)
        self.W_k = nn.Linear(emb_dim, emb_dim, bias=False)
        self.W_v = nn.Linear(emb_dim, emb_dim, bias=False)
        self.W_o = nn.Linear(emb_dim, emb_dim)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("tril", torch.tril(torch.ones(max_len, max_len)), persistent=False)
        self.attn_map = None
        self.reset()

    def reset(self):
        self.k_cache = None
        self.v_cache = None

    def forward(self, x, use_cache=False):
        B, T, C = x.shape
        shape = (B, T, self.num_heads, self.head_dim)
        q = self.W_q(x).view(shape).transpose(1, 2)
        k = self.W_k(x).view(shape).transpose(1, 2)
        v = self.W_v(x).view(shape).transpose(1, 2)

        if use_cache:
            if self.k_cache is not None:
                k = torch.cat([self.k_cache, k], dim=2)
                v = torch.cat([self.v_cache, v], dim=2)
            self.k_cache, self.v_cache = k, v

        S = k.size(2)
        att = (q @ k.transpose(-2, -1)) / (self.head_dim ** 0.5)
        att = att.masked_fill(self.tril[:T, :S] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = att.detach()
        self.attn_map = att  # keep for plotting later
        y = self.drop(att) @ v
        y = y.transpose(1, 2).reshape(B, T, C)
        return self.W_o(y)


if __name__ == "__main__":
    torch.manual_seed(1)
    layer = CachedAttention(16, 2)
    x = torch.randn(1, 5, 16)
    print("full  :", layer(x).shape)
    layer.reset()
    for t in range(5):
        y = layer(x[:, t:t + 1], use_cache=True)
    print("cached:", y.shape)
