"""The attention ladder: each form in full, one change away from the form before it.

    context = softmax(Q Kᵀ / √head_dim + mask) V        (Vaswani et al. 2017, equation 1)

1.  `simplified_attention`       no parameters: every token is query, key and value itself
2.  `SelfAttention`              + three learned projections, + scaling
3.  `CausalAttention`            + a mask that hides the future, + dropout
3½. `MultiHeadAttentionWrapper`  several causal heads side by side, concatenated
4.  `MultiHeadAttention`         the same in one set of matrices: project, split, attend, merge
4p. `EncoderAttention`           the paper's form: no built-in mask, returns its weights too

This file is for reading. It builds the whole tokens × tokens matrix and shares no code with the
fast module, which is proven equal to it (`tests/test_attention.py`). The names follow chapter 3
of Raschka, *Build a Large Language Model (From Scratch)*, so that its checkpoints load.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from clearhead.validation import (
    ShapeError,
    check_dropout,
    check_heads,
    check_length,
    check_sizes,
    check_vectors,
)


def simplified_attention(x: Float[Tensor, "*batch tokens d_in"]) -> Float[Tensor, "..."]:
    """Rung 1: attention without parameters. Each token becomes a weighted sum of all tokens.

    Examples:
        >>> simplified_attention(torch.eye(3)).shape
        torch.Size([3, 3])
    """
    check_vectors(x, x.shape[-1], x, unbatched=True)
    attn_scores = x @ x.transpose(-2, -1)  # (.., tokens, d_in) @ (.., d_in, tokens)
    attn_weights = torch.softmax(attn_scores, dim=-1)
    return attn_weights @ x


def simplified_attention_loop(x: Float[Tensor, "tokens d_in"]) -> Float[Tensor, "tokens d_in"]:
    """Rung 1 again, one query at a time, as on paper."""
    check_vectors(x[None], x.shape[-1], x)
    context_vecs = torch.zeros_like(x)
    for i, query in enumerate(x):
        attn_scores = torch.stack([torch.dot(query, key) for key in x])
        attn_weights = torch.exp(attn_scores - attn_scores.max())
        attn_weights = attn_weights / attn_weights.sum()
        for weight, value in zip(attn_weights, x, strict=True):
            context_vecs[i] += weight * value
    return context_vecs


class SelfAttention(nn.Module):
    """Rung 2: three learned projections: what to look for, what to match, what to pass on."""

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out)
        self.d_in = d_in
        self.d_out = d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x: Float[Tensor, "*batch tokens d_in"]) -> Float[Tensor, "..."]:
        """Context vectors, (.., tokens, d_out); x may be without a batch axis."""
        check_vectors(x, self.d_in, self.W_query.weight, unbatched=True)
        queries = self.W_query(x)  # (.., tokens, d_in) -> (.., tokens, d_out)
        keys = self.W_key(x)
        values = self.W_value(x)

        attn_scores = queries @ keys.transpose(-2, -1)  # -> (.., tokens, tokens)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        context_vec: Tensor = attn_weights @ values  # -> (.., tokens, d_out)
        return context_vec


class CausalAttention(nn.Module):
    """Rung 3: no token attends to a later one; some weights are dropped during training."""

    mask: Tensor

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out, context_length=context_length)
        check_dropout(dropout)
        self.d_in = d_in
        self.d_out = d_out
        self.context_length = context_length
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        # 1 = hidden: the book's polarity, kept so that its checkpoints load.
        self.register_buffer("mask", torch.ones(context_length, context_length).triu(diagonal=1))

    def forward(self, x: Float[Tensor, "batch tokens d_in"]) -> Float[Tensor, "batch tokens d_out"]:
        """Context vectors that depend only on the token itself and on earlier ones."""
        check_vectors(x, self.d_in, self.W_query.weight)
        tokens = x.shape[1]
        check_length(tokens, self.context_length)
        queries = self.W_query(x)  # (batch, tokens, d_in) -> (batch, tokens, d_out)
        keys = self.W_key(x)
        values = self.W_value(x)

        attn_scores = queries @ keys.transpose(1, 2)  # -> (batch, tokens, tokens)
        future = self.mask.bool()[:tokens, :tokens]
        attn_scores = attn_scores.masked_fill(future, -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec: Tensor = attn_weights @ values  # -> (batch, tokens, d_out)
        return context_vec


CausalSelfAttention = CausalAttention


class MultiHeadAttentionWrapper(nn.Module):
    """Rung 3½: independent causal heads side by side. `d_out` is the width of one head here."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(num_heads=num_heads)
        self.heads = nn.ModuleList(
            CausalAttention(d_in, d_out, context_length, dropout, qkv_bias)
            for _ in range(num_heads)
        )

    def forward(
        self, x: Float[Tensor, "batch tokens d_in"]
    ) -> Float[Tensor, "batch tokens heads*d_out"]:
        """The context vectors of all heads, concatenated along the last axis."""
        return torch.cat([head(x) for head in self.heads], dim=-1)


