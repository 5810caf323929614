"""The sizes of the GPT-2 in a weights file: from config.json, or from the shapes of its tensors."""

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

# Settings of config.json of which only these values are supported.
_FIXED: dict[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}
_ELSEWHERE = (
    "transformers supports it, and clearhead.watch(model), clearhead heads and clearhead view "
    "show that model's attention."
)
_MOST = 10**12
_KINDS = ("gpt2", "clearhead-gpt2")  # the second has rotary positions


class Plan(NamedTuple):
    """The model in a file, known before any tensor is read.

    Attributes:
        config: The sizes.
        rope: Rotary positions, or None.
        tied: Whether the output head is the token embedding; None if only the values can tell.
    """

    config: GPT2Config
    rope: Rope | None
    tied: bool | None


def find_sizes(
    style: Style,
    specs: Mapping[str, Spec],
    config_file: Path | None,
    is_file: bool,
    num_heads: int | None,
) -> Plan:
    """Find the sizes in config.json, or else from the shapes of the tensors.

    Args:
        style: Whose key names the tensors have.
        specs: Shape and dtype of each tensor, by its tidy name.
        config_file: The config.json in the same folder, or None.
        is_file: Whether the user passed a file, not a folder.
        num_heads: The user's number of heads, or None; shapes do not reveal it.
    """
    content = {} if config_file is None else read_json(config_file)
    if is_file and content.get("model_type") not in _KINDS:
        content = {}  # an unrelated config.json in the same folder
    if content:
        assert config_file is not None
        return _from_json(content, config_file, num_heads)
    token, position = (specs.get(name) for name in key_names.table_names(style))
    if token is None or position is None or len(token.shape) != 2 or len(position.shape) != 2:
        known = " and ".join(key_names.table_names(style))
        raise ValueError(
            f"{known}: expected both, as matrices, because without config.json the sizes come from "
            "them.\n  Load a model written by `clearhead train` with clearhead.load(path)."
        )
    vocab_size, d_model = token.shape
    if num_heads is None:
        if d_model % 64:
            raise ValueError(
                f"{token.file}: the number of heads is unknown: there is no config.json, shapes do "
                f"not reveal it, and d_model ({d_model}) is not a multiple of 64, GPT-2's head_dim."
                "\n  Pass it: from_pretrained(path, num_heads=...)."
            )
        num_heads = d_model // 64
    config = GPT2Config(
        vocab_size=vocab_size,
        context_length=position.shape[0],
        d_model=d_model,
        num_heads=num_heads,
        num_layers=key_names.count_layers(style, specs),
        dropout=0.1,
        qkv_bias=key_names.has_query_bias(style, specs),
    )
    if not config["num_layers"]:
        raise ValueError(
            f"{token.file}: expected at least one block, got only {', '.join(list(specs)[:4])}."
        )
    return Plan(config, None, None if key_names.head_name(style) in specs else True)


def _from_json(content: dict[str, Any], file: Path, num_heads: int | None) -> Plan:
    kind = content.get("model_type", "gpt2")
    if kind not in _KINDS:
        raise ValueError(f"{file}: expected a GPT-2, got a model of type {kind!r}.")
    for key, allowed in _FIXED.items():
        if content.get(key, allowed[0]) not in allowed:
            raise ValueError(
                f"{file}: {key}: expected {allowed[0]!r}, got {content[key]!r}.\n  {_ELSEWHERE}"
            )
    sizes: dict[str, int] = {}
    for ours, theirs in {
        "vocab_size": ("vocab_size",),
        "context_length": ("n_positions", "n_ctx"),
        "d_model": ("n_embd",),
        "num_heads": ("n_head",),
        "num_layers": ("n_layer",),
    }.items():
        value = next((content[key] for key in theirs if key in content), None)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise ValueError(
                f"{file}: {theirs[0]}: expected a number from 1 to {_MOST:,}, got {value!r}."
            )
        sizes[ours] = value
    if content.get("n_inner") not in (None, 4 * sizes["d_model"]):
        raise ValueError(
            f"{file}: n_inner: expected 4 × n_embd = {4 * sizes['d_model']}, "
            f"got {content['n_inner']}.\n  {_ELSEWHERE}"
        )
    if num_heads is not None and num_heads != sizes["num_heads"]:
        raise ValueError(f"num_heads: expected {sizes['num_heads']} as in {file}, got {num_heads}.")
    rates = [
        _number(content, key, 0.1, file) for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    ]
    if len(set(rates)) > 1:
        warnings.warn(
            f"{file}: the dropout probabilities {rates} differ; the first is used for all. This "
            "affects training only.",
            stacklevel=5,
        )
    bias = _truth(content, "qkv_bias", file)
    config = read_config({**sizes, "dropout": rates[0], "qkv_bias": bias})
    rope = None
    if kind == "clearhead-gpt2" and "rope_base" in content:
        rope = Rope(_number(content, "rope_base", None, file))
    return Plan(config, rope, _truth(content, "tie_word_embeddings", file))


def _number(content: dict[str, Any], key: str, default: float | None, file: Path) -> float:
    value = content.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{file}: {key}: expected a number, got {value!r}.")
    return value


def _truth(content: dict[str, Any], key: str, file: Path) -> bool:
    value = content.get(key, True)
    if not isinstance(value, bool):
        raise ValueError(f"{file}: {key}: expected true or false, got {value!r}.")
    return value
