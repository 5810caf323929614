"""Results as text: a table for the terminal, one claim in full, and the page docs/claims.md.

Everything is made from what `catalogue.measure` returned, so a page and its JSON always agree.
Importing this file does not import torch.
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
    """All claims: a table if the terminal is wide enough, else one below the other."""
    return _Claims(found["claims"])


class _Claims:
    """Name, claim, verdict and figure of each claim, fitted to the terminal."""

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
            f"{count['does not hold']} do not hold. To see one in full: clearhead claims ID"
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
    """Text with a hanging indent after its start.

    Examples:
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
        "Run": f"clearhead claims {claim['name']}",
        "Python": f"from clearhead.{module} import {claim['function']}; {claim['function']}()",
    }
    lines = textwrap.wrap(claim["says"], width)
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
        others: Results from other machines, shown for the claims about time.
    """
    claims = found["claims"]
    count = counted(claims)
    lines = [
        "# Claims about attention, measured",
        "",
        *textwrap.wrap(
            f"`clearhead claims` tests {len(claims)} common claims about attention, each with a "
            f"small experiment: {count['holds']} hold, {count['holds if']} hold under a condition "
            f"that is usually left out, and {count['does not hold']} do not hold. Each experiment "
            "is one short function whose arguments are what it examines, and a test runs it on "
            "something that gives another verdict.",
            100,
        ),
        "",
        "```sh",
        "clearhead claims                      # all of them, in less than ten minutes",
        "clearhead claims --quick              # smaller sizes, in less than a minute",
        f"clearhead claims {claims[0]['name']:20} # one claim in full",
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
                        f"- {_machine(other)}: *{words(same)}*; {same['figure']}; {same['spread']}"
                    )
        lines += [
            f"- Run: `clearhead claims {claim['name']}`; "
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
        text += f"; times also on {_machine(other)}, PyTorch {other['versions']['torch']}"
    return (
        f"{text}. Verdicts about time depend on the machine. Claims about heads were tested on the "
        "models that come with Clearhead; other models may differ."
    )


def _machine(found: Found) -> str:
    """The name of the machine: its GPU, or its CPU."""
    machine = found["machine"]
    return str(machine.get("gpu", machine["cpu"]))


def _seeds(claim: Found) -> str:
    return ", ".join(map(str, claim["seeds"])) or "none; nothing is random"


def _cell(text: str) -> str:
    """Text escaped for a Markdown table."""
    return text.replace("|", "\\|")
