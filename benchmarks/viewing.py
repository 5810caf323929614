"""The viewer's benchmark: how long until the first picture, how long a tile takes, how much memory.

Equality first: cells of the overview and of every finer grid are compared with float64. Then the
server is asked over its own port, as the page asks it: while the other heads are still walked over,
and when all is quiet, one request after the other and three at a time.
"""

from __future__ import annotations

import http.client
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import torch

from clearhead import timing, viewer
from clearhead.maps import AttentionMap
from clearhead.masks import Mask
from clearhead.viewer.jobs import HeadIndex, Worker
from clearhead.viewer.tile_pyramid import TILE, Pyramid, grids

_PACKAGES = ("torch", "numpy", "starlette", "uvicorn", "clearhead")
_TOLERANCE = 1e-4  # of a cell, relative


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        tokens: The length.
        heads: How many heads.
        head_dim: Their width.
        tiles: How many tiles to ask for in each way of asking.
    """

    tokens: int = 32768
    heads: int = 12
    head_dim: int = 64
    tiles: int = 200


def measure(
    settings: Settings,
    *,
    say: Callable[[str, int], Callable[[], None]] = lambda *_: timing.nothing,
) -> dict[str, Any]:
    """Run the benchmark; everything found, as plain data."""
    torch.manual_seed(0)
    shape = (1, settings.heads, settings.tokens, settings.head_dim)
    weights = AttentionMap(torch.randn(shape), torch.randn(shape), Mask.causal())
    found: dict[str, Any] = {
        "schema": timing.SCHEMA,
        "benchmark": "view",
        **timing.environment(_PACKAGES),
        "threads": torch.get_num_threads(),
        "tokens": settings.tokens,
        "heads": settings.heads,
        "head_dim": settings.head_dim,
        "held_by_the_map_mib": round(weights.nbytes / 2**20, 1),
    }
    memory = {"before_mib": _resident()}
    tick = say(f"{settings.tokens:,} tokens: first picture", settings.heads)
    start = time.perf_counter()
    with viewer.view(weights, browser=False, wait=False) as page:
        asker = _Asker(page.url, weights, settings.tiles)
        _wait(lambda: HeadIndex(0, 0, 0) in page.worker.pyramids)
        found["first_picture_s"] = round(time.perf_counter() - start, 2)
        tick()
        pyramid = page.worker.pyramids.get(HeadIndex(0, 0, 0))
        assert pyramid is not None
        found["tiles_while_walking_ms"] = asker.ask(heads=1, seed=1)
        _wait(lambda: _walked(page.worker), tick)
        found["all_pictures_s"] = round(time.perf_counter() - start, 2)
        memory["all_pictures_mib"] = _resident()
        page.worker.stop()
        found["gap"] = _gap(weights, pyramid)
        if found["gap"] > _TOLERANCE:
            raise RuntimeError(f"a cell is off by {found['gap']:.1e}: nothing is timed.")
        tick = say("tiles", 2)
        found["tiles_one_by_one_ms"] = asker.ask(heads=settings.heads, seed=2)
        tick()
        found["tiles_three_at_a_time_ms"] = asker.ask(heads=settings.heads, seed=3, together=3)
        tick()
        memory["after_all_tiles_mib"] = _resident()
    found["resident"] = memory
    return found


class _Asker:
    """Asks for tiles over the server's port, each one new to it."""

    def __init__(self, url: str, weights: AttentionMap, tiles: int) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self._port, self._token = parts.port, parts.query.removeprefix("token=")
        self._tiles = tiles
        _, _, queries, keys = weights.shape
        self._grids = grids(queries, keys)

    def ask(self, *, heads: int, seed: int, together: int = 1) -> dict[str, Any]:
        """Milliseconds of requests for tiles of all grids that are computed when asked for."""
        chosen = random.Random(seed)
        computed = [i for i, grid in enumerate(self._grids) if grid.halvings < 0]
        queries = []
        for _ in range(self._tiles):
            level = chosen.choice(computed or [0])
            high, wide = self._grids[level].tiles()
            row = chosen.randrange(high)
            place = {"layer": 0, "batch": 0, "head": chosen.randrange(heads)}
            col = chosen.randrange(min(wide, row + 1))  # a causal map shows nothing beyond
            queries.append(urlencode({**place, "level": level, "row": row, "col": col}))
        with ThreadPoolExecutor(together) as pool:
            times = sorted(pool.map(self._one, queries))
        return {
            "tiles": len(times),
            "median": round(times[len(times) // 2], 1),
            "p95": round(times[int(len(times) * 0.95)], 1),
            "largest": round(times[-1], 1),
        }

    def _one(self, query: str) -> float:
        start = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request("GET", f"/api/tile?{query}", headers={"x-clearhead-token": self._token})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{query}: the server answered {answer.status}.")
        return (time.perf_counter() - start) * 1000


def _gap(weights: AttentionMap, pyramid: Pyramid) -> float:
    """The largest relative difference of a cell from float64, one cell of each grid."""
    _, _, queries, keys = weights.shape
    largest = 0.0
    for level, grid in enumerate(pyramid.grids):
        row, col = grid.rows * 3 // 4, grid.cols // 3
        rows, cols = (
            slice(int(np.ceil(at * size / scale)), int(np.ceil((at + 1) * size / scale)))
            for at, size, scale in ((row, queries, grid.row_scale), (col, keys, grid.col_scale))
        )
        exact = float(weights[0, 0, rows, cols].double().sum()) / (rows.stop - rows.start)
        cell = float(pyramid.tile(level, row // TILE, col // TILE)[row % TILE, col % TILE])
        largest = max(largest, abs(cell - exact) / exact)
    return largest


def _walked(work: Worker) -> bool:
    """Whether all pictures are made: scores come after them."""
    if work.failed:
        raise RuntimeError(next(iter(work.failed.values())))
    return bool(work.scores) or (work.progress is not None and work.progress.what == "scores")


def _wait(condition: Callable[[], bool], tick: Callable[[], None] = timing.nothing) -> None:
    while not condition():
        time.sleep(0.02)
    tick()


def _resident() -> float | None:
    """What the process holds in memory now, in MiB; None where nobody says so."""
    file = Path("/proc/self/statm")
    if not file.exists():
        return None
    pages = int(file.read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
