"""Seen: the attention maps that `watch` recorded, by the names of the model's modules."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import safetensors
import torch
from jaxtyping import Float, Int, Shaped
from safetensors.torch import save_file
from torch import Tensor

from clearhead import torch_internals
from clearhead.drawing.file_formats import save
from clearhead.drawing.html_page import MOST_CELLS_IN_A_NOTEBOOK, Page, too_large_for_a_notebook
from clearhead.drawing.text_format import harmless, memory
from clearhead.foreign_names import no_attribute
from clearhead.maps import AttentionMap
from clearhead.maps.statistics import Saliency
from clearhead.masks import Mask
from clearhead.version import __version__
from clearhead.watcher.head_table import HeadTable, measure
from clearhead.watcher.layer_names import one_name
from clearhead.watcher.showing import figure_of, page_of
from clearhead.watcher.snapshots import CannotShow, Snapshot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Unseen(NamedTuple):
    """A module that was not recorded.

    Attributes:
        name: The name of the module.
        kind: The name of its class.
        reason: Why there is no map of it.
    """

    name: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}): {self.reason}."


class Call:
    """One attention call.

    Attributes:
        name: The module that made it.
        step: How many calls that module had made before.
        map: The weights.
        gradient: The gradient of the context vectors (batch, heads, queries, value_dim), after
            `backward()` with `watch(model, grad=True)`; otherwise None.
        output: The weight of the output projection (d_model, heads · value_dim), with
            `watch(model, values=True)` and where it could be found; otherwise None.
    """

    __slots__ = ("_gradient", "_map", "_output", "_snapshot", "name", "step")

    def __init__(
        self,
        name: str,
        step: int,
        weights: AttentionMap | Snapshot,
        *,
        gradient: Tensor | None = None,
        output: Tensor | None = None,
    ) -> None:
        self.name = name
        self.step = step
        self._snapshot = weights if isinstance(weights, Snapshot) else None
        self._map = None if isinstance(weights, Snapshot) else weights
        self._gradient, self._output = gradient, output

    @property
    def map(self) -> AttentionMap:
        """The weights; raises if the model has overwritten what they are computed from."""
        if self._snapshot is not None:
            self._snapshot.check()
        if self._map is None:
            assert self._snapshot is not None
            self._map = self._snapshot.map()
        return self._map

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of the context vectors, if there is one."""
        found = None if self._snapshot is None else self._snapshot.gradients
        return sum(found[1:], found[0]) if found else self._gradient

    @property
    def output(self) -> Tensor | None:
        """The weight of the output projection, if it is known."""
        if self._snapshot is None or (output := self._snapshot.output) is None:
            return self._output
        if torch_internals.version(output) != self._snapshot.output_version:
            raise CannotShow(
                f"{self.name}: the output projection was changed after the call, as by an "
                "optimizer.\n  Ask for norms before that."
            )
        return output

    def __repr__(self) -> str:
        return f"Call({self.name!r}, {self.step}, {self.map!r})"


