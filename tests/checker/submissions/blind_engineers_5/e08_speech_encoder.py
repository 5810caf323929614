# expect: padding-inverted
# why: the mask is True on valid frames, but masked_fill blanks the True positions, so valid frames are hidden and padding is read; shows at line 44: `sim = sim.masked_fill(mask, max_neg_value)`
# ASR encoder: subsampled filterbanks -> transformer layers
import torch
import torch.nn as nn
from einops import rearrange


def length_to_mask(lens, max_len=None):
    """(B,) lengths -> (B, T) bool, True on the frames that belong to the utterance."""
    if max_len is None:
        max_len = int(lens.max())
    return torch.arange(max_len, device=lens.device)[None, :] < lens[:, None]


class Subsample(nn.Module):
    def __init__(self, n_mels, d_model):
        super().__init__()
        self.conv = nn.Conv1d(n_mels, d_model, kernel_size=3, stride=2, padding=1)

    def forward(self, feats, feat_lens):
        x = torch.relu(self.conv(feats.transpose(1, 2))).transpose(1, 2)
        return x, torch.div(feat_lens + 1, 2, rounding_mode='floor')


class SelfAttention(nn.Module):
    def __init__(self, d_model, heads=4, dropout=0.1):
        super().__init__()
        assert d_model % heads == 0
        self.heads = heads
        self.scale = (d_model // heads) ** -0.5
        self.to_q = nn.Linear(d_model, d_model)
        self.to_kv = nn.Linear(d_model, d_model * 2)
        self.to_out = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        q = rearrange(self.to_q(x), 'b t (h d) -> b h t d', h=self.heads)
        k, v = rearrange(self.to_kv(x), 'b t (two h d) -> two b h t d', two=2, h=self.heads)
        sim = torch.einsum('bhid,bhjd->bhij', q * self.scale, k)
        if mask is not None:
            mask = rearrange(mask, 'b j -> b 1 1 j')
            max_neg_value = -torch.finfo(sim.dtype).max
            sim = sim.masked_fill(mask, max_neg_value)
        attn = self.dropout(sim.softmax(dim=-1))
        out = torch.einsum('bhij,bhjd->bhid', attn, v)
        return self.to_out(rearrange(out, 'b h t d -> b t (h d)'))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, heads, ff_mult=4, dropout=0.1):
        super().__init__()
        self.ln1 = nn.LayerNorm(d_model)
        self.attn = SelfAttention(d_model, heads, dropout)
        self.ln2 = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, d_model * ff_mult), nn.SiLU(), nn.Dropout(dropout),
                                nn.Linear(d_model * ff_mult, d_model))

    def forward(self, x, mask=None):
        x = x + self.attn(self.ln1(x), mask)
        return x + self.ff(self.ln2(x))


class SpeechEncoder(nn.Module):
    def __init__(self, n_mels=40, d_model=64, heads=4, n_layers=2, vocab=30, dropout=0.1):
        super().__init__()
        self.subsample = Subsample(n_mels, d_model)
        self.layers = nn.ModuleList([EncoderLayer(d_model, heads, dropout=dropout) for _ in range(n_layers)])
        self.ctc_head = nn.Linear(d_model, vocab)

    def forward(self, feats, feat_lens):
        x, lens = self.subsample(feats, feat_lens)
        mask = length_to_mask(lens, x.size(1))
        for layer in self.layers:
            x = layer(x, mask)
        return self.ctc_head(x).log_softmax(-1), lens
