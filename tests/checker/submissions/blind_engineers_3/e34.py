# expect: sdpa-mask-polarity
# why: padding_mask is True at padding, but is passed unchanged as boolean attn_mask to SDPA (line 44), where True means "may attend": frames attend only to padding; needs ~padding_mask.
"""Transformer encoder for variable-length utterances (wav2vec-ish, post conv feature extractor)."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class EncoderConfig:
    embed_dim: int = 64
    ffn_dim: int = 128
    heads: int = 4
    layers: int = 3
    dropout: float = 0.1
    conv_pos_kernel: int = 15
    conv_pos_groups: int = 4


def make_padding_mask(lengths: torch.Tensor, max_len: int) -> torch.Tensor:
    """fairseq convention: True marks the frames that are padding."""
    return torch.arange(max_len, device=lengths.device).unsqueeze(0) >= lengths.unsqueeze(1)


class FastSelfAttention(nn.Module):
    """Drop-in for fairseq's MultiheadAttention on top of the fused kernel."""

    def __init__(self, embed_dim: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.head_dim = embed_dim // heads
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _shape(self, t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)

    def forward(self, x: torch.Tensor, padding_mask: torch.Tensor = None) -> torch.Tensor:
        mask = None
        if padding_mask is not None:
            mask = padding_mask[:, None, None, :]       # broadcast over heads and queries
        y = F.scaled_dot_product_attention(
            self._shape(self.q_proj(x)),
            self._shape(self.k_proj(x)),
            self._shape(self.v_proj(x)),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out_proj(y.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    def __init__(self, cfg: EncoderConfig):
        super().__init__()
        self.attn = FastSelfAttention(cfg.embed_dim, cfg.heads, cfg.dropout)
        self.attn_norm = nn.LayerNorm(cfg.embed_dim)
        self.ffn = nn.Sequential(nn.Linear(cfg.embed_dim, cfg.ffn_dim), nn.GELU(), nn.Dropout(cfg.dropout), nn.Linear(cfg.ffn_dim, cfg.embed_dim))
        self.ffn_norm = nn.LayerNorm(cfg.embed_dim)
        self.dropout = nn.Dropout(cfg.dropout)

    def forward(self, x, padding_mask=None):
        x = x + self.dropout(self.attn(self.attn_norm(x), padding_mask))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class SpeechEncoder(nn.Module):
    def __init__(self, cfg: EncoderConfig = EncoderConfig()):
        super().__init__()
        self.pos_conv = nn.Conv1d(cfg.embed_dim, cfg.embed_dim, cfg.conv_pos_kernel,
                                  padding=cfg.conv_pos_kernel // 2, groups=cfg.conv_pos_groups)
        self.layers = nn.ModuleList(EncoderLayer(cfg) for _ in range(cfg.layers))
        self.final_norm = nn.LayerNorm(cfg.embed_dim)

    def forward(self, feats, lengths=None):
        padding_mask = None
        if lengths is not None and int(lengths.min()) < feats.size(1):
            padding_mask = make_padding_mask(lengths, feats.size(1))
            feats = feats.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        x = feats + F.gelu(self.pos_conv(feats.transpose(1, 2))).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, padding_mask)
        return self.final_norm(x), padding_mask


if __name__ == "__main__":
    enc = SpeechEncoder().eval()
    out, pad = enc(torch.randn(3, 40, 64), torch.tensor([38, 25, 31]))
    print(out.shape, pad.sum(1))
