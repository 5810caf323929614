"""Measured files -> charts for the documentation, as SVG. Importing this file imports no torch.

Each SVG carries its numbers as JSON in its description, so that a test can compare them with the
measured files whatever version of matplotlib drew the lines.
"""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Found = Mapping[str, Any]  # a measured file
PASSES = ("forward", "forward+backward")
LOSING = 1.03  # ours is slower than the fastest other by more than that: we lose
OURS = "clearhead"

# Okabe and Ito's colours, which colour-blind people can tell apart; a marker besides. Who builds
# tokens × tokens has a broken line.
_LOOKS: dict[str, tuple[str, str, str]] = {
    "book's class (rung 4)": ("#000000", "s", "--"),
    "wrapper of heads (rung 3½)": ("#999999", "D", "--"),
    "einsum": ("#cc79a7", "v", "--"),
    "nn.MultiheadAttention, weights": ("#e69f00", "^", "--"),
    "nn.MultiheadAttention, no weights": ("#a05a00", "P", "--"),
    "separate QKV + SDPA": ("#0072b2", "o", "-"),
    "fused QKV + SDPA": ("#56b4e9", "x", "-"),
    "transformers GPT2Attention": ("#009e73", "+", "-"),
    "x-transformers": ("#5b3fa0", "*", "-"),
    OURS: ("#d55e00", "o", "-"),
    "float32": ("#0072b2", "o", "-"),
    "bfloat16": ("#d55e00", "s", "-"),
    "float32, compiled": ("#56b4e9", "D", "--"),
    "bfloat16, compiled": ("#e69f00", "v", "--"),
}
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


@dataclass(frozen=True)
class Line:
    """One line: (x, y, lowest y, highest y) of each point; or bars of the same, x being empty."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True)
class Panel:
    """Lines under one title."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Chart:
    """What a chart shows.

    Attributes:
        file: The name of its file.
        title: What stands above it.
        alt: What it shows, for who cannot see it.
        y: What the numbers are.
        panels: The parts, side by side.
        kind: "lines" (both axes logarithmic), "ratios" or "bars".
    """

    file: str
    title: str
    alt: str
    y: str
    panels: tuple[Panel, ...]
    kind: str = "lines"

    def data(self) -> dict[str, Any]:
        """Its numbers, as they are found again in the file."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data


def charts(results: Mapping[str, Found]) -> list[Chart]:
    """Every chart that these measured files give, by their names without the end."""
    found: list[Chart] = []
    places = sorted({place_of(name) for name in results if is_sweep(name)})
    for place in places:
        found += _times(place, results)
    for place in places:
        found += _ratios(place, results)
    found += _maps(results)
    return found


def is_sweep(name: str) -> bool:
    """Whether a file holds all contestants at several lengths."""
    return "-sweep-" in name


def is_compiled(name: str) -> bool:
    """Whether a file holds compiled contestants."""
    return name.startswith("attention-") and "-compiled-" in name


def place_of(name: str) -> str:
    """The device's part of a file name.

    >>> place_of("attention-h200-sweep-bfloat16")
    'h200'
    """
    return re.split(r"-(?:sweep|compiled)-", name.removeprefix("attention-"))[0]


def cases_of(
    place: str, results: Mapping[str, Found], *, compiled: bool = False
) -> list[Mapping[str, Any]]:
    """The cases of a device's sweep, by dtype, pass and length."""
    wanted = is_compiled if compiled else is_sweep
    cases = [
        case
        for name, found in results.items()
        if wanted(name) and place_of(name) == place
        for case in found["cases"]
    ]
    order = ("float32", "bfloat16")
    return sorted(
        cases,
        key=lambda c: (order.index(c["dtype"]), PASSES.index(c["direction"]), c["tokens"]),
    )


def place_words(place: str) -> str:
    """The device's name as people write it."""
    return "CPU" if place == "cpu" else place.upper()


