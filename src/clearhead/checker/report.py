"""The checker's report on one class: for the terminal, a notebook, or a program.

The verdict comes first, then each finding with its evidence, its line and its fix. A report is
data; text is rendered last and never parsed again. A submission's names, messages and printed text
are shown literally.

>>> finding = Finding("missing-scale", "wrong", "Not divided.", "Too large.", "Divide.", None)
>>> report = Report("mine.py", "Attention", "wrong", (finding,))
>>> print(str(report).splitlines()[0])
Wrong: mine.py:Attention
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len
from rich.console import Group
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from clearhead import drawing
from clearhead.checker.source.notebooks import Source, find_cell

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

SEVERITIES = ("wrong", "compat", "edge")
VERDICTS = ("correct", "wrong", "error", "unsure")

_COLOURS = {"correct": "green", "wrong": "red", "error": "red", "unsure": "yellow"}
_BUT = {
    "compat": "weights from elsewhere give a different result",
    "edge": "it fails in some situations",
}
MEANS = {
    "wrong": "wrong",
    "compat": "compat: only loaded weights break",
    "edge": "edge: only in some situations",
}
NO_MISTAKES = ("cannot-run", "unsure")  # findings that give the reason for a verdict
_LONGEST = 4000  # characters per text: a submission's message may be endless
_MOST_STEPS = 400
_NARROWEST = 20  # columns for code next to shapes
_CAUSAL = {"yes": "causal", "no": "not causal", "part": "sees a part of the past"}


@dataclass(frozen=True)
class Form:
    """What kind of attention a class computes, and the sizes that it was checked with.

    Args:
        heads: The number of query heads; None if unknown.
        head_dim: The size of one head.
        kv_heads: The number of key and value heads, if it differs from `heads`.
        causal: "yes", "no", "window" (causal, and at most `window` tokens back), "part" (sees some
            of the past and none of the future), or "" if unknown.
        window: How many tokens a query sees, including itself.
        takes_mask: Whether `forward` takes a mask.
        out_proj: Whether there is an output projection.
        positions: How positions are encoded, such as "rotary positions"; "" if they are not.
        axes: The order of the input's axes, if it is not (batch, tokens, d).
        extra: Other facts, each a short phrase.

    Examples:
        >>> str(Form(heads=3, head_dim=5, causal="yes"))
        '3 heads of size 5, causal'
        >>> Form(causal="window").hides_future, Form().hides_future
        (True, None)
    """

    heads: int | None = None
    head_dim: int | None = None
    kv_heads: int | None = None
    causal: str = ""
    window: int | None = None
    takes_mask: bool = False
    out_proj: bool = True
    positions: str = ""
    axes: str = ""
    extra: tuple[str, ...] = ()

    @property
    def hides_future(self) -> bool | None:
        """Whether no token sees a later one; None if unknown."""
        return None if not self.causal else self.causal != "no"

    @property
    def multi_head(self) -> bool | None:
        """Whether there are several heads; None if unknown."""
        return None if self.heads is None else self.heads > 1

    def __str__(self) -> str:
        return ", ".join(self._phrases())

    def _phrases(self) -> Iterable[str]:
        if self.heads is not None:
            size = "" if self.head_dim is None else f" of size {self.head_dim}"
            yield f"{self.heads} head{'' if self.heads == 1 else 's'}{size}"
        if self.kv_heads is not None and self.kv_heads != self.heads:
            yield f"{self.kv_heads} key and value head{'' if self.kv_heads == 1 else 's'}"
        if self.causal == "window":
            yield "causal" if self.window is None else f"causal with a window of {self.window}"
        elif self.causal:
            yield _CAUSAL.get(self.causal, self.causal)
        if self.takes_mask:
            yield "takes a mask"
        if not self.out_proj:
            yield "no output projection"
        yield from (phrase for phrase in (self.positions, self.axes, *self.extra) if phrase)

    def to_json(self) -> dict[str, object]:
        """The form as plain data."""
        return {**asdict(self), "extra": list(self.extra)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Form:
        """Restore a form from `to_json`."""
        return cls(**{**data, "extra": tuple(data["extra"])})


@dataclass(frozen=True)
class Step:
    """One operation of a submission's forward pass.

    Args:
        line: The line in the file (in a notebook: in the cell), counted from 1, if known.
        code: The line itself.
        operation: What was called, such as "matmul".
        shape: The axes of the result, each with its name and its size.
        remark: A remark on this step; "" if there is none.
        cell: The cell of a notebook; "" in other files.

    Examples:
        >>> Step(7, "q @ k.mT", "matmul", (("batch", 3), ("queries", 7), ("keys", 7))).shape_text
        '(batch=3, queries=7, keys=7)'
    """

    line: int | None
    code: str
    operation: str
    shape: tuple[tuple[str, int], ...] = ()
    remark: str = ""
    cell: str = ""

    @property
    def shape_text(self) -> str:
        """The shape with axis names, "(batch=3, tokens=7)"; an unnamed axis is only its size."""
        return (
            f"({', '.join(f'{name}={size}' if name else str(size) for name, size in self.shape)})"
        )

    @property
    def place(self) -> str:
        """Where it is: "25", "In[4]:7" in a notebook, or "" if unknown."""
        number = "" if self.line is None else str(self.line)
        return f"{self.cell}:{number}" if self.cell else number

    def to_json(self) -> dict[str, object]:
        """The step as plain data."""
        shape = [list(axis) for axis in self.shape]
        return {**asdict(self), "cell": self.cell or None, "shape": shape}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        """Restore a step from `to_json`."""
        shape = tuple((str(name), int(size)) for name, size in data["shape"])
        return cls(**{**data, "shape": shape, "cell": data["cell"] or ""})


@dataclass(frozen=True)
class Finding:
    """One problem that was found.

    Args:
        id: The mistake's id in the catalogue, or another name if it is not listed there.
        severity: "wrong", "compat" (only loaded weights break) or "edge" (in some situations).
        says: What happens, in one sentence.
        evidence: How the checker knows, in numbers.
        fix: What to write instead.
        line: The line in the file (in a notebook: in the cell), counted from 1, if known.
        cell: The cell of a notebook: "In[4]" or "code cell 2"; "" in other files.
        code: The line itself, if the file's text is known.
        symptom: What is visible from outside, without the cause; `hint` shows it.
    """

    id: str
    severity: str
    says: str
    evidence: str
    fix: str
    line: int | None
    cell: str = ""
    code: str = ""
    symptom: str = ""

    @property
    def place(self) -> str:
        """Where it is: "line 25", "In[4], line 7", or "" if unknown."""
        if self.line is None:
            return ""
        return f"{self.cell}, line {self.line}" if self.cell else f"line {self.line}"

    @property
    def hint(self) -> str:
        """What is visible from outside, for a student who is to find the cause alone."""
        return self.symptom or self.evidence or self.says

    @property
    def page(self) -> str:
        """Where the documentation describes it."""
        return f"docs/mistakes.md#{self.id}"

    def to_json(self) -> dict[str, object]:
        """The finding as plain data."""
        known = {**asdict(self), "cell": self.cell or None, "code": self.code or None}
        return {**known, "page": self.page}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """Restore a finding from `to_json`."""
        known = {field.name: data[field.name] for field in fields(cls)}
        return cls(**{**known, "cell": data["cell"] or "", "code": data["code"] or ""})


class Fact(NamedTuple):
    """A labelled line of a finding.

    Attributes:
        label: "Evidence", "Line", "Cell" or "Fix".
        text: The text after the label.
        code: The line of the submission, if this is about one.
    """

    label: str
    text: str
    code: str = ""


class Found(NamedTuple):
    """A finding as it is shown.

    Attributes:
        title: Its id, or "Hint 1".
        kind: Its severity in words; "" if the verdict says it all.
        says: What happens, in one sentence.
        facts: The labelled lines below.
        id: The section of docs/mistakes.md; "" in a hint.
    """

    title: str
    kind: str
    says: str
    facts: tuple[Fact, ...]
    id: str = ""


class Pass(NamedTuple):
    """The forward pass as it is shown.

    Attributes:
        groups: The steps of each line of code.
        left_out: How many further steps are not shown.
        remarks: Whether to show what is wrong with a step.
    """

    groups: tuple[tuple[Step, ...], ...]
    left_out: int
    remarks: bool


@dataclass(frozen=True, repr=False)
class Report:
    """What was found in one class.

    Args:
        file: The file's name.
        cls: The class's name; "" if the file could not be read that far.
        verdict: "correct", "wrong", "error" (could not be run) or "unsure" (ran, but the checker
            cannot tell).
        findings: The problems found, most important first.
        form: What kind of attention it is, and the sizes that it was checked with.
        notes: What else the reader must know, one sentence each.
        tested: What was tested, in one line.
        how: How the class was built and called, in one line.
        steps: The forward pass as it ran, if it was recorded.
        is_attention: False if nothing in the class says that it is attention.
        seed: The random seed for the sizes, the weights and the inputs.
    """

    file: str
    cls: str
    verdict: str
    findings: tuple[Finding, ...] = ()
    form: Form = Form()
    notes: tuple[str, ...] = ()
    tested: str = ""
    how: str = ""
    steps: tuple[Step, ...] = ()
    is_attention: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict: expected one of {VERDICTS}, got {self.verdict!r}.")

    @property
    def headline(self) -> str:
        """The verdict in words: "correct, but it fails in some situations"."""
        if self.verdict == "error" and any(finding.id == "unsure" for finding in self.findings):
            return "unsure"
        return in_words(self.verdict, (finding.severity for finding in self.findings))

    @property
    def title(self) -> str:
        """The headline with a capital letter."""
        return self.headline[0].upper() + self.headline[1:]

    @property
    def judged(self) -> str:
        """The verdict as the headline states it."""
        return "unsure" if self.headline == "unsure" else self.verdict

    @property
    def status(self) -> int:
        """The exit status of a command: 0 correct, 1 wrong, 2 could not be run or judged."""
        return {"correct": 0, "wrong": 1}.get(self.verdict, 2)

    def to_json(self) -> dict[str, object]:
        """The report as plain data, in which an unsure report has the verdict "error"."""
        findings = [finding.to_json() for finding in self.findings]
        if self.verdict == "unsure" and not any(found["id"] == "unsure" for found in findings):
            says = "The checker does not know whether this is right."
            findings.append(Finding("unsure", "edge", says, "", "", None).to_json())
        return {
            "schema": 1,
            "file": self.file,
            "class": self.cls,
            "verdict": "error" if self.verdict == "unsure" else self.verdict,
            "findings": findings,
            "form": str(self.form),
            "form_fields": self.form.to_json(),
            "notes": list(self.notes),
            "tested": self.tested,
            "how": self.how,
            "steps": [step.to_json() for step in self.steps],
            "is_attention": self.is_attention,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        """Restore a report from `to_json`."""
        findings = tuple(Finding.from_json(finding) for finding in data["findings"])
        verdict = data["verdict"]
        if verdict == "error" and any(finding.id == "unsure" for finding in findings):
            verdict = "unsure"
        return cls(
            data["file"],
            data["class"],
            verdict,
            findings,
            Form.from_json(data["form_fields"]),
            tuple(data["notes"]),
            data["tested"],
            data["how"],
            tuple(Step.from_json(step) for step in data["steps"]),
            data["is_attention"],
            data.get("seed", 0),
        )

    def placed(self, source: Source) -> Report:
        """The same report with its lines quoted from the file, or from a notebook's cells."""
        texts = source.text.split("\n")  # as Python counts lines

        def located(line: int | None) -> tuple[int | None, str, str]:
            if line is None or not 1 <= line <= len(texts):
                return line, "", ""
            code = drawing.shorten(texts[line - 1].expandtabs(4).strip(), 160)
            cell, line = find_cell(source.cells, line) or ("", line)
            return line, cell, code

        found = []
        for finding in self.findings:
            line, cell, code = located(finding.line)
            evidence = _in_cells(finding.evidence, source)
            found.append(replace(finding, evidence=evidence, line=line, cell=cell, code=code))
        steps = []
        for step in self.steps:
            line, cell, code = located(step.line)
            steps.append(replace(step, line=line, cell=cell, code=code or step.code))
        notes = tuple(_in_cells(note, source) for note in self.notes)
        return replace(self, findings=tuple(found), steps=tuple(steps), notes=notes)

    @property
    def about(self) -> tuple[str, ...]:
        """What was checked and how, one line each: form, call, tests."""
        form = str(self.form)
        checked = f"checked{':' if self.form.heads is None else ' with'} {form}" if form else ""
        seed = f"--seed {self.seed} repeats this check" if self.seed else ""
        return tuple(
            line[0].upper() + line[1:] for line in (checked, self.how, self.tested, seed) if line
        )

    def blocks(self, *, hint: bool = False, steps: bool = True) -> Iterator[Found | str | Pass]:
        """What is shown below the headline, in order; a string is a note.

        Args:
            hint: Show symptoms and locations, without causes and fixes.
            steps: Show the forward pass, if it was recorded.
        """
        for number, each in enumerate(self.findings, start=1):
            label = "Cell" if each.cell else "Line"
            place = each.place if each.cell else "" if each.line is None else str(each.line)
            where = Fact(label, place, each.code if place else "")
            if hint:
                facts, title, kind, says, id = [where], f"Hint {number}", "", each.hint, ""
            else:
                facts = [Fact("Evidence", each.evidence), where, Fact("Fix", each.fix)]
                title, kind, says, id = each.id, self.kind_of(each), each.says, each.id
            yield Found(title, kind, says, tuple(fact for fact in facts if fact.text), id)
        yield from self.notes
        if steps and self.steps:
            shown = self.steps[:_MOST_STEPS]
            lines = groupby(shown, key=lambda step: (step.cell, step.line, step.code))
            groups = tuple(tuple(group) for _, group in lines)
            yield Pass(groups, len(self.steps) - len(shown), remarks=not hint)

    def draw(self, *, hint: bool = False, steps: bool = False) -> RenderableType:
        """The report for a terminal; see `blocks`."""
        name = drawing.shorten(f"{self.file}:{self.cls}" if self.cls else self.file, 300)
        title = Text.assemble((self.title, f"bold {_COLOURS[self.judged]}"), f": {name}")
        parts: list[RenderableType] = [title]
        parts += [drawing.Indent(Text(limited(line), style="dim"), 2) for line in self.about]
        before: object = None
        for block in self.blocks(hint=hint, steps=steps):
            if not (isinstance(block, str) and isinstance(before, str)):
                parts.append(Text())
            before = block
            if isinstance(block, Found):
                parts += _found(block)
            elif isinstance(block, str):
                parts.append(drawing.Indent(_Labelled("Note", block), 2))
            else:
                parts.append(drawing.Indent(_StepTable(block), 2))
        if steps and not self.steps:
            unknown = Text("The forward pass was not recorded.", style="dim")
            parts += [Text(), drawing.Indent(unknown, 2)]
        return Group(*parts)

    def kind_of(self, finding: Finding) -> str:
        """The severity of one of its findings in words; "" if the verdict says it all."""
        if finding.id == "unsure":
            return ""
        if self.verdict == "error":
            return "not judged"
        return MEANS.get(finding.severity, finding.severity)

    def __rich__(self) -> RenderableType:
        """The report for `rich.print` and for a console."""
        return self.draw()

    def __str__(self) -> str:
        return drawing.plain(self.draw())

    def __repr__(self) -> str:
        ids = ", ".join(finding.id for finding in self.findings) or "no findings"
        return f"Report({self.cls or self.file}: {self.headline}; {ids}): print it"

    def _repr_html_(self) -> str:
        return drawing.html(self.draw(steps=bool(self.steps)))