class MultiHeadAttention(nn.Module):
    """Rung 4: all heads at once. One projection each for Q, K and V, split into heads."""

    mask: Tensor

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out, context_length=context_length)
        check_dropout(dropout)
        self.d_in = d_in
        self.d_out = d_out
        self.context_length = context_length
        self.num_heads = num_heads
        self.head_dim = check_heads(d_out, num_heads)
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.ones(context_length, context_length).triu(diagonal=1))

    def forward(self, x: Float[Tensor, "batch tokens d_in"]) -> Float[Tensor, "batch tokens d_out"]:
        """Context vectors of all heads, mixed by the output projection."""
        check_vectors(x, self.d_in, self.W_query.weight)
        batch, tokens, _ = x.shape
        check_length(tokens, self.context_length)
        # 1 PROJECT
        queries = self.W_query(x)  # (batch, tokens, d_in) -> (batch, tokens, d_out)
        keys = self.W_key(x)
        values = self.W_value(x)
        # 2 SPLIT: d_out = heads × head_dim
        queries = queries.view(batch, tokens, self.num_heads, self.head_dim)
        keys = keys.view(batch, tokens, self.num_heads, self.head_dim)
        values = values.view(batch, tokens, self.num_heads, self.head_dim)
        # 3 TRANSPOSE
        queries = queries.transpose(1, 2)  # -> (batch, heads, tokens, head_dim)
        keys = keys.transpose(1, 2)
        values = values.transpose(1, 2)
        # 4 ATTENTION
        attn_scores = queries @ keys.transpose(2, 3)  # -> (batch, heads, tokens, tokens)
        future = self.mask.bool()[:tokens, :tokens]
        attn_scores = attn_scores.masked_fill(future, -torch.inf)
        attn_weights = torch.softmax(attn_scores / self.head_dim**0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = attn_weights @ values  # -> (batch, heads, tokens, head_dim)
        # 5 CONCAT
        context_vec = context_vec.transpose(1, 2)  # -> (batch, tokens, heads, head_dim)
        context_vec = context_vec.contiguous().view(batch, tokens, self.d_out)
        # 6 PROJECT
        output: Tensor = self.out_proj(context_vec)
        return output

    @classmethod
    def from_wrapper(cls, wrapper: MultiHeadAttentionWrapper) -> "MultiHeadAttention":
        """The same function as `wrapper`: its heads stacked, out_proj the identity.

        Examples:
            >>> wrapper = MultiHeadAttentionWrapper(3, 2, 6, 0.0, num_heads=2)
            >>> stacked, x = MultiHeadAttention.from_wrapper(wrapper), torch.rand(1, 6, 3)
            >>> torch.allclose(stacked(x), wrapper(x))
            True
        """
        heads = [head for head in wrapper.heads if isinstance(head, CausalAttention)]
        first = heads[0]
        d_out = first.d_out * len(heads)
        stacked = cls(
            first.d_in,
            d_out,
            first.context_length,
            first.dropout.p,
            num_heads=len(heads),
            qkv_bias=first.W_query.bias is not None,
        ).to(first.W_query.weight)
        with torch.no_grad():
            for name in ("W_query", "W_key", "W_value"):
                linears = [getattr(head, name) for head in heads]
                target = getattr(stacked, name)
                target.weight.copy_(torch.cat([linear.weight for linear in linears]))
                if target.bias is not None:
                    target.bias.copy_(torch.cat([linear.bias for linear in linears]))
            stacked.out_proj.weight.copy_(torch.eye(d_out))
            stacked.out_proj.bias.zero_()
        return stacked.train(wrapper.training)

    @classmethod
    def from_causal(cls, causal: CausalAttention) -> "MultiHeadAttention":
        """The same function as `causal`: multi-head attention with one head."""
        wrapper = MultiHeadAttentionWrapper(causal.d_in, causal.d_out, causal.context_length, 0, 1)
        wrapper.heads[0] = causal
        return cls.from_wrapper(wrapper.train(causal.training))


class EncoderAttention(nn.Module):
    """Rung 4 in the paper's form: biases everywhere, a mask argument, the weights returned."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        check_sizes(d_model=d_model)
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_dim = check_heads(d_model, num_heads)
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def split_heads(
        self, x: Float[Tensor, "batch tokens d_model"]
    ) -> Float[Tensor, "batch heads tokens head_dim"]:
        """Split the vector of each token into one shorter vector per head."""
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        x: Float[Tensor, "batch tokens d_model"],
        mask: Bool[Tensor, "..."] | Int[Tensor, "..."] | Float[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens d_model"], Float[Tensor, "batch heads tokens tokens"]]:
        """The output and the attention weights.

        Args:
            x: The input vectors.
            mask: 0 or False = hidden; any shape that broadcasts to (batch, heads, tokens, tokens).
        """
        check_vectors(x, self.d_model, self.W_q.weight)
        batch, tokens, _ = x.shape
        queries = self.split_heads(self.W_q(x))
        keys = self.split_heads(self.W_k(x))
        values = self.split_heads(self.W_v(x))

        attn_scores = queries @ keys.transpose(2, 3) / self.head_dim**0.5
        if mask is not None:
            if mask.ndim == 2 and mask.shape == (batch, tokens) and batch != tokens:
                raise ShapeError(
                    f"mask: expected a shape that broadcasts to (batch, heads, tokens, tokens), "
                    f"got {tuple(mask.shape)}.\n"
                    "  A padding mask (batch, tokens)? Try mask[:, None, None, :]."
                )
            attn_scores = attn_scores.masked_fill(mask == 0, -torch.inf)
        attention = torch.softmax(attn_scores, dim=-1)
        context_vec = attention @ values  # -> (batch, heads, tokens, head_dim)
        context_vec = context_vec.transpose(1, 2).contiguous().view(batch, tokens, self.d_model)
        return self.W_o(context_vec), attention
