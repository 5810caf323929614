"""Measure the viewer: time to the first picture, milliseconds per tile, memory.

The server is queried over its port, as its page does: while the other heads are still computed, and
when it is idle, one request after the other and three at a time. Equality first: one cell of every
zoom level is compared with float64.
"""

import http.client
import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import numpy as np
import torch

from benchmarks import command
from benchmarks.command import Say, option, positive
from clearhead import viewer
from clearhead.maps import AttentionMap
from clearhead.masks import Mask
from clearhead.viewer.tile_pyramid import grids

_TOLERANCE = 1e-4  # of a cell, relative


@dataclass(frozen=True)
class Settings(command.Settings):
    """Settings of the viewer benchmark. It runs on the CPU, in float32, without rounds."""

    tokens: int = option(32_768, "Sequence length.", type=positive)
    heads: int = option(12, "Number of heads.", type=positive)
    head_dim: int = option(64, "Width of a head.", type=positive)
    tiles: int = option(200, "Tiles to request in each way.", type=positive)

    def quick(self) -> Self:
        """One small head."""
        return replace(self, tokens=2048, heads=1, head_dim=8, tiles=20)

    def check(self) -> None:
        """Refuse what is not supported."""
        if (self.device, self.dtype) != ("cpu", "float32"):
            raise ValueError("--device, --dtype: only cpu and float32 are supported here.")


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """Run the benchmark; everything that was measured, as plain data."""
    torch.manual_seed(0)
    shape = (1, settings.heads, settings.tokens, settings.head_dim)
    weights = AttentionMap(torch.randn(shape), torch.randn(shape), Mask.causal())
    found = command.header("view", settings)
    found |= {
        "tokens": settings.tokens,
        "heads": settings.heads,
        "head_dim": settings.head_dim,
        "held_by_the_map_mib": round(weights.nbytes / 2**20, 1),
    }
    resident = {"before_mib": _resident()}
    say(f"{settings.tokens:,} tokens: first picture")
    start = time.perf_counter()
    with viewer.view(weights, browser=False, wait=False) as page:
        client = _Client(page.url, settings)
        client.wait(lambda state: state["heads"][0]["ready"])
        found["first_picture_s"] = round(time.perf_counter() - start, 2)
        found["tiles_while_walking_ms"] = client.time_tiles(heads=1, seed=1)
        say("all pictures")
        client.wait(_all_pictures)
        found["all_pictures_s"] = round(time.perf_counter() - start, 2)
        resident["all_pictures_mib"] = _resident()
        found["gap"] = client.gap(weights)
        if not found["gap"] <= _TOLERANCE:
            raise RuntimeError(f"a cell differs by {found['gap']:.1e}: nothing is timed.")
        say("tiles")
        client.wait(lambda state: all(head["scores"] is not None for head in state["heads"]))
        found["tiles_one_by_one_ms"] = client.time_tiles(heads=settings.heads, seed=2)
        found["tiles_three_at_a_time_ms"] = client.time_tiles(
            heads=settings.heads, seed=3, together=3
        )
        resident["after_all_tiles_mib"] = _resident()
    return found | {"resident": resident}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The results as text."""
    yield (
        f"{found['tokens']:,} tokens: first picture after {found['first_picture_s']} s, "
        f"all {found['heads']} after {found['all_pictures_s']} s"
    )
    for name in ("while_walking", "one_by_one", "three_at_a_time"):
        times = found[f"tiles_{name}_ms"]
        words = name.replace("_", " ")
        yield f"  tiles {words:16} median {times['median']} ms, 95th percentile {times['p95']} ms"


def _all_pictures(state: dict[str, Any]) -> bool:
    """Whether all heads have a picture: scores are computed after that."""
    progress = state["progress"]
    return all(head["ready"] for head in state["heads"]) or (
        progress is not None and progress["what"] == "scores"
    )


class _Client:
    """Requests over the server's port."""

    def __init__(self, url: str, settings: Settings) -> None:
        parts = urlsplit(url)
        assert parts.port is not None
        self._port, self._token = parts.port, parts.query.removeprefix("token=")
        self._tiles = settings.tiles
        self._grids = grids(settings.tokens, settings.tokens)
        self._tile_size: int = json.loads(self._get("about"))["tile"]

    def wait(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Return when the state of the server meets the condition."""
        while not condition(state := json.loads(self._get("state", layer=0, batch=0, head=0))):
            if errors := [head["error"] for head in state["heads"] if head["error"]]:
                raise RuntimeError(errors[0])
            time.sleep(0.05)

    def time_tiles(self, *, heads: int, seed: int, together: int = 1) -> dict[str, Any]:
        """Milliseconds per request, for random tiles that are computed on demand."""
        chosen = random.Random(seed)
        on_demand = [i for i, grid in enumerate(self._grids) if grid.halvings < 0] or [0]
        requests = []
        for _ in range(self._tiles):
            level, head = chosen.choice(on_demand), chosen.randrange(heads)
            high, wide = self._grids[level].tiles()
            row = chosen.randrange(high)
            col = chosen.randrange(min(wide, row + 1))  # the rest of a causal map is empty
            requests.append({"head": head, "level": level, "row": row, "col": col})

        def seconds(request: dict[str, int]) -> float:
            start = time.perf_counter()
            self._get("tile", layer=0, batch=0, **request)
            return time.perf_counter() - start

        with ThreadPoolExecutor(together) as pool:
            times = sorted(1000 * second for second in pool.map(seconds, requests))
        return {
            "tiles": len(times),
            "median": round(times[len(times) // 2], 1),
            "p95": round(times[int(len(times) * 0.95)], 1),
            "largest": round(times[-1], 1),
        }

    def gap(self, weights: AttentionMap) -> float:
        """The largest relative difference from float64, one cell of each zoom level."""
        _, _, queries, keys = weights.shape
        size, largest = self._tile_size, 0.0
        for level, grid in enumerate(self._grids):
            row, col = grid.rows * 3 // 4, grid.cols // 3
            rows, cols = (
                slice(math.ceil(at * count / scale), math.ceil((at + 1) * count / scale))
                for at, count, scale in (
                    (row, queries, grid.row_scale),
                    (col, keys, grid.col_scale),
                )
            )
            exact = float(weights[0, 0, rows, cols].double().sum()) / (rows.stop - rows.start)
            tile = self._get(
                "tile", layer=0, batch=0, head=0, level=level, row=row // size, col=col // size
            )
            width = min(size, grid.cols - col // size * size)
            cells = np.frombuffer(tile, dtype="<f4").reshape(-1, width)
            largest = max(largest, abs(float(cells[row % size, col % size]) - exact) / exact)
        return largest

    def _get(self, path: str, **query: int) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        address = f"/api/{path}?{urlencode(query)}" if query else f"/api/{path}"
        connection.request("GET", address, headers={"x-clearhead-token": self._token})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{address}: the server answered {answer.status}.")
        return body


def _resident() -> float | None:
    """The resident memory of this process, in MiB; None where the system does not report it."""
    file = Path("/proc/self/statm")
    if not file.exists():
        return None
    pages = int(file.read_text(encoding="ascii").split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


main = partial(command.main, "view", Settings, measure, lines, __doc__, "--tokens 32768")

if __name__ == "__main__":
    main()
