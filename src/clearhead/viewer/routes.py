"""Site: the page and its API. Every answer is JSON or plain numbers, never HTML."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from clearhead.drawing import visible
from clearhead.drawing.page_assets import PageAssets
from clearhead.version import __version__
from clearhead.viewer.jobs import HeadIndex, SizedCache, Worker
from clearhead.viewer.request_guard import Guard
from clearhead.viewer.tile_pyramid import TILE, grids, strongest
from clearhead.viewer.token_labels import Labels

_TILE_BYTES = 2**26
_MOST_WAITING = 64  # requests that wait for numbers; further ones are answered with 503
_MOST_LABELS = 4096
_MOST_STRONGEST = 50
_SCRIPTS = ("tiles.js", "map_painter.js", "panel.js", "view.js")


class _Refused(ValueError):
    """An invalid request."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Site:
    """The page and the API of one viewer.

    Args:
        worker: Holds the maps and computes their overviews.
        labels: The tokens.
        model: The title of the page.
    """

    def __init__(self, worker: Worker, labels: Labels, model: str) -> None:
        self._worker, self._labels, self._model = worker, labels, model
        self._tiles: SizedCache[NDArray[np.float32]] = SizedCache(_TILE_BYTES)
        # One tile at a time: each uses all cores, and memory stays limited.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="clearhead tiles")
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0
        self._page, self._policy = build_page(model)

    def app(self, *, token: str, port: int) -> Guard:
        """The application behind its guard."""
        routes = [
            Route("/", self.page),
            Route("/api/about", self.about),
            Route("/api/state", self.state),
            Route("/api/tile", self.tile),
            Route("/api/row", self.row),
            Route("/api/tokens", self.tokens),
            Route("/api/search", self.search),
        ]
        app = Starlette(routes=routes, exception_handlers={_Refused: _answer_refused})
        app.router.redirect_slashes = False
        return Guard(app, token=token, port=port, policy=self._policy)

    def close(self) -> None:
        """Stop the thread that computes tiles."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def page(self, request: Request) -> Response:
        """The page."""
        return HTMLResponse(self._page)

    async def about(self, request: Request) -> Response:
        """The layers, with their sizes and zoom levels."""
        _parameters(request)
        layers = []
        for name, m in zip(self._worker.names, self._worker.maps, strict=True):
            batch, heads, queries, keys = m.shape
            zooms = [[g.rows, g.cols, g.row_scale, g.col_scale] for g in grids(queries, keys)]
            labelled = [self._labels.count(b) == keys >= queries for b in range(batch)]
            layers.append(
                {
                    "name": visible(name),
                    "batch": batch,
                    "heads": heads,
                    "queries": queries,
                    "keys": keys,
                    "grids": zooms,
                    "labelled": labelled,
                }
            )
        return JSONResponse(
            {
                "schema": 1,
                "version": __version__,
                "model": visible(self._model),
                "tile": TILE,
                "layers": layers,
            }
        )

    async def state(self, request: Request) -> Response:
        """The state of each head of a layer. The requested head is computed next."""
        given = _parameters(request, "layer", "batch", "head")
        layer, batch, _ = chosen = self._head(given)
        self._worker.want(chosen)
        heads = []
        for head, number in enumerate(self._worker.maps[layer].head_numbers):
            index = HeadIndex(layer, batch, head)
            heads.append(
                {
                    "number": number,
                    "ready": index in self._worker.pyramids,
                    "error": visible(self._worker.failed.get(index, "")),
                    "scores": self._worker.scores.get(index),
                }
            )
        return JSONResponse({"heads": heads, "progress": self._progress()})

    async def tile(self, request: Request) -> Response:
        """The cells of one tile as float32, row by row, NaN if hidden."""
        given = _parameters(request, "layer", "batch", "head", "level", "row", "col")
        head = self._head(given)
        zooms = grids(*self._worker.maps[head.layer].shape[2:])
        level = _whole(given, "level", len(zooms))
        high, wide = zooms[level].tiles()
        row, col = _whole(given, "row", high), _whole(given, "col", wide)
        pyramid = self._worker.pyramids.get(head)
        if pyramid is None:
            return self._later(head)
        name = (head, level, row, col)
        cells = self._tiles.get(name)
        if cells is None:
            async with self._compute() as run:
                if await request.is_disconnected():
                    return Response(status_code=499)  # the client has gone
                cells = self._tiles.get(name)
                if cells is None:
                    cells = await run(lambda: pyramid.tile(level, row, col))
                    self._tiles.put(name, cells)
        high, wide = cells.shape
        return Response(
            cells.tobytes(),
            media_type="application/octet-stream",
            headers={"x-rows": str(high), "x-cols": str(wide)},
        )

    async def row(self, request: Request) -> Response:
        """The keys with the largest weights of one query."""
        given = _parameters(request, "layer", "batch", "head", "query", "count")
        head = self._head(given)
        m = self._worker.maps[head.layer]
        query = _whole(given, "query", m.shape[2])
        count = _whole(given, "count", _MOST_STRONGEST + 1)
        pyramid = self._worker.pyramids.get(head)
        if pyramid is None:
            return self._later(head)
        async with self._compute() as run:
            keys, weights = await run(lambda: strongest(pyramid.map, query, count))
        labels = []
        if self._labels.count(head.batch) == m.shape[3]:
            labels = [self._labels.some(head.batch, key, key + 1)[0] for key in keys]
        return JSONResponse({"keys": keys, "weights": weights, "labels": labels})

    async def tokens(self, request: Request) -> Response:
        """A range of labels."""
        given = _parameters(request, "batch", "start", "count")
        batch = _whole(given, "batch", max(m.shape[0] for m in self._worker.maps))
        start = _whole(given, "start", max(1, self._labels.count(batch)))
        count = _whole(given, "count", _MOST_LABELS + 1)
        if not self._labels.count(batch):
            raise _Refused("This text has no labels.", 404)
        return JSONResponse({"tokens": self._labels.some(batch, start, start + count)})

    async def search(self, request: Request) -> Response:
        """The tokens at which a searched text begins."""
        given = _parameters(request, "batch", "text")
        batch = _whole(given, "batch", max(m.shape[0] for m in self._worker.maps))
        async with self._compute() as run:
            matches, count = await run(lambda: self._labels.find(batch, given["text"]))
        return JSONResponse({"matches": matches, "count": count})

    def _head(self, given: dict[str, str]) -> HeadIndex:
        layer = _whole(given, "layer", len(self._worker.maps))
        batch, heads = self._worker.maps[layer].shape[:2]
        return HeadIndex(layer, _whole(given, "batch", batch), _whole(given, "head", heads))

    def _later(self, head: HeadIndex) -> Response:
        if head in self._worker.failed:
            return JSONResponse({"error": visible(self._worker.failed[head])}, 500)
        return JSONResponse({"progress": self._progress()}, 202)

    def _progress(self) -> dict[str, Any] | None:
        now = self._worker.progress
        if now is None:
            return None
        number = self._worker.number(now.head)
        return {**now.head._asdict(), "number": number, "what": now.what, "share": now.share}

    @asynccontextmanager
    async def _compute(self) -> AsyncIterator[Callable[[Callable[[], Any]], Awaitable[Any]]]:
        """Wait for this request's turn to compute; the worker is paused meanwhile."""
        if self._waiting >= _MOST_WAITING:
            raise _Refused("Too many requests at once.", 503)
        self._waiting += 1
        try:
            async with self._turn:
                with self._worker.paused():
                    loop = asyncio.get_running_loop()
                    yield lambda function: loop.run_in_executor(self._pool, function)
        finally:
            self._waiting -= 1


async def _answer_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, _Refused)
    headers = {"retry-after": "1"} if error.status == 503 else None
    return JSONResponse({"error": str(error)}, error.status, headers)


def _parameters(request: Request, *names: str) -> dict[str, str]:
    """The parameters of the request: each of these names exactly once, and no others."""
    given = request.query_params.multi_items()
    if sorted(name for name, _ in given) != sorted(names):
        raise _Refused(f"Expected the parameters {', '.join(names) or 'none'}, each once.")
    return dict(given)


def _whole(given: dict[str, str], name: str, below: int) -> int:
    """An integer from 0 to below - 1, written in decimal digits."""
    if not re.fullmatch(r"[0-9]{1,10}", given[name]) or int(given[name]) >= below:
        raise _Refused(f"{name}: expected an integer from 0 to {below - 1}.")
    return int(given[name])


def build_page(model: str) -> tuple[str, str]:
    """The page, and the policy that allows only its own style and script."""
    assets = PageAssets(
        "clearhead.viewer",
        html="view.html",
        css=("view.css",),
        scripts=_SCRIPTS,
        sources="connect-src 'self'; img-src data:; frame-ancestors 'none'",
    )
    return assets.page({"title": html.escape(visible(model))}), assets.policy
