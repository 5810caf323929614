# expect: mask-fill-not-inf, merge-without-transpose
# why: two: the future is filled with 1e-9 instead of -1e9; heads merged without transposing
import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskedMultiHeadAttention(nn.Module):
    def __init__(self, embed_size, heads, max_length=100):
        super(MaskedMultiHeadAttention, self).__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        assert self.head_dim * heads == embed_size, "Embedding size needs to be divisible by heads"

        self.values = nn.Linear(embed_size, embed_size, bias=False)
        self.keys = nn.Linear(embed_size, embed_size, bias=False)
        self.queries = nn.Linear(embed_size, embed_size, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)
        self.register_buffer("mask", torch.tril(torch.ones(1, 1, max_length, max_length)))

    def forward(self, x):
        N, length, _ = x.shape

        values = self.values(x).reshape(N, length, self.heads, self.head_dim).transpose(1, 2)
        keys = self.keys(x).reshape(N, length, self.heads, self.head_dim).transpose(1, 2)
        queries = self.queries(x).reshape(N, length, self.heads, self.head_dim).transpose(1, 2)

        energy = queries @ keys.transpose(-1, -2)
        energy = energy / (self.head_dim ** (1 / 2))
        # energy shape: (N, heads, length, length)

        # fill the future with a very small number
        energy = energy.masked_fill(self.mask[:, :, :length, :length] == 0, 1e-9)

        attention = F.softmax(energy, dim=3)
        out = attention @ values
        out = out.reshape(N, length, self.heads * self.head_dim)
        out = self.fc_out(out)
        return out


if __name__ == "__main__":
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = MaskedMultiHeadAttention(64, 8).to(device)
    x = torch.randn(2, 9, 64).to(device)
    print(model(x).shape)
