"""Results -> charts for the documentation, as SVG.

Each SVG carries its numbers as JSON in its description, so that a test can compare them with the
results, whatever version of matplotlib drew the lines.
"""

import html
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

Results = Mapping[str, Any]  # results files by name, without ".json"
OURS = "clearhead"
TIE = 1.03  # ours loses where its time exceeds this multiple of the fastest other's

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = ("#0072b2", "#e69f00", "#56b4e9", "#a05a00", "#009e73", "#cc79a7", "#000000", "#999999")
_MARKERS = "osD^vPx*+<"
_STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.0,
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "clearhead",
}
Point = tuple[float, float, float, float]  # x, y, and the interval of y


@dataclass(frozen=True)
class Chart:
    """What a chart shows.

    Attributes:
        file: The name of its file.
        title: The title.
        alt: A description for readers who cannot see it.
        y: The label of the values.
        panels: Title of each panel -> name of each line -> its points.
        kind: "lines" (both axes logarithmic) or "ratios".
    """

    file: str
    title: str
    alt: str
    y: str
    panels: dict[str, dict[str, list[Point]]]
    kind: str

    def data(self) -> dict[str, Any]:
        """Its numbers, as they are embedded in the file."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data


def cases_of(place: str, results: Results, kind: str = "sweep") -> list[dict[str, Any]]:
    """The cases of a device's "sweep" or "compiled" files, by dtype, direction and length."""
    start = f"attention-{place}-{kind}-"
    cases = [c for name, found in results.items() if name.startswith(start) for c in found["cases"]]
    dtypes = ("float32", "bfloat16")
    return sorted(cases, key=lambda c: (dtypes.index(c["dtype"]), c["direction"], c["tokens"]))


def charts(results: Results) -> list[Chart]:
    """The charts of docs/speed.md."""
    return [*_ratios("cpu", results), *_ratios("h200", results), *_memory(results)]


def _ratios(place: str, results: Results) -> Iterator[Chart]:
    """Our time beside the fastest other contestant's, at each length."""
    panels: dict[str, dict[str, list[Point]]] = {}
    for kind in ("sweep", "compiled"):
        for case in cases_of(place, results, kind):
            if best := case["ours_to_fastest_other"]:
                name = case["dtype"] + (", compiled" if kind == "compiled" else "")
                panel = panels.setdefault(case["direction"].replace("+", " + "), {})
                point = (case["tokens"], best["median"], *best["interval_95"])
                panel.setdefault(name, []).append(point)
    if panels:
        where = place.upper()
        yield Chart(
            f"ratio-{place}.svg",
            f"Our time as a multiple of the fastest other's, {where}",
            f"Our time as a multiple of the fastest other contestant's on the {where}, at each "
            "length, with 95 % intervals. Below 1 we are faster. The table has the numbers.",
            "× the fastest other's time",
            panels,
            "ratios",
        )


def _memory(results: Results) -> Iterator[Chart]:
    """Peak extra memory against length, on the GPU in bfloat16."""
    panels: dict[str, dict[str, list[Point]]] = {}
    for case in cases_of("h200", results):
        for row in case["rows"]:
            if case["dtype"] == "bfloat16" and row.get("peak_extra_mib"):
                value = round(row["peak_extra_mib"] / case["batch"], 4)
                panel = panels.setdefault(case["direction"].replace("+", " + "), {})
                panel.setdefault(row["name"], []).append((case["tokens"], value, value, value))
    if panels:
        yield Chart(
            "memory-h200.svg",
            "Peak extra memory per sequence, H200, bfloat16",
            "Peak extra memory against length on the H200. Ours and the contestants that call SDPA "
            "grow in proportion to the length; the others with its square, until they do not fit.",
            "MiB per sequence",
            panels,
            "lines",
        )


def draw(chart: Chart) -> str:
    """The chart as the text of an SVG file; the same text every time."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.6, 3.6), layout="constrained")
        grid = figure.subplots(1, len(chart.panels), sharey=True, squeeze=False)[0]
        for axes, (title, lines) in zip(grid, chart.panels.items(), strict=True):
            _draw_lines(axes, title, lines, ratios=chart.kind == "ratios")
        grid[0].set_ylabel(chart.y)
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
        figure.suptitle(chart.title, fontsize=11)
        file = io.StringIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(file, format="svg", metadata=metadata, facecolor="white")
    # Title, numbers and a role for screen readers.
    data = html.escape(json.dumps(chart.data(), ensure_ascii=True), quote=False)
    words = f'<title>{html.escape(chart.title)}</title>\n <desc id="data">{data}</desc>'
    svg, opening = file.getvalue(), r"(<svg [^>]*)>"
    text = re.sub(opening, lambda tag: f'{tag[1]} role="img">\n {words}', svg, count=1)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def data_in(svg: str) -> dict[str, Any]:
    """The numbers that a chart's file carries."""
    found = re.search(r'<desc id="data">(.*?)</desc>', svg, re.DOTALL)
    if found is None:
        raise ValueError("the SVG carries no numbers: it was not made by `draw`.")
    data: dict[str, Any] = json.loads(html.unescape(found[1]))
    return data


def _draw_lines(axes: Axes, title: str, lines: dict[str, list[Point]], *, ratios: bool) -> None:
    """One line per name; in the memory chart ours is a broad line below the others."""
    for number, (name, points) in enumerate(lines.items()):
        ours = name == OURS
        x, y, low, high = map(list, zip(*points, strict=True))
        errors = None
        if ratios:  # beside each other, so that intervals do not overlap
            x = [value * 1.035 ** (number - (len(lines) - 1) / 2) for value in x]
            errors = [
                [a - b for a, b in zip(y, low, strict=True)],
                [a - b for a, b in zip(high, y, strict=True)],
            ]
        axes.errorbar(
            x,
            y,
            errors,
            label=name,
            color="#d55e00" if ours else _COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            lw=5.0 if ours else 1.1,
            ms=8.0 if ours else 4.5,
            alpha=0.75 if ours else 1.0,
            capsize=2,
            zorder=2 if ours else 3,
        )
    if ratios:
        axes.axhspan(1.0, TIE, color="0.88", zorder=0, lw=0)
        axes.axhline(1.0, color="0.4", lw=0.8, zorder=1)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(visible=True, axis="y", color="0.9", zorder=0)
    lengths = sorted({point[0] for points in lines.values() for point in points})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(lengths, [f"{length:,.0f}" for length in lengths], fontsize=8)
    axes.tick_params(axis="x", rotation=35)
    axes.set(xlabel="tokens", title=title)
