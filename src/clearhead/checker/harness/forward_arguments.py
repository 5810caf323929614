"""What forward's arguments are for, as far as their names tell, and what they are given."""

import re

import torch
from torch import Tensor

from clearhead.checker.harness.weight_roles import role_of
from clearhead.checker.sandbox.submission import ClassInfo

_SOURCE = {
    "context", "y", "memory", "encoder_output", "kv", "cond", "source", "src", "key_value", "enc",
    "encoder_hidden_states", "x_kv", "other", "encoder_out", "ctx", "kv_input", "x2", "enc_out",
    "x_enc", "encoded", "cross", "x_2", "input_kv", "inputs_kv",
}  # fmt: skip
_ANGLES = {
    "cos": "cos freqs_cos rope_cos cos_cached cosine",
    "sin": "sin freqs_sin rope_sin sin_cached sine",
    "cos+sin": "position_embeddings cos_sin rotary_emb rotary_embeddings rope_embeddings",
    "turns": "freqs_cis freqs_complex freq_cis freqs rope_freqs",
}
ANGLE_ROLES = tuple(_ANGLES)
ANGLES = {name: role for role, names in _ANGLES.items() for name in names.split()}
# The angles as (tokens, head_dim) in two halves or in pairs, as (tokens, head_dim / 2), as complex
# numbers, or plain; the first ones also with a batch axis.
ROTARY = (
    "halves", "pairs", "narrow", "halves-batch", "pairs-batch", "narrow-batch", "complex", "plain",
)  # fmt: skip


# Where each text begins, for texts that stand one after the other in one long row.
_CUMULATIVE = r"^cu_?(seq)?_?len|cumulative|^seq_?offsets$"
# Height and width, where the tokens are pixels in one row.
GRID = (3, 4)
_GRID = (
    r"grid(_size|_shape)?|hw|h_w|hw_shape|spatial_(shape|size)|resolution|(patch|feat)_(grid|size)"
)
_SIDES = {"rows": {"h", "height", "rows"}, "columns": {"w", "width", "cols", "columns"}}


def feeds(info: ClassInfo, *, optional: bool = False) -> tuple[tuple[str, str], ...]:
    """What each of forward's parameters is for, as far as its name tells.

    Args:
        info: The class.
        optional: Whether keys and values from elsewhere are given although they have a default.
    """
    found: list[tuple[str, str]] = []
    parameters = [p for p in info.forward if not p.kind.startswith("VAR")]
    names = [p.name for p in parameters]
    by_role = {role_of(n): n for n in names if role_of(n) in ("q", "k", "v") and "mask" not in n}
    three = len(by_role) == 3
    sides = {side for side, known in _SIDES.items() if {n.lower() for n in names} & known}
    for place, parameter in enumerate(parameters):
        name = parameter.name
        role = role_of(name)
        small = name.lower()
        must = place > 0 and not parameter.has_default
        if "mask" in name.lower() and "pad" not in name.lower():
            found.append((name, "mask"))
        elif name.lower() in ANGLES:
            found.append((name, ANGLES[name.lower()]))
        elif must and re.search(_CUMULATIVE, small):
            found.append((name, "cumulative"))
        elif must and re.fullmatch(_GRID, small):
            found.append((name, "grid"))
        elif must and len(sides) == 2 and small in _SIDES["rows"] | _SIDES["columns"]:
            found.append((name, "rows" if small in _SIDES["rows"] else "columns"))
        elif three and by_role.get(role) == name:
            found.append((name, role))
        elif place == 0:
            found.append((name, "x"))
        elif optional and name.lower() in _SOURCE:
            found.append((name, "kv"))
        elif parameter.has_default:
            continue
        elif name.lower() in _SOURCE or (not three and role in ("k", "v", "kv")):
            found.append((name, role if role in ("k", "v") and role in by_role else "kv"))
        elif place in (1, 2) and not re.search(r"mask|flag|len|train|cache|pos|layer", name):
            found.append((name, "kv"))
        else:
            found.append((name, "none"))
    return tuple(found)


_NO_MARKS = r"len|num|size|count|step|pos|idx|index|time|layer|flag|train|head|cache|past"


def marked(info: ClassInfo, feed: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The same, with marks of the real tokens for what must be given and is no second input."""
    needed = {p.name for p in info.forward[1:] if not p.has_default}
    needed -= {n for n in needed if re.search(_NO_MARKS, n.lower())}
    known = {n for n in needed if n.lower() in _SOURCE or role_of(n) in ("q", "k", "v", "kv")}
    roles = ("kv", "none", "mask")
    return tuple(
        (name, "marks" if name in needed - known and role in roles else role) for name, role in feed
    )


def causal_mask(polarity: str, tokens: int, dtype: torch.dtype) -> Tensor:
    """A causal mask in one of the ways people write it."""
    keep = torch.ones(tokens, tokens).tril().bool()
    if polarity == "keep":
        return keep
    if polarity == "hide":
        return ~keep
    if polarity == "int":
        return keep.to(torch.int64)
    if polarity == "float":
        return keep.to(dtype)
    if polarity == "int-hide":
        return (~keep).to(torch.int64)
    return torch.zeros(tokens, tokens, dtype=dtype).masked_fill(~keep, -torch.inf)


def rotary_tables(
    kind: str, tokens: int, width: int, dtype: torch.dtype
) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
    """Rotary angles with the usual base 10,000, in one of the ways people pass them.

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
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return {"cos": cos, "sin": sin, "cos+sin": (cos, sin), "turns": turns}


# All tokens are real: marked, or not marked as filling.
MARKS: dict[str, tuple[int, torch.dtype]] = {
    "true": (1, torch.bool),
    "false": (0, torch.bool),
    "ones": (1, torch.int64),
    "zeros": (0, torch.int64),
}
POLARITIES = ("keep", "hide", "int", "added", "float", "int-hide")
