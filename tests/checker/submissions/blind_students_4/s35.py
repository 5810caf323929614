# expect: correct
"""Self attention, sequence first (T, B, C) like nn.Transformer uses by default.

The mask is additive: 0 for "look", -inf for "do not look", shape (T, T).
Softmax by hand because that was question (c).
"""
import torch
import torch.nn as nn


def generate_square_subsequent_mask(sz):
    return torch.triu(torch.full((sz, sz), float("-inf")), diagonal=1)


def stable_softmax(z):
    z = z - z.amax(dim=-1, keepdim=True).detach()
    e = torch.exp(z)
    return e / e.sum(dim=-1, keepdim=True)


class SeqFirstAttention(nn.Module):
    def __init__(self, embed_dim, nhead):
        super().__init__()
        assert embed_dim % nhead == 0
        self.nhead = nhead
        self.embed_dim = embed_dim
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, src, attn_mask=None):
        T, B, C = src.shape
        hd = C // self.nhead
        w_q, w_k, w_v = self.in_proj_weight.chunk(3)
        b_q, b_k, b_v = self.in_proj_bias.chunk(3)

        def heads(w, b):
            # (T, B, C) -> (T, B*nhead, hd) -> (B*nhead, T, hd)
            return (src @ w.t() + b).view(T, B * self.nhead, hd).transpose(0, 1)

        q, k, v = heads(w_q, b_q), heads(w_k, b_k), heads(w_v, b_v)
        scores = (q * hd ** -0.5) @ k.transpose(1, 2)
        if attn_mask is not None:
            scores = scores + attn_mask
        out = stable_softmax(scores) @ v
        out = out.transpose(0, 1).reshape(T, B, C)
        return self.out_proj(out)


if __name__ == "__main__":
    x = torch.randn(6, 2, 20)
    layer = SeqFirstAttention(20, 4)
    print(layer(x, generate_square_subsequent_mask(6)).shape)
