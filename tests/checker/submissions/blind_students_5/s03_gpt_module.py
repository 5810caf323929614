# expect: out-proj-unused
# why: out_proj is created but never applied in forward, the concatenated heads are returned as they are (line 46: `return context_vec`)
import torch
import torch.nn as nn

GPT_CONFIG = {
    "vocab_size": 50257,
    "context_length": 128,
    "emb_dim": 96,
    "n_heads": 8,
    "drop_rate": 0.1,
    "qkv_bias": False,
}


class MultiHeadAttention(nn.Module):

    def __init__(self, cfg):
        super().__init__()
        d = cfg["emb_dim"]
        assert d % cfg["n_heads"] == 0
        self.num_heads = cfg["n_heads"]
        self.head_dim = d // self.num_heads
        self.W_query = nn.Linear(d, d, bias=cfg["qkv_bias"])
        self.W_key = nn.Linear(d, d, bias=cfg["qkv_bias"])
        self.W_value = nn.Linear(d, d, bias=cfg["qkv_bias"])
        self.out_proj = nn.Linear(d, d)  # linear layer to combine head outputs
        self.dropout = nn.Dropout(cfg["drop_rate"])
        self.register_buffer(
            "mask", torch.triu(torch.ones(cfg["context_length"], cfg["context_length"]), diagonal=1).bool()
        )

    def forward(self, x):
        b, num_tokens, d = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)

        attn_scores = queries @ keys.transpose(2, 3)
        attn_scores.masked_fill_(self.mask[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / self.head_dim ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)

        context_vec = (attn_weights @ values).transpose(1, 2)
        context_vec = context_vec.contiguous().view(b, num_tokens, d)
        return context_vec


if __name__ == "__main__":
    torch.manual_seed(123)
    mha = MultiHeadAttention(GPT_CONFIG)
    out = mha(torch.randn(2, 6, 96))
    print(out.shape)
    print("Total parameters:", sum(p.numel() for p in mha.parameters()))
