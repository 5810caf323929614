"""Model sizes as plain data: the four GPT-2 models and GPT-3.

The GPT-2 values are those of the checkpoints that OpenAI released, the GPT-3 values those of table
2.1 in Brown et al., "Language Models are Few-Shot Learners" (2020). This file imports no torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypedDict, cast

from clearhead.foreign_names import BOOK_SIZES, SIZES, find


class GPT2Config(TypedDict):
    """The numbers that determine the size of a GPT-2 or GPT-3 model."""

    vocab_size: int
    context_length: int
    d_model: int
    num_heads: int
    num_layers: int
    dropout: float
    qkv_bias: bool


def _gpt2(d_model: int, num_heads: int, num_layers: int) -> GPT2Config:
    """A size of GPT-2, with the values that all four share."""
    return GPT2Config(
        vocab_size=50257,
        context_length=1024,
        d_model=d_model,
        num_heads=num_heads,
        num_layers=num_layers,
        dropout=0.1,
        # The released checkpoints have a bias on query, key and value. Books often use False, but
        # the released weights do not fit such a model.
        qkv_bias=True,
    )


# Medium and large are sometimes listed with 24 and 36 heads. Those are their numbers of layers.
GPT2_CONFIGS: dict[str, GPT2Config] = {
    "gpt2-small": _gpt2(d_model=768, num_heads=12, num_layers=12),
    "gpt2-medium": _gpt2(d_model=1024, num_heads=16, num_layers=24),
    "gpt2-large": _gpt2(d_model=1280, num_heads=20, num_layers=36),
    "gpt2-xl": _gpt2(d_model=1600, num_heads=25, num_layers=48),
}

# Half of GPT-3's layers attend to a local band only, which these numbers do not express.
GPT3_CONFIG: GPT2Config = {
    "vocab_size": 50257,
    "context_length": 2048,
    "d_model": 12288,
    "num_heads": 96,
    "num_layers": 96,
    "dropout": 0.1,
    "qkv_bias": True,
}

_ALL = {**GPT2_CONFIGS, "gpt3": GPT3_CONFIG}


def config_name(name: str) -> str:
    """The canonical spelling of a model's name: a key of ``GPT2_CONFIGS``, or ``"gpt3"``.

    Upper case, underscores and the spelling ``gpt-2`` are accepted; ``gpt2`` means ``gpt2-small``.

    Raises:
        ValueError: No model has this name; the message lists the known ones.

    Examples:
        >>> config_name("GPT2_Medium")
        'gpt2-medium'
    """
    wanted = name.strip().lower().replace("_", "-").replace("gpt-", "gpt", 1)
    if wanted == "gpt2":
        return "gpt2-small"
    if wanted in _ALL:
        return wanted
    close = difflib.get_close_matches(wanted, _ALL, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise ValueError(
        f"name: no model is called {name!r}.{hint}\n"
        f"  The models are {', '.join(_ALL)} (gpt2 means gpt2-small)."
    )


def find_config(name: str) -> GPT2Config:
    """The config of a model, as a new dictionary that may be modified.

    Args:
        name: A name such as ``gpt2-medium``; see `config_name` for the accepted spellings.

    Examples:
        >>> find_config("gpt2-medium")["num_heads"]
        16
    """
    return _ALL[config_name(name)].copy()


def read_config(config: Mapping[str, Any]) -> GPT2Config:
    """A new config with the keys of `GPT2Config`.

    Args:
        config: The keys of `GPT2Config`, or the book's (``emb_dim n_heads n_layers drop_rate``).

    Raises:
        ValueError: A key is missing, unknown, or given in both spellings.

    Examples:
        >>> book = {"vocab_size": 50257, "context_length": 1024, "emb_dim": 768, "n_heads": 12,
        ...         "n_layers": 12, "drop_rate": 0.1, "qkv_bias": True}
        >>> read_config(book) == find_config("gpt2-small")
        True
    """
    if not isinstance(config, Mapping):
        raise ValueError(
            f"config: expected a dictionary with the model's sizes, got {config!r}.\n"
            f"  By name: GPT2_CONFIGS['gpt2-small']. The models are {', '.join(GPT2_CONFIGS)}."
        )
    wanted = tuple(GPT2Config.__annotations__)
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = BOOK_SIZES.get(key, key)
        if name not in wanted:
            close = difflib.get_close_matches(str(key), [*wanted, *BOOK_SIZES], n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            hint = f" Here it is {here!r}." if (here := find(SIZES, key)) else hint
            raise ValueError(
                f"config: {key!r} is not a size of a GPT-2 model.{hint}\n"
                f"  The keys are {', '.join(wanted)}."
            )
        if name in found:
            raise ValueError(f"config: {key!r} repeats another key; keep one of them.")
        found[name] = value
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(
            f"config: {', '.join(missing)} missing; it has {', '.join(config) or 'no keys'}.\n"
            "  Start from a complete one: {**GPT2_CONFIGS['gpt2-small'], 'num_layers': 2}."
        )
    return cast(GPT2Config, found)


def explain_heads(d_model: int, num_heads: int) -> str | None:
    """A sentence for error messages: why the width cannot be divided among so many heads.

    None if it can, or if either number is not positive.

    Examples:
        >>> explain_heads(1024, 24)
        "24 is GPT-2 medium's number of layers; it has 16 heads."
        >>> explain_heads(256, 12)
        'Numbers of heads near 12 that divide 256: 8 or 16.'
    """
    if d_model <= 0 or num_heads <= 0 or d_model % num_heads == 0:
        return None
    for name, config in GPT2_CONFIGS.items():
        if (config["d_model"], config["num_layers"]) == (d_model, num_heads):
            size = name.removeprefix("gpt2-")
            heads = config["num_heads"]
            return f"{num_heads} is GPT-2 {size}'s number of layers; it has {heads} heads."
    # Every width is divisible by 1 and by itself, so both searches find a number.
    below = next(n for n in range(min(num_heads, d_model), 0, -1) if d_model % n == 0)
    if num_heads > d_model:
        return f"A width of {d_model} can be divided among {below} heads at most."
    above = next(n for n in range(num_heads, d_model + 1) if d_model % n == 0)
    return f"Numbers of heads near {num_heads} that divide {d_model}: {below} or {above}."
