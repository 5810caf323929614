"""Measured claims as text: a table for the terminal, one claim in full, a page for the docs.

Everything here is made of what `catalogue.measure` gave, so that a page and its JSON agree. Imports
no torch.
"""

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

_TABLE_WIDTH = 130  # below it, a table's columns are too narrow to read
Found = dict[str, Any]


def words(claim: Found) -> str:
    """The verdict with its condition."""
    return f"{claim['verdict']} {claim['condition']}".rstrip()


def draw(found: Found) -> "RenderableType":
    """All claims: a table where there is room for it, else one below the other."""
    return _Claims(found["claims"])


class _Claims:
    """Name, claim, verdict and figure of each claim, as wide as the window."""

    def __init__(self, claims: Sequence[Found]) -> None:
        self._claims = claims

    def __rich_console__(
        self, console: "Console", options: "ConsoleOptions"
    ) -> "Iterator[RenderableType]":
        from rich.text import Text

        if options.max_width >= _TABLE_WIDTH:
            yield self._table()
        else:
            for claim in self._claims:
                yield Text(claim["name"], style="bold")
                for name, text in (
                    ("Claim", claim["says"]),
                    ("Verdict", words(claim)),
                    ("Figure", claim["figure"]),
                ):
                    yield Text(hanging(f"  {name:9}", text, options.max_width))
                yield Text()
        count = counted(self._claims)
        yield Text(
            f"{len(self._claims)} claims: {count['holds']} hold, {count['holds if']} hold if ..., "
            f"{count['does not hold']} do not hold. One of them in full: clearhead claims ID"
        )

    def _table(self) -> "RenderableType":
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
        table.add_column("id", no_wrap=True)  # to be copied
        for title, share in (("claim", 4), ("verdict", 3), ("figure", 6)):
            table.add_column(title, ratio=share, overflow="fold")
        for claim in self._claims:
            table.add_row(claim["name"], claim["says"], words(claim), claim["figure"])
        return table


def hanging(start: str, text: str, width: int) -> str:
    """A text after its start, wrapped under itself.

    >>> print(hanging("Claim  ", "Rows sum to one.", 17))
    Claim  Rows sum
           to one.
    """
    lines = textwrap.wrap(text, max(width - len(start), 8))
    return "\n".join((start if n == 0 else " " * len(start)) + line for n, line in enumerate(lines))


def counted(claims: Sequence[Found]) -> dict[str, int]:
    """How many claims have each verdict."""
    return {
        verdict: sum(claim["verdict"] == verdict for claim in claims)
        for verdict in ("holds", "holds if", "does not hold")
    }


def describe(claim: Found, width: int = 80) -> str:
    """One claim in full."""
    module = claim["file"].removesuffix(".py").replace("/", ".")
    rows = {
        "Verdict": words(claim),
        "Figure": claim["figure"],
        "Spread": claim["spread"],
        "Seeds": _seeds(claim),
        "Source": f"src/clearhead/{claim['file']}, {claim['function']}",
        "Again": f"clearhead claims {claim['name']}",
        "Python": f"from clearhead.{module} import {claim['function']}; {claim['function']}()",
    }
    lines = [claim["says"]]
    for name, text in rows.items():
        lines += textwrap.wrap(
            text, width, initial_indent=f"  {name:9}", subsequent_indent=" " * 11
        )
    for paragraph in claim["explanation"].split("\n\n"):
        lines += ["", *textwrap.wrap(paragraph, width, initial_indent="  ", subsequent_indent="  ")]
    return "\n".join(lines)


def markdown(found: Found, others: Sequence[Found] = ()) -> str:
    """The page docs/claims.md.

    Args:
        found: What was measured, all claims.
        others: The same from other machines, of which the claims about time are shown.
    """
    claims = found["claims"]
    count = counted(claims)
    lines = [
        "# Claims about attention, measured",
        "",
        *textwrap.wrap(
            f"Notes on attention say many things. Here are {len(claims)} of them, each put to a "
            f"small experiment: {count['holds']} hold, {count['holds if']} hold under a condition "
            f"that the notes leave out, {count['does not hold']} do not hold. Each experiment is "
            "one short function whose arguments are what it examines, and a test runs each on "
            "something for which it comes out the other way.",
            100,
        ),
        "",
        "```sh",
        "clearhead claims                      # all of them, in less than ten minutes",
        "clearhead claims --quick              # smaller sizes, less than a minute",
        f"clearhead claims {claims[0]['name']:20} # one of them in full",
        "```",
        "",
        *textwrap.wrap(_measured_on(found, others), 100),
        "",
        "| claim | verdict |",
        "|---|---|",
    ]
    lines += [
        f"| [{_cell(claim['says'])}](#{claim['name']}) | {_cell(words(claim))} |"
        for claim in claims
    ]
    for claim in claims:
        lines += ["", f"## {claim['name']}", "", f"**{claim['says']}**", ""]
        lines += [f"- Verdict: *{words(claim)}*", f"- Figure: {claim['figure']}"]
        lines += [f"- Spread: {claim['spread']}", f"- Seeds: {_seeds(claim)}"]
        for other in others if claim["timed"] else ():
            for same in other["claims"]:
                if same["name"] == claim["name"]:
                    lines.append(
                        f"- {_place(other)}: *{words(same)}*; {same['figure']}; {same['spread']}"
                    )
        lines += [
            f"- Again: `clearhead claims {claim['name']}`; "
            f"source: `src/clearhead/{claim['file']}`, `{claim['function']}`",
            "",
            claim["explanation"],
        ]
    return "\n".join(lines) + "\n"


def _measured_on(found: Found, others: Sequence[Found]) -> str:
    machine = found["machine"]
    threads = f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    text = (
        f"Measured {found['date'][:10]} on {machine['cores']} cores ({machine['cpu']}), {threads}, "
        f"load {machine['load_average']:.1f} at the start, PyTorch {found['versions']['torch']}"
    )
    for other in others:
        text += f"; times also on {_place(other)}, PyTorch {other['versions']['torch']}"
    return (
        f"{text}. Verdicts about time depend on the machine. What heads do was examined in the "
        "small model that comes with Clearhead, the best of three seeds; another may do otherwise."
    )


def _place(found: Found) -> str:
    """The machine on which it was measured, in a few words."""
    machine = found["machine"]
    return str(machine.get("gpu", machine["cpu"]))


def _seeds(claim: Found) -> str:
    return ", ".join(map(str, claim["seeds"])) or "none, nothing is random"


def _cell(text: str) -> str:
    """Text that may stand in a table."""
    return text.replace("|", "\\|")
