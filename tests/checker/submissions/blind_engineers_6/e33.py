# expect: correct
# why: right: left-padded histories; norm and residual are inside the module
"""Self-attentive sequential recommendation on top of nn.MultiheadAttention."""
import torch
import torch.nn as nn


class CausalItemAttention(nn.Module):
    """Pre-norm causal self-attention over a user's history.

    Histories are left-padded, so for a short history the first positions have no valid key at all.
    Padding positions may look at themselves only (keeps the softmax defined) and their output is
    zeroed afterwards.

    Args:
        x: (B, L, D)
        valid: bool (B, L), True at real items

    Returns (B, L, D): ``x + dropout(attention(norm(x)))`` with zeros at padding.
    """

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.2):
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(d_model, eps=1e-8)
        self.mha = nn.MultiheadAttention(d_model, n_heads, dropout=dropout, batch_first=True)
        self.drop = nn.Dropout(dropout)

    def blocked(self, valid: torch.Tensor) -> torch.Tensor:
        """(B * n_heads, L, L), True = may not attend."""
        L = valid.shape[1]
        future = torch.ones(L, L, dtype=torch.bool, device=valid.device).triu(1)
        blocked = future[None] | ~valid[:, None, :]
        eye = torch.eye(L, dtype=torch.bool, device=valid.device)
        blocked = blocked & ~eye
        return blocked.repeat_interleave(self.n_heads, dim=0)

    def forward(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        a, _ = self.mha(h, h, h, attn_mask=self.blocked(valid), need_weights=False)
        return (x + self.drop(a)) * valid.unsqueeze(-1)


class PointWiseFeedForward(nn.Module):
    def __init__(self, d_model: int, dropout: float):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(d_model, eps=1e-8), nn.Linear(d_model, d_model), nn.ReLU(),
            nn.Dropout(dropout), nn.Linear(d_model, d_model), nn.Dropout(dropout))

    def forward(self, x):
        return x + self.net(x)


class SASRec(nn.Module):
    """Item id 0 is padding. ``forward`` gives the user state at every step,
    ``predict`` scores candidate items against the last state."""

    def __init__(self, n_items: int, max_len: int = 50, d_model: int = 64, n_heads: int = 2,
                 n_layers: int = 2, dropout: float = 0.2):
        super().__init__()
        self.item_emb = nn.Embedding(n_items + 1, d_model, padding_idx=0)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.emb_drop = nn.Dropout(dropout)
        self.attn = nn.ModuleList(CausalItemAttention(d_model, n_heads, dropout) for _ in range(n_layers))
        self.ffn = nn.ModuleList(PointWiseFeedForward(d_model, dropout) for _ in range(n_layers))
        self.final_norm = nn.LayerNorm(d_model, eps=1e-8)
        self.scale = d_model ** 0.5

    def forward(self, seq: torch.Tensor) -> torch.Tensor:
        valid = seq != 0
        # position 0 is the most recent item
        pos = torch.arange(seq.shape[1] - 1, -1, -1, device=seq.device)
        x = self.emb_drop(self.item_emb(seq) * self.scale + self.pos_emb(pos)) * valid.unsqueeze(-1)
        for attn, ffn in zip(self.attn, self.ffn):
            x = ffn(attn(x, valid)) * valid.unsqueeze(-1)
        return self.final_norm(x)

    @torch.no_grad()
    def predict(self, seq: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        state = self(seq)[:, -1]
        return torch.einsum("bd,bcd->bc", state, self.item_emb(candidates))
