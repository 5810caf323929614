"""Checks of arguments, with error messages that explain.

The checks read shapes, dtypes and devices, never values. They cost no device synchronisation and
break no compiled graph.
"""

from numbers import Real

import torch
from torch import Tensor

from clearhead.configs import explain_heads


class ShapeError(ValueError):
    """A tensor does not have the expected shape, dtype or device."""


def describe(tensor: Tensor) -> str:
    """The shape, formatted for messages.

    Examples:
        >>> describe(torch.zeros(2, 6, 768))
        '(2, 6, 768)'
    """
    return "(" + ", ".join(str(size) for size in tensor.shape) + ")"


class ByShape:
    """The repr of a dataclass that holds tensors: their shapes instead of their numbers."""

    def __repr__(self) -> str:
        shown = (
            f"{name} {describe(value)}" if isinstance(value, Tensor) else f"{name}={value!r}"
            for name, value in vars(self).items()
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def check_vectors(
    x: Tensor, d_in: int, weight: Tensor | None, *, name: str = "x", unbatched: bool = False
) -> None:
    """Raise `ShapeError` unless x is (batch, tokens, d_in) with the weights' dtype and device.

    Args:
        x: The input.
        d_in: The width that the module was built for.
        weight: Any weight of the module, to compare dtype and device with; None = unknown.
        name: The name of the argument.
        unbatched: Whether (tokens, d_in) is allowed as well.
    """
    if not isinstance(x, Tensor):
        hint = "Try torch.tensor(x)."
        if isinstance(x, str):
            hint = "Text? tokenizer.encode gives ids, and clearhead.Embedding vectors."
        raise TypeError(f"{name}: expected a tensor, got {type(x).__name__}.\n  {hint}")
    if weight is None:
        weight = x
    shape = x.shape
    alike = x.dtype == weight.dtype and x.device == weight.device
    if alike and len(shape) == 3 and shape[2] == d_in and x.is_floating_point():
        return  # the common case; the rest explains the mismatch
    wanted = f"(batch, tokens, d_in={d_in})" + (f" or (tokens, d_in={d_in})" if unbatched else "")
    if not x.is_floating_point():
        raise ShapeError(
            f"{name}: expected vectors {wanted}, got {dtype_name(x)} of shape {describe(x)}.\n"
            "  Token ids? Embed them first: Embedding(vocab_size, d_model, context_length)(ids)."
        )
    if x.ndim != 3 and not (unbatched and x.ndim == 2):
        hint = {
            1: "One token? Try x[None, None].",
            2: f"One sentence without a batch axis? Try {name}.unsqueeze(0).",
            4: "Already split into heads? Pass the vectors before the split; this module does it.",
        }.get(x.ndim, "Merge or remove axes to get three.")
        raise ShapeError(f"{name}: expected {wanted}, got {describe(x)}.\n  {hint}")
    if x.shape[-1] != d_in:
        hint = f"The last axis is {x.shape[-1]}, but this module was built with d_in={d_in}."
        if x.shape[-2] == d_in:
            hint = f"Axes swapped? Try {name}.transpose(-2, -1)."
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
    """Raise `ShapeError` if a sequence is longer than the module was built for.

    Args:
        tokens: The number of new tokens.
        context_length: The maximum number of tokens.
        name: The name of the argument.
        before: The number of tokens that a cache already holds.
    """
    if before + tokens > context_length:
        got = f"{before} cached + {tokens} new tokens" if before else f"{tokens} tokens"
        room = context_length - before
        fix = "Start again (cache.reset())"
        if room > 0:
            fix = f"Truncate the input ({name}[:, :{room}])"
        raise ShapeError(
            f"{name}: {got}, but context_length is {context_length}.\n"
            f"  {fix}, or build the module with context_length={before + tokens}."
        )


def check_heads(d_out: int, num_heads: int) -> int:
    """Return head_dim; raise ValueError if d_out cannot be split into that many heads.

    Examples:
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
    """The dtype without its `torch.` prefix.

    Examples:
        >>> dtype_name(torch.zeros(2))
        'float32'
    """
    return str(tensor.dtype).removeprefix("torch.")


def is_readable(x: Tensor) -> bool:
    """Whether the values of x can be read at no cost: on the CPU, and not while being traced."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or type(x) is not Tensor:
        return False
    traced: bool = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]  # documented
    return not traced and not is_wrapped(x)


def is_wrapped(x: Tensor) -> bool:
    """Whether x is a wrapper created by `torch.func` (grad, vmap, jvp): these have no storage."""
    try:
        x.untyped_storage()
    except NotImplementedError:
        return True
    return False
