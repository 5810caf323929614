"""Arrays and labels -> one HTML file that opens anywhere.

The file holds the page (`assets/`), a JSON block with every text, and a binary block a layer. It
asks the network for nothing, and its own policy forbids it to. What stands in a binary block:

    deflate( masks | numbers )      as base64
    masks     a bit per cell, rows × columns, 1 where it can be seen; each mask once
    numbers   of the cells that can be seen, head by head, row by row: first the lowest byte of
              every number, then the next one. Bytes alike stand together, so they pack better.

Numbers are float32 while there are few, else float16.
"""

from __future__ import annotations

import base64
import html
import json
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.drawing.inline import asset, only
from clearhead.drawing.text_format import visible

MOST_CELLS = 2**25  # that can be seen, of a page; about 90 MB
MOST_CELLS_WITH_HIDDEN = 2 * MOST_CELLS  # a causal mask hides half of them
MOST_CELLS_IN_A_NOTEBOOK = 2**20
FEW_CELLS = 2**16  # up to here every number is kept in float32

_SCRIPTS = (
    *("parts", "data", "state", "controls", "paint", "grid"),
    *("heads", "matrix", "sentence", "boxes", "lessons", "steps"),
    *("download", "app"),
)


@dataclass(frozen=True, eq=False)
class Layer:
    """Some matrices of the same size, with labels and a few words about each.

    Attributes:
        name: What the layer is called.
        weights: The numbers, (heads, rows, columns).
        hidden: True where there is no number to be seen; None if all can be seen.
        rows: One label per row.
        columns: One label per column.
        words: What each head does, such as "previous token 0.93".
        scores: Numbers to sort the heads by, one list a score; None where there is no number.
        numbers: What each head is called; 0, 1, ... if None.
    """

    name: str
    weights: NDArray[np.floating[Any]]
    hidden: NDArray[np.bool_] | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    words: tuple[str, ...]
    scores: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    numbers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        expected = (len(self.words), len(self.rows), len(self.columns))
        if len(self.heads) != expected[0]:
            raise ValueError(f"numbers: expected {expected[0]}, one a head, got {len(self.heads)}.")
        for name, array in (("weights", self.weights), ("hidden", self.hidden)):
            if array is not None and array.shape != expected:
                raise ValueError(
                    f"{name}: expected (heads={expected[0]}, rows={expected[1]}, "
                    f"columns={expected[2]}) to fit words and labels, got {array.shape}."
                )

    @property
    def heads(self) -> tuple[int, ...]:
        """The number of each head."""
        return tuple(range(len(self.words))) if self.numbers is None else self.numbers

    @property
    def cells(self) -> int:
        """How many numbers can be seen."""
        return self.weights.size - (0 if self.hidden is None else int(self.hidden.sum()))


@dataclass(frozen=True, eq=False)
class Walk:
    """The steps of a computation, with the numbers that they give.

    Attributes:
        steps: Each step's texts and shapes, ready for JSON.
        tensors: The numbers by name; parts of one array may share it, with strides.
        texts: Whatever else the page needs to know, ready for JSON.
    """

    steps: Sequence[Mapping[str, Any]]
    tensors: Mapping[str, NDArray[np.float32]]
    texts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Page:
    """What a page shows, or a figure.

    Attributes:
        title: What stands at its head.
        layers: The matrices.
        notes: Sentences that a reader should know.
        walk: The steps, where there are any.
        start: What the page shows first, by the names that stand in its address.
    """

    title: str
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()
    walk: Walk | None = None
    start: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        """How many numbers can be seen in all layers together."""
        return sum(layer.cells for layer in self.layers)

    def html(self) -> str:
        """The whole file, in ASCII."""
        if self.cells > MOST_CELLS:
            raise TooLarge(self.cells)
        about, blocks = _pack(self)
        style, script = _asset("page.css"), _script()
        policy = only(script, style)
        policy += "img-src data: blob:; base-uri 'none'; form-action 'none'"
        data = [f'<script type="application/json" id="about">{_json(about)}</script>']
        data += [
            f'<script type="application/octet-stream" id="{name}">{text}</script>'
            for name, text in blocks.items()
        ]
        page = _asset("page.html")
        for mark, text in {
            "policy": policy,
            "title": html.escape(visible(self.title)),
            "style": f"<style>{style}</style>",
            "data": "\n".join(data),
            "script": f"<script>{script}</script>",
        }.items():
            before, found, after = page.partition(f"<!-- {mark} -->")
            assert found, mark
            page = before + text + after
        return page.encode("ascii", "xmlcharrefreplace").decode("ascii")

    def frame(self) -> str:
        """The page in a frame of its own, for a notebook: nothing in it reaches outside."""
        if self.cells > MOST_CELLS_IN_A_NOTEBOOK:
            return too_large_for_a_notebook(self.title, self.cells)
        inside = html.escape(self.html())
        return (
            f'<iframe srcdoc="{inside}" sandbox="allow-scripts allow-downloads" '
            f'title="{html.escape(visible(self.title))}" '
            'style="width: 100%; height: 46rem; border: 0" loading="lazy"></iframe>'
        )


