# expect: missing-scale, mask-fill-not-inf
# why: the scores are never divided by sqrt of the key size, and the future scores are multiplied to 0 before the softmax, which still gives them weight.
import torch
import torch.nn as nn


class causal_attention(nn.Module):
    def __init__(self, dim, key_size):
        super().__init__()
        self.to_query = nn.Linear(dim, key_size, bias=False)
        self.to_key = nn.Linear(dim, key_size, bias=False)
        self.to_value = nn.Linear(dim, key_size, bias=False)

    def forward(self, x, verbose=False):
        T = x.shape[1]
        Q = self.to_query(x)
        K = self.to_key(x)
        V = self.to_value(x)
        if verbose:
            print('Q', Q.shape, 'K', K.shape, 'V', V.shape)

        scores = torch.matmul(Q, K.transpose(1, 2))
        # lower triangle of ones -> future gets 0
        mask = torch.tril(torch.ones(T, T, device=x.device, dtype=x.dtype))
        scores = scores * mask
        weights = torch.softmax(scores, dim=-1)
        if verbose:
            print('weights', weights.sum(-1))
        return torch.matmul(weights, V)


if __name__ == '__main__':
    layer = causal_attention(8, 6)
    out = layer(torch.randn(1, 5, 8), verbose=True)
    print(out.shape)
