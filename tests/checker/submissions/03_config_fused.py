# expect: correct
from dataclasses import dataclass

from torch import nn
from torch.nn import functional as F


@dataclass
class Sizes:
    n_embd: int = 48
    n_head: int = 4
    block_size: int = 32
    attn_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    bias: bool = True


class SelfAttn(nn.Module):
    """One matrix for queries, keys and values; PyTorch does the rest."""

    def __init__(self, config: Sizes):
        super().__init__()
        self.cfg = config
        width = config.n_embd
        self.c_attn = nn.Linear(width, width + width + width, bias=config.bias)
        self.c_proj = nn.Linear(width, width, bias=config.bias)
        self.last_drop = nn.Dropout(config.resid_pdrop)

    def forward(self, x):
        p = self.cfg.attn_pdrop if self.training else 0.0
        per_head = [part.unflatten(-1, (self.cfg.n_head, -1)).movedim(1, 2) for part in self.c_attn(x).chunk(3, -1)]
        mixed = F.scaled_dot_product_attention(*per_head, is_causal=True, dropout_p=p)
        return self.last_drop(self.c_proj(mixed.movedim(2, 1).flatten(-2)))
