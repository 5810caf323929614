"""A mask in the few numbers that a fused kernel understands: a diagonal, a window, valid keys."""

from typing import Any

import torch

from clearhead.masks.kinds import Band, Padding, tighter
from clearhead.masks.mask import Mask


def as_band(
    mask: Mask | None, queries: int, keys: int, device: torch.device
) -> dict[str, Any] | None:
    """The mask for a kernel that knows causality, a window and padding; None for any other mask.

    Returns:
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
            offsets.add(part._offset(queries, keys))
            found["causal"] |= part.ahead == 0
            found["window"] = tighter(found["window"], None if part.back is None else part.back + 1)
        elif isinstance(part, Padding):
            part.check(None, None, queries, keys)
            real = part.real.to(device)
            valid = part._visible(real, torch.arange(keys, device=device), keys)
            found["key_valid"] = valid if found["key_valid"] is None else found["key_valid"] & valid
        else:
            return None
    if len(offsets) > 1:
        return None
    return found | ({"causal_offset": offsets.pop()} if offsets else {})