def in_words(verdict: str, severities: Iterable[str]) -> str:
    """A verdict in words, qualified by the severities of what was found.

    Examples:
        >>> in_words("correct", ["edge", "edge"])
        'correct, but it fails in some situations'
    """
    if verdict == "error":
        return "could not be run"
    kinds = dict.fromkeys(severities)
    if verdict == "correct" and kinds:
        return "correct, but " + " and ".join(_BUT.get(kind, "see the findings") for kind in kinds)
    return verdict


def exit_status(reports: Iterable[Report]) -> int:
    """0 if all are correct, 1 if one is wrong, else 2: something could not be run or judged.

    If there are no reports at all, it is 2.
    """
    statuses = {report.status for report in reports}
    if not statuses:
        return 2
    return 1 if 1 in statuses else max(statuses)


def _found(block: Found) -> list[RenderableType]:
    """A finding for a terminal."""
    title = Text(drawing.shorten(block.title, 80), style="bold")
    if block.kind:
        title.append(f" ({drawing.shorten(block.kind, 80)})", style="not bold")
    lines: list[RenderableType] = [Text(limited(block.says))]
    for label, text, code in block.facts:
        lines.append(_Labelled(label, f"{text}: {code}" if code else text))
    if block.id:
        lines.append(_Labelled("More", f"clearhead mistakes {block.id}"))
    return [drawing.Indent(title, 2), *(drawing.Indent(line, 4) for line in lines)]


