"""The attention weights themselves, recovered from outside, where no known form gives the output.

Attention is linear in its values: with other value weights, the output changes and the attention
weights stay. So a handful of runs with other value weights are linear equations, and their
solution is the attention weights, whatever the class does with its scores.

Then queries and keys are changed, each alone and both together. In the mixed difference of the
logarithms only what joins a query with a key remains: q · k and its scale, while any bias that is
added falls out. What is left over when q · k is taken away is the bias.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checker.diagnosis.probes import Inputs
from clearhead.checker.diagnosis.search import TOLERANCE, Explanation
from clearhead.checker.diagnosis.simulator import (
    Program,
    Switches,
    Weights,
    difference,
    keep_pattern,
)
from clearhead.checker.diagnosis.terms import Terms, is_step
from clearhead.checker.diagnosis.weight_layouts import Candidate, candidates
from clearhead.checker.harness.building import head_counts
from clearhead.checker.harness.subject import Session, Subject, call
from clearhead.checker.sandbox.submission import Failure

_SEEN = 1e-7  # weights above this have logarithms that can be trusted
_FITS = 1e-4
_CALM = 0.3  # small queries and keys: no weight comes near to zero
_AROUND = (
    "nothing", "residual", "norm-before", "norm-before-residual", "residual-normed",
    "norm-before-queries", "norm-before-queries-residual",
)  # fmt: skip
_LAYOUTS = (("heads", "heads"), ("strided", "interleaved"))


@dataclass(frozen=True, eq=False)
class Reading:
    """A candidate for the weights, and where each of its numbers stands among the parameters."""

    candidate: Candidate
    places: Weights

    def changed(
        self, weights: dict[str, Tensor], parts: str, seed: int, size: float = 1.0
    ) -> dict[str, Tensor]:
        """The parameters with other numbers for some of "q", "k" and "v"; biases too."""
        generator = torch.Generator().manual_seed(seed)
        flat = torch.cat([w.flatten() for w in weights.values()])
        for part in parts:
            for name in (part, f"b{part}"):
                places = getattr(self.places, name)
                if places is not None:
                    where = places.flatten().long().unique()
                    where = where[where > 0] - 1
                    noise = torch.randn(len(where), generator=generator, dtype=flat.dtype)
                    flat[where] = noise * flat[where].std(correction=0).clamp_min(0.1) * size
        pieces = torch.split(flat, [w.numel() for w in weights.values()])
        return {n: p.view(w.shape) for (n, w), p in zip(weights.items(), pieces, strict=True)}

    def read(self, weights: dict[str, Tensor]) -> Weights:
        """This reading of other parameters."""
        nothing = torch.zeros(1, dtype=torch.float64)
        flat = torch.cat([nothing, *(weight.flatten() for weight in weights.values())])

        def there(places: Tensor | None) -> Tensor | None:
            return None if places is None else flat[places.long()]

        w = self.places
        q, k, v = flat[w.q.long()], flat[w.k.long()], flat[w.v.long()]
        return replace(
            self.candidate.weights, q=q, k=k, v=v, o=there(w.o), bq=there(w.bq), bk=there(w.bk),
            bv=there(w.bv), bo=there(w.bo),
        )  # fmt: skip


def readings(subject: Subject) -> list[Reading]:
    """Every reading of the weights, each one once."""
    numbered, first = {}, 1
    for name, weight in subject.weights.items():
        last = first + weight.numel()
        numbered[name] = torch.arange(first, last, dtype=torch.float64).view(weight.shape)
        first = last
    real, places = (
        candidates(
            weights, subject.built.modules, d_in=subject.d_in, heads=head_counts(subject),
            head_dim=subject.sizes.head_dim, p=subject.sizes.p,
        )
        for weights in (subject.weights, numbered)
    )  # fmt: skip
    return [
        Reading(candidate, where.weights)
        for candidate, where in zip(real, places, strict=True)
        if candidate.weights.q.shape[0] == subject.d_in
    ]


def recover(
    session: Session,
    subject: Subject,
    inputs: Inputs,
    out: Tensor,
    masks: Sequence[str],
    turns: Sequence[str],
    remarks: list[str],
) -> Explanation | None:
    """Attention with something on top of it that gives this output; None if there is none.

    Args:
        session: Who answers for the class.
        subject: The class.
        inputs: The inputs.
        out: What it gives for them.
        masks: The masks that it may have; "sparse" for any part of the past.
        turns: The rotary positions that it may have.
        remarks: Takes a sentence on what was seen, where that is no explanation.
    """
    if not subject.weights or subject.dtype != torch.float64 or subject.ids:
        return None
    if out.shape[:2] != inputs[0].shape[:2]:
        return None
    try:
        for reading in readings(subject)[:40]:
            recovery = _Recovery(session, subject, inputs, reading)
            found = recovery.explain(out, masks, turns)
            if recovery.remark and recovery.remark not in remarks:
                remarks.append(recovery.remark)
            if found is not None:
                return found
    finally:
        session.load(subject.weights)
    return None


class _Recovery:
    """The search in one reading of the weights."""

    def __init__(
        self, session: Session, subject: Subject, inputs: Inputs, reading: Reading
    ) -> None:
        self.session, self.subject, self.inputs, self.reading = session, subject, inputs, reading
        w = reading.candidate.weights
        self.heads, self.tokens = w.heads, inputs[1].shape[1]
        calm = reading.changed(subject.weights, "qk", 11, _CALM)
        q, k = (reading.changed(calm, part, 12, _CALM) for part in "qk")
        both = reading.changed(q, "k", 12, _CALM)
        self.combinations = (calm, q, k, both)
        self.shape: Sequence[int] = ()
        self.visible: Tensor | None = None
        self.remark = ""

    def explain(
        self, out: Tensor, masks: Sequence[str], turns: Sequence[str]
    ) -> Explanation | None:
        """The first form that fits."""
        self.shape = out.shape
        first = self._runs(self.combinations[0], out.shape)
        if first is None:
            return None
        normed = self.reading.candidate.weights.norm is not None
        arounds = _AROUND if normed else _AROUND[:2]
        for around, (split, merge) in itertools.product(arounds, _LAYOUTS):
            form = Switches(split=split, merge=merge, around=around)
            mixed = self._solve(first, form)
            if mixed is None:
                continue
            for after in self._mixers():
                if not _are_weights(_unmixed(mixed, after)):
                    continue
                rest = [self._runs(weights, out.shape) for weights in self.combinations[1:]]
                solved = [self._solve(runs, form) for runs in rest if runs is not None]
                maps = [_unmixed(one, after) for one in (mixed, *solved) if one is not None]
                found = self._fit(maps, form, after, masks, turns) if len(maps) == 4 else None
                if found is not None:
                    return self._checked(found, out)
        return None

    def _runs(
        self, weights: dict[str, Tensor], shape: Sequence[int]
    ) -> list[tuple[Weights, Tensor]] | None:
        """Outputs with several value weights: enough equations for all attention weights."""
        count = math.ceil(self.heads * self.tokens / shape[-1]) + 2
        runs = []
        for seed in range(count):
            changed = self.reading.changed(weights, "v", 20 + seed)
            failed = self.session.load(changed)
            got = failed or call(self.session, self.subject, self.inputs)
            if isinstance(got, Failure) or got.shape != shape or not got.isfinite().all():
                return None
            runs.append((self.reading.read(changed), got))
        return runs

    def _program(self, weights: Weights) -> Program:
        q, k, v = (t.to(torch.float64) for t in self.inputs)
        same = self.inputs[0] is self.inputs[1]
        return Program(weights, (q, q, q) if same else (q, k, v), self.visible)

    def _solve(self, runs: list[tuple[Weights, Tensor]], form: Switches) -> Tensor | None:
        """The attention weights, (batch, heads, queries, keys); None if no weights fit."""
        equations, results = [], []
        for weights, out in runs:
            program = self._program(weights)
            values, left = program.heads(form, 2), program.without_around(form, out)
            if values is None or left is None or values.shape[1] != self.heads:
                return None
            if weights.o is not None:
                wide = weights.o
                if len(wide) != self.heads * values.shape[-1]:
                    return None
                cut = (self.heads, -1, wide.shape[1])
                if form.merge == "interleaved":
                    wide = wide.view(-1, self.heads, wide.shape[1]).transpose(0, 1).reshape(cut)
                values = torch.einsum("bhjd,hde->bhje", values, wide.reshape(cut))
                left = left if weights.bo is None else left - weights.bo
            elif self.heads > 1:
                return None
            if values.shape[-1] != left.shape[-1]:
                return None
            equations.append(values.permute(0, 3, 1, 2).flatten(2))  # (batch, width, heads * keys)
            results.append(left.transpose(1, 2))  # (batch, width, queries)
        table, wanted = torch.cat(equations, 1), torch.cat(results, 1)
        if torch.linalg.matrix_rank(table).min() < table.shape[2]:
            return None
        found: Tensor = torch.linalg.lstsq(table, wanted).solution
        if float((table @ found - wanted).abs().max()) > 1e-8 * float(wanted.abs().max()):
            return None
        batch, _, queries = found.shape
        return found.reshape(batch, self.heads, -1, queries).transpose(2, 3)

    def _mixers(self) -> Iterator[Tensor | None]:
        """How heads may be mixed after the softmax: not at all, or by a square parameter."""
        yield None
        for weight in self._squares():
            yield weight
            yield weight.T

    def _squares(self) -> list[Tensor]:
        square = (self.heads, self.heads)
        found = [w for w in self.subject.weights.values() if tuple(w.shape[:2]) == square]
        return [w.flatten(1) for w in found if self.heads > 1 and w[0, 0].numel() == 1]

    def _fit(
        self,
        maps: list[Tensor],
        form: Switches,
        after: Tensor | None,
        masks: Sequence[str],
        turns: Sequence[str],
    ) -> tuple[Switches, Terms] | None:
        """The mask, the scale and the bias that explain the attention weights."""
        every = torch.stack(maps)  # (combination, batch, heads, queries, keys)
        mask = next((kind for kind in masks if _hides(every, kind)), None)
        if mask is None and "sparse" in masks:
            mask, self.visible = "given", _shown(every)
            causal = torch.ones_like(self.visible).tril()
            if not self.visible.diagonal().all() or bool((self.visible & ~causal).any()):
                return None  # no one could say whether it is right
        if mask is None or not all(_are_weights(one) for one in maps):
            return None
        seen = (every > _SEEN).all(0).all(0)  # (heads, queries, keys)
        logs = every.clamp_min(1e-300).log()
        for turn, unit in itertools.product(turns, ("", "width", "heads", "tokens")):
            switches = form._replace(mask=mask, turn=turn, scale="none")
            raw = self._products(switches, unit)
            mixing = None if raw is None else self._mixing(logs, raw, seen)
            if raw is None or mixing is None:
                continue
            left = _centred(logs - torch.einsum("cbhqk,hg->cbgqk", raw, mixing), seen)
            bias = left.mean((0, 1))
            if float((left - bias).abs().max()) > _FITS * max(1.0, float(bias.abs().max())):
                self.remark = _remark(mask, mixing, self.reading.candidate.weights)
                return None
            added = None
            if float(bias.abs().max()) > 1e-6:
                added = bias.masked_fill(~seen, torch.nan)  # hidden, so nothing is known of it
                if is_step(added):
                    return None
            terms = self._terms(mixing, unit, added, after, switches)
            return None if terms is None else (switches, terms)
        return None

    def _products(self, switches: Switches, unit: str) -> Tensor | None:
        """Queries times keys, for the four combinations."""
        terms = Terms(unit=unit)
        found = [
            self._program(replace(self.reading.read(w), terms=terms)).scores(switches)
            for w in self.combinations
        ]
        known = [one for one in found if one is not None]
        return torch.stack(known) if len(known) == len(found) else None

    def _mixing(self, logs: Tensor, raw: Tensor, seen: Tensor) -> Tensor | None:
        """What q · k is multiplied by: a number for each head, or a matrix of heads."""
        alone = _joined_part(logs, raw, seen, diagonal=True)
        if alone is not None or not self._squares():
            return alone
        return _joined_part(logs, raw, seen, diagonal=False)

    def _terms(
        self,
        mixing: Tensor,
        unit: str,
        added: Tensor | None,
        after: Tensor | None,
        switches: Switches,
    ) -> Terms | None:
        scales = mixing.diagonal()
        if float((mixing - torch.diag(scales)).abs().max()) < 1e-6:
            learned = after is None and self._learned(scales, unit, switches)
            return Terms(scales, unit, added, None, after, learned)
        for weight in [one for square in self._squares() for one in (square, square.T)]:
            size = (mixing * weight).sum() / (weight * weight).sum()
            if difference(mixing, size * weight) < _FITS:
                return Terms(size.expand(self.heads), unit, added, weight, after)
        return None

    def _learned(self, scales: Tensor, unit: str, switches: Switches) -> bool:
        """Whether a parameter sets the scales: with another value of it they are others."""
        head_dim = self.reading.candidate.weights.q.shape[1] // self.heads
        if float((scales * head_dim**0.5 - 1).abs().max()) < _FITS:
            return False
        raw = self._products(switches, unit)
        for name, weight in self.subject.weights.items():
            if weight.numel() not in (1, self.heads) or "bias" in name or raw is None:
                continue
            maps = []
            for weights in self.combinations:
                runs = self._runs({**weights, name: weight + 0.7}, self.shape)
                solved = None if runs is None else self._solve(runs, switches)
                maps += [] if solved is None else [solved]
            if len(maps) < len(self.combinations):
                continue
            every = torch.stack(maps)
            seen = (every > _SEEN).all(0).all(0)
            other = _joined_part(every.clamp_min(1e-300).log(), raw, seen, diagonal=True)
            if other is not None and float((other.diagonal() / scales - 1).abs().max()) > 1e-3:
                return True
        return False

    def _checked(self, found: tuple[Switches, Terms], out: Tensor) -> Explanation | None:
        """The explanation, if it gives what the class gave with its first weights."""
        switches, terms = found
        candidate = self.reading.candidate
        program = self._program(replace(candidate.weights, terms=terms))
        base = switches
        ids: tuple[str, ...] = ()
        if terms.scales is not None and not terms.learned and not terms.unit:
            scale, ids = _named_scale(terms.scales, program)
            if scale is None:
                return None
            program = self._program(replace(program.weights, terms=replace(terms, scales=None)))
            base, switches = switches._replace(scale="right"), switches._replace(scale=scale)
        if terms.unit in ("heads", "tokens"):
            ids = ("norm-over-wrong-axis",)
        got = program.run(switches)
        error = math.inf if got is None else difference(got, out)
        if error > TOLERANCE:
            return None
        return Explanation(program, candidate, base, switches, ids, error)


def _remark(mask: str, mixing: Tensor, weights: Weights) -> str:
    """What is right of attention whose scores have a part that cannot be judged."""
    scale, right = float(mixing.diagonal().mean()), (weights.q.shape[1] // weights.heads) ** -0.5
    seen = {"none": "all tokens are seen", "causal": "only the past is seen"}.get(mask, mask)
    return (
        f"The attention weights could be recovered: every row sums to one, {seen}, and q · k is "
        f"scaled by {scale:.3g} (1 / √head_dim is {right:.3g}). Beside q · k the scores have a "
        "part that depends on queries or keys, which is not judged."
    )


def _unmixed(mixed: Tensor, after: Tensor | None) -> Tensor:
    """The weights before heads were mixed."""
    if after is None:
        return mixed
    return torch.einsum("bgqk,gh->bhqk", mixed, torch.linalg.pinv(after))


def _are_weights(maps: Tensor) -> bool:
    """Whether no weight is below zero and every row sums to one."""
    sums = maps.sum(-1)
    return bool(float(maps.min()) > -1e-7 and float((sums - 1).abs().max()) < 1e-6)


def _hides(maps: Tensor, kind: str) -> bool:
    """Whether the mask of this kind hides just what these weights do not show."""
    if kind == "sparse":
        return False
    keep, shown = keep_pattern(kind, *maps.shape[-2:]), _shown(maps)
    return bool(shown.all()) if keep is None else torch.equal(shown, keep)


def _shown(maps: Tensor) -> Tensor:
    """The cells, (queries, keys), that any of these weights show."""
    return (maps > 1e-9).flatten(0, 2).any(0)


def _centred(x: Tensor, seen: Tensor) -> Tensor:
    """Numbers less their row's mean, over the cells that can be trusted; zero elsewhere."""
    count = seen.sum(-1, keepdim=True).clamp_min(1)
    mean = torch.where(seen, x, 0.0).sum(-1, keepdim=True) / count
    return torch.where(seen, x - mean, 0.0)