def _times(place: str, results: Mapping[str, Found]) -> Iterator[Chart]:
    """Time, and memory, against length, for each dtype."""
    cases = cases_of(place, results)
    where = place_words(place)
    for dtype in dict.fromkeys(case["dtype"] for case in cases):
        of_dtype = [case for case in cases if case["dtype"] == dtype]
        lengths = sorted({case["tokens"] for case in of_dtype})
        span = f"{lengths[0]:,} to {lengths[-1]:,} tokens"
        for key, word, y in (
            ("median_ms", "time", "ms for one sequence"),
            ("peak_extra_mib", "memory", "MiB for one sequence"),
        ):
            panels = tuple(
                Panel(
                    direction.replace("+", " + "),
                    _lines([case for case in of_dtype if case["direction"] == direction], key),
                )
                for direction in PASSES
            )
            if not any(panel.lines for panel in panels):
                continue
            yield Chart(
                f"{word}-{place}-{dtype}.svg",
                f"{'Time' if word == 'time' else 'Peak extra memory'}, {where}, {dtype}",
                f"{word.capitalize()} against length, {span}, {dtype} on the {where}, forward and "
                "forward + backward: a line for each way to write attention. The numbers are in "
                "the tables below.",
                y,
                panels,
            )


def _lines(cases: Sequence[Mapping[str, Any]], key: str) -> tuple[Line, ...]:
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for case in cases:
        for row in case["rows"]:
            if row["status"] == "timed" and row.get(key):
                value = round(row[key] / case["batch"], 4)
                points.setdefault(row["name"], []).append((case["tokens"], value, value, value))
    return tuple(Line(name, tuple(found)) for name, found in points.items())


def _ratios(place: str, results: Mapping[str, Found]) -> Iterator[Chart]:
    """Ours beside the fastest other at each length."""
    lines: dict[str, dict[str, list[tuple[float, float, float, float]]]] = {}
    for compiled in (False, True):
        for case in cases_of(place, results, compiled=compiled):
            best = case["ours_to_fastest_other"]
            if best:
                name = case["dtype"] + (", compiled" if compiled else "")
                low, high = best["interval_95"]
                point = (case["tokens"], best["median"], low, high)
                lines.setdefault(case["direction"], {}).setdefault(name, []).append(point)
    if lines:
        where = place_words(place)
        yield Chart(
            f"ratio-{place}.svg",
            f"Our time beside the fastest other's, {where}",
            f"Our time as a multiple of the fastest other's on the {where}, at each length, with "
            "95 % intervals, for each dtype. Below 1 we are faster. The numbers are in the table "
            "below.",
            "× the fastest other's time",
            tuple(
                Panel(
                    direction.replace("+", " + "),
                    tuple(Line(name, tuple(points)) for name, points in lines[direction].items()),
                )
                for direction in PASSES
                if direction in lines
            ),
            "ratios",
        )


def _maps(results: Mapping[str, Found]) -> Iterator[Chart]:
    """The statistics of a whole map beside the forward pass."""
    panels = []
    for name, found in results.items():
        if found.get("benchmark") != "maps":
            continue
        where = place_words(name.removeprefix("maps-").rpartition("-")[0])
        for case in found["cases"]:
            bars = []
            for row in case["rows"]:
                ratio = row.get("ratio_to_ours")
                if row["status"] == "timed" and ratio and row["name"].startswith("summary"):
                    low, high = ratio["interval_95"]
                    bars.append(Line(row["name"], ((0.0, ratio["median"], low, high),)))
            panels.append(
                (case["tokens"], Panel(f"{where}, {case['tokens']:,} tokens", tuple(bars)))
            )
    if panels:
        yield Chart(
            "maps.svg",
            "Statistics of a whole map beside one forward pass",
            "The time of a map's summary (entropy, received, thumbnail and previous, in one pass) "
            "as a multiple of the fused forward pass. The numbers are in the tables below.",
            "× the forward pass",
            tuple(panel for _, panel in sorted(panels, key=lambda pair: pair[0])),
            "bars",
        )


def draw(chart: Chart) -> str:
    """The chart as the text of an SVG file; the same every time."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        if chart.kind == "bars":
            figure = Figure(figsize=(7.6, 0.75 + 0.62 * len(chart.panels)), layout="constrained")
            _draw_bars(figure.subplots(), chart)
        else:
            tall = 3.9 if chart.kind == "lines" else 3.3
            figure = Figure(figsize=(7.6, tall), layout="constrained")
            grid = figure.subplots(1, len(chart.panels), sharey=True, squeeze=False)[0]
            for axes, panel in zip(grid, chart.panels, strict=True):
                (_draw_lines if chart.kind == "lines" else _draw_ratios)(axes, panel)
            grid[0].set_ylabel(chart.y)
            by_name: dict[str, Any] = {}
            for axes in grid:
                handles, labels = axes.get_legend_handles_labels()
                by_name |= dict(zip(labels, handles, strict=True))
            figure.legend(
                list(by_name.values()),
                list(by_name),
                loc="outside lower center",
                ncols=3,
                fontsize=8,
            )
        figure.suptitle(chart.title, fontsize=11)
        file = io.StringIO()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(file, format="svg", metadata=metadata, facecolor="white")
    return _with_words(file.getvalue(), chart)


def data_in(svg: str) -> dict[str, Any]:
    """The numbers that a chart's file carries."""
    found = re.search(r'<desc id="data">(.*?)</desc>', svg, re.DOTALL)
    if found is None:
        raise ValueError("the SVG carries no numbers: it was not made by `draw`.")
    data: dict[str, Any] = json.loads(html.unescape(found[1]))
    return data


