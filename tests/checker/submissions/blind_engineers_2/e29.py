# expect: padding-inverted
# why: line 29: the padding mask (True at pad) goes to SDPA unchanged, where True means attend, so only padding is attended and rows without padding get NaN or zeros. Only with a padding mask.
import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderSelfAttention(nn.Module):
    def __init__(self, d_model: int = 64, nhead: int = 4, dropout: float = 0.1, bias: bool = True):
        super().__init__()
        assert d_model % nhead == 0
        self.nhead = nhead
        self.dropout = dropout
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, src: torch.Tensor, src_key_padding_mask: torch.Tensor = None) -> torch.Tensor:
        """
        Args:
            src: (batch, seq, d_model)
            src_key_padding_mask: (batch, seq) bool, True at <pad>
        """
        bsz, seq, d_model = src.shape
        q, k, v = self.in_proj(src).chunk(3, dim=-1)
        q = q.view(bsz, seq, self.nhead, -1).transpose(1, 2)
        k = k.view(bsz, seq, self.nhead, -1).transpose(1, 2)
        v = v.view(bsz, seq, self.nhead, -1).transpose(1, 2)

        attn_mask = None
        if src_key_padding_mask is not None:
            attn_mask = src_key_padding_mask.view(bsz, 1, 1, seq).expand(-1, self.nhead, seq, -1)

        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=self.dropout if self.training else 0.0
        )
        out = out.transpose(1, 2).contiguous().view(bsz, seq, d_model)
        return self.out_proj(out)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.self_attn = EncoderSelfAttention(d_model, nhead, dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_key_padding_mask=None):
        src = src + self.dropout(self.self_attn(self.norm1(src), src_key_padding_mask))
        return src + self.dropout(self.linear2(F.gelu(self.linear1(self.norm2(src)))))


class TextClassifier(nn.Module):
    def __init__(self, vocab_size=100, d_model=64, nhead=4, num_layers=2, num_classes=3, max_len=64, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.embed = nn.Embedding(vocab_size, d_model, padding_idx=pad_id)
        self.pos = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList([EncoderLayer(d_model, nhead) for _ in range(num_layers)])
        self.head = nn.Linear(d_model, num_classes)

    def forward(self, ids):
        pad = ids.eq(self.pad_id)
        x = self.embed(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        mask = pad if pad.any() else None
        for layer in self.layers:
            x = layer(x, mask)
        keep = (~pad).unsqueeze(-1).to(x.dtype)
        return self.head((x * keep).sum(1) / keep.sum(1).clamp(min=1))
