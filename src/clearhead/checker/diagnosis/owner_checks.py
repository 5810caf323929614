"""The model or block around an attention, run as the file itself runs it.

A class may be right but used wrongly: with a mask in the wrong layout, a mask of an earlier batch,
positions that start at 0 in every step, or the batch in place of the tokens. This shows from
outside: a sequence affects another one, padding affects real tokens, or a cache the output.
"""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.checker.catalogue import finding
from clearhead.checker.harness.comparison import difference, percent
from clearhead.checker.report import Finding, Report
from clearhead.checker.sandbox.limits import Limits
from clearhead.checker.sandbox.submission import ClassInfo, Failure, Isolated, Submission
from clearhead.checker.source.call_sites import last_name, parsed

_SECONDS = 6.0  # for the demonstration
_SAME, _APART = 1e-5, 1e-3
_MARKS = re.compile(r"mask|pad|valid|keep|real")
_NEIGHBOURS = re.compile(r"Conv\dd|GRU|LSTM|RNN|Pool")
_NO_MARKS = re.compile(r"loss|target|label")


@dataclass(frozen=True)
class _Demo:
    """A module of the file, as called by the file's demonstration.

    Args:
        session: The process that runs the module.
        owner: The module's class.
        given: Its input tensors, by name.
        output: Its output.
        kinds: The classes of all modules inside.
    """

    session: Submission
    owner: ClassInfo
    given: dict[str, Tensor]
    output: Tensor
    kinds: str

    def ask(self, what: str, *values: Tensor) -> list[Tensor]:
        """The answer to one request; empty if it fails."""
        got = self.session.forward([what, *values])
        return [] if isinstance(got, Failure) else list(got.tensors)

    def again(self, given: dict[str, Tensor]) -> Tensor | None:
        """The output of a new module for other tensors."""
        return self._like(self.ask("again", *given.values()))

    def after(self, before: dict[str, Tensor]) -> Tensor | None:
        """The output for its own tensors, after a call with others."""
        return self._like(self.ask("after", *before.values(), *self.given.values()))

    def _like(self, found: Sequence[Tensor]) -> Tensor | None:
        fits = [one for one in found if one.shape == self.output.shape]
        return fits[0].to(torch.float64) if fits else None

    def marks(self) -> dict[str, Tensor]:
        """The arguments that mark tokens, each (batch, tokens) of zeros and ones."""
        return {
            name: given
            for name, given in self.given.items()
            if given.ndim == 2
            and _MARKS.search(name.lower())
            and not _NO_MARKS.search(name.lower())
            and bool(((given == 0) | (given == 1)).all())
        }

    def changed(self, where: Tensor) -> dict[str, Tensor]:
        """The tensors with other contents at some tokens, (batch, tokens); marks are kept."""
        made = dict(self.given)
        for name in made.keys() - self.marks().keys():
            tensor = made[name]
            if tensor.shape[:2] == where.shape:
                made[name] = _other(tensor, where)
        return made


def with_owner(
    reports: list[Report],
    source: str,
    filename: str,
    limits: Limits,
    siblings: Mapping[str, str],
) -> list[Report]:
    """Add the mistakes of the model that the file's own demonstration runs to the reports.

    Args:
        reports: One for each attention class of the file.
        source: The source of the file.
        filename: Its name.
        limits: Its resource limits.
        siblings: Modules in the same directory.
    """
    judged = {report.cls for report in reports}
    right = all(report.verdict == "correct" for report in reports)
    body = _body(source, judged) if right else ""
    if not body:
        return reports
    quick = replace(limits, seconds=min(limits.seconds, _SECONDS))
    with Isolated(source, filename, limits=quick, siblings=siblings) as session:
        demo = _demo_of(session, body, judged)
        found = None if demo is None else _mistake(demo)
    if found is None:
        return reports
    first = reports[0]
    others = tuple(one for one in first.findings if one.id != found.id)
    wrong = replace(first, verdict="wrong", findings=(found, *others), tested="")
    return [wrong, *reports[1:]]


def _body(source: str, judged: Collection[str]) -> str:
    """The demonstration, if a class other than those judged builds one of them."""
    tree = parsed(source)
    owners = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name not in judged]
    built = {last_name(n.func) for o in owners for n in ast.walk(o) if isinstance(n, ast.Call)}
    return "\n".join(
        ast.unparse(one)
        for node in tree.body
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) and built & {*judged}
        for one in node.body
    )


def _demo_of(session: Submission, body: str, judged: set[str]) -> _Demo | None:
    """The demonstration, if it runs and calls a class other than those judged."""
    classes = session.classes()
    built = session.demonstrate(body)
    if isinstance(classes, Failure) or isinstance(built, Failure):
        return None
    owner = next((info for info in classes if info.name == built.plain.get("owner")), None)
    names, kinds = str(built.plain.get("names")).split(","), str(built.plain.get("kinds"))
    got = session.forward(["given"])
    if owner is None or owner.name in judged or isinstance(got, Failure):
        return None
    given = dict(zip(names, got.tensors, strict=False))
    output = session.forward(["again", *given.values()])
    if isinstance(output, Failure) or len(output.tensors) != 1 or not output.tensors[0].ndim:
        return None
    demo = _Demo(session, owner, given, output.tensors[0].to(torch.float64), kinds)
    again = demo.again(given)
    return None if again is None or difference(again, demo.output) > _SAME else demo