def _joined_part(logs: Tensor, raw: Tensor, seen: Tensor, *, diagonal: bool) -> Tensor | None:
    """How scores come from q · k: (heads, heads), a diagonal where each head has its own."""
    wanted, given = (_centred(t[0] - t[1] - t[2] + t[3], seen) for t in (logs, raw))
    heads = wanted.shape[1]
    mixing = torch.zeros(heads, heads, dtype=torch.float64)
    for head in range(heads):
        sources = [head] if diagonal else list(range(heads))
        cells = seen[head].expand(len(wanted), -1, -1)
        target = wanted[:, head][cells]
        columns = torch.stack([_centred(given[:, one], seen[head])[cells] for one in sources], -1)
        if torch.linalg.matrix_rank(columns) < len(sources):
            return None
        numbers = torch.linalg.lstsq(columns, target[:, None]).solution[:, 0]
        gap = (columns @ numbers - target).abs().max()
        if float(gap) > _FITS * float(target.abs().max().clamp_min(1e-3)):
            return None
        mixing[sources, head] = numbers
    return mixing


def _named_scale(scales: Tensor, program: Program) -> tuple[str | None, tuple[str, ...]]:
    """The scale as the simulator calls it, and its mistake; None for one that has no name."""
    known = (
        ("right", ()), ("none", ("missing-scale",)), ("d_out", ("scale-by-d-out",)),
        ("multiplied", ("scale-multiplied",)), ("twice", ("scale-twice",)),
    )  # fmt: skip
    for name, ids in known:
        factor = program.factor(Switches(scale=name))
        if float((scales / factor - 1).abs().max()) < _FITS:
            return name, ids
    return None, ()
