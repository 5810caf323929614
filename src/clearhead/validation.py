"""Named dimensions, and errors that teach.

Every check here reads shapes, dtypes and devices only, never values: it costs no device
synchronisation and breaks no compiled graph.
"""

from numbers import Real

import torch
from torch import Tensor

from clearhead.configs import explain_heads


class ShapeError(ValueError):
    """A tensor does not have the shape, dtype or device that its place asks for."""


def describe(tensor: Tensor) -> str:
    """The shape as people write it.

    >>> describe(torch.zeros(2, 6, 768))
    '(2, 6, 768)'
    """
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


def check_vectors(
    x: Tensor, d_in: int, weight: Tensor | None, *, name: str = "x", unbatched: bool = False
) -> None:
    """Raise `ShapeError` unless x is (batch, tokens, d_in), a float, beside the weights.

    Args:
        x: What the user gave.
        d_in: The width that the module was built for.
        weight: Any weight of the module: x must share its dtype and device. None = not known.
        name: What the argument is called.
        unbatched: Whether (tokens, d_in) is allowed too.
    """
    if weight is None:
        weight = x
    shape = x.shape
    alike = x.dtype == weight.dtype and x.device == weight.device
    if alike and len(shape) == 3 and shape[2] == d_in and x.is_floating_point():
        return  # nearly always: the rest says what is wrong
    wanted = f"(batch, tokens, d_in={d_in})" + (f" or (tokens, d_in={d_in})" if unbatched else "")
    if not x.is_floating_point():
        raise ShapeError(
            f"{name}: expected vectors {wanted}, got {dtype_name(x)} of shape {describe(x)}.\n"
            "  Token ids become vectors first: Embedding(vocab_size, d_model, context_length)(ids)."
        )
    if x.ndim != 3 and not (unbatched and x.ndim == 2):
        hint = {
            1: "One token? Try x[None, None].",
            2: f"One sentence without a batch axis? Try {name}.unsqueeze(0).",
            4: "Already split into heads? This module splits by itself: give it what comes before.",
        }.get(x.ndim, "Merge or drop axes until three are left.")
        raise ShapeError(f"{name}: expected {wanted}, got {describe(x)}.\n  {hint}")
    if x.shape[-1] != d_in:
        hint = f"The last axis is {x.shape[-1]}, but this module was built with d_in={d_in}."
        if x.shape[-2] == d_in:
            hint = f"Axes exchanged? Try {name}.transpose(-2, -1)."
        raise ShapeError(f"{name}: expected {wanted}, got {describe(x)}.\n  {hint}")
    if x.device != weight.device:
        raise ShapeError(
            f"{name} is on {x.device}, but the module's weights are on {weight.device}.\n"
            f'  Move one of them: {name}.to("{weight.device}") or module.to("{x.device}").'
        )
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ShapeError(
            f"{name} is {dtype_name(x)}, but the module's weights are {dtype_name(weight)}.\n"
            f"  Convert one of them: {name}.to(torch.{dtype_name(weight)}) "
            f"or module.to(torch.{dtype_name(x)})."
        )


def check_length(tokens: int, context_length: int, *, name: str = "x", before: int = 0) -> None:
    """Raise `ShapeError` when a sequence is longer than the module was built for.

    Args:
        tokens: How many tokens came.
        context_length: How many there may be.
        name: What the argument is called.
        before: How many tokens a cache already holds.
    """
    if before + tokens > context_length:
        came = f"{before} cached + {tokens} new tokens" if before else f"{tokens} tokens"
        room = context_length - before
        cut = f"Cut the input ({name}[:, :{room}])" if room > 0 else "Begin again (cache.reset())"
        raise ShapeError(
            f"{name}: {came}, but context_length is {context_length}.\n"
            f"  {cut}, or build the module with context_length={before + tokens}."
        )


def check_heads(d_out: int, num_heads: int) -> int:
    """The head_dim, or a ValueError when d_out cannot be split into that many heads.

    >>> check_heads(768, 12)
    64
    """
    check_sizes(num_heads=num_heads)
    if d_out % num_heads:
        raise ValueError(
            f"d_out ({d_out}) must be divisible by num_heads ({num_heads}).\n"
            f"  {explain_heads(d_out, num_heads)}"
        )
    return d_out // num_heads


def check_sizes(**sizes: int) -> None:
    """Raise ValueError unless every named size is a whole number of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}.")


def check_dropout(dropout: float) -> None:
    """Raise ValueError unless dropout is a probability."""
    is_number = isinstance(dropout, Real) and not isinstance(dropout, bool)
    if not is_number or not 0.0 <= dropout <= 1.0:
        percent = is_number and 1 < dropout <= 100
        raise ValueError(
            f"dropout is the probability of dropping a weight: expected 0 to 1, got {dropout!r}."
            + (f"\n  A percentage? {dropout} % is {dropout / 100:g}." if percent else "")
        )


def dtype_name(tensor: Tensor) -> str:
    """The dtype as people say it.

    >>> dtype_name(torch.zeros(2))
    'float32'
    """
    return str(tensor.dtype).removeprefix("torch.")


def is_readable(x: Tensor) -> bool:
    """Whether its values can be read now at no cost: on the CPU, and no graph is being made."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or type(x) is not Tensor:
        return False
    inside = torch._C._functorch.peek_interpreter_stack()
    return inside is None and torch._C._get_tracing_state() is None
