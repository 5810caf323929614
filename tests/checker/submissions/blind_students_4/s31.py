# expect: view-with-d-in
# why: the merged heads are viewed as (b, num_tokens, d_in) instead of d_out, which fails as soon as d_in != d_out, on line 45
import torch
import torch.nn as nn

GPT_CONFIG_TINY = {
    "vocab_size": 200,
    "context_length": 32,
    "emb_dim": 48,
    "n_heads": 4,
    "drop_rate": 0.1,
    "qkv_bias": False,
}


class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer(
            "mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, d_in = x.shape

        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim)
        keys, queries, values = keys.transpose(1, 2), queries.transpose(1, 2), values.transpose(1, 2)

        attn_scores = queries @ keys.transpose(2, 3)
        mask_bool = self.mask.bool()[:num_tokens, :num_tokens]
        attn_scores.masked_fill_(mask_bool, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)

        context_vec = (attn_weights @ values).transpose(1, 2)
        context_vec = context_vec.contiguous().view(b, num_tokens, d_in)
        return self.out_proj(context_vec)


def attention_from_config(cfg):
    return MultiHeadAttention(
        d_in=cfg["emb_dim"], d_out=cfg["emb_dim"],
        context_length=cfg["context_length"], dropout=cfg["drop_rate"],
        num_heads=cfg["n_heads"], qkv_bias=cfg["qkv_bias"])


if __name__ == "__main__":
    att = attention_from_config(GPT_CONFIG_TINY)
    print(att(torch.randn(2, 10, 48)).shape)
