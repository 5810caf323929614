"""Work: what the server computes, one head after the other, and what it keeps of it.

One thread walks over maps; another gives tiles, and the first one waits while it does. What is
kept has a limit in bytes, and the least recently used goes first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from clearhead.maps import AttentionMap
from clearhead.viewer.tile_grid import Pyramid
from clearhead.watcher.head_table import measure


class Sized(Protocol):
    """What knows how many bytes it takes."""

    @property
    def nbytes(self) -> int:
        """Bytes."""


T = TypeVar("T", bound=Sized)


class Kept(Generic[T]):
    """Things by name, up to so many bytes; the least recently used is forgotten first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._things: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable) -> T | None:
        """The thing, which is now the most recently used; None if it is not here."""
        with self._lock:
            if name in self._things:
                self._things.move_to_end(name)
            return self._things.get(name)

    def put(self, name: Hashable, thing: T) -> None:
        """Keep it. The newest thing is kept even where it alone is over the limit."""
        with self._lock:
            old = self._things.pop(name, None)
            self.nbytes += thing.nbytes - (0 if old is None else old.nbytes)
            self._things[name] = thing
            while self.nbytes > self.limit and len(self._things) > 1:
                self.nbytes -= self._things.popitem(last=False)[1].nbytes

    def __contains__(self, name: Hashable) -> bool:
        return name in self._things

    def __len__(self) -> int:
        return len(self._things)


class Place(NamedTuple):
    """One head: numbers of the layer, the sequence and the head."""

    layer: int
    batch: int
    head: int


@dataclass(frozen=True)
class Progress:
    """What is being computed.

    Attributes:
        place: Of which head.
        what: "picture" or "scores".
        share: How much of it is done, 0 to 1.
    """

    place: Place
    what: str
    share: float


class Work:
    """The maps, a thread that makes pyramids of them, and what is known so far.

    Args:
        layers: The maps by name.
        ids: The token ids, (batch, tokens), for more scores of each head.
        memory: The most bytes for pyramids.
    """

    def __init__(
        self, layers: dict[str, AttentionMap], ids: Tensor | None = None, *, memory: int = 2**29
    ) -> None:
        self.names = list(layers)
        self.maps = list(layers.values())
        self._ids = ids
        self.pyramids: Kept[Pyramid] = Kept(memory)
        self.scores: dict[Place, dict[str, Any]] = {}
        self.progress: Progress | None = None
        self.failed: dict[Place, str] = {}
        self._wanted = Place(0, 0, 0)
        self._changed = threading.Condition()
        self._hurry = 0  # tiles that somebody waits for
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="clearhead maps", daemon=True)
        self.on_progress: Callable[[Progress | None], None] = lambda progress: None

    def start(self) -> None:
        """Begin with the first head."""
        self._thread.start()

    def stop(self) -> None:
        """End soon; what is being computed is dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=30.0)

    def one(self, place: Place) -> AttentionMap:
        """The map of one head, in the memory of the whole map."""
        return self.maps[place.layer].select(batch=place.batch, heads=place.head)

    def number(self, place: Place) -> int:
        """What its head is called: the number in the model, of which there may be a part."""
        return self.maps[place.layer].head_numbers[place.head]

    def want(self, place: Place) -> None:
        """Do this head next, and then the others of its layer."""
        with self._changed:
            if place != self._wanted or place not in self.pyramids:
                self._wanted = place
                self._changed.notify_all()

    def hurry(self) -> Hurry:
        """A block during which the walk over maps waits."""
        return Hurry(self)

    # Inside: the thread.

    def _next(self) -> tuple[Place, str] | None:
        """What to do: the wanted head, the others of its layer, then the scores of all these."""
        wanted = self._wanted
        heads = range(self.maps[wanted.layer].shape[1])
        places = [wanted, *(wanted._replace(head=h) for h in heads if h != wanted.head)]
        for place in places:
            if place in self.pyramids or place in self.failed:
                continue
            known = self.pyramids.get(wanted)
            if known is None or self.pyramids.nbytes + known.nbytes <= self.pyramids.limit:
                return place, "picture"
        for place in places:
            if place not in self.scores and place not in self.failed:
                return place, "scores"
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
            place, what = job
            try:
                self._do(place, what)
            except _OtherWork:
                pass
            except Exception as error:  # a map that cannot be computed must not end the server
                self.failed[place] = f"{type(error).__name__}: {error}"
            self._say(None)

    def _do(self, place: Place, what: str) -> None:
        def report(share: float) -> None:
            self._say(Progress(place, what, share))
            with self._changed:
                while self._hurry and not self._stopping:
                    self._changed.wait(1.0)
                wanted = self._wanted
                if self._stopping or (
                    place != wanted and wanted not in self.pyramids and wanted not in self.failed
                ):
                    raise _OtherWork

        report(0.0)
        if what == "picture":
            self.pyramids.put(place, Pyramid(self.one(place), report))
            return
        known = self.pyramids.get(place)
        one = self.one(place) if known is None else known.map  # which knows its log-sum-exp
        ids = self._ids
        if ids is not None:
            ids = ids[place.batch : place.batch + 1]
            if ids.shape[1] != one.shape[3] or one.shape[2] > one.shape[3]:
                ids = None
        table = measure({self.names[place.layer]: [one]}, ids, on_progress=report)
        found = asdict(table.rows[0])
        self.scores[place] = {key: found[key] for key in found if key not in ("layer", "head")}

    def _say(self, progress: Progress | None) -> None:
        self.progress = progress
        self.on_progress(progress)


class Hurry:
    """While a tile is computed, the walk over maps waits: see `Work.hurry`."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __enter__(self) -> None:
        with self._work._changed:
            self._work._hurry += 1

    def __exit__(self, *_: object) -> None:
        with self._work._changed:
            self._work._hurry -= 1
            self._work._changed.notify_all()


class _OtherWork(BaseException):
    """Something else is wanted now."""
