"""Worker: computes overviews and scores in the background, one head after another.

One thread reads the maps. It pauses while a tile is computed, because tiles are urgent. Overviews
are kept up to a limit in bytes; the least recently used is dropped first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from clearhead.maps import AttentionMap
from clearhead.viewer.tile_pyramid import Pyramid
from clearhead.watcher.head_table import measure

_PYRAMID_BYTES = 2**29


class Sized(Protocol):
    """Anything with a size in bytes."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""


T = TypeVar("T", bound=Sized)


class SizedCache(Generic[T]):
    """A cache with a limit in bytes that drops the least recently used entry first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._entries: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> T | None:
        """The entry, which becomes the most recently used; None if it is not in the cache."""
        with self._lock:
            if name in self._entries:
                self._entries.move_to_end(name)
            return self._entries.get(name)

    def put(self, name: Hashable, entry: T) -> None:
        """Add an entry. The newest is kept even if it alone exceeds the limit."""
        with self._lock:
            old = self._entries.pop(name, None)
            self.nbytes += entry.nbytes - (0 if old is None else old.nbytes)
            self._entries[name] = entry
            while self.nbytes > self.limit and len(self._entries) > 1:
                self.nbytes -= self._entries.popitem(last=False)[1].nbytes

    def __contains__(self, name: Hashable) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)


class HeadIndex(NamedTuple):
    """One head of one sequence, as indices into the maps."""

    layer: int
    batch: int
    head: int


@dataclass(frozen=True)
class Progress:
    """What is being computed.

    Attributes:
        head: The head.
        what: "picture" or "scores".
        share: How much of it is done, from 0 to 1.
    """

    head: HeadIndex
    what: str
    share: float


class Worker:
    """The maps, the thread that computes their pyramids and scores, and the results so far.

    Args:
        layers: The maps by the name of their layer.
        ids: The token ids, (batch, tokens), for additional scores of each head.
    """

    def __init__(self, layers: dict[str, AttentionMap], ids: Tensor | None = None) -> None:
        self.names = list(layers)
        self.maps = list(layers.values())
        self._ids = ids
        self.pyramids: SizedCache[Pyramid] = SizedCache(_PYRAMID_BYTES)
        self.scores: dict[HeadIndex, dict[str, Any]] = {}
        self.progress: Progress | None = None
        self.failed: dict[HeadIndex, str] = {}
        self._wanted = HeadIndex(0, 0, 0)
        self._changed = threading.Condition()
        self._pauses = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="clearhead maps", daemon=True)
        self.on_progress: Callable[[Progress | None], None] = lambda progress: None

    def start(self) -> None:
        """Start with the first head."""
        self._thread.start()

    def stop(self) -> None:
        """Stop soon, and discard what is being computed."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=30.0)

    def one(self, head: HeadIndex) -> AttentionMap:
        """The map of one head. It shares the memory of the whole map."""
        return self.maps[head.layer].select(batch=head.batch, heads=head.head)

    def number(self, head: HeadIndex) -> int:
        """The number of a head in the model. The map may hold only some of its heads."""
        return self.maps[head.layer].head_numbers[head.head]

    def want(self, head: HeadIndex) -> None:
        """Compute this head next, then the others of its layer."""
        with self._changed:
            if head != self._wanted or head not in self.pyramids:
                self._wanted = head
                self._changed.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the thread inside this block, so that a tile is computed without delay."""
        with self._changed:
            self._pauses += 1
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def _next(self) -> tuple[HeadIndex, str] | None:
        """The next job: the wanted head, the others of its layer, then the scores of all these."""
        wanted = self._wanted
        others = range(self.maps[wanted.layer].shape[1])
        heads = [wanted, *(wanted._replace(head=h) for h in others if h != wanted.head)]
        for head in heads:
            if head in self.pyramids or head in self.failed:
                continue
            known = self.pyramids.get(wanted)
            if known is None or self.pyramids.nbytes + known.nbytes <= self.pyramids.limit:
                return head, "picture"
        for head in heads:
            if head not in self.scores and head not in self.failed:
                return head, "scores"
        return None

    def _run(self) -> None:
        while True:
            with self._changed:
                job = self._next()
                while job is None and not self._stopping:
                    self._changed.wait()
                    job = self._next()
                if self._stopping or job is None:
                    return
            head, what = job
            try:
                self._compute(head, what)
            except _Cancelled:
                pass
            except Exception as error:  # a map that cannot be computed must not stop the server
                self.failed[head] = f"{type(error).__name__}: {error}"
            self._report(None)

    def _compute(self, head: HeadIndex, what: str) -> None:
        def on_progress(share: float) -> None:
            self._report(Progress(head, what, share))
            with self._changed:
                while self._pauses and not self._stopping:
                    self._changed.wait(1.0)
                wanted = self._wanted
                if self._stopping or (
                    head != wanted and wanted not in self.pyramids and wanted not in self.failed
                ):
                    raise _Cancelled

        on_progress(0.0)
        if what == "picture":
            self.pyramids.put(head, Pyramid(self.one(head), on_progress))
            return
        known = self.pyramids.get(head)
        one = self.one(head) if known is None else known.map  # whose log-sum-exp is known
        ids = self._ids
        if ids is not None:
            ids = ids[head.batch : head.batch + 1]
            if ids.shape[1] != one.shape[3] or one.shape[2] > one.shape[3]:
                ids = None
        table = measure({self.names[head.layer]: [one]}, ids, on_progress=on_progress)
        found = asdict(table.rows[0])
        self.scores[head] = {key: found[key] for key in found if key not in ("layer", "head")}

    def _report(self, progress: Progress | None) -> None:
        self.progress = progress
        self.on_progress(progress)


class _Cancelled(BaseException):
    """The job was cancelled, because another head is wanted or the worker stops."""
