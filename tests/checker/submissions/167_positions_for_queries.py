# expect: changes-its-input
import torch
from torch import nn, Tensor
from typing import Optional


class PosAwareAttention(nn.Module):
    """
    Attention block for a detection transformer. The position embeddings go into
    the queries and keys only, the values are the plain features. Sequence first,
    i.e. everything is (L, N, E), as in nn.MultiheadAttention.

    forward(src) is self attention, forward(tgt, memory) is cross attention.
    Post-norm residual.
    """

    def __init__(self, embed_dim: int = 256, nhead: int = 8, dropout: float = 0.1):
        super().__init__()
        assert embed_dim % nhead == 0
        self.nhead = nhead
        self.dim = embed_dim // nhead
        self.to_q = nn.Linear(embed_dim, embed_dim)
        self.to_k = nn.Linear(embed_dim, embed_dim)
        self.to_v = nn.Linear(embed_dim, embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(embed_dim)

    @staticmethod
    def with_pos(t: Tensor, pos: Optional[Tensor]) -> Tensor:
        if pos is not None:
            t += pos
        return t

    def heads(self, t: Tensor) -> Tensor:
        L, N, _ = t.shape
        return t.contiguous().view(L, N, self.nhead, self.dim).permute(1, 2, 0, 3)

    def forward(
        self,
        tgt: Tensor,
        memory: Optional[Tensor] = None,
        query_pos: Optional[Tensor] = None,
        pos: Optional[Tensor] = None,
        memory_key_padding_mask: Optional[Tensor] = None,
    ):
        """memory_key_padding_mask: (N, S) bool, True where the feature map is padding."""
        if memory is None:
            memory = tgt
            q = k = self.with_pos(tgt, query_pos)
        else:
            q = self.with_pos(tgt, query_pos)
            k = self.with_pos(memory, pos)

        L, N, E = q.shape
        qh = self.heads(self.to_q(q)) * self.dim ** -0.5
        kh = self.heads(self.to_k(k))
        vh = self.heads(self.to_v(memory))

        att = torch.matmul(qh, kh.transpose(2, 3))
        if memory_key_padding_mask is not None:
            att = att.masked_fill(memory_key_padding_mask[:, None, None, :], float("-inf"))
        att = att.softmax(-1)
        ctx = torch.matmul(self.drop(att), vh)
        ctx = ctx.permute(2, 0, 1, 3).reshape(L, N, E)
        return self.norm(tgt + self.drop(self.out(ctx))), att.mean(1)
