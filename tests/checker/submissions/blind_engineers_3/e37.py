# expect: padding-on-queries, merge-without-transpose
# why: The padding mask is expanded to (B,1,T,1), i.e. the query axis (line 68), instead of (B,1,1,T) as the comment says: it shifts whole rows by a constant and has no effect, padded keys stay visible.
# why: Heads are merged with view(B, T, E) on (B, heads, T, size) without the transpose back (line 37), which mixes tokens and heads.
"""Encoder for DNA k-mer language modelling (BERT-base recipe, smaller)."""
import math
from typing import Any, Dict, Optional

import torch
import torch.nn as nn

CONFIG: Dict[str, Any] = dict(
    vocab_size=4 ** 3 + 5, hidden=60, heads=5, layers=2, intermediate=120,
    max_position=512, attn_dropout=0.1, hidden_dropout=0.1, pad_token_id=0,
)


class DNASelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg["heads"]
        self.size = cfg["hidden"] // cfg["heads"]
        self.query = nn.Linear(cfg["hidden"], cfg["hidden"])
        self.key = nn.Linear(cfg["hidden"], cfg["hidden"])
        self.value = nn.Linear(cfg["hidden"], cfg["hidden"])
        self.out = nn.Linear(cfg["hidden"], cfg["hidden"])
        self.attn_dropout = nn.Dropout(cfg["attn_dropout"])

    def _heads(self, t):
        B, T, _ = t.shape
        return t.view(B, T, self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x, additive_mask=None):
        B, T, E = x.shape
        q, k, v = self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size)
        if additive_mask is not None:
            scores = scores + additive_mask
        probs = self.attn_dropout(scores.softmax(dim=-1))
        ctx = torch.matmul(probs, v)
        ctx = ctx.contiguous().view(B, T, E)        # concatenate the heads
        return self.out(ctx)


class DNALayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.attn = DNASelfAttention(cfg)
        self.ln1 = nn.LayerNorm(cfg["hidden"])
        self.ln2 = nn.LayerNorm(cfg["hidden"])
        self.ff = nn.Sequential(nn.Linear(cfg["hidden"], cfg["intermediate"]), nn.GELU(), nn.Linear(cfg["intermediate"], cfg["hidden"]))
        self.drop = nn.Dropout(cfg["hidden_dropout"])

    def forward(self, x, additive_mask=None):
        x = self.ln1(x + self.drop(self.attn(x, additive_mask)))
        return self.ln2(x + self.drop(self.ff(x)))


class DNABert(nn.Module):
    def __init__(self, cfg: Dict[str, Any] = CONFIG):
        super().__init__()
        self.cfg = cfg
        self.word = nn.Embedding(cfg["vocab_size"], cfg["hidden"], padding_idx=cfg["pad_token_id"])
        self.position = nn.Embedding(cfg["max_position"], cfg["hidden"])
        self.ln = nn.LayerNorm(cfg["hidden"])
        self.drop = nn.Dropout(cfg["hidden_dropout"])
        self.layers = nn.ModuleList([DNALayer(cfg) for _ in range(cfg["layers"])])
        self.mlm = nn.Linear(cfg["hidden"], cfg["vocab_size"])

    def extend_mask(self, attention_mask: torch.Tensor) -> torch.Tensor:
        # (B, T) of 1 / 0 -> (B, 1, 1, T)-style additive mask, padded keys get -10000
        mask = attention_mask.unsqueeze(1).unsqueeze(-1).to(self.ln.weight.dtype)
        return (1.0 - mask) * -10000.0

    def forward(self, input_ids, attention_mask: Optional[torch.Tensor] = None):
        if attention_mask is None:
            attention_mask = (input_ids != self.cfg["pad_token_id"]).long()
        pos = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.drop(self.ln(self.word(input_ids) + self.position(pos)))
        mask = self.extend_mask(attention_mask)
        for layer in self.layers:
            x = layer(x, mask)
        return self.mlm(x)


if __name__ == "__main__":
    ids = torch.randint(5, 69, (2, 30))
    ids[1, 20:] = 0
    print(DNABert()(ids).shape)
