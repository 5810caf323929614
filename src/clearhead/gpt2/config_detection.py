"""Which GPT-2 a file of weights holds: from config.json, or from the shapes of its tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clearhead.configs import GPT2Config, read_config
from clearhead.embedding import Rope
from clearhead.gpt2 import key_names
from clearhead.gpt2.key_names import Style
from clearhead.gpt2.weight_files import Spec, read_json

# What config.json may say otherwise, and we do not have.
_FIXED: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
_ELSEWHERE = (
    "In transformers it works, and clearhead.watch(model) shows that model's attention; so do "
    "clearhead heads and clearhead view."
)
_MOST = 10**12
_KINDS = ("gpt2", "clearhead-gpt2")  # the second: with rotary positions, which gpt2 has not


class Plan(NamedTuple):
    """What a file holds, decided before anything is read.

    Attributes:
        config: The sizes.
        rope: Rotary positions, or None.
        tied: Whether the head is the token table; None = to be seen from the numbers.
    """

    config: GPT2Config
    rope: Rope | None
    tied: bool | None


def find_sizes(
    style: Style,
    specs: Mapping[str, Spec],
    config_file: Path | None,
    alone: bool,
    num_heads: int | None,
) -> Plan:
    """The sizes from config.json, or else from the shapes of the tensors.

    Args:
        style: Whose names the tensors have.
        specs: The tensors, by their tidy names.
        config_file: The config.json in the same folder, if there is one.
        alone: Whether the user gave a file, not a folder.
        num_heads: What the user says; shapes do not tell it.
    """
    said = {} if config_file is None else read_json(config_file)
    if alone and said.get("model_type") not in _KINDS:
        said = {}  # somebody else's config.json happens to be in the same folder
    if said:
        assert config_file is not None
        return _from_json(said, config_file, num_heads)
    token, position = (specs.get(name) for name in key_names.table_names(style))
    if token is None or position is None or len(token.shape) != 2 or len(position.shape) != 2:
        known = " and ".join(key_names.table_names(style))
        raise ValueError(
            f"{known}: expected both, as matrices, since there is no config.json to tell the sizes."
            "\n  What `clearhead train` wrote is read by clearhead.lab.load(path)."
        )
    vocab_size, d_model = token.shape
    if num_heads is None:
        if d_model % 64:
            raise ValueError(
                f"{token.file}: how many heads? Shapes do not tell (d_model is {d_model}), there "
                "is no config.json, and GPT-2's own rule, 64 numbers per head, does not fit.\n"
                "  Say it: from_pretrained(path, num_heads=...)."
            )
        num_heads = d_model // 64
    config = GPT2Config(
        vocab_size=vocab_size,
        context_length=position.shape[0],
        d_model=d_model,
        num_heads=num_heads,
        num_layers=key_names.count_layers(style, specs),
        dropout=0.1,
        qkv_bias=key_names.query_bias_name(style) in specs,
    )
    if not config["num_layers"]:
        raise ValueError(f"{token.file}: no block in it, only {', '.join(list(specs)[:4])}.")
    return Plan(config, None, None if key_names.head_name(style) in specs else True)


def _from_json(said: dict[str, Any], file: Path, num_heads: int | None) -> Plan:
    kind = said.get("model_type", "gpt2")
    if kind not in _KINDS:
        raise ValueError(f"{file}: a model of type {kind!r}; only GPT-2 can be loaded here.")
    for key, allowed in _FIXED.items():
        if said.get(key, allowed[0]) not in allowed:
            raise ValueError(
                f"{file}: {key} is {said[key]!r}; only {allowed[0]!r} works here.\n  {_ELSEWHERE}"
            )
    sizes: dict[str, int] = {}
    for ours, theirs in {
        "vocab_size": ("vocab_size",),
        "context_length": ("n_positions", "n_ctx"),
        "d_model": ("n_embd",),
        "num_heads": ("n_head",),
        "num_layers": ("n_layer",),
    }.items():
        value = next((said[key] for key in theirs if key in said), None)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise ValueError(
                f"{file}: {theirs[0]}: expected a number from 1 to {_MOST:,}, got {value!r}."
            )
        sizes[ours] = value
    if said.get("n_inner") not in (None, 4 * sizes["d_model"]):
        raise ValueError(
            f"{file}: n_inner is {said['n_inner']}; only 4 × n_embd ({4 * sizes['d_model']}) works "
            f"here.\n  {_ELSEWHERE}"
        )
    if num_heads is not None and num_heads != sizes["num_heads"]:
        raise ValueError(f"num_heads: {num_heads}, but {file} says {sizes['num_heads']}.")
    rates = [_number(said, key, 0.1, file) for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop")]
    if len(set(rates)) > 1:
        warnings.warn(
            f"{file}: three different dropouts {rates}; the first is used for all. It matters only "
            "for training.",
            stacklevel=4,
        )
    bias = _truth(said, "qkv_bias", file)
    config = read_config({**sizes, "dropout": rates[0], "qkv_bias": bias})
    rope = None
    if kind == "clearhead-gpt2" and "rope_base" in said:
        rope = Rope(_number(said, "rope_base", None, file))
    return Plan(config, rope, _truth(said, "tie_word_embeddings", file))


def _number(said: dict[str, Any], key: str, default: float | None, file: Path) -> float:
    value = said.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{file}: {key}: expected a number, got {value!r}.")
    return value


def _truth(said: dict[str, Any], key: str, file: Path) -> bool:
    value = said.get(key, True)
    if not isinstance(value, bool):
        raise ValueError(f"{file}: {key}: expected true or false, got {value!r}.")
    return value
