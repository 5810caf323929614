# expect: fails-at-some-lengths
# why: Lines 32-33: keys and values of the encoder are reshaped with T, the length of the query side (line 28), so cross-attention crashes (RuntimeError: shape is invalid) whenever the caption and the regions have different lengths.
# Assignment 5: image captioning, decoder attends to the image regions
import torch
import torch.nn as nn
import math


class CrossAttention(nn.Module):
    """
    Queries come from the decoder, keys and values come from the encoder.

    x       : (batch, len_caption, d_model)
    encoded : (batch, len_regions, d_model)
    """

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads = num_heads
        self.d_head = d_model // num_heads

        self.fc_q = nn.Linear(d_model, d_model)
        self.fc_k = nn.Linear(d_model, d_model)
        self.fc_v = nn.Linear(d_model, d_model)
        self.fc_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, encoded):
        N, T, D = x.shape
        H, d = self.num_heads, self.d_head

        q = self.fc_q(x).view(N, T, H, d).permute(0, 2, 1, 3)
        k = self.fc_k(encoded).view(N, T, H, d).permute(0, 2, 1, 3)
        v = self.fc_v(encoded).view(N, T, H, d).permute(0, 2, 1, 3)

        energy = torch.einsum("nhqd,nhkd->nhqk", q, k) / math.sqrt(d)
        attention = torch.softmax(energy, dim=-1)
        attention = self.dropout(attention)
        out = torch.einsum("nhqk,nhkd->nhqd", attention, v)
        out = out.permute(0, 2, 1, 3).reshape(N, T, D)
        return self.fc_o(out)


if __name__ == "__main__":
    layer = CrossAttention(64, 8)
    caption = torch.randn(4, 16, 64)
    regions = torch.randn(4, 16, 64)
    print(layer(caption, regions).shape)
