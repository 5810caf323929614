# expect: padding-on-queries
# why: the padding mask is on the query axis, so padded items are attended
"""Behaviour Sequence Transformer for click-through-rate prediction."""
import torch
import torch.nn as nn


class BehaviourAttention(nn.Module):
    """Multi-head self-attention over [clicked items ..., target item].

    The user's history is right-padded in front of the target item; padded items must not influence
    any other item. Times enter as a bucketed time gap to the target, added to the item embedding
    before this layer.

    Parameters
    ----------
    d_model : int
    n_heads : int
    dropout : float
        on the attention weights and on the output, training only

    Inputs: ``seq`` (B, L, d_model) and ``seq_mask`` (B, L), 1 for real items and 0 for padding.
    Output: (B, L, d_model). What stands at the padded places is not used by the model.
    """

    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model={d_model} is not a multiple of n_heads={n_heads}")
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_model, d_model, bias=False)
        self.W_V = nn.Linear(d_model, d_model, bias=False)
        self.W_O = nn.Linear(d_model, d_model, bias=False)
        self.attn_drop = nn.Dropout(dropout)
        self.out_drop = nn.Dropout(dropout)
        for m in (self.W_Q, self.W_K, self.W_V, self.W_O):
            nn.init.xavier_normal_(m.weight)

    def _heads(self, x):
        B, L, _ = x.shape
        return x.reshape(B, L, self.n_heads, self.d_head).permute(0, 2, 1, 3)

    def forward(self, seq, seq_mask=None):
        B, L, D = seq.shape
        Q, K, V = self._heads(self.W_Q(seq)), self._heads(self.W_K(seq)), self._heads(self.W_V(seq))
        scores = torch.einsum("bhqd,bhkd->bhqk", Q, K) / self.d_head ** 0.5
        if seq_mask is not None:
            mask = seq_mask.bool()[:, None, :, None]
            scores = scores.masked_fill(~mask, -1e9)
        weights = self.attn_drop(scores.softmax(-1))
        context = torch.einsum("bhqk,bhkd->bhqd", weights, V)
        context = context.permute(0, 2, 1, 3).reshape(B, L, D)
        return self.out_drop(self.W_O(context))


class BSTLayer(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.1):
        super().__init__()
        self.attn = BehaviourAttention(d_model, n_heads, dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.ffn = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.LeakyReLU(), nn.Linear(4 * d_model, d_model))
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, seq, seq_mask):
        seq = self.norm1(seq + self.attn(seq, seq_mask))
        return self.norm2(seq + self.ffn(seq))


class BST(nn.Module):
    """history (B, L) item ids with 0 = padding, gaps (B, L) time buckets, target (B,) item id,
    profile (B, n_profile) dense user features -> click logit (B,)."""

    def __init__(self, n_items, n_gaps=32, n_profile=8, d_model=48, n_heads=4, layers=1):
        super().__init__()
        self.items = nn.Embedding(n_items, d_model, padding_idx=0)
        self.gaps = nn.Embedding(n_gaps, d_model)
        self.layers = nn.ModuleList([BSTLayer(d_model, n_heads) for _ in range(layers)])
        self.mlp = nn.Sequential(
            nn.Linear(2 * d_model + n_profile, 128), nn.LeakyReLU(), nn.Dropout(0.1), nn.Linear(128, 1))

    def forward(self, history, gaps, target, profile):
        mask = torch.cat([history != 0, torch.ones_like(target[:, None], dtype=torch.bool)], dim=1)
        gaps = torch.cat([gaps, torch.zeros_like(target[:, None])], dim=1)
        seq = self.items(torch.cat([history, target[:, None]], dim=1)) + self.gaps(gaps)
        for layer in self.layers:
            seq = layer(seq, mask)
        m = mask[:, :-1, None].to(seq.dtype)
        pooled = (seq[:, :-1] * m).sum(1) / m.sum(1).clamp(min=1)
        return self.mlp(torch.cat([pooled, seq[:, -1], profile], dim=-1)).squeeze(-1)
