# expect: correct
"""Homework 3, part a: the simplest self-attention with trainable weights.

One sentence, no batch dimension, a single head.
"""
import torch
import torch.nn as nn


class SelfAttentionV1(nn.Module):

    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x):
        queries = x @ self.W_query
        keys = x @ self.W_key
        values = x @ self.W_value

        attn_scores = queries @ keys.T
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        context_vec = attn_weights @ values
        return context_vec


def load_toy_sentence():
    # "Today the sun is very bright", 3-dim. embeddings
    return torch.tensor([
        [0.12, 0.95, 0.33],
        [0.71, 0.08, 0.44],
        [0.20, 0.61, 0.58],
        [0.03, 0.77, 0.15],
        [0.49, 0.36, 0.90],
        [0.66, 0.52, 0.27],
    ])


if __name__ == "__main__":
    torch.manual_seed(789)
    inputs = load_toy_sentence()
    sa = SelfAttentionV1(d_in=3, d_out=2)
    ctx = sa(inputs)
    print(ctx)
    print("shape:", ctx.shape)
