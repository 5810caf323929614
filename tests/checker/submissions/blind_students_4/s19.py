# expect: weights-transposed
# why: the second einsum reads the weights as "bhkq" (transposed), so the values are summed over the query axis of the weights, on line 31
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        assert self.head_dim * heads == embed_size, "Embed size needs to be div by heads"

        self.values = nn.Linear(embed_size, embed_size, bias=False)
        self.keys = nn.Linear(embed_size, embed_size, bias=False)
        self.queries = nn.Linear(embed_size, embed_size, bias=False)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        N, length, _ = x.shape

        values = self.values(x).reshape(N, length, self.heads, self.head_dim)
        keys = self.keys(x).reshape(N, length, self.heads, self.head_dim)
        queries = self.queries(x).reshape(N, length, self.heads, self.head_dim)

        # energy: (N, heads, query_len, key_len)
        energy = torch.einsum("bqhd,bkhd->bhqk", queries, keys)
        attention = torch.softmax(energy / (self.head_dim ** (1 / 2)), dim=3)

        # out: (N, query_len, heads, head_dim), then flatten the last two
        out = torch.einsum("bhkq,bkhd->bqhd", attention, values)
        out = out.reshape(N, length, self.heads * self.head_dim)
        return self.fc_out(out)


class TransformerBlock(nn.Module):
    def __init__(self, embed_size, heads, dropout, forward_expansion):
        super().__init__()
        self.attention = SelfAttention(embed_size, heads)
        self.norm1 = nn.LayerNorm(embed_size)
        self.norm2 = nn.LayerNorm(embed_size)
        self.feed_forward = nn.Sequential(
            nn.Linear(embed_size, forward_expansion * embed_size),
            nn.ReLU(),
            nn.Linear(forward_expansion * embed_size, embed_size),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.dropout(self.norm1(self.attention(x) + x))
        return self.dropout(self.norm2(self.feed_forward(x) + x))


if __name__ == "__main__":
    print(TransformerBlock(32, 4, 0.1, 2)(torch.randn(2, 9, 32)).shape)
