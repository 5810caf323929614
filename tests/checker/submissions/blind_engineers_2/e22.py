# expect: mask-off-by-one, padding-on-queries
# why: line 50: tril(1) keeps the next token visible, so the causal mask leaks one future position. Only with causal=True and no attn_mask.
# why: line 91: the key padding mask is put on the query axis (unsqueeze(3)) instead of the key axis, so padded keys are still attended (and rows of padded queries become uniform); with tgt_len != src_len it crashes. Only with a key_padding_mask.
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MultiheadAttention(nn.Module):
    """Multi-headed attention on time-major tensors (Time x Batch x Channel)."""

    def __init__(
        self,
        embed_dim,
        num_heads,
        kdim=None,
        vdim=None,
        dropout=0.0,
        bias=True,
        self_attention=False,
        causal=False,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.kdim = kdim if kdim is not None else embed_dim
        self.vdim = vdim if vdim is not None else embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == self.embed_dim, "embed_dim must be divisible by num_heads"
        self.scaling = self.head_dim**-0.5
        self.self_attention = self_attention
        self.causal = causal

        self.k_proj = nn.Linear(self.kdim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(self.vdim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self._future_mask = torch.empty(0)
        self.reset_parameters()

    def reset_parameters(self):
        for proj in (self.k_proj, self.v_proj, self.q_proj):
            nn.init.xavier_uniform_(proj.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.constant_(self.out_proj.bias, 0.0)

    def buffered_future_mask(self, tensor, dim):
        if self._future_mask.size(0) < dim or self._future_mask.device != tensor.device:
            keep = torch.ones(dim, dim, device=tensor.device).tril(1)
            self._future_mask = torch.zeros(dim, dim, device=tensor.device).masked_fill(keep == 0, float("-inf"))
        return self._future_mask[:dim, :dim].to(tensor)

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor],
        value: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        need_weights: bool = True,
        attn_mask: Optional[Tensor] = None,
        need_head_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Input shape: Time x Batch x Channel

        Args:
            key_padding_mask: (batch, src_len), nonzero for padding.
            attn_mask: additive (tgt_len, src_len).
        """
        tgt_len, bsz, embed_dim = query.size()
        if self.self_attention:
            key = value = query
        src_len = key.size(0)

        q = self.q_proj(query) * self.scaling
        k = self.k_proj(key)
        v = self.v_proj(value)
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)

        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is None and self.causal:
            attn_mask = self.buffered_future_mask(attn_weights, tgt_len)
        if attn_mask is not None:
            attn_weights = attn_weights + attn_mask.unsqueeze(0)

        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
            attn_weights = attn_weights.masked_fill(
                key_padding_mask.unsqueeze(1).unsqueeze(3).to(torch.bool), torch.finfo(attn_weights.dtype).min
            )
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)

        attn_weights_float = F.softmax(attn_weights, dim=-1, dtype=torch.float32)
        attn_weights = attn_weights_float.type_as(attn_weights)
        attn_probs = F.dropout(attn_weights, p=self.dropout, training=self.training)

        attn = torch.bmm(attn_probs, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        attn = self.out_proj(attn)

        weights = None
        if need_weights:
            weights = attn_weights_float.view(bsz, self.num_heads, tgt_len, src_len).transpose(1, 0)
            if not need_head_weights:
                weights = weights.mean(dim=0)
        return attn, weights


class TransformerSentenceEncoderLayer(nn.Module):
    def __init__(self, embedding_dim=48, ffn_embedding_dim=96, num_attention_heads=4, dropout=0.1, layer_norm_first=False):
        super().__init__()
        self.self_attn = MultiheadAttention(embedding_dim, num_attention_heads, dropout=dropout, self_attention=True)
        self.self_attn_layer_norm = nn.LayerNorm(embedding_dim)
        self.fc1 = nn.Linear(embedding_dim, ffn_embedding_dim)
        self.fc2 = nn.Linear(ffn_embedding_dim, embedding_dim)
        self.final_layer_norm = nn.LayerNorm(embedding_dim)
        self.layer_norm_first = layer_norm_first

    def forward(self, x, self_attn_padding_mask=None, need_weights=False):
        residual = x
        if self.layer_norm_first:
            x = self.self_attn_layer_norm(x)
        x, attn = self.self_attn(x, x, x, key_padding_mask=self_attn_padding_mask, need_weights=need_weights)
        x = residual + x
        if not self.layer_norm_first:
            x = self.self_attn_layer_norm(x)
        residual = x
        if self.layer_norm_first:
            x = self.final_layer_norm(x)
        x = residual + self.fc2(F.gelu(self.fc1(x)))
        return (x if self.layer_norm_first else self.final_layer_norm(x)), attn
