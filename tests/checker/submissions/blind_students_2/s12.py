# expect: dropout-before-softmax, dropout-in-eval
# why: Line 39: dropout is applied to the scores before the softmax instead of to the weights (dropped scores become 0, masked positions become visible again). On its own shows in training with dropout > 0; because of the other mistake also in eval.
# why: Line 39: the nn.Dropout module is created inside forward, so it is always in training mode and eval() does not switch it off. Shows in eval with dropout > 0.
import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads, dropout=0.1):
        super(SelfAttention, self).__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        self.dropout = dropout

        assert (
            self.head_dim * heads == embed_size
        ), "Embedding size needs to be divisible by heads"

        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask=None):
        # Get number of training examples
        N = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]

        values = self.values(values).reshape(N, value_len, self.heads, self.head_dim)
        keys = self.keys(keys).reshape(N, key_len, self.heads, self.head_dim)
        queries = self.queries(query).reshape(N, query_len, self.heads, self.head_dim)

        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        energy = energy / (self.head_dim ** (1 / 2))

        # mask shape: (N, 1, 1, key_len) or (N, 1, query_len, key_len), 0 = not visible
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))

        # regularisation
        energy = nn.Dropout(self.dropout)(energy)
        attention = torch.softmax(energy, dim=3)

        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(
            N, query_len, self.heads * self.head_dim
        )
        return self.fc_out(out)


class TransformerBlock(nn.Module):
    def __init__(self, embed_size, heads, dropout, forward_expansion):
        super(TransformerBlock, self).__init__()
        self.attention = SelfAttention(embed_size, heads, dropout)
        self.norm1 = nn.LayerNorm(embed_size)
        self.norm2 = nn.LayerNorm(embed_size)
        self.feed_forward = nn.Sequential(
            nn.Linear(embed_size, forward_expansion * embed_size),
            nn.ReLU(),
            nn.Linear(forward_expansion * embed_size, embed_size),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, value, key, query, mask=None):
        attention = self.attention(value, key, query, mask)
        x = self.dropout(self.norm1(attention + query))
        forward = self.feed_forward(x)
        return self.dropout(self.norm2(forward + x))


if __name__ == "__main__":
    block = TransformerBlock(32, 4, 0.1, 2)
    x = torch.randn(2, 6, 32)
    src_mask = torch.ones(2, 1, 1, 6)
    src_mask[0, ..., 4:] = 0
    print(block(x, x, x, src_mask).shape)
