"""What each argument of forward is for, by its name and the call sites, and what to pass for it."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import ClassInfo

# Names for the input that keys and values come from.
SOURCES = {
    "context", "y", "memory", "encoder_output", "kv", "cond", "source", "src", "key_value", "enc",
    "encoder_hidden_states", "x_kv", "other", "encoder_out", "ctx", "kv_input", "x2", "enc_out",
    "x_enc", "encoded", "cross", "x_2", "input_kv", "inputs_kv",
}  # fmt: skip
_ANGLES = {
    "cos": "cos freqs_cos rope_cos cos_cached cosine",
    "sin": "sin freqs_sin rope_sin sin_cached sine",
    "cos+sin": "position_embeddings cos_sin rotary_emb rotary_embeddings rope_embeddings "
    "rotary_pos_emb image_rotary_emb pe rope rope_cache",
    "turns": "freqs_cis freqs_complex freq_cis freqs rope_freqs",
}
ANGLE_ROLES = tuple(_ANGLES)
ANGLES = {name: role for role, names in _ANGLES.items() for name in names.split()}
# Layouts of rotary angles: (tokens, head_dim) in two halves or in pairs, or (tokens, head_dim / 2),
# each also with a batch axis, or with axes for batch and heads that come before the tokens or
# around them; complex numbers; plain angles; (cos, sin) in one table (tokens, head_dim / 2, 2);
# matrices (1, 1, tokens, head_dim / 2, 2, 2); or, in halves or pairs, the angles themselves.
ROTARY = (
    "halves", "pairs", "narrow", "halves-batch", "pairs-batch", "narrow-batch", "complex", "plain",
    "halves-heads", "pairs-heads", "narrow-heads", "halves-first", "pairs-first", "narrow-first",
    "stacked", "matrices", "halves-angles", "pairs-angles",
)  # fmt: skip

# Height and width, if the tokens are pixels in one row.
GRID = (3, 4)
_SIDES = {"h": "rows", "height": "rows", "w": "columns", "width": "columns"}
# Roles of required arguments other than inputs, masks and angles, by patterns of their names.
# "cumulative" gives the start of each sequence, for sequences packed into one long row.
_OTHERS = (
    ("cumulative", r"^cu_?(seq)?_?len|cumulative|^seq_?offsets$"),
    ("grid", r"^(grid(_size|_shape)?|hw|h_w|hw_shape|spatial_(shape|size)|resolution|"
             r"(patch|feat)_(grid|size)|x?_?size)$"),
    ("positions", r"^(input_|token_)?pos(ition)?(s|_ids)$|^input_pos$"),
    ("base", r"theta$|^base$"),
    ("lengths", r"valid_?len|lengths$|lens$"),
    ("length", r"len"),
    ("marks", r"pad|valid"),
    ("none", r"cache|past|state"),
    ("zero", r"^pos$|start|offset|layer|idx|index|step"),
    ("false", r"flag|train|infer|^use|^is_|return|need|output_"),
    ("none", r"pos"),
)  # fmt: skip
_NO_INPUT = r"mask|len|pos|cache|pad|valid|ind(ex|ic)|idx|past|state"
# What to pass for an argument that is needed according to an error, most likely first.
GUESSES = ("marks", "mask", "zero", "lengths", "true")


def feeds(info: ClassInfo, *, optional: bool = False) -> tuple[tuple[str, str], ...]:
    """What each of forward's parameters is for, as far as its name reveals it.

    Args:
        info: The class.
        optional: Whether to pass separate keys and values although they have a default.
    """
    found: list[tuple[str, str]] = []
    parameters = [p for p in info.forward if not p.kind.startswith("VAR")]
    names = [p.name for p in parameters]
    inputs = [n for n in names if not re.search(_NO_INPUT, n.lower())]
    by_role = {role_of(n): n for n in reversed(inputs) if role_of(n) in ("q", "k", "v")}
    three = len(by_role) == 3
    asks = _asks(names)
    both_sides = {_SIDES.get(n.lower(), "") for n in names} >= {"rows", "columns"}
    for place, parameter in enumerate(parameters):
        name = parameter.name
        role = role_of(name) if name in inputs else ""
        small = name.lower()
        must = place > 0 and not parameter.has_default
        other = next((role for role, known in _OTHERS if re.search(known, small)), "")
        mask = "mask" in small and not re.search(r"pad|head", small)
        if mask or (must and small.startswith("adj")):
            found.append((name, "mask"))
        elif small in ANGLES:
            found.append((name, ANGLES[small]))
        elif must and both_sides and small in _SIDES:
            found.append((name, _SIDES[small]))
        elif three and by_role.get(role) == name:
            found.append((name, role))
        elif asks and (place == 0 or name == asks):
            found.append((name, "kv" if place == 0 else "x"))
        elif place == 0:
            found.append((name, "x"))
        elif optional and (small in SOURCES or role in ("k", "v", "kv")):
            found.append((name, "kv"))
        elif parameter.default is True and "cache" in small:
            found.append((name, "false"))  # else each call would depend on earlier ones
        elif parameter.has_default:
            continue
        elif small in SOURCES or (not three and role in ("k", "v", "kv")):
            found.append((name, role if role and {"k", "v"} <= by_role.keys() else "kv"))
        elif other:
            found.append((name, other))
        elif re.search(r"\bNone\b|Optional", parameter.annotation):
            found.append((name, "none"))
        elif place in (1, 2) and not re.search("mask|bias", small):
            found.append((name, "kv"))
        else:
            found.append((name, "none"))
    return tuple(found)


def _asks(names: Sequence[str]) -> str:
    """The name of the queries, if the memory that they attend to comes first; else "".

    Examples:
        >>> _asks(["values", "query"]), _asks(["encoder_out", "decoder_hidden"]), _asks(["x", "q"])
        ('query', 'decoder_hidden', '')
    """
    if not names or not re.match(r"enc|mem|keys?$|values?$|feat|annot|im(g|age)", names[0].lower()):
        return ""
    asking = (n for n in names[1:] if re.match(r"quer|q$|dec|hidden|state|h(_t)?$", n.lower()))
    return next(asking, "")


POLARITIES = ("keep", "hide", "int", "added", "float", "int-hide")
# Masks in the usual shapes: b sequences, n tokens, 1 for an axis that is broadcast.
MASK_SHAPES = ("nn", "11nn", "b1nn", "bnn", "bn", "b11n")


def written_mask(keep: Tensor, polarity: str, dtype: torch.dtype) -> Tensor:
    """A mask, True where a key is visible, converted to one of the usual encodings."""
    return {
        "keep": keep,
        "hide": ~keep,
        "int": keep.to(torch.int64),
        "added": torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, -torch.inf),
        "float": keep.to(dtype),
        "int-hide": (~keep).to(torch.int64),
    }[polarity]


def causal_mask(polarity: str, tokens: int, dtype: torch.dtype) -> Tensor:
    """A causal mask in one of the usual encodings."""
    return written_mask(torch.ones(tokens, tokens).tril().bool(), polarity, dtype)


def shaped_mask(polarity: str, shape: str, batch: int, tokens: int, dtype: torch.dtype) -> Tensor:
    """A mask in one of MASK_SHAPES: causal if it has two token axes, else all tokens are visible.

    Examples:
        >>> shaped_mask("keep", "b11n", 2, 5, torch.float64).shape
        torch.Size([2, 1, 1, 5])
    """
    mask = causal_mask(polarity, tokens, dtype)
    if not shape.endswith("nn"):
        mask = mask[-1]  # the last token sees all
    return mask.expand([{"b": batch, "1": 1, "n": tokens}[axis] for axis in shape]).clone()


def rotary_tables(
    kind: str, tokens: int, width: int, dtype: torch.dtype
) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
    """Rotary angles with the usual base 10,000, in one of the usual layouts.

    Examples:
        >>> rotary_tables("halves", 3, 4, torch.float64)["cos"].shape
        torch.Size([3, 4])
    """
    speeds = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] * speeds  # (tokens, width / 2)
    turns = angles
    if kind == "complex":
        turns = torch.polar(torch.ones_like(angles), angles)
    elif kind.startswith("halves"):
        angles = torch.cat([angles, angles], dim=-1)
    elif kind.startswith("pairs"):
        angles = angles.repeat_interleave(2, dim=-1)
    if kind.endswith("-batch"):
        angles = angles[None]
    elif kind.endswith("-heads"):
        angles = angles[None, None]
    elif kind.endswith("-first"):
        angles = angles[None, :, None]
    elif kind.endswith("-angles"):
        return dict.fromkeys(ANGLE_ROLES, angles.to(dtype))
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    if kind == "stacked":
        return dict.fromkeys(ANGLE_ROLES, torch.stack([cos, sin], dim=-1))
    if kind == "matrices":
        turns = torch.stack([cos, -sin, sin, cos], dim=-1).view(1, 1, *angles.shape, 2, 2)
        return dict.fromkeys(ANGLE_ROLES, turns)
    return {"cos": cos, "sin": sin, "cos+sin": (cos, sin), "turns": turns}


# All tokens are real: marked as real, or not marked as padding.
MARKS: dict[str, tuple[int, torch.dtype]] = {
    "true": (1, torch.bool),
    "false": (0, torch.bool),
    "ones": (1, torch.int64),
    "zeros": (0, torch.int64),
}
