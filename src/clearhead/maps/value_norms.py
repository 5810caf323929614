"""The norms of the values: how much a key contributes for each unit of weight.

    ‖f(v_j)‖          f multiplies with the head's columns of the output projection, if it is given

Weight times norm is what a key adds to the output (Kobayashi et al. 2020, "Attention is Not Only a
Weight"). A key can have a large weight and a value near zero.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.validation import ShapeError, describe


def needed(values: Tensor | None) -> Tensor:
    """The values of a map, or an error that says where to get them."""
    if values is None:
        raise ValueError(
            "values: this map holds none, and the measure needs them.\n"
            "  Record them with watch(model, values=True), or pass AttentionMap(..., values=v)."
        )
    return values


def value_norms(
    values: Float[Tensor, "batch kv_heads keys value_dim"],
    head_numbers: Sequence[int],
    output: Float[Tensor, "d_model width"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "batch heads keys"]:
    """The norm of each value, per head.

    Args:
        values: The values.
        head_numbers: The number of each head in its layer.
        output: The weight of the output projection, (d_model, heads · value_dim).
        dtype: The dtype to compute in.
    """
    width, group = values.shape[3], len(head_numbers) // values.shape[1]
    last = max(head_numbers, default=0)
    if output is not None and (
        output.ndim != 2 or output.shape[1] % width or last >= output.shape[1] // width
    ):
        raise ShapeError(
            f"output: expected the weight of the output projection, (d_model, heads * value_dim) "
            f"with value_dim={width} and at least {last + 1} heads, got "
            f"{describe(output)}.\n  A Conv1D, as in GPT-2, holds it transposed: pass weight.T."
        )
    found = []
    for head, number in enumerate(head_numbers):
        v = values[:, head // group].to(dtype)
        if output is not None:
            part = output[:, number * width : (number + 1) * width].detach().to(v)
            v = v @ torch.linalg.qr(part, mode="r").R.mT  # ‖W v‖ = ‖R v‖ with W = QR; R is small
        found.append(torch.linalg.vector_norm(v, dim=-1))
    return torch.stack(found, 1)
