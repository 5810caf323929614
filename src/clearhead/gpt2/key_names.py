"""The names of our tensors in the files of other projects, one table per naming scheme.

    ours       blocks.3.attention.W_query.weight         as in `model.state_dict()`; packed: qkv
    hf         transformer.h.3.attn.c_attn.weight        Hugging Face, and the released checkpoints
    original   model/h3/attn/c_attn/w                    the variables of the original release
    book       trf_blocks.3.att.W_query.weight           GPTModel in Raschka's book

Hugging Face and the original release store query, key and value in one matrix (`c_attn`), and every
matrix of a layer as (in, out), where `nn.Linear` stores (out, in).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Literal, NamedTuple

Style = Literal["ours", "hf", "book"]  # names of the original release are converted to "hf"


class Name(NamedTuple):
    """A tensor in a file, and the parameters it holds.

    Attributes:
        theirs: Its name in the file, without a prefix.
        ours: The parameters it holds, concatenated along their first axis.
        transposed: Whether the file stores the matrix as (in, out).
    """

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False


_QKV = ("attention.W_query", "attention.W_key", "attention.W_value")
_PACKED = "attention.qkv"
# Parts of a block that have a weight and a bias: theirs, ours, transposed.
_BLOCK: dict[str, list[tuple[str, tuple[str, ...], bool]]] = {
    "hf": [
        ("ln_1", ("norm1",), False),
        ("attn.c_attn", _QKV, True),
        ("attn.c_proj", ("attention.out_proj",), True),
        ("ln_2", ("norm2",), False),
        ("mlp.c_fc", ("feed_forward.expand",), True),
        ("mlp.c_proj", ("feed_forward.project",), True),
    ],
    "book": [
        ("norm1", ("norm1",), False),
        ("att.W_query", ("attention.W_query",), False),
        ("att.W_key", ("attention.W_key",), False),
        ("att.W_value", ("attention.W_value",), False),
        ("att.out_proj", ("attention.out_proj",), False),
        ("norm2", ("norm2",), False),
        ("ff.layers.0", ("feed_forward.expand",), False),
        ("ff.layers.2", ("feed_forward.project",), False),
    ],
}
# Outside the blocks: token embedding, position embedding, prefix of a block, last norm, head.
_OUTER = {
    "hf": ("wte", "wpe", "h", "ln_f", "lm_head"),
    "book": ("tok_emb", "pos_emb", "trf_blocks", "final_norm", "out_head"),
    "ours": ("embedding.token", "embedding.position", "blocks", "norm", "out_head"),
}
# Masks are not weights. Old Hugging Face files have two per block, the book's files one.
_MASK = re.compile(r"(h\.\d+\.attn\.(bias|masked_bias)|(trf_blocks|blocks)\.\d+\.\w+\.mask)")
# Added by wrappers: torch.compile, DistributedDataParallel, GPT2LMHeadModel.
_PREFIXES = ("_orig_mod.", "module.", "transformer.")


def tidy(keys: Iterable[str]) -> dict[str, str]:
    """Strip prefixes, drop masks, and return for each tidy name the name in the file.

    Examples:
        >>> tidy(["transformer.wte.weight", "transformer.h.0.attn.bias", "model/h3/ln_1/g"])
        {'wte.weight': 'transformer.wte.weight', 'h.3.ln_1.weight': 'model/h3/ln_1/g'}
    """
    found: dict[str, str] = {}
    for key in keys:
        name = _from_original(key) if key.startswith("model/") else key
        while name.startswith(_PREFIXES):
            name = name.partition(".")[2]
        if _MASK.fullmatch(name):
            continue
        if name in found:
            raise ValueError(f"{found[name]} and {key}: two names for the same tensor.")
        found[name] = key
    return found


def _from_original(key: str) -> str:
    """model/h3/ln_1/g -> h.3.ln_1.weight, the Hugging Face name."""
    name = re.sub(r"^h(\d+)/", r"h.\1/", key.removeprefix("model/").removesuffix(":0"))
    if name in ("wte", "wpe"):
        return f"{name}.weight"
    stem, _, last = name.rpartition("/")
    return ".".join([*stem.split("/"), {"g": "weight", "w": "weight", "b": "bias"}.get(last, last)])


def find_style(names: Iterable[str]) -> Style | None:
    """The naming scheme of tidy names; None if it is not supported."""
    names = set(names)
    for style, (token, *_) in _OUTER.items():
        if f"{token}.weight" in names:
            return style  # type: ignore[return-value]  # the keys of _OUTER are styles
    return None


def head_name(style: Style) -> str:
    """The name of the output head's matrix."""
    return f"{_OUTER[style][4]}.weight"


def table_names(style: Style) -> tuple[str, str]:
    """The names of the token and position embeddings."""
    return f"{_OUTER[style][0]}.weight", f"{_OUTER[style][1]}.weight"


def has_query_bias(style: Style, names: Container[str]) -> bool:
    """Whether a file has query, key and value biases."""
    inner = {"hf": ("attn.c_attn",), "book": ("att.W_query",), "ours": (_QKV[0], _PACKED)}[style]
    return any(f"{_OUTER[style][2]}.0.{name}.bias" in names for name in inner)


def is_packed(names: Iterable[str]) -> bool:
    """Whether our own names store queries, keys and values together."""
    return any(name.endswith(f".{_PACKED}.weight") for name in names)


def count_layers(style: Style, names: Iterable[str]) -> int:
    """The number of blocks: one more than the highest index."""
    pattern = re.compile(rf"{_OUTER[style][2]}\.(\d+)\.")
    return max((int(m[1]) + 1 for name in names if (m := pattern.match(name))), default=0)


def table(style: Style, ours: Mapping[str, object]) -> list[Name]:
    """List every tensor that a file of this naming scheme must have for this model.

    Args:
        style: The naming scheme.
        ours: Our parameters by name: `model.state_dict()`.
    """
    if style == "ours":
        return [Name(name, (name,)) for name in ours]
    token, position, block, last, head = _OUTER[style]
    names = [Name(f"{token}.weight", ("embedding.token.weight",))]
    names.append(Name(f"{position}.weight", ("embedding.position.weight",)))
    weight, bias = ("scale", "shift") if style == "book" else ("weight", "bias")
    packed = is_packed(ours)
    for number in range(count_layers("ours", ours)):
        for theirs, parts, transposed in _BLOCK[style]:
            parts = (_PACKED,) if packed and parts == _QKV else parts
            suffixes = (weight, bias) if parts[0].startswith("norm") else ("weight", "bias")
            for own, suffix in zip(("weight", "bias"), suffixes, strict=True):
                names.append(
                    Name(
                        f"{block}.{number}.{theirs}.{suffix}",
                        tuple(f"blocks.{number}.{part}.{own}" for part in parts),
                        transposed and own == "weight",
                    )
                )
    names.append(Name(f"{last}.{weight}", ("norm.weight",)))
    names.append(Name(f"{last}.{bias}", ("norm.bias",)))
    names.append(Name(f"{head}.weight", ("out_head.weight",)))
    # Leave out what the model does not have: query biases, positions, a separate head.
    return [name for name in names if name.ours[0] in ours]
