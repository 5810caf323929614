"""The order of a stranger's axes: every input and output is (batch, tokens, width) for us.

"batch"      (batch, tokens, width)
"first"      (tokens, batch, width)
"channels"   (batch, width, tokens), as convolutions have it
"picture"    (batch, width, height, breadth): the tokens are pixels, row by row
"heads"      (batch, heads, tokens, width), for functions that get their heads ready
"spread"     (batch, tokens, heads, width), likewise
"single"     (tokens, width), one text at a time
"packed"     (batch * tokens, width), all texts in one row
"""

from torch import Tensor

CHANNELS_FIRST = ("channels", "picture")
HEADS_READY = ("heads", "spread")


def height_of(tokens: int) -> int:
    """The height of a picture with so many pixels: as near to a square as can be.

    Examples:
        >>> [height_of(n) for n in (12, 7, 16)]
        [3, 1, 4]
    """
    return next(n for n in range(int(tokens**0.5), 0, -1) if tokens % n == 0)


def given(x: Tensor, axes: str) -> Tensor:
    """An input (batch, tokens, width) as the stranger wants it; "single" gives the first text."""
    if axes == "first":
        x = x.transpose(0, 1)
    elif axes == "channels":
        x = x.transpose(1, 2)
    elif axes == "picture":
        batch, tokens, width = x.shape
        x = x.transpose(1, 2).reshape(batch, width, height_of(tokens), -1)
    elif axes == "heads":
        x = x[None]
    elif axes == "spread":
        x = x.transpose(0, 1)[None]
    elif axes == "single":
        x = x[0]
    elif axes == "packed":
        x = x.flatten(0, 1)
    return x.contiguous()


def taken(out: Tensor, axes: str) -> Tensor:
    """The stranger's output as (batch, tokens, width); not for "single" and "packed"."""
    if axes == "first":
        return out.transpose(0, 1)
    if axes == "channels":
        return out.transpose(1, 2)
    if axes == "picture":
        return out.flatten(2).transpose(1, 2)
    if axes == "heads":
        return out[0]
    if axes == "spread":
        return out[0].transpose(0, 1)
    return out
