# expect: mask-result-dropped
# why: masked_fill returns a new tensor that is never assigned, so the attention is not causal at all.
import torch
import torch.nn as nn
import torch.nn.functional as F


class MaskedMHA(nn.Module):
    def __init__(self, d_model: int, n_heads: int, max_len: int = 128, attn_pdrop: float = 0.1):
        super().__init__()
        assert d_model % n_heads == 0
        self.d_model, self.n_heads = d_model, n_heads
        self.d_k = d_model // n_heads
        self.W_qkv = nn.Linear(d_model, d_model * 3)
        self.W_o = nn.Linear(d_model, d_model)
        self.attn_drop = nn.Dropout(attn_pdrop)
        self.register_buffer("bias", torch.tril(torch.ones(max_len, max_len)).view(1, 1, max_len, max_len))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        bs, sl, _ = hidden.size()
        query, key, value = self.W_qkv(hidden).split(self.d_model, dim=-1)
        query = query.view(bs, sl, self.n_heads, self.d_k).transpose(1, 2)
        key = key.view(bs, sl, self.n_heads, self.d_k).transpose(1, 2)
        value = value.view(bs, sl, self.n_heads, self.d_k).transpose(1, 2)

        attn_logits = torch.matmul(query, key.transpose(-2, -1)) / self.d_k ** 0.5
        # causal mask, tokens must not look ahead
        attn_logits.masked_fill(self.bias[:, :, :sl, :sl] == 0, float("-inf"))
        attn_probs = self.attn_drop(F.softmax(attn_logits, dim=-1))

        context = torch.matmul(attn_probs, value)
        context = context.transpose(1, 2).contiguous().view(bs, sl, self.d_model)
        return self.W_o(context)


if __name__ == "__main__":
    mod = MaskedMHA(36, 6)
    print(mod(torch.randn(2, 15, 36)).shape)
