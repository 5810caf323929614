# expect: padding-in-other-texts
# why: the 3-D mask of nn.MultiheadAttention must be laid out sample-major (repeat_interleave), repeat tiles it head-major, so with batch > 1 heads use the mask of other samples; shows at line 48: `attn_mask = attn_mask.repeat(self.nhead, 1, 1)`
"""Text-to-video encoder layer used for moment retrieval and highlight detection."""
import copy
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn, Tensor


def _get_clones(module, N):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(N)])


class T2V_TransformerEncoderLayer(nn.Module):
    """Video clips are the queries, the words of the sentence are keys and values.

    vid:      (L_vid, batch, d_model)
    txt:      (L_txt, batch, d_model)
    *_mask:   (batch, L), True on padded elements
    """

    def __init__(self, d_model, nhead, dim_feedforward=64, dropout=0.1):
        super().__init__()
        self.cross_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.nhead = nhead

    @staticmethod
    def with_pos_embed(tensor, pos: Optional[Tensor]):
        return tensor if pos is None else tensor + pos

    def forward(self, vid, txt, vid_mask, txt_mask, vid_pos=None, txt_pos=None):
        q = self.with_pos_embed(vid, vid_pos)
        k = self.with_pos_embed(txt, txt_pos)

        # padded clips see everything, so that no row is fully masked
        qmask = vid_mask.bool().unsqueeze(2)
        kmask = txt_mask.bool().unsqueeze(1)
        attn_mask = torch.logical_and(~qmask, kmask)
        attn_mask = attn_mask.repeat(self.nhead, 1, 1)

        vid2 = self.cross_attn(query=q, key=k, value=txt, attn_mask=attn_mask)[0]
        vid = self.norm1(vid + self.dropout1(vid2))
        vid2 = self.linear2(self.dropout(F.relu(self.linear1(vid))))
        return self.norm2(vid + self.dropout2(vid2))


class T2VEncoder(nn.Module):
    def __init__(self, d_model=32, nhead=4, num_layers=2, dropout=0.1):
        super().__init__()
        self.layers = _get_clones(T2V_TransformerEncoderLayer(d_model, nhead, dropout=dropout), num_layers)

    def forward(self, vid, txt, vid_mask, txt_mask, vid_pos=None, txt_pos=None):
        for layer in self.layers:
            vid = layer(vid, txt, vid_mask, txt_mask, vid_pos, txt_pos)
        return vid


class HighlightHead(nn.Module):
    def __init__(self, vid_dim, txt_dim, d_model=32, nhead=4):
        super().__init__()
        self.vid_proj = nn.Linear(vid_dim, d_model)
        self.txt_proj = nn.Linear(txt_dim, d_model)
        self.encoder = T2VEncoder(d_model, nhead)
        self.saliency = nn.Linear(d_model, 1)

    def forward(self, vid, txt, vid_mask, txt_mask):
        """Features are batch-first here: (batch, L, dim)."""
        v = self.vid_proj(vid).permute(1, 0, 2)
        t = self.txt_proj(txt).permute(1, 0, 2)
        out = self.encoder(v, t, vid_mask, txt_mask).permute(1, 0, 2)
        return self.saliency(out).squeeze(-1).masked_fill(vid_mask.bool(), float("-inf"))
