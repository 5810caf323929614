"""Numbers of the evidence in plain words."""

import math


def share(part: float) -> str:
    """A part of a whole: a percentage, or how many times the whole where it is far larger.

    Examples:
        >>> share(0.821), share(0.004), share(2.4), share(31.0)
        ('82%', '0.4%', '240%', '31 times')
    """
    if part >= 10:
        return f"{part:.2g} times" if part < 1000 else f"{part:.0e} times"
    percent = 100 * part
    if percent >= 1:
        return f"{percent:.0f}%"
    return f"{percent:.1g}%" if percent >= 0.001 else "less than 0.001%"


def differs(gap: float) -> str:
    """How far an output is from right attention.

    Args:
        gap: The size of the difference, divided by the size of the right output.

    Examples:
        >>> differs(0.82)
        'The output differs from right attention by 82% of its size.'
    """
    if not math.isfinite(gap):
        return "The output is not finite, and that of right attention is."
    by = share(gap) if gap >= 10 else f"{share(gap)} of"
    return f"The output differs from right attention by {by} its size."


def together(others: int) -> str:
    """The end of "what you get when ...", where other mistakes are made at the same time.

    Examples:
        >>> together(0), together(1), together(2)
        ('', ' and the other mistake is made too', ' and the other mistakes are made too')
    """
    if others == 0:
        return ""
    return f" and the other mistake{' is' if others == 1 else 's are'} made too"