class TooLarge(ValueError):
    """More cells than a file can hold."""

    def __init__(self, cells: int) -> None:
        super().__init__(
            f"{cells:,} weights are too many for one page. It holds {MOST_CELLS:,} that can be "
            f"seen, and {MOST_CELLS_WITH_HIDDEN:,} with those that are hidden.\n"
            "  To look at all of them: clearhead view, which computes what is looked at.\n"
            "  For a page: one layer and fewer heads, "
            'seen[name].select(heads=[0, 1]).save("x.html"), or fewer tokens.\n'
            "  A figure has any length: .svg, .png or .pdf."
        )


def too_large_for_a_notebook(what: str, cells: int) -> str:
    """What stands in a notebook instead of a page that would make its file huge."""
    return (
        f"<p>{html.escape(visible(what))}: {cells:,} weights, too many to keep in a notebook. "
        "Write them to a file of their own: <code>.save(&quot;attention.html&quot;)</code></p>"
    )


# The file's parts.


def _pack(page: Page) -> tuple[dict[str, Any], dict[str, str]]:
    """What is said about the data as JSON, and the binary blocks by name."""
    labels: list[tuple[str, ...]] = []

    def place(tokens: tuple[str, ...]) -> int:
        if tokens not in labels:
            labels.append(tokens)
        return labels.index(tokens)

    size = 4 if page.cells <= FEW_CELLS else 2
    layers, blocks = [], {}
    for i, layer in enumerate(page.layers):
        masks, which = _masks(layer)
        blocks[f"layer-{i}"] = _deflate(
            np.packbits(np.stack(masks).reshape(len(masks), -1), axis=1).tobytes()
            + _shuffled(_seen(layer), size)
        )
        layers.append(
            {
                "name": visible(layer.name),
                "rows": place(layer.rows),
                "columns": place(layer.columns),
                "masks": len(masks),
                "mask": which,
                "numbers": list(layer.heads),
                "words": list(layer.words),
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
        "walk": None,
    }
    if page.walk is not None:
        about["walk"], blocks["walk"] = _pack_walk(page.walk)
    return about, blocks


def _masks(layer: Layer) -> tuple[list[NDArray[np.bool_]], list[int]]:
    """The different masks of a layer (True: can be seen), and which one each head has."""
    if layer.hidden is None:
        return [np.ones(layer.weights.shape[1:], dtype=bool)], [0] * len(layer.words)
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
    """The numbers that can be seen, head by head, row by row."""
    return layer.weights.ravel() if layer.hidden is None else layer.weights[~layer.hidden]


def _shuffled(numbers: NDArray[np.floating[Any]], size: int) -> bytes:
    """The lowest byte of every number, then the next byte of every number, and so on."""
    plain = np.ascontiguousarray(numbers, dtype=f"<f{size}").view(np.uint8)
    return plain.reshape(-1, size).T.tobytes()


def _pack_walk(walk: Walk) -> tuple[dict[str, Any], str]:
    """Each array that is the same memory is stored once; the others say where in it they are."""
    stored: dict[tuple[int, int], int] = {}
    chunks: list[NDArray[np.float32]] = []
    places: dict[str, dict[str, Any]] = {}
    length = 0
    for name, array in walk.tensors.items():
        start = array.__array_interface__["data"][0]
        strides = [stride // 4 for stride in array.strides]
        span = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True))
        if span != array.size:  # gaps, or numbers that stand for several: a copy of its own
            array = np.ascontiguousarray(array)
            strides = [stride // 4 for stride in array.strides]
            start = array.__array_interface__["data"][0]
            chunks.append(array.ravel())
            offset, length = length, length + array.size
        else:
            key = (start, span)
            if key not in stored:
                stored[key] = length
                chunks.append(np.lib.stride_tricks.as_strided(array, (span,), (4,)))
                length += span
            offset = stored[key]
        places[name] = {"offset": offset, "shape": list(array.shape), "strides": strides}
    numbers = np.concatenate(chunks) if chunks else np.zeros(0, np.float32)
    about = {"steps": list(walk.steps), "tensors": places, "length": length, **walk.texts}
    return about, _deflate(_shuffled(numbers, 4))


def _deflate(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _is_right_to_left(tokens: Sequence[str]) -> bool:
    kinds = [unicodedata.bidirectional(character) for token in tokens for character in token]
    return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")


def _json(value: Any) -> str:
    """JSON that cannot end the script element around it, whatever texts are in it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return asset("clearhead.drawing", name)


def _script() -> str:
    """The scripts as one, in a scope of its own."""
    parts = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();\n'
