# expect: correct
# what: nn.MultiheadAttention wrapper, batch_first, keep mask inverted for key_padding_mask, bool causal mask, pre-norm + residual
import torch
import torch.nn as nn


class SelfAttentionLayer(nn.Module):
    """Wrapper around nn.MultiheadAttention.

    tokens: (batch, time, dim)
    keep:   (batch, time) True for normal tokens, False for <pad>
    """

    def __init__(self, dim, heads, dropout=0.1, autoregressive=False):
        super().__init__()
        self.autoregressive = autoregressive
        self.mha = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def make_causal(self, size, device):
        # pytorch wants True where it is NOT allowed
        return torch.triu(torch.ones(size, size, dtype=torch.bool, device=device), diagonal=1)

    def forward(self, tokens, keep=None):
        x = self.norm(tokens)
        attn_mask = self.make_causal(x.size(1), x.device) if self.autoregressive else None
        key_padding_mask = None if keep is None else ~keep.bool()
        out, weights = self.mha(
            x, x, x,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            need_weights=True,
            average_attn_weights=False,
        )
        return tokens + self.dropout(out), weights


if __name__ == '__main__':
    layer = SelfAttentionLayer(32, 4, autoregressive=True).eval()
    t = torch.randn(3, 6, 32)
    keep = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
    y, w = layer(t, keep)
    print(y.shape, w.shape)
    print(w[1, 0])
