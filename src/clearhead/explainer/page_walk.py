"""The steps of a trace, as the page shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from clearhead.drawing.html_page import Walk
from clearhead.explainer.step import Step

# These have a number for each query and key: the page computes them from queries and keys.
_SQUARE = ("attn_scores", "masked_scores", "scaled_scores", "attn_weights")


def walk(x: Tensor, steps: Sequence[Step], form: str, gap: float) -> Walk:
    """The steps of a trace, with the numbers of the first sequence.

    Tables of queries × keys are left out: the page computes them from queries and keys, term by
    term, and shows the terms.

    Args:
        x: The input.
        steps: The steps.
        form: What was traced.
        gap: How far the trace is from the module's own forward pass.
    """
    tensors = {"x": x}
    for step in steps:
        tensors |= {name: t for name, t in step.tensors.items() if name not in _SQUARE}
    # What meets in step 4: queries, keys and values in the last form that they took.
    last = {
        which: [name for name in ("x", *tensors) if name.split("_")[0] in ("x", which)][-1]
        for which in ("queries", "keys", "values")
    }
    width = tensors[last["keys"]].shape[-1]
    scaled = any("scaled_scores" in step.tensors for step in steps)
    arrays = {}
    for name, tensor in tensors.items():
        if tensor.ndim > 2:  # the first sequence
            tensor = tensor[0]
        arrays[name] = tensor.detach().float().cpu().numpy()
    texts: dict[str, Any] = {
        **last,
        "form": form,
        "gap": gap if math.isfinite(gap) else None,
        "width": width if scaled else None,
        "masked": any("masked_scores" in step.tensors for step in steps),
    }
    return Walk([_texts(step) for step in steps], arrays, texts)


def _texts(step: Step) -> dict[str, Any]:
    return {
        "number": step.number,
        "title": step.title,
        "operation": step.operation,
        "formula": step.formula,
        "before": [list(dim) for dim in step.before],
        "dims": {name: [list(dim) for dim in dims] for name, dims in step.dims.items()},
        "code": step.code,
    }
