# expect: wrong
# why: self-attention runs over the batch axis because batch_first is missing, and the foreground mask is given to MultiheadAttention, where True means hidden.
# Masked-attention decoder for universal segmentation.
# Convention in this file: queries and pixel features are (B, L, C); masks predicted by the previous layer
# decide which pixels a query may look at.
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class SelfAttentionLayer(nn.Module):
    def __init__(self, d_model: int, nhead: int, dropout: float = 0.0):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self._reset_parameters()

    def _reset_parameters(self):
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, tgt: Tensor, query_pos: Optional[Tensor] = None) -> Tensor:
        q = k = tgt if query_pos is None else tgt + query_pos
        tgt2 = self.self_attn(q, k, value=tgt)[0]
        return self.norm(tgt + self.dropout(tgt2))


class CrossAttentionLayer(nn.Module):
    def __init__(self, d_model: int, nhead: int, dropout: float = 0.0):
        super().__init__()
        self.multihead_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tgt: Tensor, memory: Tensor, memory_mask: Optional[Tensor] = None,
                pos: Optional[Tensor] = None, query_pos: Optional[Tensor] = None) -> Tensor:
        q = tgt if query_pos is None else tgt + query_pos
        k = memory if pos is None else memory + pos
        tgt2 = self.multihead_attn(q, k, value=memory, attn_mask=memory_mask)[0]
        return self.norm(tgt + self.dropout(tgt2))


class MaskedDecoder(nn.Module):
    def __init__(self, hidden_dim: int = 64, nheads: int = 4, num_queries: int = 10, dec_layers: int = 2,
                 mask_dim: int = 64, num_classes: int = 5):
        super().__init__()
        self.num_heads = nheads
        self.query_feat = nn.Embedding(num_queries, hidden_dim)
        self.query_embed = nn.Embedding(num_queries, hidden_dim)
        self.self_layers = nn.ModuleList(SelfAttentionLayer(hidden_dim, nheads) for _ in range(dec_layers))
        self.cross_layers = nn.ModuleList(CrossAttentionLayer(hidden_dim, nheads) for _ in range(dec_layers))
        self.decoder_norm = nn.LayerNorm(hidden_dim)
        self.class_embed = nn.Linear(hidden_dim, num_classes + 1)
        self.mask_embed = nn.Sequential(nn.Linear(hidden_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, mask_dim))

    def predict(self, output: Tensor, mask_features: Tensor, size):
        out = self.decoder_norm(output)
        cls = self.class_embed(out)
        masks = torch.einsum("bqc,bchw->bqhw", self.mask_embed(out), mask_features)
        attn_mask = F.interpolate(masks, size=size, mode="bilinear", align_corners=False)
        # (B, Q, h, w) -> (B * heads, Q, h * w), foreground of the predicted mask
        attn_mask = (attn_mask.sigmoid().flatten(2) >= 0.5).unsqueeze(1).repeat(1, self.num_heads, 1, 1).flatten(0, 1)
        # a query whose predicted mask is empty looks at everything
        attn_mask[attn_mask.sum(-1) == 0] = True
        return cls, masks, attn_mask.detach()

    def forward(self, x: Tensor, mask_features: Tensor, pos: Optional[Tensor] = None):
        """x: (B, C, h, w) features attended to; mask_features: (B, mask_dim, H, W)."""
        bs, _, h, w = x.shape
        memory = x.flatten(2).transpose(1, 2)
        pos = None if pos is None else pos.flatten(2).transpose(1, 2)
        query_embed = self.query_embed.weight.unsqueeze(0).repeat(bs, 1, 1)
        output = self.query_feat.weight.unsqueeze(0).repeat(bs, 1, 1)

        cls, masks, attn_mask = self.predict(output, mask_features, (h, w))
        aux = [(cls, masks)]
        for cross, self_ in zip(self.cross_layers, self.self_layers):
            output = cross(output, memory, memory_mask=attn_mask, pos=pos, query_pos=query_embed)
            output = self_(output, query_pos=query_embed)
            cls, masks, attn_mask = self.predict(output, mask_features, (h, w))
            aux.append((cls, masks))
        return {"pred_logits": cls, "pred_masks": masks, "aux_outputs": aux[:-1]}
