"""Attention with a switch for each way to go wrong.

A `Program` holds weights and inputs; `run(Switches(...))` computes what attention gives when the
switches stand like that. All switches at their default is right (and sees every token). A mistake
is diagnosed by finding the switches that give exactly what the submitted class gives.

>>> import torch
>>> eye = torch.eye(4)
>>> program = Program(Weights(eye, eye, eye, heads=2), (torch.eye(4)[None],) * 3)
>>> program.run(Switches(mask="causal"))[0, 0]  # the first token sees itself only
tensor([1., 0., 0., 0.])
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.checker.diagnosis.norms import Around, Norm


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of any attention, in one order: (in, out), heads one after the other.

    Args:
        q: Query weights, (d_in, heads * head_dim).
        k: Key weights, (d_in, kv_heads * head_dim).
        v: Value weights, like k.
        o: Output weights, (width after merging, d_out), or None where there is no projection.
        bq: Query bias, or None; bk, bv and bo likewise.
        heads: The number of query heads.
        kv_heads: The number of key and value heads; 0 means as many as query heads.
        norm: A norm of the input or the output inside the class, if there is one.
        memory_norm: The norm of the keys' and values' own input, if there is one.
        eps: What that norm adds to the variance.
        p: The dropout that the class was built with.
        label: Where the weights were found, in words.
        qk_norm: Norms on queries and keys, if the class has them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor | None = None
    bq: Tensor | None = None
    bk: Tensor | None = None
    bv: Tensor | None = None
    bo: Tensor | None = None
    heads: int = 1
    kv_heads: int = 0
    norm: Around | None = None
    eps: float = 1e-5
    p: float = 0.0
    label: str = ""
    qk_norm: tuple[Norm, Norm] | None = None
    memory_norm: Around | None = None


class Switches(NamedTuple):
    """How one run goes. Every default is right."""

    roles: str = "qkv"
    split: str = "heads"
    group: str = "repeat"
    turn: str = "none"
    keyed: str = "transposed"
    scale: str | float = "right"
    mask: str = "none"
    fill: str | float = "inf"
    empty: str = "nan"
    softmax: str = "keys"
    mix: str = "rows"
    merge: str = "heads"
    gain: str | float = "one"
    out: str = "used"
    around: str = "nothing"


def keep_pattern(kind: str, queries: int, keys: int) -> Tensor | None:
    """Which cells the mask of this kind leaves visible; None if it hides nothing."""
    row, column = torch.arange(queries)[:, None], torch.arange(keys)
    if kind == "none":
        return None
    if kind.startswith("window"):
        width = int(kind.removeprefix("window"))
        return (column <= row) & (column > row - width)
    if kind.startswith("band"):
        return (column - row).abs() <= int(kind.removeprefix("band"))
    pattern: Tensor = {
        "causal": column <= row,
        "ahead": column <= row + 1,
        "ahead2": column <= row + 2,
        "strict": column < row,
        "future": column > row,
        "far-future": column > row + 1,
        "future-and-self": column >= row,
        "self": column == row,
    }[kind]
    return pattern


def turned(x: Tensor, kind: str, base: float = 10000.0, *, mixed: bool = False) -> Tensor:
    """Rotary positions: pairs are (i, i + half) for "half", neighbours for "pairs".

    Args:
        x: Queries or keys.
        kind: How numbers are paired.
        base: The slowest angle's base.
        mixed: Whether the angles are laid out for the other kind, which is wrong.
    """
    tokens, width = x.shape[-2:]
    speeds = base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angles = torch.arange(tokens, dtype=x.dtype)[:, None] * speeds
    halves = (kind == "half") != mixed
    angles = torch.cat([angles, angles], -1) if halves else angles.repeat_interleave(2, dim=-1)
    if kind == "half":
        a, b = x.chunk(2, dim=-1)
        other = torch.cat([-b, a], dim=-1)
    else:
        other = torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
    return x * angles.cos() + other * angles.sin()


@dataclass
class Program:
    """Weights and inputs, ready to be run under any switches.

    Args:
        weights: The weights.
        inputs: What queries, keys and values are computed from; three times the same for
            self-attention. Each (batch, tokens, d_in).
        given: The mask that forward was given, True = visible, if it was.
        values: A number a sentence, (batch, 1, 1, 1), for a scale or a fill of "values".
    """

    weights: Weights
    inputs: tuple[Tensor, Tensor, Tensor]
    given: Tensor | None = None
    values: Tensor | None = None
    _seen: dict[object, Tensor | None] = field(default_factory=dict, repr=False)

    @property
    def head_dim(self) -> int:
        """The width of one query head."""
        return self.weights.q.shape[1] // self.weights.heads

    def run(self, s: Switches) -> Tensor | None:
        """The output under these switches, or None where the shapes do not allow it."""
        merged = self._stage(("merged", s[:12], s.around), lambda: self._merge(s))
        if merged is None:
            return None
        w = self.weights
        gain = {"one": 1.0, "rescaled": 1 / (1 - w.p), "kept": 1 - w.p}.get(s.gain, s.gain)  # type: ignore[arg-type]  # a number is its own value
        if gain != 1.0:
            merged = merged * gain
        if s.out == "used" and w.o is not None:
            if merged.shape[-1] != w.o.shape[0]:
                return None
            merged = merged @ w.o
            if w.bo is not None:
                merged = merged + w.bo
        return self._around(s, merged)

    def forget(self) -> None:
        """Drop what depends on `values`, before they change."""
        for key in [
            k for k in self._seen if isinstance(k, tuple) and k[0] in ("weights", "merged")
        ]:
            del self._seen[key]

    def _around(self, s: Switches, out: Tensor) -> Tensor | None:
        if s.around in ("nothing", "norm-before", "norm-before-queries"):
            return out
        x = self.inputs[0]
        if x.shape != out.shape:
            return None
        if s.around in ("residual", "norm-before-residual", "norm-before-queries-residual"):
            return out + x
        if s.around == "residual-normed":
            return out + self._norm(x)
        if s.around == "norm-after":
            return self._norm(out)
        return self._norm(out + x)  # "residual-norm-after"

    def without_around(self, s: Switches, out: Tensor) -> Tensor | None:
        """The output less a residual; None where that cannot be told."""
        if not s.around.endswith(("residual", "residual-normed")):
            return None if "after" in s.around else out
        x = self.inputs[0]
        if x.shape != out.shape:
            return None
        return out - (self._norm(x) if s.around == "residual-normed" else x)

    def _norm(self, x: Tensor) -> Tensor:
        assert self.weights.norm is not None
        return self.weights.norm.apply(x, self.weights.eps)

    def _stage(self, key: object, compute: "object") -> Tensor | None:
        if key not in self._seen:
            self._seen[key] = compute()  # type: ignore[operator]  # called with no arguments
        return self._seen[key]

    def _projected(self, role: str, source: int, normed: bool) -> Tensor | None:
        x = self.inputs[source]
        w = self.weights
        if normed:
            norm = w.norm if source == 0 or w.memory_norm is None else w.memory_norm
            assert norm is not None
            if x.shape[-1] != len(norm.weight):
                return None
            x = norm.apply(x, w.eps)
        if role == "x":
            return x if x.shape[-1] == w.q.shape[1] else None
        matrix = {"q": w.q, "k": w.k, "v": w.v}[role]
        bias = {"q": w.bq, "k": w.bk, "v": w.bv}[role]
        projected = x @ matrix
        return projected if bias is None else projected + bias

    def heads(self, s: Switches, position: int) -> Tensor | None:
        """Queries (0), keys (1) or values (2), (batch, heads, tokens, head_dim)."""
        role = s.roles[position]
        normed = s.around.startswith("norm-before") or s.around == "residual-normed"
        normed &= position == 0 or not s.around.startswith("norm-before-queries")
        flat = self._projected(role, position, normed)
        if flat is None:
            return None
        w, hd = self.weights, self.head_dim
        batch, tokens, width = flat.shape
        norm = w.qk_norm[position] if w.qk_norm is not None and position < 2 else None
        if norm is not None and len(norm.weight) == width:
            flat, norm = norm.apply(flat), None
        if position == 2 and w.v.shape[1] != w.k.shape[1] and role == "v":
            heads = w.kv_heads or w.heads  # values of another width than keys
            hd = width // heads
        if width % hd:
            return None
        heads = width // hd
        kind = s.split
        if kind.startswith("untransposed-"):
            kind = (
                "untransposed" if "qkv"[position] in kind.removeprefix("untransposed-") else "heads"
            )
        if kind == "token-heads":  # no transpose at all: the heads of one token see each other
            return flat.reshape(batch, tokens, heads, hd)
        if kind == "untransposed":
            split = flat.reshape(batch, heads, tokens, hd)
        elif kind == "strided":
            split = flat.reshape(batch, tokens, hd, heads).permute(0, 3, 1, 2)
        elif kind == "channels":  # (batch, width, tokens) cut up without a transpose
            split = flat.transpose(1, 2).reshape(batch, heads, tokens, hd)
        elif kind == "scrambled":  # split rightly, then reshaped instead of transposed
            split = (
                flat.reshape(batch, tokens, hd, heads)
                .transpose(1, 2)
                .reshape(batch, heads, tokens, hd)
            )
        else:
            split = flat.reshape(batch, tokens, heads, hd).transpose(1, 2)
        if norm is not None:
            split = norm.apply(split)
        if heads < w.heads:
            times = w.heads // heads
            if s.group == "tile" or s.group == f"tile-{'qkv'[position]}":
                split = split.repeat(1, times, 1, 1)
            else:
                split = split.repeat_interleave(times, dim=1)
        return split if split.shape[1] == w.heads else None

    def factor(self, s: Switches) -> float:
        """What the scores are multiplied by before the softmax."""
        hd, heads = self.head_dim, self.weights.heads
        known = {
            "right": hd**-0.5,
            "d_out": (hd * heads) ** -0.5,
            "d_in": self.weights.q.shape[0] ** -0.5,
            "multiplied": hd**0.5,
            "twice": 1 / hd,
            "heads": heads**-0.5,
            "tokens": self.inputs[1].shape[1] ** -0.5,
        }
        return s.scale if isinstance(s.scale, float) else known.get(s.scale, 1.0)

    def _weights(self, s: Switches) -> Tensor | None:
        """The attention weights, (batch, heads, queries, keys)."""
        scores = self._stage(("scores", s[:5], s.around), lambda: self.scores(s))
        if scores is None or (s.mask.startswith("given") and self.given is None):
            return None
        hd, heads = self.head_dim, self.weights.heads
        queries, keys = scores.shape[-2:]
        if s.scale == "values":
            assert self.values is not None
            scores = scores * self.values
        else:
            scores = scores * self.factor(s)
            if scores is None:
                return None
        keep = self._keep(s.mask, queries, keys)
        after = isinstance(s.fill, str) and s.fill.startswith("after")
        if keep is not None and not after:
            scores = self._fill(scores, keep, s)
        if s.softmax == "none":
            weights = scores
        elif s.softmax == "twice":
            weights = scores.softmax(-1).softmax(-1)
        elif s.softmax == "all":
            weights = scores.flatten(-2).softmax(-1).view(scores.shape)
        elif s.softmax == "log":
            weights = scores.log_softmax(-1)
        elif s.softmax == "sigmoid":
            weights = scores.sigmoid()
        elif s.softmax == "sum":
            weights = scores / scores.sum(-1, keepdim=True)
        elif s.softmax.startswith("no-keepdim"):  # each column is divided by another row's sum
            calm = scores - scores.amax(-1, keepdim=True) if s.softmax.endswith("calm") else scores
            weights = calm.exp() / calm.exp().sum(-1).unsqueeze(-2)
        elif s.softmax == "queries-calm":  # the largest of each row, the sum of each column
            calm = (scores - scores.amax(-1, keepdim=True)).exp()
            weights = calm / calm.sum(-2, keepdim=True)
        elif s.softmax == "exp":
            weights = scores.exp()
        elif s.softmax == "relu":
            weights = scores.relu()
        else:
            weights = scores.softmax({"keys": -1, "queries": -2, "heads": 1, "batch": 0}[s.softmax])
        if keep is not None:
            if s.fill == "after":
                weights = weights * keep
            elif after:
                weights = weights.masked_fill(~keep, -math.inf if s.fill == "after-inf" else -1e9)
            elif s.empty == "zero":
                weights = weights.masked_fill(~keep.any(-1, keepdim=True), 0.0)
        if s.scale == "after":
            weights = weights * hd**-0.5
        elif s.scale == "after-d_out":
            weights = weights * (hd * heads) ** -0.5
        return weights

    def _keep(self, kind: str, queries: int, keys: int) -> Tensor | None:
        if not kind.startswith("given"):
            return keep_pattern(kind, queries, keys)
        assert self.given is not None
        if kind == "given-and-causal":
            causal = keep_pattern("causal", queries, keys)
            assert causal is not None
            return self.given & causal
        return {"given": self.given, "given-inverted": ~self.given}.get(kind, self.given.mT)

    def _fill(self, scores: Tensor, keep: Tensor, s: Switches) -> Tensor:
        if s.fill == "added-to-kept":
            return scores + keep.to(scores)
        if s.fill == "added-to-hidden":
            return scores + (~keep).to(scores)
        if s.fill == "values":
            assert self.values is not None
            return torch.where(keep, scores, self.values)
        if isinstance(s.fill, float):
            return scores.masked_fill(~keep, s.fill)
        if s.fill == "plus-inf":
            return scores.masked_fill(~keep, math.inf)
        if s.fill == "huge":
            return scores.masked_fill(~keep, 1e9)
        if s.empty == "unmasked" and s.fill == "inf":
            keep = keep | ~keep.any(-1, keepdim=True)
        hidden = -math.inf if s.fill == "inf" else 0.0
        filled = scores.masked_fill(~keep, hidden)
        if s.empty == "uniform" and s.fill == "inf":
            filled = filled.masked_fill(~keep.any(-1, keepdim=True), 0.0)
        return filled

    def scores(self, s: Switches) -> Tensor | None:
        """Queries times keys, (batch, heads, queries, keys), without any scale."""
        q, k = self.heads(s, 0), self.heads(s, 1)
        if q is None or k is None or q.shape[-1] != k.shape[-1]:
            return None
        if s.turn != "none":
            if q.shape[-1] % 2:
                return None
            kind, _, sides = s.turn.partition("-")
            mixed, sides = sides == "mixed", sides.replace("mixed", "") or "qk"
            q = turned(q, kind, mixed=mixed) if "q" in sides else q
            k = turned(k, kind, mixed=mixed) if "k" in sides else k
        if s.keyed == "viewed":
            return q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])
        return q @ k.transpose(-2, -1)

    def _merge(self, s: Switches) -> Tensor | None:
        weights = self._stage(("weights", s[:10], s.around), lambda: self._weights(s))
        values = self._stage(("values", s[:3], s.around), lambda: self.heads(s, 2))
        if weights is None or values is None:
            return None
        if s.turn.endswith("-qkv"):
            values = turned(values, s.turn.removesuffix("-qkv"))
        if s.mix == "transposed":
            weights = weights.transpose(-2, -1)
        if weights.shape[-1] != values.shape[-2]:
            return None
        if s.mix == "own":  # each token's own values, times the sum of its row
            if weights.shape[-2] != values.shape[-2]:
                return None
            context = weights.sum(-1, keepdim=True) * values
        else:
            context = weights @ values  # (batch, heads, tokens, head_dim)
        batch, _, tokens, _ = context.shape
        if s.split == "token-heads":
            if s.merge == "untransposed":
                context = context.transpose(1, 2)
            elif s.merge != "heads":
                return None
            return context.reshape(batch, self.inputs[0].shape[1], -1)
        if s.merge == "heads":
            return context.transpose(1, 2).reshape(batch, tokens, -1)
        if s.merge == "untransposed":
            return context.reshape(batch, tokens, -1)
        if s.merge == "interleaved":
            return context.permute(0, 2, 3, 1).reshape(batch, tokens, -1)
        if s.merge == "channels":  # straight to (batch, width, tokens)
            return context.reshape(batch, -1, tokens).transpose(1, 2)
        if s.merge == "dims":
            return context.transpose(2, 3).reshape(batch, tokens, -1)
        if s.merge == "reversed":
            return context.transpose(1, 3).reshape(batch, tokens, -1)
        if s.merge == "batch":
            return context.transpose(0, 1).reshape(batch, tokens, -1)
        if s.merge == "sum":
            return context.sum(1)
        if s.merge == "mean":
            return context.mean(1)
        if s.merge == "first":
            return context[:, 0]
        if s.merge == "last":
            return context[:, -1]
        return torch.cat(list(context.unbind(1)), dim=1)  # "tokens": heads as more tokens


def difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the size of the expected values; NaN equals NaN.

    Examples:
        >>> difference(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]))
        0.0
    """
    if got.shape != expected.shape:
        return math.inf
    if not expected.numel():
        return 0.0
    finite = expected.isfinite()
    if finite.all():
        gap, size = (got - expected).abs().max(), expected.abs().max()
        return math.inf if gap.isnan() else float(gap / size.clamp_min(1e-12))
    if not torch.equal(finite, got.isfinite()) or not finite.any():
        return math.inf
    return difference(got[finite], expected[finite])
