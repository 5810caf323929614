# expect: softmax-no-keepdim
# my version of causal attention with raw parameters
# (one sentence at a time, no batch)
import torch
import torch.nn as nn

torch.manual_seed(123)


def causal_mask(n):
    return torch.triu(torch.ones(n, n), diagonal=1).bool()   # True = future


class CausalAttentionV1(nn.Module):
    """Causal self-attention, x is (num_tokens, d_in).

    The softmax is written out by hand: exp, then divide by the row sum,
    so that every row of the weights sums to 1.
    """

    def __init__(self, d_in, d_out, return_weights=False):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))
        self.return_weights = return_weights

    def forward(self, x):
        queries = x @ self.W_query
        keys = x @ self.W_key
        values = x @ self.W_value

        scores = queries @ keys.T / keys.shape[-1] ** 0.5
        scores = scores.masked_fill(causal_mask(x.shape[0]).to(x.device), -torch.inf)
        e = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
        weights = e / e.sum(dim=-1)

        context = weights @ values
        if self.return_weights:
            return context, weights
        return context


sentence = torch.rand(6, 3)
attn = CausalAttentionV1(3, 2)
print(attn(sentence))
print(attn(sentence).shape)