class Seen(Mapping[str, AttentionMap]):
    """The maps of a watched model: `seen["h.3.attn"]` is the last one of that layer.

    A layer is named by its module ("transformer.h.3.attn"), by any part of the name that no other
    layer has ("h.3"), or by its number (3). `seen["h.3", 0]` is its first call, and `seen.calls`
    has all calls in order. Iteration, `len` and `in` are about the full names of layers.

    Attributes:
        model: The name of the model's class.
        unseen: The modules of which there is no map, and why.

    Examples:
        >>> import clearhead
        >>> model, tokenizer = clearhead.load("english")
        >>> with clearhead.watch(model) as seen:
        ...     _ = model(torch.tensor([tokenizer.encode("The cat sat on the mat.")]))
        >>> seen[0].shape, len(seen)
        (torch.Size([1, 8, 7, 7]), 6)
    """

    def __init__(self, model: str = "") -> None:
        self.model = model
        self.unseen: list[Unseen] = []
        self._calls: list[Call] = []
        self._by_name: dict[str, list[Call]] = {}

    def add(
        self,
        name: str,
        weights: AttentionMap | Snapshot,
        *,
        gradient: Tensor | None = None,
        output: Tensor | None = None,
    ) -> None:
        """Append a call of the layer `name`; a snapshot has its own gradient and output."""
        calls = self._by_name.setdefault(name, [])
        call = Call(name, len(calls), weights, gradient=gradient, output=output)
        calls.append(call)
        self._calls.append(call)

    def keep_layers(self, names: Sequence[str]) -> None:
        """Drop the calls of all other layers."""
        self._by_name = {name: self._by_name[name] for name in self._by_name if name in names}
        self._calls = [call for call in self._calls if call.name in self._by_name]

    @property
    def calls(self) -> list[Call]:
        """Every call, in order."""
        return self._calls

    @property
    def layers(self) -> list[str]:
        """The names of the attention layers, in the order of their first call."""
        return list(self._by_name)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that all maps hold together.

        A map that shares memory with the model holds all of it: where queries, keys and values are
        parts of one tensor, the values count too.
        """
        storages = {}
        for call in self.calls:
            named, masks, _ = _parts(call.map)
            for t in (*named.values(), *masks):
                storage = t.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())

    def __getitem__(self, key: str | int | tuple[str | int, int]) -> AttentionMap:
        """The map of a layer's last call, or of one by its number, counted from 0.

        `seen["h.3.attn"]` is the last call, `seen["h.3.attn", 0]` the first and
        `seen["h.3.attn", -1]` the last again. `seen["h.3"]` and `seen[3]` also name the layer.
        """
        return self.call(key).map

    def call(self, key: str | int | tuple[str | int, int]) -> Call:
        """The call whose map `seen[key]` is."""
        name, step = key if isinstance(key, tuple) and len(key) == 2 else (key, -1)
        calls = self._by_name[self.name(name)]
        if not isinstance(step, int) or not -len(calls) <= step < len(calls):
            raise NotSeen(
                f"{calls[0].name} was called {len(calls)} time{'s' if len(calls) > 1 else ''}, "
                f"so {step!r} is not one of its calls: they count from 0."
            )
        return calls[step]

    def name(self, layer: object) -> str:
        """The full name of the layer that a part of its name or its number means."""
        if not self._by_name:
            raise NotSeen(
                f"no attention layer is called {layer!r}.\n"
                "  Nothing was seen yet: run the model inside the block."
            )
        if isinstance(layer, bool) or not isinstance(layer, str | int):
            raise NotSeen(f"a layer is named by a string or a number, got {layer!r}.")
        try:
            return one_name(layer, self.layers)
        except LookupError as error:
            raise NotSeen(str(error)) from None

    def __contains__(self, key: object) -> bool:
        name, step = key if isinstance(key, tuple) and len(key) == 2 else (key, 0)
        calls = self._by_name.get(name, []) if isinstance(name, str) else []
        return isinstance(step, int) and -len(calls) <= step < len(calls)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return (
            f"Seen({harmless(self.model)}: {len(self)} layers, {len(self.calls)} calls, "
            f"{memory(self.nbytes)} held)"
        )

    def __getattr__(self, name: str) -> NoReturn:
        raise no_attribute(self, name)

    def heads(
        self,
        ids: Int[Tensor, "batch tokens"] | Sequence[Sequence[int]] | None = None,
        *,
        attention_mask: Shaped[Tensor, "batch tokens"] | Sequence[Sequence[int]] | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> HeadTable:
        """What every head attends to, averaged over the queries of all calls.

        Each number comes with its chance level, that of uniform attention.

        Calls that continue each other, as in generation with a cache, count as one text. The first
        token is that of the text: where a window has dropped its key, its weight is 0.

        Padding does not count, neither as a query nor as a copy. Without `attention_mask` it is
        detected where every key of self-attention has a query: a key that no query may see is
        padding. So the means of a batch padded on the right are those of its texts alone. Padded on
        the left, the same holds for relative positions (Llama); GPT-2 counts padding as positions,
        unless it is given `position_ids`, so its weights themselves differ.

        Cross-attention has no previous token and no distance. With as many queries as keys it looks
        like self-attention without causality; after a causal layer with as many queries, as in a
        decoder, it is taken for cross-attention.

        Args:
            ids: The token ids that the model was given (after generation: all of them). With them
                the table also has the weight on earlier copies of a token, and on what followed
                them. Only the layers that read that many tokens have such numbers.
            attention_mask: 1 for a real token and 0 for padding, as the model was given it. What
                was generated after it is real.
            on_progress: Called repeatedly with the share that is done.

        Raises:
            ValueError: If it is ambiguous whose ids these are: a layer was called with several
                texts of this length, or an encoder and a decoder have as many tokens.
        """
        self._check_something()
        return measure(self._maps(), ids, attention_mask, model=self.model, on_progress=on_progress)

    # Measures that need more than the weights of one layer.

    def by_value_norm(self, layer: str | int | tuple[str | int, int]) -> AttentionMap:
        """A map of what each key contributes: weight times the norm of its value, as shares.

        After Kobayashi et al. 2020; see `AttentionMap.by_value_norm`. The norm is taken after the
        output projection where that could be found, see `Call.output`. Needs
        `watch(model, values=True)`.
        """
        call = self.call(layer)
        return call.map.by_value_norm(call.output)

    def saliency(self, layer: str | int | tuple[str | int, int]) -> Saliency:
        """Gradient times attention, per query and per key: weight · ∂loss/∂weight, added up.

        Needs `watch(model, grad=True)` and a `loss.backward()` since.
        """
        call = self.call(layer)
        if call.gradient is None:
            raise RuntimeError(
                f"{call.name} has no gradient.\n"
                "  Use watch(model, grad=True), compute a loss with gradients enabled, and call "
                "loss.backward() before you ask."
            )
        return call.map.detach().saliency(call.gradient.to(call.map.device))

    def retrieval(
        self, needle: slice | list[int] | Tensor, queries: slice | list[int] = slice(None)
    ) -> dict[str, Float[Tensor, "batch heads"]]:
        """How much weight each head puts on a needle in the text (Wu et al. 2024), per layer.

        Args:
            needle: The keys: a slice or several positions, or True at the keys of each sequence.
            queries: The queries to average over, such as those that write the answer.
        """
        self._check_something()
        return {name: self[name].retrieval_score(needle, queries) for name in self}

    def rollout(
        self, tokens: int | Sequence[int], *, residual: float = 0.5
    ) -> Float[Tensor, "batch chosen tokens"]:
        """Where the information in some tokens of the last layer comes from (attention rollout).

        Abnar & Zuidema 2020: in each layer a token is a mix of itself and of what its heads, on
        average, attend to. The mix is followed from the last layer to the first, one vector per
        chosen token; no matrix of tokens × tokens is built. Weight that goes to a sink is lost.

        Args:
            tokens: The tokens to start from; -1 is the last.
            residual: The share of a token that is itself.
        """
        self._check_something()
        for name, calls in self._by_name.items():
            if len(calls) > 1:
                raise ValueError(
                    f"rollout: expected one call per layer, but {name} was called {len(calls)} "
                    "times.\n  Watch one pass over the text. For a layer that a model uses several "
                    "times (ALBERT), follow seen.calls from the last to the first, as in "
                    "docs/maps.md."
                )
        maps = [self[name] for name in self]
        shapes = {(m.shape[0], *m.shape[2:]) for m in maps}
        batch, queries, keys = next(iter(shapes))
        if len(shapes) > 1 or queries != keys:
            raise ValueError(
                "rollout: expected self-attention layers that all read the same tokens, got maps "
                f"of (batch, queries, keys) = {', '.join(map(str, sorted(shapes)))}.\n"
                '  Watch the layers of one text in one pass: watch(model, layers="encoder.*").'
            )
        chosen = [tokens] if isinstance(tokens, int) else list(tokens)
        rows = []
        for token in chosen:
            if not -queries <= token < queries:
                raise IndexError(f"tokens: there are {queries} tokens, got {token}.")
            mix = torch.zeros(batch, queries, dtype=maps[0].dtype, device=maps[0].device)
            mix[:, token] = 1.0
            for m in reversed(maps):
                attended = m.detach().received(mix).mean(1)
                mix = residual * mix + (1 - residual) * attended.to(mix)
            rows.append(mix)
        return torch.stack(rows, 1)

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
            title: The title of the page; the name of the model by default.
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
        """Write all maps to one file: to load them again, or as a page or a figure.

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
        numbers: dict[tuple[object, ...], int] = {}
        held: list[Tensor] = []  # so that no address is used twice

        def store(t: Tensor) -> int:
            key = (t.untyped_storage().data_ptr(), t.storage_offset(), t.shape, t.stride())
            if key not in numbers or not t.numel():
                numbers[key] = len(tensors)
                tensors.append(t.detach().contiguous())
                held.append(t)
            return numbers[key]

        calls = []
        for call in self.calls:
            named, masks, mask = _parts(call.map)
            more = {"gradient": call.gradient, "output": call.output}
            named |= {name: t for name, t in more.items() if t is not None}
            calls.append(
                {
                    "name": call.name,
                    "scale": call.map.scale,
                    "cap": call.map.cap,
                    "mask": mask,
                    "mask_tensors": [store(t) for t in masks],
                    "head_numbers": list(call.map.head_numbers),
                    **{name: store(t) for name, t in named.items()},
                }
            )
        # Older versions do not know caps and sinks, and would show other weights.
        is_new = any(call["cap"] is not None or "sink" in call for call in calls)
        about = {
            "schema": 2 if is_new else 1,
            "model": self.model,
            "versions": {"clearhead": __version__, "torch": torch.__version__},
            "text_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
            "calls": calls,
        }
        numbered = {str(i): t for i, t in enumerate(tensors)}
        save_file(numbered, file, {"clearhead.seen": json.dumps(about)})

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
        except _NO_SENSE as error:
            raise ValueError(
                f"{path}: what it says of its maps makes no sense ({error}).\n"
                "  It was changed after seen.save() wrote it. Save it again."
            ) from None

    @classmethod
    def _from(cls, about: dict[str, Any], tensors: Mapping[str, Tensor]) -> Seen:
        if about["schema"] not in (1, 2):
            raise _LaterVersion(
                f"written in schema {about['schema']}; this Clearhead ({__version__}) reads "
                "schemas 1 and 2.\n  Install a newer one."
            )
        if not isinstance(about["model"], str):
            raise TypeError(f"the model's name is {about['model']!r}")
        seen = cls(about["model"])
        for call in about["calls"]:
            q, k, bias, lse, sink, values, gradient, output = (
                tensors[str(call[part])] if part in call else None
                for part in ("q", "k", "bias", "lse", "sink", "values", "gradient", "output")
            )
            mask = None
            if call["mask"] is not None:
                mask = Mask.decode(call["mask"], [tensors[str(i)] for i in call["mask_tensors"]])
            if q is None or k is None:
                raise KeyError("q and k")
            if not q.is_floating_point() or not k.is_floating_point():
                raise TypeError(f"q is {q.dtype} and k is {k.dtype}")
            if not q.numel() or not k.numel():  # of any length, and of no bytes
                raise ValueError(f"an axis is empty in q {tuple(q.shape)} or k {tuple(k.shape)}")
            cap = call.get("cap")  # older files have no cap, sink or head_numbers
            weights = AttentionMap(
                *(q, k, mask),
                scale=float(call["scale"]),
                bias=bias,
                cap=None if cap is None else float(cap),
                sink=sink,
                values=values,
                lse=lse,
                head_numbers=call.get("head_numbers"),
            )
            # A mask or a bias of another size is found out now, not later.
            if mask is not None:
                mask.check(*weights.shape)
            if bias is not None and any(
                own not in (1, size)
                for own, size in zip(bias.shape[::-1], (*weights.shape[::-1], 1), strict=False)
            ):
                raise ValueError(f"bias {tuple(bias.shape)} for weights {tuple(weights.shape)}")
            seen.add(str(call["name"]), weights, gradient=gradient, output=output)
        return seen


class NotSeen(KeyError):
    """A KeyError that prints its message as it is."""

    def __str__(self) -> str:
        return harmless(str(self.args[0]))


class _LaterVersion(ValueError):
    pass


# What a description that somebody has changed can raise while it is read.
_NO_SENSE = (
    *(LookupError, TypeError, ValueError, RecursionError, MemoryError),
    *(OverflowError, AttributeError, RuntimeError),
)


def _parts(m: AttentionMap) -> tuple[dict[str, Tensor], list[Tensor], str | None]:
    """The tensors of a map by name, those of its mask, and the mask as text."""
    named = {
        "q": m.queries,
        "k": m.keys,
        "bias": m.bias,
        "lse": m.lazy_scores.lse,
        "sink": m.sink_logits,
        "values": m.values,
    }
    masks: list[Tensor] = []
    mask = None if m.mask is None else m.mask.encode(masks)
    return {name: t for name, t in named.items() if t is not None}, masks, mask


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() != ".safetensors":
        raise ValueError(
            f"{path}: the end of the name decides the format, and {path.suffix or 'no end'!r} is "
            f"not supported.\n  Try {path.with_suffix('.safetensors').name}."
        )
