# expect: cached-mask-misaligned
"""Multi-head attention from the chapter + a small key/value cache for generating text."""
import torch
import torch.nn as nn


class CachedMHA(nn.Module):
    """
    Causal multi-head attention.

    out, cache = attn(x)                # whole prompt
    out, cache = attn(new_x, cache)     # only the new tokens, old keys/values are reused

    The result is supposed to be the same as running the full sequence at once.
    """

    def __init__(self, d_in, d_out, context_length=64, num_heads=2, qkv_bias=False, dropout=0.0):
        super().__init__()
        assert d_out % num_heads == 0, "d_out must be divisible by num_heads"
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer(
            "mask", torch.triu(torch.ones(context_length, context_length), diagonal=1).bool()
        )

    def forward(self, x, cache=None):
        b, n_new, _ = x.shape
        shape = (b, n_new, self.num_heads, self.head_dim)
        queries = self.W_query(x).view(shape).transpose(1, 2)
        keys = self.W_key(x).view(shape).transpose(1, 2)
        values = self.W_value(x).view(shape).transpose(1, 2)

        if cache is not None:
            old_keys, old_values = cache
            keys = torch.cat([old_keys, keys], dim=2)
            values = torch.cat([old_values, values], dim=2)
        n_all = keys.shape[2]

        scores = queries @ keys.transpose(2, 3)
        scores = scores.masked_fill(self.mask[:n_new, :n_all], -torch.inf)
        weights = torch.softmax(scores / self.head_dim ** 0.5, dim=-1)
        weights = self.dropout(weights)

        context = (weights @ values).transpose(1, 2).reshape(b, n_new, -1)
        return self.out_proj(context), (keys, values)


if __name__ == "__main__":
    torch.manual_seed(123)
    attn = CachedMHA(3, 4)
    x = torch.rand(2, 6, 3)
    out, cache = attn(x)
    print(out.shape)
    out, cache = attn(torch.rand(2, 1, 3), cache)
    print(out.shape, cache[0].shape)
