"""Arrays and labels -> one HTML file that works offline.

The file holds the page (`assets/`), a JSON block with all texts, and one binary block per layer.
It makes no network requests, and its content security policy forbids them. A binary block is:

    deflate(masks | numbers)    as base64
    masks      one bit per cell, rows × columns, 1 if the cell is visible; each distinct mask once
    numbers    of the visible cells, head by head, row by row: the lowest byte of every number,
               then the next byte of every number, and so on, because similar bytes compress well

Numbers are float32 if there are few, else float16. `assets/page_data.js` reads these blocks.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.drawing.page_assets import PageAssets, binary_block, json_block
from clearhead.drawing.text_format import visible

MOST_CELLS = 2**25  # visible cells of a page; about 90 MB
MOST_CELLS_WITH_HIDDEN = 2 * MOST_CELLS  # a causal mask hides half of the cells
MOST_CELLS_IN_A_NOTEBOOK = 2**20
FEW_CELLS = 2**16  # up to this many, numbers are stored in float32

# The views of a page and what they share, in the order in which it runs them. Before them come the
# scripts that define the data, and after them the one that starts the page.
SCRIPTS = (
    *("selection.js", "controls.js", "pens.js", "matrix_drawing.js"),
    *("flow_diagram.js", "heads_view.js", "matrix_view.js", "sentence_view.js"),
    *("step_parts.js", "step_texts.js", "steps_view.js"),
    *("download.js", "page_frame.js"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """Matrices of the same size, one per head, with labels and the name of its pattern.

    Attributes:
        name: The name of the layer.
        weights: The numbers, (heads, rows, columns).
        hidden: True for hidden cells; None if all cells are visible.
        rows: One label per row.
        columns: One label per column.
        patterns: What the pattern of each head is called, such as "previous token 0.93".
        scores: Numbers to sort the heads by, one list per score; None for a missing number.
        numbers: The number of each head in the model; 0, 1, ... if None.
    """

    name: str
    weights: NDArray[np.floating[Any]]
    hidden: NDArray[np.bool_] | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    patterns: tuple[str, ...]
    scores: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    numbers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        expected = (len(self.patterns), len(self.rows), len(self.columns))
        if len(self.heads) != expected[0]:
            raise ValueError(
                f"numbers: expected {expected[0]}, one per head, got {len(self.heads)}."
            )
        for name, array in (("weights", self.weights), ("hidden", self.hidden)):
            if array is not None and array.shape != expected:
                raise ValueError(
                    f"{name}: expected (heads={expected[0]}, rows={expected[1]}, "
                    f"columns={expected[2]}) to fit patterns and labels, got {array.shape}."
                )

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, heads × rows × columns {self.weights.shape})"

    @property
    def heads(self) -> tuple[int, ...]:
        """The number of each head."""
        return tuple(range(len(self.patterns))) if self.numbers is None else self.numbers

    @property
    def cells(self) -> int:
        """The number of visible cells."""
        return self.weights.size - (0 if self.hidden is None else int(self.hidden.sum()))


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of a computation, with their numbers.

    Attributes:
        steps: The texts and shapes of each step, ready for JSON.
        tensors: The numbers by name. Arrays may be views of the same memory.
        texts: Anything else that the page needs, ready for JSON.
    """

    steps: Sequence[Mapping[str, Any]]
    tensors: Mapping[str, NDArray[np.float32]]
    texts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Page:
    """The content of a page, or of a figure.

    Attributes:
        title: The title.
        layers: The matrices.
        notes: Notes at the bottom of the page.
        walk: The steps of the computation, or None.
        start: What the page shows first, with the names used in the fragment of its URL.
        facts: What stands below the title, besides the sizes: the name of the model.
    """

    title: str
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()
    walk: Walk | None = None
    start: Mapping[str, str | int] = field(default_factory=dict)
    facts: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Page({self.title!r}, {len(self.layers)} layers, {self.cells:,} visible weights)"

    def _repr_html_(self) -> str:
        return self.frame()

    @property
    def cells(self) -> int:
        """The number of visible cells in all layers."""
        return sum(layer.cells for layer in self.layers)

    def html(self) -> str:
        """The complete HTML file, in ASCII."""
        if self.cells > MOST_CELLS:
            raise TooLarge(self.cells)
        about, blocks = _pack(self)
        data = [json_block("about", about)]
        data += [binary_block(name, numbers) for name, numbers in blocks.items()]
        title = html.escape(visible(self.title))
        page = _assets().page({"title": title, "data": "\n".join(data)})
        return page.encode("ascii", "xmlcharrefreplace").decode("ascii")

    def frame(self) -> str:
        """The page in a sandboxed frame, for a notebook."""
        if self.cells > MOST_CELLS_IN_A_NOTEBOOK:
            return too_large_for_a_notebook(self.title, self.cells)
        inside = html.escape(self.html())
        return (
            f'<iframe srcdoc="{inside}" sandbox="allow-scripts allow-downloads" '
            f'title="{html.escape(visible(self.title))}" '
            'style="width: 100%; height: 46rem; border: 0" loading="lazy"></iframe>'
        )


