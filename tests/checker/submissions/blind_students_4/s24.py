# expect: cached-mask-misaligned
# why: is_causal=True is also used when cached keys are prepended, where SDPA aligns the triangle to the top left, so new tokens see only the first cached keys, on line 39
import torch
import torch.nn as nn
import torch.nn.functional as F


class KVCacheAttention(nn.Module):
    """Multi-head causal attention; use_cache=True keeps keys and values between calls."""

    def __init__(self, emb_dim, n_heads, drop_rate=0.0):
        super().__init__()
        assert emb_dim % n_heads == 0
        self.n_heads = n_heads
        self.head_dim = emb_dim // n_heads
        self.q_proj = nn.Linear(emb_dim, emb_dim)
        self.k_proj = nn.Linear(emb_dim, emb_dim)
        self.v_proj = nn.Linear(emb_dim, emb_dim)
        self.o_proj = nn.Linear(emb_dim, emb_dim)
        self.drop_rate = drop_rate
        self.reset_cache()

    def reset_cache(self):
        self.cache_k = None
        self.cache_v = None

    def forward(self, x, use_cache=False):
        b, t, c = x.shape
        q = self.q_proj(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)

        if use_cache:
            if self.cache_k is not None:
                k = torch.cat((self.cache_k, k), dim=2)
                v = torch.cat((self.cache_v, v), dim=2)
            self.cache_k, self.cache_v = k, v

        p = self.drop_rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        return self.o_proj(y)


@torch.no_grad()
def generate_states(attn, prompt, new_tokens):
    attn.eval()
    attn.reset_cache()
    states = [attn(prompt, use_cache=True)]
    for tok in new_tokens.split(1, dim=1):
        states.append(attn(tok, use_cache=True))
    return torch.cat(states, dim=1)


if __name__ == "__main__":
    a = KVCacheAttention(32, 4)
    print(generate_states(a, torch.randn(1, 5, 32), torch.randn(1, 3, 32)).shape)