def _in_cells(text: str, source: Source) -> str:
    """A traceback or a note with its lines counted per notebook cell, as in Jupyter."""

    def named(found: re.Match[str]) -> str:
        place = find_cell(source.cells, int(found[1]))
        if place is None:
            return found[0]
        cell, line = place
        name = f"{'Cell ' if cell.startswith('In') else ''}{cell}, line {line}"
        return name[0].upper() + name[1:] if found[0].startswith("Line") else name

    text = re.sub(r'File "[^"\n]*\.ipynb", line (\d+)', named, text)
    return re.sub(r"(?:^L|(?<=^The import in )l)ine (\d+)(?= failed)", named, text)


def limited(text: str) -> str:
    """Text of any length and origin, shortened, with control characters made harmless."""
    text = text.expandtabs(4).strip("\n")
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ... ({len(text) - _LONGEST:,} characters more)"
    return drawing.harmless(text)


class _Labelled:
    """A dim label with text beside it, wrapped under itself."""

    def __init__(self, label: str, text: str) -> None:
        self._label, self._text = label, limited(text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, without trailing spaces."""
        indent = len("Evidence") + 2
        inner = options.update_width(max(1, options.max_width - indent))
        lines = console.render_lines(Text(self._text, overflow="fold"), inner, pad=False)
        for number, line in enumerate(lines):
            label = self._label if number == 0 else ""
            yield Segment(label.ljust(indent), Style(dim=True))
            yield from line
            yield Segment.line()


class _StepTable:
    """The forward pass: each line of code, and the shape of each result that it computes."""

    def __init__(self, steps: Pass) -> None:
        self._pass = steps

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Code on the left and shapes on the right, or stacked where that is too wide."""
        steps = [step for group in self._pass.groups for step in group]
        first = max(len("line"), *(cell_len(drawing.shorten(s.place, 16)) for s in steps)) + 2
        width = max(1, options.max_width - first)
        left = width - max(cell_len(drawing.shorten(s.shape_text, width)) for s in steps) - 2
        if left < _NARROWEST:
            left = 0  # every shape is on a line of its own
        title = f"{'line':<{first}}" + (f"{'code':<{left}}  shape" if left else "code and shape")
        yield Text(title, style="dim", no_wrap=True)
        for group in self._pass.groups:
            code = drawing.shorten(group[0].code, width)
            place = drawing.shorten(group[0].place, 16).ljust(first)
            alone = len(group) == 1 and cell_len(code) <= left
            if not alone:
                yield Text(place + code, no_wrap=True)
            for step in group:
                name = code if alone else f"  {drawing.shorten(step.operation, max(1, left - 2))}"
                line = Text(place if alone else " " * first, no_wrap=True)
                line.append(name + " " * max(0, left - cell_len(name)) + "  " if left else "  ")
                remark = step.remark if self._pass.remarks else ""
                line.append(drawing.shorten(step.shape_text, width), style="bold" if remark else "")
                yield line
                if remark:
                    text = Text(f"<- {limited(remark)}", style="bold red", overflow="fold")
                    yield drawing.Indent(text, first + 2)
        if self._pass.left_out:
            yield Text(f"... and {self._pass.left_out:,} more", style="dim")
