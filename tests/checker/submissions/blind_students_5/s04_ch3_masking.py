# expect: mask-after-softmax
# why: the causal mask is multiplied onto the weights after the softmax and the rows are not normalized again, so they no longer sum to 1 and depend on future tokens (line 27: `masked = attn_weights * self.mask_simple[:num_tokens, :num_tokens]`)
import torch
import torch.nn as nn


class CausalSelfAttention(nn.Module):
    """Hiding future words (section 3.5)"""

    def __init__(self, d_in, d_out, context_length, qkv_bias=False):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.register_buffer("mask_simple", torch.tril(torch.ones(context_length, context_length)))

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        queries = self.W_query(x)
        keys = self.W_key(x)
        values = self.W_value(x)

        attn_scores = queries @ keys.transpose(1, 2)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)

        # values above the diagonal become zero
        masked = attn_weights * self.mask_simple[:num_tokens, :num_tokens]
        context_vec = masked @ values
        return context_vec


if __name__ == "__main__":
    torch.manual_seed(789)
    inputs = torch.rand(2, 6, 3)
    ca = CausalSelfAttention(3, 2, context_length=6)
    print(ca(inputs))
    print(ca(inputs[:, :4]).shape)
