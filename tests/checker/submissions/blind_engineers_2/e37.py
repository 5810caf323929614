# expect: correct
# what: nn.MultiheadAttention variant, factory kwargs, need_weights
import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.init import constant_, xavier_uniform_


class MultiheadAttention(nn.Module):
    """Drop-in variant of nn.MultiheadAttention with grouped parameters and explicit weights.

    Args:
        embed_dim: total dimension of the model.
        num_heads: number of parallel heads.
        dropout: dropout on the attention weights.
        batch_first: inputs are (batch, seq, feature).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: Optional[int] = None,
        vdim: Optional[int] = None,
        batch_first: bool = False,
        device=None,
        dtype=None,
    ) -> None:
        factory_kwargs = {"device": device, "dtype": dtype}
        super().__init__()
        self.embed_dim = embed_dim
        self.kdim = kdim if kdim is not None else embed_dim
        self.vdim = vdim if vdim is not None else embed_dim
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise ValueError("embed_dim must be divisible by num_heads")

        if self._qkv_same_embed_dim:
            self.in_proj_weight = nn.Parameter(torch.empty((3 * embed_dim, embed_dim), **factory_kwargs))
        else:
            self.q_proj_weight = nn.Parameter(torch.empty((embed_dim, embed_dim), **factory_kwargs))
            self.k_proj_weight = nn.Parameter(torch.empty((embed_dim, self.kdim), **factory_kwargs))
            self.v_proj_weight = nn.Parameter(torch.empty((embed_dim, self.vdim), **factory_kwargs))
        if bias:
            self.in_proj_bias = nn.Parameter(torch.empty(3 * embed_dim, **factory_kwargs))
        else:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **factory_kwargs)
        self._reset_parameters()

    def _reset_parameters(self):
        for name, p in self.named_parameters(recurse=False):
            if p.dim() > 1:
                xavier_uniform_(p)
        if self.in_proj_bias is not None:
            constant_(self.in_proj_bias, 0.0)
            constant_(self.out_proj.bias, 0.0)

    def _project(self, query, key, value):
        if self._qkv_same_embed_dim:
            wq, wk, wv = self.in_proj_weight.chunk(3)
        else:
            wq, wk, wv = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        bq, bk, bv = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return F.linear(query, wq, bq), F.linear(key, wk, bk), F.linear(value, wv, bv)

    @staticmethod
    def _to_additive(mask: Tensor, dtype) -> Tensor:
        if mask.dtype == torch.bool:
            return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))
        return mask.to(dtype)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        need_weights: bool = True,
        attn_mask: Optional[Tensor] = None,
        average_attn_weights: bool = True,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """
        key_padding_mask: (N, S), True (or -inf) for keys to ignore.
        attn_mask: (L, S) or (N * num_heads, L, S), True (or -inf) for pairs to ignore.
        """
        if not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        N, L, E = query.shape
        S = key.shape[1]

        q, k, v = self._project(query, key, value)
        q = q.reshape(N, L, self.num_heads, self.head_dim).permute(0, 2, 1, 3)
        k = k.reshape(N, S, self.num_heads, self.head_dim).permute(0, 2, 1, 3)
        v = v.reshape(N, S, self.num_heads, self.head_dim).permute(0, 2, 1, 3)

        logits = torch.einsum("nhld,nhsd->nhls", q, k) / math.sqrt(self.head_dim)
        if attn_mask is not None:
            attn_mask = self._to_additive(attn_mask, logits.dtype)
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.view(N, self.num_heads, L, S)
            logits = logits + attn_mask
        if key_padding_mask is not None:
            logits = logits + self._to_additive(key_padding_mask, logits.dtype).view(N, 1, 1, S)

        weights = logits.softmax(dim=-1)
        dropped = F.dropout(weights, p=self.dropout, training=self.training) if self.dropout > 0.0 else weights
        out = torch.einsum("nhls,nhsd->nlhd", dropped, v).reshape(N, L, E)
        out = self.out_proj(out)
        if not self.batch_first:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        return out, weights.mean(dim=1) if average_attn_weights else weights
