# expect: correct
# what: GPT-J, interleaved partial RoPE, bool causal buffer
from typing import Optional, Tuple

import torch
from torch import nn


class GPTJConfig:
    def __init__(self, n_embd=64, n_head=4, rotary_dim=8, n_positions=128, attn_pdrop=0.0, resid_pdrop=0.0,
                 scale_attn_weights=True):
        self.n_embd = n_embd
        self.n_head = n_head
        self.rotary_dim = rotary_dim
        self.n_positions = n_positions
        self.attn_pdrop = attn_pdrop
        self.resid_pdrop = resid_pdrop
        self.scale_attn_weights = scale_attn_weights


def create_sinusoidal_positions(num_pos: int, dim: int) -> torch.Tensor:
    inv_freq = 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))
    sinusoid_inp = torch.einsum("i,j->ij", torch.arange(num_pos).float(), inv_freq)
    return torch.cat((torch.sin(sinusoid_inp), torch.cos(sinusoid_inp)), dim=1)


def rotate_every_two(x: torch.Tensor) -> torch.Tensor:
    x1 = x[:, :, :, ::2]
    x2 = x[:, :, :, 1::2]
    x = torch.stack((-x2, x1), dim=-1)
    return x.flatten(-2)


def apply_rotary_pos_emb(tensor: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
    sin = torch.repeat_interleave(sin[:, :, None, :], 2, 3)
    cos = torch.repeat_interleave(cos[:, :, None, :], 2, 3)
    return (tensor * cos) + (rotate_every_two(tensor) * sin)


class GPTJAttention(nn.Module):
    def __init__(self, config: GPTJConfig):
        super().__init__()
        max_positions = config.n_positions
        self.register_buffer(
            "bias",
            torch.tril(torch.ones((max_positions, max_positions), dtype=torch.bool)).view(1, 1, max_positions, max_positions),
            persistent=False,
        )
        self.attn_dropout = nn.Dropout(config.attn_pdrop)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)
        self.embed_dim = config.n_embd
        self.num_attention_heads = config.n_head
        self.head_dim = self.embed_dim // self.num_attention_heads
        self.scale_attn = torch.sqrt(torch.tensor(self.head_dim, dtype=torch.float32)).to(torch.get_default_dtype())

        self.k_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=False)
        self.v_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=False)
        self.q_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=False)
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=False)
        self.rotary_dim = config.rotary_dim
        pos_embd_dim = self.rotary_dim or self.head_dim
        self.register_buffer(
            "embed_positions", create_sinusoidal_positions(max_positions, pos_embd_dim), persistent=False
        )

    def _split_heads(self, tensor, rotary):
        tensor = tensor.view(tensor.size()[:-1] + (self.num_attention_heads, self.head_dim))
        return tensor if rotary else tensor.permute(0, 2, 1, 3)

    def _merge_heads(self, tensor):
        tensor = tensor.permute(0, 2, 1, 3).contiguous()
        return tensor.view(tensor.size()[:-2] + (self.num_attention_heads * self.head_dim,))

    def _attn(self, query, key, value, attention_mask=None, head_mask=None):
        query_length, key_length = query.size(-2), key.size(-2)
        causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length]

        attn_weights = torch.matmul(query.to(torch.float32), key.to(torch.float32).transpose(-1, -2))
        mask_value = torch.full([], torch.finfo(attn_weights.dtype).min, dtype=attn_weights.dtype, device=attn_weights.device)
        attn_weights = torch.where(causal_mask, attn_weights, mask_value)
        attn_weights = attn_weights / self.scale_attn
        if attention_mask is not None:
            attn_weights = attn_weights + attention_mask
        attn_weights = nn.functional.softmax(attn_weights, dim=-1).to(value.dtype)
        attn_weights = self.attn_dropout(attn_weights)
        if head_mask is not None:
            attn_weights = attn_weights * head_mask
        return torch.matmul(attn_weights, value), attn_weights

    def forward(
        self,
        hidden_states: torch.FloatTensor,
        layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        attention_mask: Optional[torch.FloatTensor] = None,
        position_ids: Optional[torch.LongTensor] = None,
        head_mask: Optional[torch.FloatTensor] = None,
        use_cache: bool = False,
        output_attentions: bool = False,
    ):
        query = self._split_heads(self.q_proj(hidden_states), True)
        key = self._split_heads(self.k_proj(hidden_states), True)
        value = self._split_heads(self.v_proj(hidden_states), False)

        if position_ids is None:
            past = layer_past[0].shape[-2] if layer_past is not None else 0
            position_ids = torch.arange(past, past + hidden_states.shape[1], device=hidden_states.device)[None]
        sincos = self.embed_positions[position_ids]
        sin, cos = torch.split(sincos, sincos.shape[-1] // 2, dim=-1)

        if self.rotary_dim is not None:
            k_rot, k_pass = key[..., : self.rotary_dim], key[..., self.rotary_dim :]
            q_rot, q_pass = query[..., : self.rotary_dim], query[..., self.rotary_dim :]
            key = torch.cat([apply_rotary_pos_emb(k_rot, sin, cos), k_pass], dim=-1)
            query = torch.cat([apply_rotary_pos_emb(q_rot, sin, cos), q_pass], dim=-1)
        else:
            key = apply_rotary_pos_emb(key, sin, cos)
            query = apply_rotary_pos_emb(query, sin, cos)
        key = key.permute(0, 2, 1, 3)
        query = query.permute(0, 2, 1, 3)

        if layer_past is not None:
            key = torch.cat((layer_past[0], key), dim=-2)
            value = torch.cat((layer_past[1], value), dim=-2)
        present = (key, value) if use_cache else None

        attn_output, attn_weights = self._attn(query, key, value, attention_mask, head_mask)
        attn_output = self.resid_dropout(self.out_proj(self._merge_heads(attn_output)))
        outputs = (attn_output, present)
        return outputs + (attn_weights,) if output_attentions else outputs


class GPTJBlock(nn.Module):
    """Parallel attention and MLP, both fed from one layer norm."""

    def __init__(self, config: GPTJConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = GPTJAttention(config)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd)
        )

    def forward(self, hidden_states, **kwargs):
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn = self.attn(hidden_states, **kwargs)
        return (attn[0] + self.mlp(hidden_states) + residual,) + attn[1:]
