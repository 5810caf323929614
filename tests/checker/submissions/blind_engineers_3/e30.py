# expect: wrong
# why: searchsorted without right=True (line 21): the first token of each conversation is assigned to the previous conversation ([0,3,7] gives 0,0,0,0,1,1,1 instead of 0,0,0,1,1,1,1), so it sees the previous one and is hidden from its own.
"""Sample packing for SFT: several conversations per row, no attention across conversations."""
from typing import Dict, List

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


def collate_packed(samples: List[List[int]]) -> Dict[str, torch.Tensor]:
    lengths = torch.tensor([len(s) for s in samples])
    return {
        "input_ids": torch.tensor([tok for s in samples for tok in s]).unsqueeze(0),
        "position_ids": torch.cat([torch.arange(n) for n in lengths.tolist()]).unsqueeze(0),
        "cu_seqlens": torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
    }


def segment_ids_from_cu_seqlens(cu_seqlens: torch.Tensor, total: int) -> torch.Tensor:
    """[0, 3, 7] -> [0, 0, 0, 1, 1, 1, 1]"""
    token_idx = torch.arange(total, device=cu_seqlens.device)
    return torch.searchsorted(cu_seqlens[1:], token_idx)


def packed_causal_mask(cu_seqlens: torch.Tensor, total: int) -> torch.Tensor:
    seg = segment_ids_from_cu_seqlens(cu_seqlens, total)
    same = seg.unsqueeze(0) == seg.unsqueeze(1)
    return same & torch.ones_like(same).tril()


def apply_rotary(x, position_ids, base=10000.0):
    half = x.shape[-1] // 2
    freq = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    theta = position_ids[:, None, :, None].float() * freq
    c, s = theta.cos(), theta.sin()
    lo, hi = x[..., :half], x[..., half:]
    return torch.cat((lo * c - hi * s, hi * c + lo * s), dim=-1).type_as(x)


class PackedAttention(nn.Module):
    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, position_ids, cu_seqlens):
        bsz, total, width = x.shape
        assert bsz == 1, "packed rows only"
        q, k, v = self.in_proj(x).view(1, total, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k = apply_rotary(q, position_ids), apply_rotary(k, position_ids)
        mask = packed_causal_mask(cu_seqlens, total)
        y = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).reshape(1, total, width))


class PackedLM(nn.Module):
    def __init__(self, vocab: int = 200, width: int = 64, num_heads: int = 4, depth: int = 2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.attn = nn.ModuleList(PackedAttention(width, num_heads) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, input_ids, position_ids, cu_seqlens):
        x = self.embed(input_ids)
        for attn, norm in zip(self.attn, self.norm):
            x = x + attn(norm(x), position_ids, cu_seqlens)
        return self.head(x)


if __name__ == "__main__":
    batch = collate_packed([[5, 6, 7], [11, 12, 13, 14], [21, 22]])
    print(PackedLM()(**batch).shape)
