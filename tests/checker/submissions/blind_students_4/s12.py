# expect: value-from-keys, softmax-over-queries
# why: two mistakes: the values are computed with the key layer W_key instead of W_value on line 19, and the softmax runs over dim=1 (the query axis) instead of the key axis on line 23
import torch
import torch.nn as nn


class SelfAttention_v2(nn.Module):
    """Single head attention with nn.Linear, batched input (b, tokens, d_in)."""

    def __init__(self, d_in, d_out, qkv_bias=False):
        super().__init__()
        self.d_out = d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x):
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_key(x)

        attn_scores = torch.matmul(queries, keys.transpose(1, 2))
        attn_scores = attn_scores / self.d_out ** 0.5
        attn_weights = torch.softmax(attn_scores, dim=1)

        context_vec = torch.matmul(attn_weights, values)
        return context_vec


class Classifier(nn.Module):
    """Mean over the context vectors, then a linear layer."""

    def __init__(self, vocab, d_in, d_out, classes):
        super().__init__()
        self.emb = nn.Embedding(vocab, d_in)
        self.att = SelfAttention_v2(d_in, d_out)
        self.head = nn.Linear(d_out, classes)

    def forward(self, ids):
        h = self.att(self.emb(ids))
        return self.head(h.mean(dim=1))


if __name__ == "__main__":
    torch.manual_seed(789)
    model = Classifier(100, 16, 12, 3)
    ids = torch.randint(0, 100, (4, 9))
    print(model(ids))