def _with_words(svg: str, chart: Chart) -> str:
    """Title, numbers and a role for screen readers, inside the SVG."""
    data = html.escape(json.dumps(chart.data(), ensure_ascii=True), quote=False)
    words = f'<title>{html.escape(chart.title)}</title>\n <desc id="data">{data}</desc>'
    opening = re.search(r"<svg [^>]*>", svg)
    assert opening is not None
    tag = opening[0][:-1] + ' role="img">'
    text = svg[: opening.start()] + tag + "\n " + words + svg[opening.end() :]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _look(name: str) -> dict[str, Any]:
    colour, marker, dashes = _LOOKS.get(name, ("#555555", ".", ":"))
    return {"color": colour, "marker": marker, "ls": dashes, "label": name}


def _draw_lines(axes: Axes, panel: Panel) -> None:
    """Ours is a broad line below the others: where they lie on it, both are seen."""
    for line in panel.lines:
        ours = line.name == OURS
        axes.plot(
            [x for x, *_ in line.points],
            [y for _, y, *_ in line.points],
            **_look(line.name),
            lw=5.0 if ours else 1.1,
            ms=8.0 if ours else 5.0,
            alpha=0.75 if ours else 1.0,
            zorder=2 if ours else 3,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(visible=True, axis="y", color="0.9", zorder=0)
    _finish(axes, panel)


def _draw_ratios(axes: Axes, panel: Panel) -> None:
    axes.axhspan(1.0, LOSING, color="0.88", zorder=0, lw=0, label=f"1 to {LOSING}")
    axes.axhline(1.0, color="0.4", lw=0.8, zorder=1)
    for number, line in enumerate(panel.lines):
        aside = 1.035 ** (number - (len(panel.lines) - 1) / 2)  # so that intervals do not overlap
        low = [y - low for _, y, low, _ in line.points]
        high = [high - y for _, y, _, high in line.points]
        axes.errorbar(
            [x * aside for x, *_ in line.points],
            [y for _, y, *_ in line.points],
            [low, high],
            **_look(line.name),
            lw=1.1,
            ms=4.5,
            capsize=2,
            zorder=3,
        )
    _finish(axes, panel)


def _finish(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import NullLocator

    lengths = sorted({x for line in panel.lines for x, *_ in line.points})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(lengths, [f"{length:,.0f}" for length in lengths], fontsize=8)
    if len(lengths) > 4 or max(lengths) >= 100_000:  # or labels would touch
        axes.tick_params(axis="x", rotation=35)
    axes.set(xlabel="tokens", title=panel.title)


def _draw_bars(axes: Axes, chart: Chart) -> None:
    """A group for each length, a bar for each form, the number at its end."""
    colours = {"summary, log-sum-exp given": "#0072b2", "summary, log-sum-exp inside": "#e69f00"}
    for place, panel in enumerate(chart.panels):
        for number, line in enumerate(panel.lines):
            _, value, low, high = line.points[0]
            at = place + 0.36 * (number - (len(panel.lines) - 1) / 2)
            label = line.name if place == 0 else None
            colour = colours.get(line.name, "#999999")
            axes.barh(at, value, 0.32, color=colour, label=label)
            axes.errorbar(value, at, xerr=[[value - low], [high - value]], color="black", lw=0.9)
            axes.annotate(
                f"{value:.2f}", (high, at), (4, 0), textcoords="offset points", va="center"
            )
    axes.axvline(1.0, color="0.4", lw=0.8, ls=":")
    axes.set_yticks(range(len(chart.panels)), [panel.title for panel in chart.panels])
    axes.invert_yaxis()
    axes.set_xlabel(chart.y)
    axes.legend(loc="lower right", fontsize=8)
    most = max(line.points[0][3] for panel in chart.panels for line in panel.lines)
    axes.set_xlim(0, most * 1.35)