class TooLarge(ValueError):
    """The page would have more cells than a file can hold."""

    def __init__(self, cells: int) -> None:
        super().__init__(
            f"{cells:,} weights are too many for one page. It can hold {MOST_CELLS:,} visible "
            f"weights, or {MOST_CELLS_WITH_HIDDEN:,} including hidden ones.\n"
            "  To see all of them, use clearhead view, which computes weights as you zoom in.\n"
            "  For a page, save one layer with fewer heads, "
            'seen[name].select(heads=[0, 1]).save("x.html"), or use fewer tokens.\n'
            "  Figures (.svg, .png, .pdf) have no limit."
        )


def too_large_for_a_notebook(what: str, cells: int) -> str:
    """The HTML that a notebook shows instead of a page that would make its file huge."""
    return (
        f"<p>{html.escape(visible(what))}: {cells:,} weights, too many to keep in a notebook. "
        "Save them to a file instead: <code>.save(&quot;attention.html&quot;)</code></p>"
    )


def _pack(page: Page) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The description of the data, for JSON, and the binary blocks by name."""
    labels: list[tuple[str, ...]] = []

    def index(tokens: tuple[str, ...]) -> int:
        if tokens not in labels:
            labels.append(tokens)
        return labels.index(tokens)

    size = 4 if page.cells <= FEW_CELLS else 2
    layers: list[dict[str, Any]] = []
    blocks: dict[str, bytes] = {}
    for i, layer in enumerate(page.layers):
        masks, which = _masks(layer)
        packed = np.packbits(np.stack(masks).reshape(len(masks), -1), axis=1).tobytes()
        blocks[f"layer-{i}"] = packed + _shuffled(_seen(layer), size)
        layers.append(
            {
                "name": visible(layer.name),
                "rows": index(layer.rows),
                "columns": index(layer.columns),
                "masks": len(masks),
                "mask": which,
                "numbers": list(layer.heads),
                "patterns": list(layer.patterns),
                "scores": {name: list(numbers) for name, numbers in layer.scores.items()},
            }
        )
    about: dict[str, Any] = {
        "schema": 1,
        "title": visible(page.title),
        "notes": [visible(note) for note in page.notes],
        "bytes": size,
        "labels": [[visible(token) or "(empty)" for token in tokens] for tokens in labels],
        "rtl": [_is_right_to_left(tokens) for tokens in labels],
        "layers": layers,
        "start": dict(page.start),
        "facts": [visible(fact) for fact in page.facts],
        "walk": None,
    }
    if page.walk is not None:
        about["walk"], blocks["walk"] = _pack_walk(page.walk)
    return about, blocks


def _masks(layer: Layer) -> tuple[list[NDArray[np.bool_]], list[int]]:
    """The distinct masks of a layer (True: visible), and the index of each head's mask."""
    if layer.hidden is None:
        return [np.ones(layer.weights.shape[1:], dtype=bool)], [0] * len(layer.patterns)
    known: dict[bytes, int] = {}
    masks: list[NDArray[np.bool_]] = []
    which: list[int] = []
    for hidden in layer.hidden:
        key = hidden.tobytes()
        if key not in known:
            known[key] = len(masks)
            masks.append(~hidden)
        which.append(known[key])
    return masks, which


def _seen(layer: Layer) -> NDArray[np.floating[Any]]:
    """The visible numbers, head by head, row by row."""
    return layer.weights.ravel() if layer.hidden is None else layer.weights[~layer.hidden]


def _shuffled(numbers: NDArray[np.floating[Any]], size: int) -> bytes:
    """The lowest byte of every number, then the next byte of every number, and so on."""
    plain = np.ascontiguousarray(numbers, dtype=f"<f{size}").view(np.uint8)
    return plain.reshape(-1, size).T.tobytes()


def _pack_walk(walk: Walk) -> tuple[dict[str, Any], bytes]:
    """Arrays that share memory are stored once; each name has its offset, shape and strides."""
    stored: dict[tuple[int, int], int] = {}
    chunks: list[NDArray[np.float32]] = []
    views: dict[str, dict[str, Any]] = {}
    length = 0
    for name, array in walk.tensors.items():
        span = 1 + sum((n - 1) * s // 4 for n, s in zip(array.shape, array.strides, strict=True))
        if span != array.size:  # gaps or repeated numbers
            array = np.ascontiguousarray(array)
        key = (array.__array_interface__["data"][0], array.size)
        if key not in stored:
            stored[key] = length
            chunks.append(np.lib.stride_tricks.as_strided(array, (array.size,), (4,)))
            length += array.size
        strides = [stride // 4 for stride in array.strides]
        views[name] = {"offset": stored[key], "shape": list(array.shape), "strides": strides}
    numbers = np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
    about = {"steps": list(walk.steps), "tensors": views, "length": length, **walk.texts}
    return about, _shuffled(numbers, 4)


def _is_right_to_left(tokens: Sequence[str]) -> bool:
    kinds = [unicodedata.bidirectional(character) for token in tokens for character in token]
    return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")


@cache
def _assets() -> PageAssets:
    return PageAssets(
        "clearhead.drawing",
        html="page.html",
        css=("page.css",),
        scripts=("layer_data.js", "page_data.js", *SCRIPTS, "page.js"),
        sources="img-src data: blob:",
    )
