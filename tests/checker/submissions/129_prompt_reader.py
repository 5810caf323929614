# expect: padding-inverted
from typing import Optional

import torch
from torch import nn


class TextConditioner(nn.Module):
    """Lets a set of latent tokens read from an encoded prompt (cross-attention + residual).

    latents:     (B, L, dim)
    prompt:      (B, S, prompt_dim), padded to the longest prompt of the batch
    prompt_mask: (B, S) straight from the tokenizer, 1 = token, 0 = padding
    """

    def __init__(self, dim: int, prompt_dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(
            dim, heads, dropout=dropout, kdim=prompt_dim, vdim=prompt_dim, batch_first=True
        )

    def forward(
        self,
        latents: torch.Tensor,
        prompt: torch.Tensor,
        prompt_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        if prompt_mask is not None:
            prompt_mask = prompt_mask.bool()
        read, _ = self.attn(
            self.norm(latents), prompt, prompt, key_padding_mask=prompt_mask, need_weights=False
        )
        return latents + read
