"""The cost of a config: parameters, memory in MiB, floating-point operations. Arithmetic only.

The formulas, with d = d_model and n = tokens; a multiply and an add count as two operations:

    attention    4 d^2 + d parameters per layer, and 3 d more with qkv_bias
    feed-forward 8 d^2 + 5 d parameters per layer (it widens to 4 d and back)
    scores       2 n^2 d operations per layer, and as many again for the weighted sum of the values
    projections  2 n times the entries of the weight matrix

This file does not import torch, so that `clearhead info` starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass

from clearhead.configs import GPT2Config, explain_heads

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_MIB = 2**20
_LSE_BYTES = 4  # kernels keep the log-sum-exp in float32, also for half-precision models


@dataclass(frozen=True)
class Memory:
    """Memory in MiB.

    Attributes:
        parameters: The model's weights.
        kv_cache: Keys and values of all tokens in all layers, kept while generating.
        map_one_layer: The n x n attention weights of one layer, if they were built.
        map_all_layers: The same for all layers, as kept for training or inspection.
        lse_one_layer: The log-sum-exp of each row of one layer, which a fused forward pass keeps
            instead of the map: 4 bytes per row (8 in float64). It grows with n, not with n x n.
        lse_all_layers: The same for all layers.
    """

    parameters: float
    kv_cache: float
    map_one_layer: float
    map_all_layers: float
    lse_one_layer: float
    lse_all_layers: float


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of one forward pass, all layers together.

    Biases, norms, softmax, GELU and the two embedding lookups are not counted; they are small.

    Attributes:
        projections: Query, key, value and output.
        scores: Every query times every key, the full n x n.
        weighted_sum: The weights times the values, the full n x n.
        scores_causal: The scores that causal attention needs, n (n + 1) / 2 pairs.
        weighted_sum_causal: The same for the weighted sum.
        feed_forward: The two matrices of the feed-forward part.
        head: From the final vector of each token to one score per vocabulary entry.
    """

    projections: int
    scores: int
    weighted_sum: int
    scores_causal: int
    weighted_sum_causal: int
    feed_forward: int
    head: int

    @property
    def total(self) -> int:
        """All parts with the full n x n, as in a model that masks the scores afterwards."""
        dense = self.projections + self.feed_forward + self.head
        return dense + self.scores + self.weighted_sum

    @property
    def total_causal(self) -> int:
        """All parts with the causal half only, the minimum for a causal model."""
        dense = self.projections + self.feed_forward + self.head
        return dense + self.scores_causal + self.weighted_sum_causal


