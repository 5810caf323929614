# expect: correct
# Chapter 3 homework, part 1
# self attention with my own parameters (no nn.Linear yet!)
import torch
import torch.nn as nn


class SelfAttention_v1(nn.Module):
    """x: (num_tokens, d_in)  ->  (num_tokens, d_out). No mask in this version."""

    def __init__(self, d_in, d_out):
        super().__init__()
        self.d_out = d_out
        self.W_q = nn.Parameter(torch.randn(d_in, d_out) / d_in ** 0.5)
        self.W_k = nn.Parameter(torch.randn(d_in, d_out) / d_in ** 0.5)
        self.W_v = nn.Parameter(torch.randn(d_in, d_out) / d_in ** 0.5)

    def forward(self, x):
        q = x @ self.W_q
        k = x @ self.W_k
        v = x @ self.W_v
        omega = q @ k.T                      # every query with every key
        alpha = torch.softmax(omega / self.d_out ** 0.5, dim=1)
        return alpha @ v


torch.manual_seed(7)
words = "the cat sat on the mat".split()
emb = torch.rand(len(words), 3)
sa = SelfAttention_v1(3, 2)
print(words)
print(sa(emb))
print("shape:", sa(emb).shape)
