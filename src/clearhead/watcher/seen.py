"""Seen: the attention maps that `watch` recorded, by the names of the model's modules."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import safetensors
import torch
from jaxtyping import Int, Shaped
from safetensors.torch import save_file
from torch import Tensor

from clearhead.drawing.file_formats import save
from clearhead.drawing.html_page import MOST_CELLS_IN_A_NOTEBOOK, Page, too_large_for_a_notebook
from clearhead.drawing.text_format import harmless, memory
from clearhead.maps import AttentionMap
from clearhead.masks import Mask
from clearhead.version import __version__
from clearhead.watcher.copies import address
from clearhead.watcher.head_table import HeadTable, measure
from clearhead.watcher.showing import figure_of, page_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Makes(Protocol):
    """What a map can be made of."""

    def map(self) -> AttentionMap:
        """The map."""


class Call:
    """One attention call.

    Attributes:
        name: The module that made it.
        step: How many calls that module had made before.
        map: The weights.
    """

    __slots__ = ("_map", "name", "step")

    def __init__(self, name: str, step: int, weights: AttentionMap | Makes) -> None:
        self.name = name
        self.step = step
        self._map = weights

    @property
    def map(self) -> AttentionMap:
        """The weights; the map is made when it is first asked for."""
        if not isinstance(self._map, AttentionMap):
            # As in the model, whoever looks: the map stays.
            with torch.inference_mode(False), torch.enable_grad():
                self._map = self._map.map()
        return self._map

    def __repr__(self) -> str:
        return f"Call({self.name!r}, {self.step}, {self.map!r})"


class Seen(Mapping[str, AttentionMap]):
    """The maps of a watched model: `seen["h.3.attn"]` is the last one of that layer.

    `seen["h.3.attn", 0]` is the first, `seen.calls` has all in order. Iteration, `len` and `in` are
    about layers.
    """

    def __init__(self, model: str = "") -> None:
        self.model = model
        self._calls: list[Call] = []
        self._layers: dict[str, list[Call]] = {}

    def add(self, name: str, weights: AttentionMap | Makes) -> None:
        """Append a call of the layer `name`."""
        calls = self._layers.setdefault(name, [])
        call = Call(name, len(calls), weights)
        calls.append(call)
        self._calls.append(call)

    @property
    def calls(self) -> list[Call]:
        """Every call, in order."""
        return self._calls

    @property
    def _by_name(self) -> dict[str, list[Call]]:
        return self._layers if self.calls else {}

    @property
    def layers(self) -> list[str]:
        """The names of the attention layers, in the order of their first call."""
        return list(self._by_name)

    @property
    def nbytes(self) -> int:
        """The bytes that all maps hold together; what they share is counted once."""
        storages = {}
        for call in self.calls:
            for t in _parts(call.map)[0]:
                storages[address(t)] = t.untyped_storage().nbytes()
        return sum(storages.values())

    def __getitem__(self, key: str | tuple[str, int]) -> AttentionMap:
        """The map of a layer's last call, or of one by its number, counted from 0.

        `seen["h.3.attn"]` is the last call, `seen["h.3.attn", 0]` the first and
        `seen["h.3.attn", -1]` the last again.
        """
        name, step = key if isinstance(key, tuple) and len(key) == 2 else (key, -1)
        if not isinstance(name, str) or name not in self._by_name:
            raise _NotSeen(self._unknown(name))
        calls = self._by_name[name]
        if not isinstance(step, int) or not -len(calls) <= step < len(calls):
            raise _NotSeen(
                f"{name} was called {len(calls)} time{'s' if len(calls) > 1 else ''}, "
                f"so {step!r} is not one of its calls: they count from 0."
            )
        return calls[step].map

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return (
            f"Seen({harmless(self.model)}: {len(self)} layers, {len(self.calls)} calls, "
            f"{memory(self.nbytes)} held)"
        )

    def heads(
        self,
        ids: Int[Tensor, "batch tokens"] | Sequence[Sequence[int]] | None = None,
        *,
        attention_mask: Shaped[Tensor, "batch tokens"] | Sequence[Sequence[int]] | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> HeadTable:
        """What every head looks at, averaged over the queries of all calls.

        Calls that continue each other, as in generation with a cache, count as one text. The first
        token is that of the text: where a window has let its key go, its weight is 0.

        What only fills a batch up to one length does not count, neither as a query nor as a copy.
        Without `attention_mask` it is found where every key of self-attention has a query: a key
        that no query may see is filling. So the means of a batch filled on the right are those of
        its texts alone. Filled on the left, the same holds for relative positions (Llama); GPT-2
        counts the filling as positions, unless it is given `position_ids`, and then its weights
        themselves are others.

        Cross-attention has no token before and no distance. With as many queries as keys it looks
        like self-attention without causality; after a causal layer with as many queries, as in a
        decoder, it is taken for cross-attention.

        Args:
            ids: The token ids that the model was given (after generation: all of them). With them
                the table also says how much a head looks at earlier copies of a token, and at what
                followed these. Only the layers that read so many tokens have such numbers.
            attention_mask: 1 for a real token and 0 for filling, as the model was given it. What
                was generated after it is real.
            on_progress: Called with the share that is done, now and then.

        Raises:
            ValueError: If it cannot be seen whose ids these are: a layer was called with several
                texts of this length, or an encoder and a decoder have as many tokens.
        """
        self._check_something()
        return measure(self._maps(), ids, attention_mask, model=self.model, on_progress=on_progress)

    def _maps(self) -> dict[str, list[AttentionMap]]:
        return {name: [call.map for call in calls] for name, calls in self._by_name.items()}

    def _check_something(self) -> None:
        if not self.calls:
            raise ValueError("No attention was seen yet: run the model inside the block.")

    # Files.

    def page(
        self, *, tokens: Sequence[str] | None = None, batch: int = 0, title: str | None = None
    ) -> Page:
        """Every weight of one sequence in all layers, as a page or a figure shows them.

        The calls of a layer that continue each other, as in generation with a cache, are shown
        as one map; else the last call is shown.

        Args:
            tokens: A label for each token; t0, t1, ... by default.
            batch: Which sequence.
            title: What stands at the head of the page; the model by default.
        """
        self._check_something()
        return page_of(self._maps(), tokens, batch, self.model if title is None else title)

    def _repr_html_(self) -> str:
        cells = sum(math.prod(self[name].shape[1:]) for name in self)
        if not self.calls or cells > 2 * MOST_CELLS_IN_A_NOTEBOOK:
            return too_large_for_a_notebook(repr(self), cells)
        return self.page(title=repr(self)).frame()

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        text: str | None = None,
        tokens: Sequence[str] | None = None,
        batch: int = 0,
        title: str | None = None,
        log: bool = False,
    ) -> None:
        """Write all maps to one file: to load them again, or to look at.

        A figure has any length. A page has every weight that can be seen, 33,554,432 at most; one
        of so many is about 70 MB and takes ten seconds and more to write.

        Args:
            path: The file; its end decides: `.safetensors` keeps everything; `.html`, `.svg`,
                `.png` and `.pdf` show one sequence.
            text: What the model read; its hash is stored in a `.safetensors` file, so that it can
                be recognised.
            tokens: For what shows: see `page`.
            batch: For what shows: see `page`.
            title: For what shows: see `page`; a figure has none by default.
            log: For a figure: logarithmic colours.
        """

        def page() -> Page:
            return self.page(tokens=tokens, batch=batch, title=title)

        def figure() -> Figure:
            self._check_something()
            return figure_of(self._maps(), tokens, batch, title or "", log)

        save(path, page, tensors=lambda file: self._write(file, text), figure=figure)

    def _write(self, file: Path, text: str | None) -> None:
        tensors: list[Tensor] = []
        places: dict[tuple[object, ...], int] = {}

        def store(t: Tensor) -> int:
            key = (address(t), t.storage_offset(), t.shape, t.stride())
            if key not in places or not t.numel():
                places[key] = len(tensors)
                tensors.append(t.detach().contiguous())
            return places[key]

        calls = []
        for call in self.calls:
            parts, found = _parts(call.map)
            stored = [store(t) for t in parts]
            where = dict(zip(found["names"], stored, strict=False))
            calls.append(
                {
                    "name": call.name,
                    "scale": found["scale"],
                    "mask": found["mask"],
                    "mask_tensors": stored[len(where) :],
                    "head_numbers": list(call.map.head_numbers),
                    **where,
                }
            )
        about = {
            "schema": 1,
            "model": self.model,
            "versions": {"clearhead": __version__, "torch": torch.__version__},
            "text_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
            "calls": calls,
        }
        named = {str(i): t for i, t in enumerate(tensors)}
        save_file(named, file, {"clearhead.seen": json.dumps(about)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Seen:
        """The maps that `save` wrote, on the CPU."""
        path = Path(path)
        _check_suffix(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file.")
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                about = (file.metadata() or {}).get("clearhead.seen")
                tensors = {} if about is None else {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118  # it cannot be iterated
        except (safetensors.SafetensorError, ValueError) as error:
            raise ValueError(
                f"{path}: not a whole safetensors file ({error}).\n"
                "  Was it copied or downloaded only in part? Save it again."
            ) from None
        if about is None:
            raise ValueError(
                f"{path}: a safetensors file, but not one that seen.save() wrote.\n"
                "  The weights of a model? Load the model, and watch it."
            )
        try:
            return cls._from(json.loads(about), tensors)
        except _LaterVersion as error:
            raise ValueError(f"{path}: {error}") from None
        except (LookupError, TypeError, ValueError, SyntaxError, RecursionError) as error:
            raise ValueError(
                f"{path}: what it says of its maps makes no sense ({error}).\n"
                "  It was changed after seen.save() wrote it. Save it again."
            ) from None

    @classmethod
    def _from(cls, about: dict[str, Any], tensors: Mapping[str, Tensor]) -> Seen:
        if about["schema"] != 1:
            raise _LaterVersion(
                f"written in schema {about['schema']}; this Clearhead ({__version__}) reads "
                "schema 1.\n  Install a newer one."
            )
        seen = cls(about["model"])
        for call in about["calls"]:
            q, k, bias, lse = (
                tensors[str(call[part])] if part in call else None
                for part in ("q", "k", "bias", "lse")
            )
            mask = None
            if call["mask"] is not None:
                mask = Mask.decode(call["mask"], [tensors[str(i)] for i in call["mask_tensors"]])
            if q is None or k is None:
                raise KeyError("q and k")
            if not q.numel() or not k.numel():  # of any length, and of no bytes
                raise ValueError(f"an axis is empty in q {tuple(q.shape)} or k {tuple(k.shape)}")
            weights = AttentionMap(
                *(q, k, mask),
                scale=float(call["scale"]),
                bias=bias,
                lse=lse,
                head_numbers=call.get("head_numbers"),  # older files have none
            )
            if mask is not None:  # a mask of another size is found out now, not later
                mask.tile(slice(0, 0), slice(0, 0), *weights.shape[2:])
            seen.add(str(call["name"]), weights)
        return seen

    def _unknown(self, name: object) -> str:
        message = f"no attention layer is called {name!r}."
        if isinstance(name, int) and 0 <= name < len(self):
            return f"{message}\n  By its place among the layers: seen[seen.layers[{name}]]."
        if not self._by_name:
            return f"{message}\n  Nothing was seen yet: run the model inside the block."
        close = difflib.get_close_matches(str(name), self.layers, n=1, cutoff=0.5)
        close = [each for each in self.layers if each.endswith(f".{name}")] or close
        lines = [message, f"Did you mean {close[0]!r}?"] if close else [message]
        shown = ", ".join(self.layers[:24])
        rest = f" and {len(self) - 24} more" if len(self) > 24 else ""
        return "\n  ".join([*lines, f"There are: {shown}{rest}."])


class _NotSeen(KeyError):
    """A KeyError that prints its message as it is."""

    def __str__(self) -> str:
        return harmless(str(self.args[0]))


class _LaterVersion(ValueError):
    pass


def _parts(m: AttentionMap) -> tuple[list[Tensor], dict[str, Any]]:
    """The tensors of a map (the mask's own last), and what they and its numbers are called."""
    named = {"q": m.queries, "k": m.keys, "bias": m.bias, "lse": m.lazy_scores.lse}
    named = {name: t for name, t in named.items() if t is not None}
    masks: list[Tensor] = []
    mask = None if m.mask is None else m.mask.encode(masks)
    tensors = [t for t in named.values() if t is not None]
    return [*tensors, *masks], {"names": list(named), "mask": mask, "scale": m.scale}


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() != ".safetensors":
        raise ValueError(
            f"{path}: the end of the name decides the format, and {path.suffix or 'no end'!r} is "
            f"none that is known here.\n  Try {path.with_suffix('.safetensors').name}."
        )
