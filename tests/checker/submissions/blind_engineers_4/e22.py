# expect: wrong
# why: The two "blocked" masks (future, padding) are combined with logical_and instead of logical_or, so real future items and padded past items stay visible.
"""Self-attentive sequential recommendation. Histories are padded with item 0."""
import math

import torch
import torch.nn as nn


class ItemAttention(nn.Module):
    def __init__(self, hidden_units: int, num_heads: int, dropout_rate: float):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_units // num_heads
        self.query = nn.Linear(hidden_units, hidden_units)
        self.key = nn.Linear(hidden_units, hidden_units)
        self.value = nn.Linear(hidden_units, hidden_units)
        self.dropout = nn.Dropout(dropout_rate)

    def transpose_for_scores(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, queries, keys, blocked):
        """blocked: (B, 1, T, T), True where a query must not look."""
        q = self.transpose_for_scores(self.query(queries))
        k = self.transpose_for_scores(self.key(keys))
        v = self.transpose_for_scores(self.value(keys))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_size)
        scores = scores.masked_fill(blocked, -1e9)
        probs = self.dropout(nn.functional.softmax(scores, dim=-1))
        ctx = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        return ctx.view(ctx.size(0), ctx.size(1), -1)


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden_units, dropout_rate):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(hidden_units, hidden_units), nn.Dropout(dropout_rate), nn.ReLU(),
            nn.Linear(hidden_units, hidden_units), nn.Dropout(dropout_rate))

    def forward(self, x):
        return x + self.net(x)


class SequentialRecommender(nn.Module):
    PAD = 0

    def __init__(self, num_items=100, max_len=20, hidden_units=32, num_blocks=2, num_heads=2, dropout_rate=0.2):
        super().__init__()
        self.item_emb = nn.Embedding(num_items + 1, hidden_units, padding_idx=self.PAD)
        self.pos_emb = nn.Embedding(max_len, hidden_units)
        self.emb_dropout = nn.Dropout(dropout_rate)
        self.attn_norms = nn.ModuleList(nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks))
        self.attns = nn.ModuleList(ItemAttention(hidden_units, num_heads, dropout_rate) for _ in range(num_blocks))
        self.ffn_norms = nn.ModuleList(nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks))
        self.ffns = nn.ModuleList(PointWiseFeedForward(hidden_units, dropout_rate) for _ in range(num_blocks))
        self.last_norm = nn.LayerNorm(hidden_units, eps=1e-8)

    def _blocked(self, log_seqs):
        t = log_seqs.size(1)
        future = torch.ones(t, t, dtype=torch.bool, device=log_seqs.device).triu(diagonal=1)
        padding = log_seqs.eq(self.PAD)
        return torch.logical_and(future[None, None], padding[:, None, None, :])

    def log2feats(self, log_seqs):
        """Features at step t summarise the items up to and including t."""
        t = log_seqs.size(1)
        x = self.item_emb(log_seqs) * self.item_emb.embedding_dim ** 0.5
        x = self.emb_dropout(x + self.pos_emb(torch.arange(t, device=log_seqs.device)))
        real = log_seqs.ne(self.PAD).unsqueeze(-1)
        x = x * real
        blocked = self._blocked(log_seqs)
        for norm_a, attn, norm_f, ffn in zip(self.attn_norms, self.attns, self.ffn_norms, self.ffns):
            q = norm_a(x)
            x = q + attn(q, x, blocked)
            x = ffn(norm_f(x)) * real
        return self.last_norm(x)

    def forward(self, log_seqs, pos_seqs, neg_seqs):
        feats = self.log2feats(log_seqs)
        pos = (feats * self.item_emb(pos_seqs)).sum(-1)
        neg = (feats * self.item_emb(neg_seqs)).sum(-1)
        return pos, neg

    @torch.no_grad()
    def predict(self, log_seqs, item_indices):
        final = self.log2feats(log_seqs)[:, -1]
        return torch.einsum("bd,bnd->bn", final, self.item_emb(item_indices))
