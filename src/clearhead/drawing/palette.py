"""The colours of all drawings: even steps of lightness, readable for colour-blind people."""

from __future__ import annotations

# Nine points of matplotlib's viridis.
VIRIDIS = (
    (68, 1, 84),
    (71, 44, 122),
    (59, 81, 139),
    (44, 113, 142),
    (33, 144, 141),
    (39, 173, 129),
    (92, 200, 99),
    (170, 220, 50),
    (253, 231, 37),
)


def shade(share: float) -> str:
    """The colour of a share of the largest value, from dark (0) to bright (1).

    >>> shade(0.0), shade(1.0)
    ('#440154', '#fde725')
    """
    red, green, blue = _rgb(share)
    return f"#{red:02x}{green:02x}{blue:02x}"


def text_on(share: float) -> str:
    """Black or white: whichever can be read better on `shade(share)`.

    >>> text_on(0.0), text_on(1.0)
    ('#ffffff', '#000000')
    """
    red, green, blue = _rgb(share)
    # Relative luminance (WCAG): at 0.179 black and white text can be read equally well.
    light = 0.2126 * _linear(red) + 0.7152 * _linear(green) + 0.0722 * _linear(blue)
    return "#000000" if light > 0.179 else "#ffffff"


def _rgb(share: float) -> tuple[int, int, int]:
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    part = place - low
    pairs = zip(VIRIDIS[low], VIRIDIS[low + 1], strict=True)
    red, green, blue = (round(a + (b - a) * part) for a, b in pairs)
    return red, green, blue


def _linear(channel: int) -> float:
    share = channel / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
