# expect: correct
# why: right though unusual: masked after the softmax, but the rows are normalised again
import torch
import torch.nn as nn


class SelfAttention_v3(nn.Module):
    """single head, causal. First all the weights, then cut the future and normalize again."""

    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x):
        # x can be (tokens, d_in) or (batch, tokens, d_in)
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)

        attn_scores = queries @ keys.transpose(-2, -1)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)

        context_length = attn_scores.shape[-1]
        mask_simple = torch.tril(torch.ones(context_length, context_length, device=x.device, dtype=x.dtype))
        masked_simple = attn_weights * mask_simple
        row_sums = masked_simple.sum(dim=-1, keepdim=True)
        masked_simple_norm = masked_simple / row_sums

        return masked_simple_norm @ values


torch.manual_seed(789)
sa = SelfAttention_v3(3, 2)
# print(sa(torch.rand(6, 3)))
