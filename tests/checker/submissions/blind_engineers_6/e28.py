# expect: wrong
# why: two: query positions also go into the values; the padding mask of memory is not passed
# DETR-style decoder. Sequences are (L, B, C) as in the original code base.
from typing import Optional

import torch
from torch import nn, Tensor


def with_pos_embed(tensor: Tensor, pos: Optional[Tensor]) -> Tensor:
    return tensor if pos is None else tensor + pos


class ObjectQueryAttention(nn.Module):
    """Both attention steps of a decoder layer, post-norm:

    1. self-attention among the object queries,
    2. cross-attention from the object queries to the encoder memory.

    Positional terms (``query_pos`` for the object queries, ``pos`` for the memory) go into queries
    and keys only; values are content. Padded pixels of the memory are ignored.

    Args:
        tgt: (Q, B, C) decoder state
        memory: (HW, B, C) encoder output
        memory_key_padding_mask: bool (B, HW), True at padded pixels
        pos: (HW, B, C)
        query_pos: (Q, B, C)
    Returns the new decoder state (Q, B, C).
    """

    def __init__(self, d_model: int, nhead: int, dropout: float = 0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.multihead_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, tgt: Tensor, memory: Tensor,
                memory_key_padding_mask: Optional[Tensor] = None,
                pos: Optional[Tensor] = None,
                query_pos: Optional[Tensor] = None) -> Tensor:
        q = k = with_pos_embed(tgt, query_pos)
        tgt2 = self.self_attn(q, k, value=k, need_weights=False)[0]
        tgt = self.norm1(tgt + self.dropout1(tgt2))

        tgt2 = self.multihead_attn(
            query=with_pos_embed(tgt, query_pos),
            key=with_pos_embed(memory, pos),
            value=memory,
            need_weights=False,
        )[0]
        return self.norm2(tgt + self.dropout2(tgt2))


class DecoderLayer(nn.Module):
    def __init__(self, d_model: int = 128, nhead: int = 4, dim_feedforward: int = 256, dropout: float = 0.1):
        super().__init__()
        self.attn = ObjectQueryAttention(d_model, nhead, dropout)
        self.ffn = nn.Sequential(
            nn.Linear(d_model, dim_feedforward), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(dim_feedforward, d_model), nn.Dropout(dropout))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tgt, memory, memory_key_padding_mask=None, pos=None, query_pos=None):
        tgt = self.attn(tgt, memory, memory_key_padding_mask, pos, query_pos)
        return self.norm(tgt + self.ffn(tgt))


class PositionEmbeddingSine(nn.Module):
    """Sine embedding of the pixel position, counted over valid pixels and scaled to 2 pi."""

    def __init__(self, num_pos_feats: int = 64, temperature: int = 10000):
        super().__init__()
        self.num_pos_feats = num_pos_feats
        self.temperature = temperature

    def forward(self, mask: Tensor) -> Tensor:
        not_mask = ~mask
        y, x = not_mask.cumsum(1, dtype=torch.float32), not_mask.cumsum(2, dtype=torch.float32)
        y = y / (y[:, -1:, :] + 1e-6) * 2 * torch.pi
        x = x / (x[:, :, -1:] + 1e-6) * 2 * torch.pi
        dim_t = torch.arange(self.num_pos_feats, dtype=torch.float32, device=mask.device)
        dim_t = self.temperature ** (2 * torch.div(dim_t, 2, rounding_mode="floor") / self.num_pos_feats)
        px, py = x[..., None] / dim_t, y[..., None] / dim_t
        px = torch.stack((px[..., 0::2].sin(), px[..., 1::2].cos()), dim=4).flatten(3)
        py = torch.stack((py[..., 0::2].sin(), py[..., 1::2].cos()), dim=4).flatten(3)
        return torch.cat((py, px), dim=3)


class DetectionHead(nn.Module):
    """Feature map + padding mask -> class logits and normalised boxes of every decoder layer."""

    def __init__(self, num_classes: int, d_model: int = 128, num_queries: int = 20, layers: int = 2):
        super().__init__()
        self.pos = PositionEmbeddingSine(d_model // 2)
        self.query_embed = nn.Embedding(num_queries, d_model)
        self.layers = nn.ModuleList(DecoderLayer(d_model) for _ in range(layers))
        self.class_embed = nn.Linear(d_model, num_classes + 1)
        self.bbox_embed = nn.Sequential(nn.Linear(d_model, d_model), nn.ReLU(), nn.Linear(d_model, 4))

    def forward(self, feat: Tensor, mask: Tensor):
        """feat (B, C, H, W); mask bool (B, H, W), True at padding"""
        memory = feat.flatten(2).permute(2, 0, 1)
        pos = self.pos(mask).flatten(1, 2).transpose(0, 1)
        query_pos = self.query_embed.weight[:, None].expand(-1, feat.shape[0], -1)
        tgt, hs = torch.zeros_like(query_pos), []
        for layer in self.layers:
            tgt = layer(tgt, memory, mask.flatten(1), pos, query_pos)
            hs.append(tgt)
        hs = torch.stack(hs)
        return self.class_embed(hs), self.bbox_embed(hs).sigmoid()
