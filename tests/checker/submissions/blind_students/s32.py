# expect: correct
import torch
from torch import nn


class PyTorchMHA(nn.Module):
    # just use the pytorch one. note: here True in the mask means NOT allowed
    def __init__(self, emb_dim, context_length, dropout, num_heads, bias=True):
        super().__init__()
        self.context_length = context_length
        self.attn = nn.MultiheadAttention(emb_dim, num_heads, dropout=dropout, bias=bias, batch_first=True)
        self.register_buffer("future", torch.triu(torch.ones(context_length, context_length), diagonal=1).bool())

    def forward(self, x):
        n = x.shape[1]
        if n > self.context_length:
            raise ValueError(f"sequence of {n} tokens is longer than context_length={self.context_length}")
        out, _ = self.attn(x, x, x, attn_mask=self.future[:n, :n], need_weights=False)
        return out


def main():
    m = PyTorchMHA(12, 10, 0.1, 3)
    m.eval()
    print(m(torch.randn(2, 7, 12)).shape)


if __name__ == "__main__":
    main()
