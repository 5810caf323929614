# expect: correct
"""
ch03 notes. There are two ways to get causal weights:
  1) fill with -inf before softmax
  2) softmax first, then zero the future and normalize the rows again
The book says both are the same so I implement no. 2 here.
"""
import torch
import torch.nn as nn


def softmax_naive(x):
    # not used anymore
    return torch.exp(x) / torch.exp(x).sum(dim=0)


class SelfAttention_v1(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def weights(self, x):
        queries = x @ self.W_query
        keys = x @ self.W_key
        scores = queries @ keys.transpose(-1, -2)
        return torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1)

    def forward(self, x):
        return self.weights(x) @ (x @ self.W_value)


class CausalSelfAttention_v1(SelfAttention_v1):

    def weights(self, x):
        full = super().weights(x)
        n = x.shape[-2]
        simple_mask = torch.tril(torch.ones(n, n, device=x.device, dtype=x.dtype))
        masked = full * simple_mask
        row_sums = masked.sum(dim=-1, keepdim=True)
        return masked / row_sums


if __name__ == "__main__":
    torch.manual_seed(789)
    emb = torch.rand(2, 6, 3)
    sa = CausalSelfAttention_v1(3, 2)
    print(sa.weights(emb)[0])
    print(sa(emb).shape)
