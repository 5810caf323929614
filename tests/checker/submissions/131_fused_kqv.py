# expect: correct
import torch.nn as nn
import torch.nn.functional as F


class MHAFlash(nn.Module):
    """multi-head attention w/ weight splits, but pytorch does the work. causal."""

    def __init__(
        self,
        num_heads,
        d_in,
        d_out,
        context_length,
        dropout=0.1,
        qkv_bias=False,
    ):
        super().__init__()
        assert d_out % num_heads == 0, "embedding does not split evenly"
        self.num_heads = num_heads
        self.context_length = context_length
        self.dropout = dropout
        self.kqv = nn.Linear(d_in, 3 * d_out, bias=qkv_bias)   # order: key, query, value!
        self.resid = nn.Linear(d_out, d_out)

    def forward(self, x):
        *_, n, _ = x.shape
        assert n <= self.context_length
        parts = self.kqv(x).chunk(3, dim=-1)
        k, q, v = [p.unflatten(-1, (self.num_heads, -1)).movedim(-2, -3) for p in parts]

        p = self.dropout if self.training else 0.
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=p, is_causal=True)

        return self.resid(out.movedim(-3, -2).flatten(start_dim=-2))
