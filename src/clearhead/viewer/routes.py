"""Site: the page, and what it asks for. Every answer is JSON or plain numbers; no text is HTML."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from clearhead.drawing import VIRIDIS, visible
from clearhead.drawing.inline import asset, only
from clearhead.version import __version__
from clearhead.viewer.jobs import Kept, Place, Work
from clearhead.viewer.request_guard import Guard
from clearhead.viewer.tile_grid import TILE, grids, strongest
from clearhead.viewer.token_labels import Labels

_TILE_BYTES = 2**26
_MOST_WAITING = 64  # requests that wait for numbers; more are told to come back
_MOST_LABELS = 4096
_MOST_STRONGEST = 50
_SCRIPTS = ("tiles", "paint", "panel", "view")

Endpoint = Callable[[Request], Awaitable[Response]]


class _Refused(ValueError):
    """A request that makes no sense."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Site:
    """The pages of one `Work`.

    Args:
        work: The maps.
        labels: The tokens.
        model: What is being looked at, as a title.
    """

    def __init__(self, work: Work, labels: Labels, model: str) -> None:
        self._work, self._labels, self._model = work, labels, model
        self._tiles: Kept[NDArray[np.float32]] = Kept(_TILE_BYTES)
        # One at a time: each uses all cores, and memory stays that of one tile.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="clearhead tiles")
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0
        self._page, self._policy = _page(model)

    def app(self, *, token: str, port: int) -> Guard:
        """The guarded application."""
        routes = [
            Route("/", self.page),
            Route("/api/about", _answers(self.about)),
            Route("/api/state", _answers(self.state)),
            Route("/api/tile", _answers(self.tile)),
            Route("/api/row", _answers(self.row)),
            Route("/api/tokens", _answers(self.tokens)),
            Route("/api/search", _answers(self.search)),
        ]
        app = Starlette(routes=routes)
        app.router.redirect_slashes = False
        return Guard(app, token=token, port=port, policy=self._policy)

    def close(self) -> None:
        """Let go of the thread that computes tiles."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def page(self, request: Request) -> Response:
        """The viewer itself."""
        return HTMLResponse(self._page)

    async def about(self, request: Request) -> Response:
        """What there is to look at."""
        _parameters(request)
        layers = []
        for name, m in zip(self._work.names, self._work.maps, strict=True):
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
                "colours": [list(point) for point in VIRIDIS],
                "layers": layers,
            }
        )

    async def state(self, request: Request) -> Response:
        """What is known of the heads of a layer; the head that is looked at is computed next."""
        given = _parameters(request, "layer", "batch", "head")
        layer, batch, _ = chosen = self._place(given)
        self._work.want(chosen)
        heads = []
        for head, number in enumerate(self._work.maps[layer].head_numbers):
            place = Place(layer, batch, head)
            heads.append(
                {
                    "number": number,
                    "ready": place in self._work.pyramids,
                    "error": visible(self._work.failed.get(place, "")),
                    "scores": self._work.scores.get(place),
                }
            )
        return JSONResponse({"heads": heads, "progress": self._progress()})

    async def tile(self, request: Request) -> Response:
        """The cells of one tile as float32, row by row; NaN where hidden."""
        given = _parameters(request, "layer", "batch", "head", "level", "row", "col")
        place = self._place(given)
        zooms = grids(*self._work.maps[place.layer].shape[2:])
        level = _whole(given, "level", len(zooms))
        high, wide = zooms[level].tiles()
        row, col = _whole(given, "row", high), _whole(given, "col", wide)
        pyramid = self._work.pyramids.get(place)
        if pyramid is None:
            return self._later(place)
        name = (place, level, row, col)
        cells = self._tiles.get(name)
        if cells is None:
            async with self._compute() as run:
                if await request.is_disconnected():
                    return Response(status_code=499)  # nobody waits for it any more
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
        """The keys that one query looks at most."""
        given = _parameters(request, "layer", "batch", "head", "query", "count")
        place = self._place(given)
        m = self._work.maps[place.layer]
        query = _whole(given, "query", m.shape[2])
        count = _whole(given, "count", _MOST_STRONGEST + 1)
        pyramid = self._work.pyramids.get(place)
        if pyramid is None:
            return self._later(place)
        async with self._compute() as run:
            keys, weights = await run(lambda: strongest(pyramid.map, query, count))
        labels = []
        if self._labels.count(place.batch) == m.shape[3]:
            labels = [self._labels.some(place.batch, key, key + 1)[0] for key in keys]
        return JSONResponse({"keys": keys, "weights": weights, "labels": labels})

    async def tokens(self, request: Request) -> Response:
        """Some labels."""
        given = _parameters(request, "batch", "start", "count")
        batch = _whole(given, "batch", max(m.shape[0] for m in self._work.maps))
        start = _whole(given, "start", max(1, self._labels.count(batch)))
        count = _whole(given, "count", _MOST_LABELS + 1)
        if not self._labels.count(batch):
            raise _Refused("no labels are known.", 404)
        return JSONResponse({"tokens": self._labels.some(batch, start, start + count)})

    async def search(self, request: Request) -> Response:
        """Where a word stands."""
        given = _parameters(request, "batch", "text")
        batch = _whole(given, "batch", max(m.shape[0] for m in self._work.maps))
        async with self._compute() as run:
            places, count = await run(lambda: self._labels.find(batch, given["text"]))
        return JSONResponse({"places": places, "count": count})

    # Inside.

    def _place(self, given: dict[str, str]) -> Place:
        layer = _whole(given, "layer", len(self._work.maps))
        batch, heads = self._work.maps[layer].shape[:2]
        return Place(layer, _whole(given, "batch", batch), _whole(given, "head", heads))

    def _later(self, place: Place) -> Response:
        if place in self._work.failed:
            return JSONResponse({"error": visible(self._work.failed[place])}, 500)
        return JSONResponse({"progress": self._progress()}, 202)

    def _progress(self) -> dict[str, Any] | None:
        now = self._work.progress
        if now is None:
            return None
        number = self._work.number(now.place)
        return {**now.place._asdict(), "number": number, "what": now.what, "share": now.share}

    @asynccontextmanager
    async def _compute(self) -> AsyncIterator[Callable[[Callable[[], Any]], Awaitable[Any]]]:
        """A turn at the cores, during which the walk over maps waits."""
        if self._waiting >= _MOST_WAITING:
            raise _Refused("too many requests at once.", 503)
        self._waiting += 1
        try:
            async with self._turn:
                with self._work.hurry():
                    loop = asyncio.get_running_loop()
                    yield lambda function: loop.run_in_executor(self._pool, function)
        finally:
            self._waiting -= 1


def _answers(method: Callable[[Request], Awaitable[Response]]) -> Endpoint:
    """The method, with a refusal as an answer."""

    @wraps(method)
    async def endpoint(request: Request) -> Response:
        try:
            return await method(request)
        except _Refused as error:
            headers = {"retry-after": "1"} if error.status == 503 else None
            return JSONResponse({"error": str(error)}, error.status, headers)

    return endpoint


def _parameters(request: Request, *names: str) -> dict[str, str]:
    """The parameters, each exactly once, and no others."""
    given = request.query_params.multi_items()
    if sorted(name for name, _ in given) != sorted(names):
        raise _Refused(f"expected the parameters {', '.join(names) or 'none'}, each once.")
    return dict(given)


def _whole(given: dict[str, str], name: str, below: int) -> int:
    """A whole number from 0 to below - 1, in plain digits."""
    if not re.fullmatch(r"[0-9]{1,10}", given[name]) or int(given[name]) >= below:
        raise _Refused(f"{name}: expected a whole number from 0 to {below - 1}.")
    return int(given[name])


def _page(model: str) -> tuple[str, str]:
    """The page with its style and script inside, and the policy that lets only these run."""
    style, script = _asset("view.css"), "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    policy = only(script, style) + "connect-src 'self'; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    page = _asset("view.html").replace("<!-- title -->", html.escape(visible(model)))
    page = page.replace("<!-- style -->", f"<style>{style}</style>")
    page = page.replace("<!-- script -->", f'<script type="module">{script}</script>')
    return page, policy


def _asset(name: str) -> str:
    return asset("clearhead.viewer", name)
