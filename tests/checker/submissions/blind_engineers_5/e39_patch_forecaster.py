# expect: correct
# why: right: sequence-first layout is what nn.MultiheadAttention expects by default, and True in key_padding_mask means skip
import torch
from torch import nn, Tensor
from typing import Optional


class PatchEncoderLayer(nn.Module):
    """ `src` is (seq, batch, channels), the default layout of nn.MultiheadAttention """

    def __init__(self, d_model: int, nhead: int, dim_feedforward: int, dropout: float):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.lin1, self.lin2 = nn.Linear(d_model, dim_feedforward), nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, src: Tensor, pad: Optional[Tensor] = None) -> Tensor:
        out, _ = self.self_attn(src, src, src, key_padding_mask=pad, need_weights=False)
        src = self.norm1(src + self.drop(out))
        out = self.lin2(self.drop(torch.relu(self.lin1(src))))
        return self.norm2(src + self.drop(out))


class PatchForecaster(nn.Module):
    """
    Channel-independent patch transformer.
    series: (batch, length, n_vars); observed: (batch, length), 1 where measured, 0 where the
    history is not long enough. A patch without a single observed value is skipped by the attention.
    """

    def __init__(self, length: int, horizon: int, patch: int = 4, d_model: int = 32, nhead: int = 4,
                 layers: int = 2, dropout: float = 0.1):
        super().__init__()
        assert length % patch == 0
        self.patch, self.n_patches = patch, length // patch
        self.embed = nn.Linear(patch, d_model)
        self.pos = nn.Parameter(torch.randn(self.n_patches, 1, d_model) * 0.02)
        self.layers = nn.ModuleList(
            PatchEncoderLayer(d_model, nhead, 2 * d_model, dropout) for _ in range(layers))
        self.head = nn.Linear(self.n_patches * d_model, horizon)

    def forward(self, series: Tensor, observed: Optional[Tensor] = None) -> Tensor:
        b, length, n_vars = series.shape
        x = series.permute(0, 2, 1).reshape(b * n_vars, self.n_patches, self.patch)
        x = self.embed(x).transpose(0, 1) + self.pos                      # (patches, batch * vars, d)
        pad = None
        if observed is not None:
            empty = observed.reshape(b, self.n_patches, self.patch).sum(-1) == 0
            pad = empty.repeat_interleave(n_vars, dim=0)                    # (batch * vars, patches)
        for layer in self.layers:
            x = layer(x, pad)
        x = x.transpose(0, 1)                                              # (batch * vars, patches, d)
        if pad is not None:
            x = x.masked_fill(pad.unsqueeze(-1), 0.0)
        y = self.head(x.flatten(1))
        return y.view(b, n_vars, -1).permute(0, 2, 1)
