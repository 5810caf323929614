"""A mask as the arguments of a fused kernel: a diagonal, a window, valid keys."""

from typing import Any

import torch

from clearhead.masks.mask import Band, Mask, Padding, tighter


def as_band(
    mask: Mask | None, queries: int, keys: int, device: torch.device
) -> dict[str, Any] | None:
    """The arguments of a kernel that supports causality, a window and padding.

    Returns:
        None for any other mask, otherwise a dictionary:

        causal: Whether key j is hidden from query i when j > i + causal_offset.
        causal_offset: Where the diagonal begins.
        window: How many keys up to the diagonal are visible, or None.
        key_valid: Which keys are visible at all, bool (batch, keys), or None.
    """
    found: dict[str, Any] = {
        "causal": False,
        "causal_offset": keys - queries,
        "window": None,
        "key_valid": None,
    }
    offsets = set()
    for part in [] if mask is None else mask.parts():
        if isinstance(part, Band) and part.ahead in (None, 0):
            offsets.add(part.offset(queries, keys))
            found["causal"] |= part.ahead == 0
            found["window"] = tighter(found["window"], None if part.back is None else part.back + 1)
        elif isinstance(part, Padding):
            part.check(None, None, queries, keys)
            valid = part.visible_keys(keys, device)
            found["key_valid"] = valid if found["key_valid"] is None else found["key_valid"] & valid
        else:
            return None
    if len(offsets) > 1:
        return None
    return found | ({"causal_offset": offsets.pop()} if offsets else {})