def parameters(
    config: GPT2Config, *, num_kv_heads: int | None = None, rotary: bool = False
) -> dict[str, int]:
    """Count the parameters of a GPT-2 model, part by part.

    The output head shares the matrix of the token embedding (weight tying), so it adds none.

    Args:
        config: The model's size, as in `clearhead.configs`.
        num_kv_heads: The number of key and value heads, if it differs from the query heads.
        rotary: Whether positions are rotary, so that there is no position embedding.

    Returns:
        The parts ``token_embedding``, ``position_embedding``, ``attention``, ``feed_forward``,
        ``layer_norms`` and ``final_norm``, which add up to ``total``. ``attention_per_layer`` is
        one layer's share of ``attention`` and is not added again.

    Examples:
        >>> from clearhead.configs import find_config
        >>> parameters(find_config("gpt2-small"))["total"]
        124439808
    """
    d, layers = config["d_model"], config["num_layers"]
    kv_width = _kv_heads(config, num_kv_heads) * (d // config["num_heads"])
    bias = int(config["qkv_bias"])
    attention = (d + bias) * (d + 2 * kv_width) + (d + 1) * d
    feed_forward = (d + 1) * 4 * d + (4 * d + 1) * d
    norm = 2 * d  # a scale and a shift
    parts = {
        "token_embedding": config["vocab_size"] * d,
        "position_embedding": 0 if rotary else config["context_length"] * d,
        "attention": layers * attention,
        "feed_forward": layers * feed_forward,
        "layer_norms": layers * 2 * norm,
        "final_norm": norm,
    }
    return {**parts, "total": sum(parts.values()), "attention_per_layer": attention}


def memory(
    config: GPT2Config,
    *,
    batch: int = 1,
    tokens: int | None = None,
    dtype: str = "float32",
    num_kv_heads: int | None = None,
    rotary: bool = False,
) -> Memory:
    """The memory that a model needs, and that its n x n maps would need.

    Args:
        config: The model's size, as in `clearhead.configs`.
        batch: The number of sequences.
        tokens: Their length; ``context_length`` if None. It may be longer than
            ``context_length``, to compute the cost of a longer context; the position table counted
            under ``parameters`` keeps the size given in the config.
        dtype: ``float64``, ``float32``, ``bfloat16`` or ``float16``.
        num_kv_heads: The number of key and value heads, if it differs from the query heads.
        rotary: Whether positions are rotary, so that there is no position embedding.

    Examples:
        >>> from clearhead.configs import find_config
        >>> cost = memory(find_config("gpt2-small"))
        >>> cost.map_all_layers, cost.lse_all_layers
        (576.0, 0.5625)
    """
    n = _tokens(config, batch, tokens)
    if dtype not in BYTES:
        raise ValueError(
            f"dtype: no entry for {dtype!r}.\n  Choose one of {', '.join(BYTES)} (as a string)."
        )
    size = BYTES[dtype]
    kv_heads = _kv_heads(config, num_kv_heads)
    heads, layers = config["num_heads"], config["num_layers"]
    head_dim = config["d_model"] // heads
    weights = parameters(config, num_kv_heads=num_kv_heads, rotary=rotary)["total"] * size
    cache = 2 * layers * batch * kv_heads * n * head_dim * size
    one_map = batch * heads * n * n * size
    one_lse = batch * heads * n * max(_LSE_BYTES, size)
    return Memory(
        parameters=weights / _MIB,
        kv_cache=cache / _MIB,
        map_one_layer=one_map / _MIB,
        map_all_layers=layers * one_map / _MIB,
        lse_one_layer=one_lse / _MIB,
        lse_all_layers=layers * one_lse / _MIB,
    )


def flops(
    config: GPT2Config,
    *,
    batch: int = 1,
    tokens: int | None = None,
    num_kv_heads: int | None = None,
) -> Flops:
    """Count the floating-point operations of one forward pass, part by part.

    Args:
        config: The model's size, as in `clearhead.configs`.
        batch: The number of sequences.
        tokens: Their length; ``context_length`` if None.
        num_kv_heads: The number of key and value heads, if it differs from the query heads. It
            narrows the projections; the scores cost the same.

    Examples:
        >>> from clearhead.configs import find_config
        >>> work = flops(find_config("gpt2-small"), tokens=1024)
        >>> f"{work.total / 1e9:.0f} billion, {work.scores / work.total:.1%} of it for the scores"
        '292 billion, 6.6% of it for the scores'
    """
    n = _tokens(config, batch, tokens)
    d, layers = config["d_model"], config["num_layers"]
    kv_width = _kv_heads(config, num_kv_heads) * (d // config["num_heads"])
    rows = batch * n
    scores = 2 * layers * batch * n * n * d
    causal = layers * batch * n * (n + 1) * d  # 2 operations for each of the n (n + 1) / 2 pairs
    return Flops(
        projections=2 * layers * rows * d * (2 * d + 2 * kv_width),
        scores=scores,
        weighted_sum=scores,
        scores_causal=causal,
        weighted_sum_causal=causal,
        feed_forward=2 * layers * rows * 8 * d * d,
        head=2 * rows * d * config["vocab_size"],
    )


def _tokens(config: GPT2Config, batch: int, tokens: int | None) -> int:
    """The length to count with, after checking it and the batch."""
    if batch <= 0:
        raise ValueError(f"batch: expected 1 or more, got {batch}.\n  It counts sequences.")
    if tokens is None:
        return config["context_length"]
    if tokens <= 0:
        raise ValueError(
            f"tokens: expected 1 or more, got {tokens}.\n"
            f"  Leave it out for the model's context length ({config['context_length']})."
        )
    return tokens


def _kv_heads(config: GPT2Config, num_kv_heads: int | None) -> int:
    """The number of key and value heads, after checking that all heads fit."""
    d, heads = config["d_model"], config["num_heads"]
    if heads <= 0 or d % heads != 0:
        hint = explain_heads(d, heads)
        message = f"d_model ({d}) must be divisible by num_heads ({heads})."
        raise ValueError(f"{message}\n  {hint}" if hint else message)
    if num_kv_heads is None:
        return heads
    if num_kv_heads <= 0 or heads % num_kv_heads != 0:
        fits = [n for n in range(1, heads + 1) if heads % n == 0]
        raise ValueError(
            f"num_heads ({heads}) must be divisible by num_kv_heads ({num_kv_heads}).\n"
            f"  Each key and value head serves the same number of query heads: choose one of "
            f"{', '.join(map(str, fits))}."
        )
    return num_kv_heads
