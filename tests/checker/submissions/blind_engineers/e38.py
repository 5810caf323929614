# expect: wrong
# why: the padding mask is laid along the query axis, so padded frames are still attended to.
from typing import Optional, Tuple

import torch
import torch.utils.checkpoint
from torch import nn


class SpeechConfig:
    model_type = "speech-encoder"

    def __init__(self, hidden_size=64, num_attention_heads=4, intermediate_size=128, attention_dropout=0.0,
                 hidden_dropout=0.0, conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), layer_norm_eps=1e-5):
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.attention_dropout = attention_dropout
        self.hidden_dropout = hidden_dropout
        self.conv_stride = conv_stride
        self.conv_kernel = conv_kernel
        self.layer_norm_eps = layer_norm_eps


class SpeechAttention(nn.Module):
    """Multi-headed attention over frames"""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.head_dim = embed_dim // num_heads
        if (self.head_dim * num_heads) != self.embed_dim:
            raise ValueError(f"embed_dim must be divisible by num_heads (got {embed_dim} and {num_heads}).")
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def _shape(self, tensor: torch.Tensor, seq_len: int, bsz: int):
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None,
                output_attentions: bool = False) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        bsz, tgt_len, _ = hidden_states.size()
        query_states = self._shape(self.q_proj(hidden_states) * self.scaling, tgt_len, bsz)
        key_states = self._shape(self.k_proj(hidden_states), tgt_len, bsz)
        value_states = self._shape(self.v_proj(hidden_states), tgt_len, bsz)

        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3))
        if attention_mask is not None:
            if attention_mask.size() != (bsz, 1, tgt_len, tgt_len):
                raise ValueError(
                    f"Attention mask should be of size {(bsz, 1, tgt_len, tgt_len)}, but is {attention_mask.size()}"
                )
            attn_weights = attn_weights + attention_mask
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_probs = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)
        attn_output = torch.matmul(attn_probs, value_states)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        return self.out_proj(attn_output), (attn_weights if output_attentions else None)


class SpeechEncoderLayer(nn.Module):
    def __init__(self, config: SpeechConfig):
        super().__init__()
        self.attention = SpeechAttention(config.hidden_size, config.num_attention_heads, config.attention_dropout)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.hidden_size, config.intermediate_size), nn.GELU(),
            nn.Linear(config.intermediate_size, config.hidden_size))
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states, attention_mask=None, output_attentions=False):
        attn_residual = hidden_states
        hidden_states, attn_weights = self.attention(hidden_states, attention_mask, output_attentions)
        hidden_states = self.layer_norm(attn_residual + self.dropout(hidden_states))
        hidden_states = self.final_layer_norm(hidden_states + self.feed_forward(hidden_states))
        return hidden_states, attn_weights


class SpeechEncoder(nn.Module):
    def __init__(self, config: SpeechConfig, num_layers: int = 2):
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList([SpeechEncoderLayer(config) for _ in range(num_layers)])

    def _get_feat_extract_output_lengths(self, input_lengths: torch.Tensor) -> torch.Tensor:
        for kernel, stride in zip(self.config.conv_kernel, self.config.conv_stride):
            input_lengths = torch.div(input_lengths - kernel, stride, rounding_mode="floor") + 1
        return input_lengths

    def forward(self, hidden_states: torch.Tensor, input_lengths: Optional[torch.Tensor] = None):
        """hidden_states: (batch, frames, hidden) from the feature extractor; input_lengths: (batch,) raw samples."""
        attention_mask = None
        if input_lengths is not None:
            bsz, frames, _ = hidden_states.shape
            lengths = self._get_feat_extract_output_lengths(input_lengths)
            valid = torch.arange(frames, device=hidden_states.device)[None, :] < lengths[:, None]
            # make sure padded frames output 0
            hidden_states = hidden_states * valid.unsqueeze(-1).to(hidden_states.dtype)
            attention_mask = 1.0 - valid[:, None, :, None].to(dtype=hidden_states.dtype)
            attention_mask = attention_mask * torch.finfo(hidden_states.dtype).min
            attention_mask = attention_mask.expand(bsz, 1, frames, frames)
        for layer in self.layers:
            hidden_states, _ = layer(hidden_states, attention_mask=attention_mask)
        return hidden_states
