r"""Arrays and labels -> figures for papers, drawn with matplotlib: vector, labelled, reproducible.

The same array always yields the same file, byte for byte: no dates and no random names. Labels are
literal (`$x$` is not a formula), and a character without a glyph becomes an escape (`\u4e2d`).
matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clearhead.atomic_files import beside, check_place
from clearhead.drawing.palette import DECADES, MANY_ROWS, VIRIDIS, text_on
from clearhead.drawing.text_format import Axis, escaped, number, shorten, visible
from clearhead.version import install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clearhead.drawing.html_page import Layer

SUFFIXES = (".svg", ".png", ".pdf")

_FEW = 10  # up to this many rows and columns, each cell shows its number
_LABELS = 64  # with more positions than this, an axis has numbers instead of labels
_LABELS_IN_GRID = 16
_LABEL_WIDTH = 16
_VECTOR_SIDE = 64  # larger arrays, and many panels, are stored as images
_VECTOR_CELLS = 20_000
_IMAGE_SIDE = 768  # minimum pixels of such an image, because some viewers blur small ones
# Tried in this order when the first has no glyph for a character.
_FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans CJK KR",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Arial Unicode MS",
)
_STYLE: dict[str, Any] = {
    "axes.linewidth": 0.6,
    "axes.labelsize": 8.0,
    "axes.titlesize": 8.0,
    "axes.titlepad": 4.0,
    "font.size": 8.0,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # text stays text, so that it can be searched and edited
    "svg.fonttype": "none",
    "svg.hashsalt": "clearhead",
    "text.usetex": False,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
}


@dataclass(frozen=True, eq=False)
class Panel:
    """One array to draw.

    Attributes:
        values: The numbers, rows × columns.
        rows: What the rows are.
        columns: What the columns are.
        hidden: True for cells to hatch instead; None for none. NaN is always hatched.
        title: The title of the panel.
    """

    values: Any
    rows: Axis
    columns: Axis
    hidden: Any = None
    title: str = ""


def figure(
    panels: Sequence[Panel],
    *,
    wide: int | None = None,
    legend: str = "",
    log: bool = False,
    show: bool = False,
    title: str = "",
) -> Figure:
    """A figure of one panel, or of several in a grid with a shared colour scale.

    With many rows, the scale ends at a value that a quarter of the rows exceed, as on a page (see
    `palette.MANY_ROWS`). The colour bar is labelled accordingly.

    Args:
        panels: What to draw, row by row.
        wide: Panels per row; by default the grid is about as wide as high.
        legend: What the colours mean.
        log: Use a logarithmic colour scale.
        show: Register the figure with pyplot, so that notebooks and `plt.show()` show it.
        title: The title of the figure.
    """
    need_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("panels: expected at least one, got none.")
    wide = wide or (4 if 6 < len(panels) <= 16 else math.ceil(math.sqrt(len(panels))))
    high = math.ceil(len(panels) / wide)
    width, height = _size(panels, wide)
    with mpl.rc_context(_style()):
        if show:
            from matplotlib import pyplot

            made = pyplot.figure(figsize=(wide * width + 0.8, high * height + 0.4))
        else:
            made = Figure(figsize=(wide * width + 0.8, high * height + 0.4))
        made.set_layout_engine("constrained")
        grid = made.subplots(high, wide, squeeze=False)
        top, vector = _top(panels), sum(_shown(each).size for each in panels) <= _VECTOR_CELLS
        dots = _IMAGE_SIDE if len(panels) <= 16 else _IMAGE_SIDE // 2  # to limit the memory
        image: Any = None
        for index, axes in enumerate(grid.flat):
            if index >= len(panels):
                axes.set_axis_off()
                continue
            alone = len(panels) == 1
            look: dict[str, Any] = {"alone": alone, "vector": vector, "dots": dots}
            image = draw(axes, panels[index], top=top, log=log, **look)
            if len(panels) > 1:  # labels on the outer sides only
                axes.set(xlabel="", ylabel="")
                axes.tick_params(labelleft=index % wide == 0)
                axes.tick_params(labelbottom=index + wide >= len(panels))
        if len(panels) > 1:
            made.supxlabel(panels[0].columns.title, fontsize=8, parse_math=False)
            made.supylabel(panels[0].rows.title, fontsize=8, parse_math=False)
        more = _largest(panels) > top
        bar = made.colorbar(
            *(image,),
            ax=grid,
            shrink=min(1.0, 2.4 / (high * height)),
            aspect=24,
            extend="max" if more else "neither",
        )
        bar.outline.set_linewidth(0.5)
        bar.ax.tick_params(length=2, width=0.5)
        parts = [legend, f"brightest at {top:.2g} and more" if more else ""]
        bar.set_label(", ".join(filter(None, parts)), parse_math=False)
        if title:
            made.suptitle(_with_glyphs(visible(title)), fontsize=10, parse_math=False)
    return made


def draw(
    axes: Axes,
    panel: Panel,
    *,
    top: float | None = None,
    log: bool = False,
    alone: bool = True,
    vector: bool = True,
    dots: int = _IMAGE_SIDE,
) -> Any:
    """Draw one panel into the axes of a figure.

    Args:
        axes: Where to draw.
        panel: What to draw.
        top: The value of the brightest colour; by default chosen as in `figure`.
        log: Use a logarithmic colour scale.
        alone: Whether the panel has room for many labels, and for numbers in the cells.
        vector: Draw each cell of a small array as a separate shape.
        dots: The minimum number of pixels per side, if the array is drawn as an image.

    Returns:
        What matplotlib needs to draw a colour bar.
    """
    need_matplotlib()
    import numpy
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.patches import Rectangle

    rows, columns = panel.rows, panel.columns
    values = _shown(panel)
    top = _top([panel]) if top is None else top
    norm = LogNorm(top / 10**DECADES, top, clip=True) if log else Normalize(0.0, top, clip=True)
    points = [tuple(channel / 255 for channel in point) for point in VIRIDIS]
    colours = LinearSegmentedColormap.from_list("clearhead", points)
    # Hidden cells are not drawn, so the hatched background shows.
    ground = Rectangle((0, 0), columns.size, rows.size, facecolor="white", edgecolor="0.75")
    ground.set(hatch="/////", linewidth=0, zorder=0)
    axes.add_patch(ground)
    high, wide = values.shape
    across = numpy.linspace(0, columns.size, wide + 1)
    down = numpy.linspace(0, rows.size, high + 1)
    look: dict[str, Any] = {"cmap": colours, "norm": norm, "zorder": 1}
    if vector and max(high, wide) <= _VECTOR_SIDE:
        image: Any = axes.pcolormesh(across, down, values, **look)
    else:
        extent, each = (0, columns.size, rows.size, 0), -(-dots // max(high, wide))
        large = values.repeat(each, 0).repeat(each, 1)
        image = axes.imshow(large, extent=extent, interpolation="none", aspect="auto", **look)
    axes.set(xlim=(0, columns.size), ylim=(rows.size, 0), aspect="equal")
    if max(rows.size, columns.size) > 8 * min(rows.size, columns.size):
        axes.set_aspect("auto")
    for spine in axes.spines.values():  # below the cells, or it covers the first row and column
        spine.set(zorder=0.5, linewidth=1.0)
    _ticks(axes, columns, "x", alone=alone)
    _ticks(axes, rows, "y", alone=alone)
    if panel.title:
        axes.set_title(_with_glyphs(panel.title), parse_math=False)
    few = alone and max(high, wide) <= _FEW and (high, wide) == (rows.size, columns.size)
    for i, j in numpy.ndindex(high, wide) if few else ():
        if values[i, j] is not numpy.ma.masked:
            text = number(float(values[i, j]), 2)
            colour = text_on(float(norm(values[i, j])))
            axes.text(j + 0.5, i + 0.5, text, color=colour, ha="center", va="center", fontsize=6)
    return image


def layer_figure(layer: Layer, *, title: str = "") -> Figure:
    """A figure of a layer of a page: one panel per head."""
    rows = Axis("query", len(layer.rows), layer.rows)
    columns = Axis("key", len(layer.columns), layer.columns)
    hidden = [None] * len(layer.heads) if layer.hidden is None else layer.hidden
    panels = [
        Panel(weights, rows, columns, hides, f"head {number}")
        for weights, hides, number in zip(layer.weights, hidden, layer.heads, strict=True)
    ]
    return figure(panels, legend="attention weight", title=title)


def write(made: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to an SVG, PNG or PDF file. The same figure always yields the same bytes."""
    path = Path(path)
    check_path(path)
    import matplotlib as mpl

    dateless: dict[str, dict[str, Any]] = {
        ".svg": {"Date": None, "Creator": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        ".png": {"Software": None},
    }
    kind = path.suffix.lower()
    # In a vector file cells overlap their borders, or viewers show hairlines between them.
    border = {"edgecolor": "face", "linewidth": 0.5} if kind != ".png" else {}
    with beside(path) as whole, mpl.rc_context(_style()):
        for axes in made.axes:
            for cells in axes.collections:
                cells.set(**border)
        made.savefig(whole, dpi=300, format=kind[1:], metadata=dateless[kind], facecolor="white")


def check_path(path: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise unless a figure, or a file with one of these suffixes, can be written there."""
    if not path.name:
        raise ValueError("The file name is empty.")
    if path.suffix.lower() not in suffixes:
        raise ValueError(
            f"{path}: expected a file name that ends in {', '.join(suffixes)}, "
            f"got {path.suffix or 'no suffix'!r}.\n"
            f"  The suffix decides the format. Try {path.with_suffix(suffixes[0]).name}."
        )
    check_place(path)


def need_matplotlib() -> None:
    """Raise ImportError, with the command that installs it, if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401  # only to check that it is installed
    except ImportError:
        raise ImportError(
            "Figures need matplotlib, which is not installed.\n"
            f"  Install it with: {install('plot')}"
        ) from None


def _style() -> Any:
    return {**_STYLE, "font.family": list(_families())}


def _size(panels: Sequence[Panel], wide: int) -> tuple[float, float]:
    """Width and height of a panel in inches: enough for its labels, small enough for a page."""
    if len(panels) > 1:
        each = min(max(7.0 / wide, 0.7), 1.7)
        return each, each + 0.15
    inches = []
    for axis in (panels[0].columns, panels[0].rows):
        labelled = axis.labels is not None and axis.size <= _LABELS
        inches.append(min(max(axis.size * 0.16, 2.2), 6.5) if labelled else 3.6)
    return inches[0] + 0.5, inches[1] + 0.5


def _shown(panel: Panel) -> Any:
    """The numbers, masked where they are hidden or not finite."""
    import numpy

    values = numpy.ma.masked_invalid(numpy.asarray(panel.values, dtype=float))
    if panel.hidden is not None:
        values = numpy.ma.masked_where(numpy.asarray(panel.hidden, dtype=bool), values)
    return values


def _largest(panels: Sequence[Panel]) -> float:
    """The largest number shown in any panel."""
    largest = [float(values.max()) for values in map(_shown, panels) if values.count()]
    return max(largest, default=1.0) or 1.0


def _top(panels: Sequence[Panel]) -> float:
    """The value of the brightest colour, as `brightest` in matrix_drawing.js computes it."""
    tops = []
    for values in map(_shown, panels):
        bests = sorted(values[values.count(1) > 1].max(1).filled(0.0).tolist())
        tops.append(bests[len(bests) * 3 // 4] if len(bests) > MANY_ROWS else 0.0)
        tops[-1] = tops[-1] or (float(values.max()) if values.count() else 0.0)
    return max(tops, default=0.0) or 1.0


def _ticks(axes: Axes, axis: Axis, side: Literal["x", "y"], *, alone: bool) -> None:
    """Labels where they fit, numbers where they do not."""
    from matplotlib.ticker import MaxNLocator

    one = axes.xaxis if side == "x" else axes.yaxis
    one.set_label_text(axis.title, parse_math=False)
    if axis.labels is not None and axis.size <= (_LABELS if alone else _LABELS_IN_GRID):
        centres = [position + 0.5 for position in range(axis.size)]
        labels = [_with_glyphs(shorten(label, _LABEL_WIDTH)) for label in axis.labels]
        size = (7.0 if axis.size <= 32 else 5.0) if alone else 5.0
        one.set_ticks(centres, labels, parse_math=False, fontsize=size)
        axes.tick_params(axis=side, length=0)
        if side == "x":
            axes.tick_params(axis="x", rotation=90)
        return
    one.set_major_locator(MaxNLocator(nbins=6 if alone else 3, integer=True))
    one.set_major_formatter(lambda value, _: f"{value:,.0f}")


@lru_cache(maxsize=1)
def _families() -> tuple[str, ...]:
    """The fonts of the list that are installed. The first comes with matplotlib."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(name for name in _FONTS if name in installed)


@lru_cache(maxsize=1)
def _glyphs() -> frozenset[int]:
    """The characters that these fonts can draw."""
    from matplotlib import font_manager

    found: set[int] = set()
    for name in _families():
        path = font_manager.findfont(name, fallback_to_default=False)
        found.update(font_manager.get_font(path).get_charmap())
    return frozenset(found)


def _with_glyphs(label: str) -> str:
    known = _glyphs()
    return "".join(c if ord(c) in known else escaped(c) for c in label)
