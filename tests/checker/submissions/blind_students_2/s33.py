# expect: padding-inverted
# why: Line 17: the 1=token mask is passed as key_padding_mask, which needs True=ignore, so real tokens are ignored and only padding is attended. Shows only when attention_mask is passed (all-ones mask: attention output is a constant or NaN).
import torch
import torch.nn as nn


class EncoderSelfAttention(nn.Module):
    """BERT-like encoder attention using the PyTorch module."""

    def __init__(self, hidden_size=64, num_heads=4, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(hidden_size, num_heads, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.LayerNorm = nn.LayerNorm(hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        # attention_mask comes from the tokenizer: 1 = token, 0 = [PAD]
        if attention_mask is not None:
            attention_mask = attention_mask.bool()
        attn_output, _ = self.self_attn(
            hidden_states, hidden_states, hidden_states,
            key_padding_mask=attention_mask,
            need_weights=False,
        )
        return self.LayerNorm(hidden_states + self.dropout(attn_output))


if __name__ == '__main__':
    layer = EncoderSelfAttention()
    h = torch.randn(2, 10, 64)
    mask = torch.tensor([[1] * 8 + [0] * 2, [1] * 5 + [0] * 5])
    out = layer(h, mask)
    print(out.shape)
