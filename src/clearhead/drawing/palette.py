"""Every colour that Clearhead draws with: the scale of heatmaps and the two themes of its pages.

Terminal and figures read these constants; pages receive them as `css` and `script` when they are
built, so a colour changes here and nowhere else.
"""

from __future__ import annotations

import json

# Nine points of matplotlib's viridis: even steps of lightness, readable for colour-blind people.
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
# A logarithmic scale ends this many powers of ten below the brightest value.
DECADES = 4
# With more rows than this, the brightest colour is not that of the largest value: a few rows that
# attend to only one or two keys have values near 1, and all others would be dark. The
# scale then ends at a value that a quarter of the rows exceed.
MANY_ROWS = 32

# The CSS variables of pages, each in the light and in the dark theme. `head-0` and so on are for
# heads that are shown side by side.
THEMES = {
    "back": ("#fbfaf7", "#14161a"),
    "card": ("#ffffff", "#1d2026"),
    "text": ("#1e2126", "#eceae5"),
    "quiet": ("#5a5f69", "#a9adb6"),
    "line": ("#dcd9d2", "#353a43"),
    "soft": ("#f1efe9", "#23272e"),
    "accent": ("#2c5f8e", "#7fb8ee"),
    "accent-text": ("#ffffff", "#10131a"),
    "mark": ("#1e2126", "#eceae5"),
    "mark-text": ("#ffffff", "#14161a"),
    "bar": ("#8aa0b8", "#5d7691"),
    "hatch": ("#d3cfc5", "#3a3f48"),
    "hatch-back": ("#f3f1ec", "#1b1e23"),
    "cross": ("#ffffff", "#ffffff"),
    "cross-under": ("#14161a", "#000000"),
    "focus": ("#b3470f", "#ffb066"),
    "negative": ("#2b7bba", "#4f9fe0"),
    "positive": ("#d9761a", "#e58a35"),
    "head-0": ("#0072b2", "#56b4e9"),
    "head-1": ("#c65a00", "#f0953f"),
    "head-2": ("#00805d", "#2fc79a"),
    "head-3": ("#b04a86", "#e48fc4"),
    "head-4": ("#7a6200", "#d9c34a"),
    "head-5": ("#3f7fa8", "#9cc3dd"),
    "head-6": ("#6a4ea8", "#b79bf2"),
    "head-7": ("#666666", "#b5b5b5"),
}


def shade(share: float) -> str:
    """The colour for a share of the largest value, from dark (0) to bright (1).

    Examples:
        >>> shade(0.0), shade(1.0)
        ('#440154', '#fde725')
    """
    red, green, blue = _rgb(share)
    return f"#{red:02x}{green:02x}{blue:02x}"


def text_on(share: float) -> str:
    """Black or white, whichever is easier to read on `shade(share)`.

    Examples:
        >>> text_on(0.0), text_on(1.0)
        ('#ffffff', '#000000')
    """
    red, green, blue = _rgb(share)
    # Relative luminance (WCAG). At 0.179, black and white text have the same contrast.
    luminance = 0.2126 * _linear(red) + 0.7152 * _linear(green) + 0.0722 * _linear(blue)
    return "#000000" if luminance > 0.179 else "#ffffff"


def css() -> str:
    """The themes as CSS variables: the reader's choice, or else what the system prefers."""

    def rule(selector: str, theme: int) -> str:
        scheme = ("light", "dark")[theme]
        variables = "".join(f" --{name}: {pair[theme]};" for name, pair in THEMES.items())
        return f"{selector} {{ color-scheme: {scheme};{variables} }}\n"

    return (
        rule(":root", 0)
        + f"@media (prefers-color-scheme: dark) {{\n{rule(':root:not([data-theme])', 1)}}}\n"
        # Pages with scripts set `data-theme`. Where there is none, `#theme=dark` is the id of the
        # root element and `#theme=light` that of its body.
        + rule(':root[data-theme="dark"], :root:target', 1)
        + rule(":root:has(> body:target)", 0)
    )


def script() -> str:
    """The scale of heatmaps, and the number of colours for heads, as a JavaScript constant."""
    palette = {
        "scale": VIRIDIS,
        "decades": DECADES,
        "manyRows": MANY_ROWS,
        "heads": sum(name.startswith("head-") for name in THEMES),
    }
    return f"const PALETTE = {json.dumps(palette)};\n"


def _rgb(share: float) -> tuple[int, int, int]:
    position = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(position), len(VIRIDIS) - 2)
    part = position - low
    pairs = zip(VIRIDIS[low], VIRIDIS[low + 1], strict=True)
    red, green, blue = (round(a + (b - a) * part) for a, b in pairs)
    return red, green, blue


def _linear(channel: int) -> float:
    share = channel / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
