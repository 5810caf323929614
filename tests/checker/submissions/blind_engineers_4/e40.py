# expect: correct
"""Speech-to-text decoder attention put together from mixins: incremental self attention and
cross attention whose keys and values are projected once per utterance."""
from typing import Dict, Optional

import torch
from torch import Tensor, nn

State = Dict[str, Tensor]


class HeadsMixin:
    n_head: int

    def split_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)

    def merge_heads(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 1, 3).flatten(start_dim=2)


class DotProductMixin:
    def dot_product(self, q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor] = None) -> Tensor:
        # d ** -0.25 on both sides is d ** -0.5 on the product and kinder to half precision
        scale = q.shape[-1] ** -0.25
        qk = (q * scale) @ (k * scale).transpose(-1, -2)
        if bias is not None:
            qk = qk + bias
        return qk.float().softmax(dim=-1).to(q.dtype) @ v


class AppendStateMixin:
    """Self attention: new keys and values go behind the stored ones."""

    def keys_values(self, x: Tensor, source: Optional[Tensor], state: Optional[State]):
        k, v = self.key(x), self.value(x)
        if state is not None:
            if self.name + ".k" in state:
                k = torch.cat([state[self.name + ".k"], k], dim=1)
                v = torch.cat([state[self.name + ".v"], v], dim=1)
            state[self.name + ".k"], state[self.name + ".v"] = k, v
        return k, v


class FrozenStateMixin:
    """Cross attention: project the encoder output on the first call only."""

    def keys_values(self, x: Tensor, source: Optional[Tensor], state: Optional[State]):
        if state is not None and self.name + ".k" in state:
            return state[self.name + ".k"], state[self.name + ".v"]
        k, v = self.key(source), self.value(source)
        if state is not None:
            state[self.name + ".k"], state[self.name + ".v"] = k, v
        return k, v


class BaseAttention(HeadsMixin, DotProductMixin, nn.Module):
    def __init__(self, name: str, n_state: int, n_head: int):
        super().__init__()
        self.name, self.n_head = name, n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x: Tensor, source: Optional[Tensor] = None, bias: Optional[Tensor] = None,
                state: Optional[State] = None) -> Tensor:
        k, v = self.keys_values(x, source, state)
        q, k, v = map(self.split_heads, (self.query(x), k, v))
        return self.out(self.merge_heads(self.dot_product(q, k, v, bias)))


class IncrementalSelfAttention(AppendStateMixin, BaseAttention):
    pass


class UtteranceCrossAttention(FrozenStateMixin, BaseAttention):
    pass


class TextDecoder(nn.Module):
    def __init__(self, n_vocab: int = 40, n_ctx: int = 16, n_state: int = 32, n_head: int = 4, n_layer: int = 2):
        super().__init__()
        self.tokens = nn.Embedding(n_vocab, n_state)
        self.positions = nn.Parameter(torch.randn(n_ctx, n_state) * 0.1)
        self.self_attn = nn.ModuleList(IncrementalSelfAttention(f"self{i}", n_state, n_head) for i in range(n_layer))
        self.cross_attn = nn.ModuleList(UtteranceCrossAttention(f"cross{i}", n_state, n_head) for i in range(n_layer))
        self.mlp = nn.ModuleList(nn.Sequential(nn.LayerNorm(n_state), nn.Linear(n_state, 4 * n_state), nn.GELU(),
                                               nn.Linear(4 * n_state, n_state)) for _ in range(n_layer))
        self.ln = nn.ModuleList(nn.ModuleList([nn.LayerNorm(n_state), nn.LayerNorm(n_state)]) for _ in range(n_layer))
        self.ln_out = nn.LayerNorm(n_state)
        self.register_buffer("causal", torch.full((n_ctx, n_ctx), float("-inf")).triu_(1), persistent=False)

    def forward(self, ids: Tensor, audio: Tensor, state: Optional[State] = None) -> Tensor:
        past = 0
        if state is not None and "self0.k" in state:
            past = state["self0.k"].shape[1]
        n = ids.shape[1]
        x = self.tokens(ids) + self.positions[past:past + n]
        bias = self.causal[past:past + n, :past + n]
        for sa, ca, mlp, (ln1, ln2) in zip(self.self_attn, self.cross_attn, self.mlp, self.ln):
            x = x + sa(ln1(x), bias=bias, state=state)
            x = x + ca(ln2(x), audio, state=state)
            x = x + mlp(x)
        return self.ln_out(x) @ self.tokens.weight.t()