def _mistake(demo: _Demo) -> Finding | None:
    """The first mistake that is visible from outside."""
    checks = (_batch_leak, _earlier_call, _padding, _cache)
    found = next(filter(None, (check(demo) for check in checks)), None)
    if found is None:
        return None
    id, evidence = found
    says = f'In {demo.owner.name}, called as under `if __name__ == "__main__"`: {evidence}'
    return finding(id, says, demo.owner.line)


def _other(tensor: Tensor, where: Tensor) -> Tensor:
    """Other contents where marked: other values, or other ids among those that occur."""
    made = tensor.clone()
    part = made[where]
    generator = torch.Generator().manual_seed(7)
    if tensor.is_floating_point():
        made[where] = part + torch.randn(part.shape, generator=generator).to(part)
    elif tensor.dtype != torch.bool:
        known = torch.tensor(sorted({*tensor.flatten().tolist()}))
        place = torch.searchsorted(known, part)
        made[where] = known[(place + 1) % len(known)]
    return made


def _batch_leak(demo: _Demo) -> tuple[str, str] | None:
    """Whether one sequence changes the output of another, if the batch axis is known to be first.

    It is if the tokens are pooled: an input (a, b, d) gives an output (a, ...) without b.
    """
    out, size = demo.output, len(demo.output)
    pooled = any(
        t.ndim == 3 and len(t) == size != t.shape[1] and t.shape[1] not in out.shape
        for t in demo.given.values()
    )
    together = all(t.ndim and len(t) == size for t in demo.given.values())
    if not pooled or not together or size < 2 or size in out.shape[1:]:
        return None
    others = torch.arange(size) > 0
    changed = demo.again({name: _other(t, others) for name, t in demo.given.items()})
    moved = 0.0 if changed is None else difference(changed[:1], out[:1])
    if moved < _APART:
        return None
    return "attends-across-batch", (
        f"in a batch of {size}, changing all other items changed the output of item 0 by "
        f"{percent(moved)}."
    )


def _earlier_call(demo: _Demo) -> tuple[str, str] | None:
    """Whether the inputs of one call affect the next."""
    same = demo.after(demo.given)
    if same is None or difference(same, demo.output) > _SAME:
        return None  # it continues from earlier calls, as with a cache
    for name, marks in demo.marks().items():
        others = marks.clone()
        others[:, : marks.shape[1] // 2] = 1 - others[:, : marks.shape[1] // 2].to(torch.uint8)
        later = demo.after({**demo.given, name: others.to(marks.dtype)})
        gap = 0.0 if later is None else difference(later, demo.output)
        if gap > _APART:
            return "depends-on-earlier-call", (
                f"after a call with another {name}, the same input gives an output that differs "
                f"by {percent(gap)} from that of a new object."
            )
    return None


def _padding(demo: _Demo) -> tuple[str, str] | None:
    """Whether padding changes the outputs of real tokens, whichever value marks it.

    Skipped if other layers mix neighbouring tokens, since they may be the cause.
    """
    if _NEIGHBOURS.search(demo.kinds):
        return None
    for name, marks in demo.marks().items():
        if (
            marks.shape != demo.output.shape[:2]
            or demo.output.ndim < 3
            or bool((marks == marks[0, 0]).all())
        ):
            continue
        moved = []
        rows = marks[(marks == marks[:, :1]).all(1), 0].tolist()  # no sequence is only padding
        real = {int(value) for value in rows}
        for padding in (marks == value for value in (0, 1) if real != {value}):
            other = demo.again(demo.changed(padding))
            if other is None:
                return None
            moved.append(difference(other[~padding], demo.output[~padding]))
        if min(moved) > _APART:
            return "padding-not-hidden", (
                f"changing the tokens that {name} marks as padding changed the outputs of real "
                f"tokens by {percent(min(moved))}."
            )
    return None


def _cache(demo: _Demo) -> tuple[str, str] | None:
    """Whether decoding piece by piece gives the same output as the full sequence."""
    found = demo.ask("pieces")
    pieces, outs = found[: len(found) // 2], found[len(found) // 2 :]
    ids = all(one.ndim == 2 and not one.is_floating_point() for one in pieces)
    if not ids or len(pieces) < 2 or any(one.shape[1] != 1 for one in pieces[1:]):
        return None
    if pieces[0].shape[1] < 2 or any(len(one) != len(pieces[0]) for one in pieces):
        return None
    whole = demo.ask("alone", torch.cat(pieces, 1))
    if len(whole) != 1 or whole[0].ndim != 3 or outs[-1].ndim != 3:
        return None
    last = outs[-1][:, -1].to(torch.float64)
    gap = difference(last, whole[0][:, -1].to(torch.float64))
    if gap < 0.02:  # values in a cache may be rounded
        return None
    return "cache-differs", (
        f"the last output of {len(pieces)} calls with a cache differs by {percent(gap)} from that "
        "of one call on the whole sequence."
    )
